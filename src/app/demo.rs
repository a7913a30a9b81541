//! The demo: the daemon against the built-in simulator, with a scenario that shows what it does.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    io,
    time::Duration,
};

use guildhall_sim::{ControlError, FireSpec, JoinSpec, Sim, SimConfig, SimHandle};
use tokio::{
    sync::watch,
    time::{Instant, timeout_at},
};

use guildhall_actors::rest::{Outcome, Rest as _};
use guildhall_core::limit::shared::MemberView;
use twilight_model::{
    http::interaction::{InteractionResponse, InteractionResponseData, InteractionResponseType},
    id::Id,
};

use super::{Daemon, StartError, Unfinished};
use crate::{
    discord::ShardEvent,
    settings::{Settings, Token},
};

/// Shards of the demo.
const SHARDS: u32 = 2;
/// Guilds that wait in the simulator.
const GUILDS: u32 = 10;
/// Members who join.
const JOINS: u64 = 5;
/// The command that is used.
const COMMAND: &str = "hello";
/// How long each step may take, on a machine that is busy with other things.
const STEP_TIMEOUT: Duration = Duration::from_secs(30);

/// The demo cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum DemoError {
    /// The simulator cannot start.
    #[error("cannot start the simulator: {0}")]
    Sim(#[source] io::Error),
    /// The daemon cannot start.
    #[error(transparent)]
    Start(#[from] StartError),
    /// There is no key for the API.
    #[error(transparent)]
    AdminKey(#[from] crate::api::AdminKeyError),
    /// The simulator refused to do something.
    #[error("the simulator refused: {0}")]
    Control(#[from] ControlError),
}

/// What the shards have seen so far.
#[derive(Clone, Debug, Default)]
struct Seen {
    connected: BTreeSet<u32>,
    guilds: BTreeMap<u32, u32>,
    joins: u64,
    commands: u64,
    /// The newest command: its interaction's id and token.
    command: Option<(u64, String)>,
    dispatches: u64,
}

impl Seen {
    fn note(&mut self, event: &ShardEvent<'_>) {
        match *event {
            ShardEvent::Connected { shard, .. } => {
                self.connected.insert(shard);
            }
            ShardEvent::Disconnected { shard } => {
                self.connected.remove(&shard);
            }
            ShardEvent::Dispatch { shard, kind, frame, .. } => {
                self.dispatches += 1;
                match kind {
                    "GUILD_CREATE" => *self.guilds.entry(shard).or_default() += 1,
                    "GUILD_MEMBER_ADD" => self.joins += 1,
                    "INTERACTION_CREATE" => {
                        self.commands += 1;
                        self.command = interaction(frame);
                    }
                    _ => {}
                }
            }
        }
    }

    fn guilds(&self) -> u32 {
        self.guilds.values().sum()
    }
}

/// An interaction's id and token, from its frame.
fn interaction(frame: &str) -> Option<(u64, String)> {
    let frame: serde_json::Value = serde_json::from_str(frame).ok()?;
    let text = |name: &str| frame["d"][name].as_str();
    Some((text("id")?.parse().ok()?, text("token")?.to_owned()))
}

/// One line of the summary.
#[derive(Clone, Debug)]
struct Step {
    what: &'static str,
    expected: u64,
    seen: u64,
}

/// A running demo.
#[derive(Debug)]
pub struct Demo {
    sim: SimHandle,
    daemon: Daemon,
    seen: watch::Receiver<Seen>,
    steps: Vec<Step>,
}

impl Demo {
    /// Starts a simulator with guilds in it, and the daemon on it.
    ///
    /// # Errors
    ///
    /// When either cannot start.
    pub async fn start(settings: &Settings) -> Result<Self, DemoError> {
        let mut config = SimConfig { guilds: GUILDS, ..SimConfig::default() };
        config.gateway.shards = SHARDS;
        config.gateway.max_concurrency = SHARDS;
        let token = config.bots[0].token.clone();
        let sim = Sim::start(config).await.map_err(DemoError::Sim)?;
        println!("The simulated Discord is at http://{} (REST under /api/v10, gateway, GET /sim).", sim.address());

        let mut settings = settings.clone();
        settings.discord.token = Some(Token::new(token));
        settings.discord.api_url = sim.api_url();
        settings.discord.gateway_url = Some(sim.gateway_url());
        settings.gateway.shards = SHARDS;
        // No queue of our own: each shard has its identify bucket to itself in the simulator, which refuses what comes
        // too soon, while twilight's queue lets even those wait for a common round of five seconds.
        settings.gateway.max_concurrency = 0;
        settings.gateway.intents |= twilight_model::gateway::Intents::GUILD_MEMBERS;
        let (news, seen) = watch::channel(Seen::default());
        let daemon = Daemon::start(&settings, &super::admin_key::find(&settings)?, move |event| {
            news.send_modify(|seen| seen.note(&event));
        })
        .await?;
        println!("Guildhall is at http://{} (/livez, /readyz, /metrics).", daemon.api_address());
        Ok(Self { sim, daemon, seen, steps: Vec::new() })
    }

    /// Plays the scenario, a plain line for each thing that happens. True if all of it happened.
    ///
    /// # Errors
    ///
    /// When the simulator refuses its part.
    pub async fn play(&mut self) -> Result<bool, DemoError> {
        let seen = self.wait("shards connected", u64::from(SHARDS), |seen| seen.connected.len() as u64).await;
        println!(
            "{} shards are connected: each said IDENTIFY over a real WebSocket and was answered READY.",
            seen.connected.len()
        );

        let seen = self.wait("guilds arrived", u64::from(GUILDS), |seen| u64::from(seen.guilds())).await;
        let mut spread = String::new();
        for (shard, count) in &seen.guilds {
            let _ = write!(spread, "{}{count} on shard {shard}", if spread.is_empty() { "" } else { ", " });
        }
        println!("{} guilds arrived: {spread}.", seen.guilds());

        let guild = self.sim.guilds()[0];
        self.sim.join(guild, JoinSpec { count: JOINS, name: Some("newcomer".into()), ..JoinSpec::default() }).await?;
        let seen = self.wait("members joined", JOINS, |seen| seen.joins).await;
        println!("{} members joined guild {guild}, and shard {} told us.", seen.joins, guild.shard(SHARDS));

        let fired = self.sim.fire(FireSpec::command(guild, COMMAND)).await?;
        let seen = self.wait("commands received", 1, |seen| seen.commands).await;
        if let (true, Some(id)) = (seen.commands > 0, fired.id) {
            println!("Somebody used /{COMMAND}: interaction {id} arrived.");
        }
        if let Some((id, token)) = seen.command {
            self.answer(id, &token).await;
        }
        self.steps.push(Step {
            what: "answers, by the simulator",
            expected: 1,
            seen: self.sim.score().interactions.answered,
        });

        self.make_roles().await;

        // The judge is the simulator's own count of what it sent.
        let score = self.sim.score().gateway;
        self.steps.push(Step {
            what: "identifies, by the simulator",
            expected: u64::from(SHARDS),
            seen: score.identifies,
        });
        self.wait("events, of those it sent", score.events_total, |seen| seen.dispatches).await;
        Ok(self.steps.iter().all(|step| step.seen == step.expected))
    }

    /// Makes a role in every guild, each call under the limit that all of them share.
    async fn make_roles(&mut self) {
        let rest = self.daemon.rest();
        for guild in self.sim.guilds().into_iter().filter_map(|guild| Id::new_checked(guild.get())) {
            match rest.calls.create_role(guild, |role| role.name("greeter")) {
                Ok(call) => match rest.gate.call(call.waiting(STEP_TIMEOUT).request).await {
                    Outcome::Answered(_) => {}
                    Outcome::NotSent(why) => println!("A role was not made: {why}."),
                    Outcome::Unknown(why) => println!("Nobody knows whether a role was made: {why}."),
                },
                Err(error) => println!("A role cannot be made: {error}."),
            }
        }
        let view = rest.gate.observe().await;
        let shared = view.and_then(|view| view.limits.credentials.into_iter().find_map(|limit| limit.shared));
        match shared {
            Some(MemberView { members, mode, .. }) => println!(
                "A role was made in every guild, under the limit that is shared over Redis (members: {members}, this one \
                 is {}).",
                mode.name()
            ),
            None => println!("A role was made in every guild, under the limit of this process."),
        }
        let score = self.sim.score();
        let made = score.routes.iter().find(|(route, _)| route.starts_with("POST") && route.ends_with("/roles"));
        let seen = made.and_then(|(_, route)| route.statuses.get(&200)).copied().unwrap_or_default();
        self.steps.push(Step { what: "roles made, by the simulator", expected: u64::from(GUILDS), seen });
    }

    /// Answers a command through the gate, as every call to Discord goes.
    async fn answer(&self, id: u64, token: &str) {
        let Some(id) = Id::new_checked(id) else { return };
        let data = InteractionResponseData { content: Some("Hello from the guildhall.".into()), ..Default::default() };
        let response =
            InteractionResponse { kind: InteractionResponseType::ChannelMessageWithSource, data: Some(data) };
        let rest = self.daemon.rest();
        match rest.calls.interaction_callback(id, token, &response) {
            Ok(call) => match rest.gate.call(call.request).await {
                Outcome::Answered(answered) => {
                    println!("It was answered through the gate; Discord said {}.", answered.status.as_u16());
                }
                Outcome::NotSent(why) => println!("It was not answered: {why}."),
                Outcome::Unknown(why) => println!("Nobody knows whether it was answered: {why}."),
            },
            Err(error) => println!("It cannot be answered: {error}."),
        }
    }

    /// Waits until a count is reached or the step's time is up, and notes what came of it.
    async fn wait(&mut self, what: &'static str, expected: u64, count: impl Fn(&Seen) -> u64) -> Seen {
        let deadline = Instant::now() + STEP_TIMEOUT;
        // The sender lives as long as the daemon does, so the only error is the deadline; what was seen until then counts.
        let _ = timeout_at(deadline, self.seen.wait_for(|seen| count(seen) >= expected)).await;
        let seen = self.seen.borrow().clone();
        self.steps.push(Step { what, expected, seen: count(&seen) });
        seen
    }

    /// What happened, as a table.
    #[must_use]
    pub fn summary(&self) -> String {
        let mut table = format!("{:<32} {:>8} {:>8}\n", "", "expected", "seen");
        for Step { what, expected, seen } in &self.steps {
            let verdict = if seen == expected { "ok" } else { "MISSING" };
            let _ = writeln!(table, "{what:<32} {expected:>8} {seen:>8}  {verdict}");
        }
        table
    }

    /// What a person may try while the demo goes on.
    #[must_use]
    pub fn hints(&self) -> String {
        let (sim, api) = (self.sim.address(), self.daemon.api_address());
        let guild = self.sim.guilds()[0];
        format!(
            "It goes on until Ctrl-C. Try, in another terminal:\n\
             \n  curl -s http://{api}/readyz\n  curl -s http://{api}/metrics | grep guildhall_gateway\
             \n  curl -s http://{sim}/sim\
             \n  curl -s -X POST http://{sim}/sim/commands -d '{{\"guild_id\": \"{guild}\", \"name\": \"hello\"}}'\
             \n  curl -s -X POST http://{sim}/sim/gateway/faults -d '{{\"kind\": \"disconnect\"}}'\
             \n  curl -s http://{sim}/sim/score?brief=true\n"
        )
    }

    /// The daemon, to wait for its end.
    pub fn daemon(&mut self) -> &mut Daemon {
        &mut self.daemon
    }

    /// Ends the daemon in order, then the simulator.
    ///
    /// # Errors
    ///
    /// When the daemon does not end in time.
    pub async fn shutdown(self, timeout: Duration) -> Result<(), Unfinished> {
        self.daemon.shutdown(timeout).await?;
        self.sim.stop().await;
        Ok(())
    }
}
