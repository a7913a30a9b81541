//! The scenario, step by step, with one line of output for each event.

use std::{collections::BTreeMap, fmt::Write as _};

use guildhall_actors::telemetry::{shard, shared_limits};
use guildhall_sim::{FireSpec, JoinSpec, Score, Snowflake};
use serde::Deserialize;
use tokio::time::{Instant, sleep};

use super::{
    Demo, DemoError, GUILDS, POLL_INTERVAL, SHARDS, STEP_TIMEOUT, effect_check, faults,
    message_stream::MessageStream,
    operation::{self, DemoGuild, DemoOperation},
    step_table::Expected::{self, AtMost, Exactly},
};

/// Members who join each guild.
const JOINS: u64 = 2;
/// The command that the user runs.
const COMMAND: &str = "hello";
/// The daemon is killed when this many tenths of the burst's operations have taken effect.
const KILLED_AFTER_TENTHS: u64 = 4;
/// Maximum number of lost effects that are named; the others are counted.
const MAX_NAMED: usize = 10;
/// Discord's global limit.
const CALLS_PER_SECOND: u64 = 50;

/// Discord's number of the type of text channels.
const TEXT_CHANNEL: u8 = 0;

/// The simulator's state, as far as the demo uses it.
#[derive(Deserialize)]
struct SimState {
    guilds: Vec<SimGuild>,
}

#[derive(Deserialize)]
struct SimGuild {
    id: String,
    channels: Vec<SimChannel>,
}

#[derive(Deserialize)]
struct SimChannel {
    id: String,
    #[serde(rename = "type")]
    kind: u8,
}

impl Demo {
    /// Runs the scenario, with one line of output for each event. True if all results are as expected.
    ///
    /// # Errors
    ///
    /// When the simulator rejects a request, or the daemon exits or does not respond.
    pub async fn run(&mut self) -> Result<bool, DemoError> {
        self.connect().await?;
        let guilds = self.find_guilds().await?;
        let guilds = self.join_members(guilds).await?;
        self.run_command(&guilds).await?;
        self.count_events().await?;
        self.run_burst(&guilds).await?;
        self.check_results().await?;
        Ok(self.table.is_as_expected())
    }

    /// Shards connect, and guilds are received.
    async fn connect(&mut self) -> Result<(), DemoError> {
        let connected = async || self.api.metric(shard::GATEWAY_SHARD_CONNECTED.name, "").await.unwrap_or(0);
        let shards = self.wait_for_count(u64::from(SHARDS), connected).await?;
        self.table.add("shards connected", Exactly(u64::from(SHARDS)), shards);
        println!("{shards} shards are connected: each sent IDENTIFY over a real WebSocket and received READY.");

        let guilds =
            self.wait_for_count(u64::from(GUILDS), async || self.count_received_events("guild.create").await).await?;
        self.table.add("guilds received", Exactly(u64::from(GUILDS)), guilds);
        let mut spread = BTreeMap::new();
        for guild in self.sim.guilds() {
            *spread.entry(guild.shard(SHARDS)).or_insert(0) += 1;
        }
        let mut distribution = String::new();
        for (shard, count) in spread {
            let _ = write!(distribution, "{}{count} on shard {shard}", if distribution.is_empty() { "" } else { ", " });
        }
        println!("{guilds} guilds received: {distribution}.");
        // The limits of a process that has just started open a moment later than its shards.
        self.wait_for_count(1, async || u64::from(self.api.is_open().await)).await?;
        Ok(())
    }

    /// The guilds and their channels, from the simulator.
    async fn find_guilds(&self) -> Result<Vec<DemoGuild>, DemoError> {
        let state: SimState = self.sim_http.get("/sim/state").await?.read()?;
        let text_channels = |guild: SimGuild| {
            let text = guild.channels.into_iter().filter(|channel| channel.kind == TEXT_CHANNEL);
            (guild.id, text.map(|channel| channel.id).collect())
        };
        let channels: BTreeMap<String, Vec<String>> = state.guilds.into_iter().map(text_channels).collect();
        let demo_guild = |guild: Snowflake| DemoGuild {
            guild,
            channels: channels.get(&guild.to_string()).cloned().unwrap_or_default(),
            joined: Vec::new(),
        };
        Ok(self.sim.guilds().into_iter().map(demo_guild).collect())
    }

    /// Members join, and a rule gives them a role that is created for them.
    async fn join_members(&mut self, mut guilds: Vec<DemoGuild>) -> Result<Vec<DemoGuild>, DemoError> {
        for demo_guild in &mut guilds {
            let spec = JoinSpec { count: JOINS, name: Some("newcomer".into()), ..JoinSpec::default() };
            demo_guild.joined = self.sim.join(demo_guild.guild, spec).await?.ids;
        }
        let all = JOINS * u64::from(GUILDS);
        let joined = self.wait_for_count(all, async || self.count_received_events("member.join").await).await?;
        self.table.add("members joined", Exactly(all), joined);
        println!("{joined} members joined, {JOINS} in each guild; the shards received the events.");

        for demo_guild in &guilds {
            self.api.expect(demo_guild.guild, operation::welcome_operations(demo_guild));
        }
        let assigned = self.wait_for_count(all, async || count_created(&self.sim.score(), "member_role")).await?;
        self.table.add("roles assigned (simulator)", Exactly(all), assigned);
        println!(
            "A rule gives new members a role: each guild has a new role `{}`, and {assigned} members have it, {}.",
            operation::NEWCOMER_ROLE,
            self.describe_limit().await
        );
        Ok(guilds)
    }

    /// Describes the rate limit that the calls were under.
    async fn describe_limit(&self) -> String {
        match self.api.metric(shared_limits::MEMBERS.name, "").await {
            Some(members) => format!("within the rate limit shared over Redis (processes: {members})"),
            None => "within the rate limit of this process".to_owned(),
        }
    }

    /// A user runs a command; it is deferred immediately, and answered with the brain's response.
    async fn run_command(&mut self, guilds: &[DemoGuild]) -> Result<(), DemoError> {
        let guild = guilds[0].guild;
        self.sim.fire(FireSpec::command(guild, COMMAND)).await?;
        self.api.expect(guild, operation::command_operations());
        let received = self.wait_for_count(1, async || self.count_received_events("interaction").await).await?;
        self.table.add("commands received", Exactly(1), received);
        let deferred = self.wait_for_count(1, async || self.sim.score().interactions.answered).await?;
        self.table.add("commands deferred (simulator)", Exactly(1), deferred);
        let answered =
            self.wait_for_count(1, async || count_edited(&self.sim.score(), operation::COMMAND_RESPONSE)).await?;
        self.table.add("commands answered (simulator)", Exactly(1), answered);
        let elapsed_ms = self.sim.score().interactions.response_us.first().copied().unwrap_or(0) / 1_000;
        println!(
            "A user ran /{COMMAND}: deferred after {elapsed_ms} ms, sent to the brain by signed webhook, answered \"{}\".",
            operation::COMMAND_RESPONSE
        );
        Ok(())
    }

    /// Checks that every event that the simulator sent was received.
    async fn count_events(&mut self) -> Result<(), DemoError> {
        let sent = self.sim.score().gateway.events_total;
        let arrived = self.wait_for_count(sent, async || self.count_received_events("").await).await?;
        self.table.add("events received, of those sent", Exactly(sent), arrived);
        Ok(())
    }

    /// Submits a burst of operations in all guilds while calls fail and messages arrive, and kills the daemon during
    /// it.
    async fn run_burst(&mut self, guilds: &[DemoGuild]) -> Result<(), DemoError> {
        for fault in faults::faults() {
            self.sim.add_fault(fault)?;
        }
        let bursts: Vec<(Snowflake, Vec<DemoOperation>)> =
            guilds.iter().map(|demo_guild| (demo_guild.guild, operation::burst_operations(demo_guild))).collect();
        let all = bursts.iter().map(|(_, operations)| operations.len() as u64).sum::<u64>();
        let before = count_effects(&self.sim.score());
        let stream = MessageStream::start(self.sim.address());
        for (guild, operations) in &bursts {
            self.api.submit_all(*guild, operations).await?;
        }
        println!(
            "Burst: {all} operations in {} guilds while calls are slow or fail, connections break and messages arrive.",
            bursts.len()
        );

        let enough = all * KILLED_AFTER_TENTHS / 10;
        self.wait_for_count(enough, async || count_effects(&self.sim.score()) - before).await?;
        let killed = self.daemon.id();
        self.daemon.kill().map_err(DemoError::Process)?;
        let done = count_effects(&self.sim.score()) - before;
        self.table.add("kill -9 during the burst", Exactly(1), u64::from((1..all).contains(&done)));
        println!("kill -9 {killed}: the daemon is killed after {done} of {all} operations took effect.");
        // The round that is in flight, and then one that is sent completely while no daemon is running.
        stream.round().await;
        let earlier = stream.sent();
        stream.round().await;
        let sent_while_down = stream.sent() - earlier;
        self.daemon.restart().map_err(DemoError::Process)?;
        self.wait_for_count(1, async || u64::from(self.api.is_open().await)).await?;
        println!(
            "Restarted as process {}. It checks the outcome of the calls that were in flight, then continues.",
            self.daemon.id()
        );

        let mut deduplicated = 0;
        for (guild, operations) in &bursts {
            deduplicated += self.api.resubmit(*guild, operations).await?;
        }
        self.table.add("resubmitted and deduplicated", Exactly(all), deduplicated);
        println!(
            "All {all} are resubmitted with the same idempotency keys: {deduplicated} deduplicated, {} new.",
            all - deduplicated.min(all)
        );
        self.wait_until_finished().await?;
        self.sim.remove_faults(None);
        self.count_messages(stream, sent_while_down).await
    }

    /// Checks that the brain received every message, including those sent while no daemon was running.
    async fn count_messages(&mut self, stream: MessageStream, sent_while_down: u64) -> Result<(), DemoError> {
        let sent = stream.end().await?;
        let received = self.wait_for_count(sent, async || self.brain.received().0).await?;
        let (_, repeated) = self.brain.received();
        println!(
            "{sent} messages were sent during the burst, at least {sent_while_down} of them while the daemon was down. \
             The brain received {received}: {} lost. {repeated} were delivered twice, with the same id.",
            sent - received.min(sent)
        );
        self.table.add("some messages sent while down", Exactly(1), u64::from(sent_while_down > 0));
        self.table.add("messages received by the brain", Exactly(sent), received);
        Ok(())
    }

    /// Compares all results with the simulator's records.
    async fn check_results(&mut self) -> Result<(), DemoError> {
        // The shards are connected again, too.
        let connected = async || self.api.metric(shard::GATEWAY_SHARD_CONNECTED.name, "").await.unwrap_or(0);
        self.wait_for_count(u64::from(SHARDS), connected).await?;
        let counts = self.api.count_operations().await?;
        let score = self.sim.score();
        let report = effect_check::check_effects(self.api.expected(), &score);
        let expected: u64 = self.api.expected().values().map(|operations| operations.len() as u64).sum();
        let submitted =
            self.api.expected().values().flatten().filter(|operation| !operation.key.is_empty()).count() as u64;
        // Two operations for each member who joins (ensure the role, assign it), and one response.
        let from_handlers = 2 * JOINS * u64::from(GUILDS) + 1;
        let failed: u64 = count_statuses(&score, 500..600);
        println!(
            "Finished after {:.1} s. The simulator failed {failed} calls and cut {} connections.",
            self.started.elapsed().as_secs_f64(),
            score.dropped
        );
        for lost in report.lost.iter().take(MAX_NAMED) {
            println!("Lost: {lost}.");
        }
        if report.lost.len() > MAX_NAMED {
            println!("And {} more.", report.lost.len() - MAX_NAMED);
        }
        let max_per_second = score.max_per_second.values().copied().max().unwrap_or(0);
        let limited = score.rate_limited;
        let rows: [(&'static str, Expected, u64); 12] = [
            ("operations accepted", Exactly(submitted), self.api.accepted_body()),
            ("  succeeded", Exactly(submitted), counts.succeeded),
            ("  failed or needs review", Exactly(0), counts.failed),
            ("  missing or pending", Exactly(0), counts.missing + counts.pending),
            ("operations from handlers", Exactly(from_handlers), counts.from_handlers),
            ("effects (simulator)", Exactly(expected), report.found),
            ("  lost", Exactly(0), report.lost.len() as u64),
            ("  duplicates", Exactly(0), report.duplicates),
            ("  out of order in their guild", Exactly(0), report.out_of_order + score.overlaps),
            ("429 responses", Exactly(0), limited.user + limited.shared + limited.global),
            ("most calls in any second", AtMost(CALLS_PER_SECOND), u64::from(max_per_second)),
            // The restarted daemon has resumed the sessions of the killed one.
            ("identifies (simulator)", Exactly(u64::from(SHARDS)), score.gateway.identifies),
        ];
        for (name, expected, actual) in rows {
            self.table.add(name, expected, actual);
        }
        Ok(())
    }

    /// Waits until all accepted operations are finished.
    async fn wait_until_finished(&self) -> Result<(), DemoError> {
        let finished = async || match self.api.count_operations().await {
            Ok(counts) if counts.from_handlers_not_succeeded == 0 => counts.finished(),
            Ok(_) | Err(_) => 0,
        };
        self.wait_for_count(self.api.accepted_body(), finished).await?;
        Ok(())
    }

    /// Number of received events of this type; of all types, if `kind` is empty.
    async fn count_received_events(&self, kind: &str) -> u64 {
        let label = if kind.is_empty() { String::new() } else { format!("\"{kind}\"") };
        self.api.metric(shard::GATEWAY_EVENTS.name, &label).await.unwrap_or(0)
    }

    /// Waits until a count is reached or the step's time is up. Returns the last count.
    async fn wait_for_count(&self, target: u64, count: impl AsyncFn() -> u64) -> Result<u64, DemoError> {
        let deadline = Instant::now() + STEP_TIMEOUT;
        loop {
            let current = count().await;
            if current >= target || Instant::now() >= deadline {
                return Ok(current);
            }
            if let Some(status) = self.daemon.try_exit_status() {
                return Err(DemoError::Ended(status));
            }
            sleep(POLL_INTERVAL).await;
        }
    }
}

/// Number of effects of calls, over all guilds.
fn count_effects(score: &Score) -> u64 {
    score.effects.values().map(|effects| effects.len() as u64).sum()
}

/// Number of objects of this kind that calls have created.
fn count_created(score: &Score, kind: &str) -> u64 {
    let effects = score.effects.values().flatten();
    effects.filter(|effect| effect.verb == "create" && effect.kind == kind).count() as u64
}

/// Number of first responses with this final content.
fn count_edited(score: &Score, content: &str) -> u64 {
    let effects = score.effects.values().flatten();
    effects.filter(|effect| effect.verb == "update" && effect.kind == "message" && effect.name == content).count()
        as u64
}

/// Number of responses with a status in this range.
fn count_statuses(score: &Score, range: std::ops::Range<u16>) -> u64 {
    let all = score.routes.values().flat_map(|route| &route.statuses);
    all.filter(|(status, _)| range.contains(status)).map(|(_, count)| count).sum()
}
