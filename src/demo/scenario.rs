//! The scenario, step by step, with one line of output for each event.

use std::{collections::BTreeMap, fmt::Write as _};

use guildhall_actors::telemetry::{shard, shared_limits};
use guildhall_sim::{FireSpec, JoinSpec, Score, Snowflake};
use tokio::time::{Instant, sleep};

use super::{
    Demo, DemoError, GUILDS, LOOK, SHARDS, STEP_TIMEOUT, effect_check, faults,
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
const NAMED: usize = 10;
/// Discord's global limit.
const CALLS_PER_SECOND: u64 = 50;

impl Demo {
    /// Runs the scenario, with one line of output for each event. True if all results are as expected.
    ///
    /// # Errors
    ///
    /// When the simulator rejects a request, or the daemon exits or does not respond.
    pub async fn play(&mut self) -> Result<bool, DemoError> {
        self.connect().await?;
        let places = self.look_around().await?;
        let places = self.welcome(places).await?;
        self.answer(&places).await?;
        self.count_events().await?;
        self.burst(&places).await?;
        self.judge().await?;
        Ok(self.table.holds())
    }

    /// Shards connect, and guilds are received.
    async fn connect(&mut self) -> Result<(), DemoError> {
        let connected = async || self.desk.metric(shard::GATEWAY_SHARD_CONNECTED, "").await.unwrap_or(0);
        let shards = self.until(u64::from(SHARDS), connected).await?;
        self.table.note("shards connected", Exactly(u64::from(SHARDS)), shards);
        println!("{shards} shards are connected: each sent IDENTIFY over a real WebSocket and received READY.");

        let guilds = self.until(u64::from(GUILDS), async || self.events("guild.create").await).await?;
        self.table.note("guilds received", Exactly(u64::from(GUILDS)), guilds);
        let mut spread = BTreeMap::new();
        for guild in self.sim.guilds() {
            *spread.entry(guild.shard(SHARDS)).or_insert(0) += 1;
        }
        let mut told = String::new();
        for (shard, count) in spread {
            let _ = write!(told, "{}{count} on shard {shard}", if told.is_empty() { "" } else { ", " });
        }
        println!("{guilds} guilds received: {told}.");
        // The limits of a process that has just started open a moment later than its shards.
        self.until(1, async || u64::from(self.desk.is_open().await)).await?;
        Ok(())
    }

    /// The guilds and their channels, from the simulator.
    async fn look_around(&self) -> Result<Vec<DemoGuild>, DemoError> {
        let state = self.world.get("/sim/state").await?.json();
        let guilds = state["guilds"].as_array().cloned().unwrap_or_default();
        let channels: BTreeMap<String, Vec<String>> = guilds
            .iter()
            .map(|guild| {
                let channels =
                    guild["channels"].as_array().into_iter().flatten().filter(|channel| channel["type"] == 0);
                let ids = channels.filter_map(|channel| channel["id"].as_str().map(str::to_owned));
                (guild["id"].as_str().unwrap_or_default().to_owned(), ids.collect())
            })
            .collect();
        let place = |guild: Snowflake| DemoGuild {
            guild,
            channels: channels.get(&guild.to_string()).cloned().unwrap_or_default(),
            joined: Vec::new(),
        };
        Ok(self.sim.guilds().into_iter().map(place).collect())
    }

    /// Members join, and a rule gives them a role that is created for them.
    async fn welcome(&mut self, mut places: Vec<DemoGuild>) -> Result<Vec<DemoGuild>, DemoError> {
        for place in &mut places {
            let spec = JoinSpec { count: JOINS, name: Some("newcomer".into()), ..JoinSpec::default() };
            place.joined = self.sim.join(place.guild, spec).await?.ids;
        }
        let all = JOINS * u64::from(GUILDS);
        let joined = self.until(all, async || self.events("member.join").await).await?;
        self.table.note("members joined", Exactly(all), joined);
        println!("{joined} members joined, {JOINS} in each guild; the shards received the events.");

        for place in &places {
            self.desk.expect(place.guild, operation::welcome(place));
        }
        let given = self.until(all, async || created(&self.sim.score(), "member_role")).await?;
        self.table.note("roles assigned (simulator)", Exactly(all), given);
        println!(
            "A rule gives new members a role: each guild has a new role `{}`, and {given} members have it, {}.",
            operation::GREETER,
            self.limit().await
        );
        Ok(places)
    }

    /// Describes the rate limit that the calls were under.
    async fn limit(&self) -> String {
        match self.desk.metric(shared_limits::MEMBERS, "").await {
            Some(members) => format!("within the rate limit shared over Redis (processes: {members})"),
            None => "within the rate limit of this process".to_owned(),
        }
    }

    /// A user runs a command; it is deferred immediately, and answered with the brain's response.
    async fn answer(&mut self, places: &[DemoGuild]) -> Result<(), DemoError> {
        let guild = places[0].guild;
        self.sim.fire(FireSpec::command(guild, COMMAND)).await?;
        self.desk.expect(guild, operation::answer());
        let received = self.until(1, async || self.events("interaction").await).await?;
        self.table.note("commands received", Exactly(1), received);
        let deferred = self.until(1, async || self.sim.score().interactions.answered).await?;
        self.table.note("commands deferred (simulator)", Exactly(1), deferred);
        let answered = self.until(1, async || edited(&self.sim.score(), operation::ANSWER)).await?;
        self.table.note("commands answered (simulator)", Exactly(1), answered);
        let took = self.sim.score().interactions.response_us.first().copied().unwrap_or(0) / 1_000;
        println!(
            "A user ran /{COMMAND}: deferred after {took} ms, sent to the brain by signed webhook, answered \"{}\".",
            operation::ANSWER
        );
        Ok(())
    }

    /// Checks that every event that the simulator sent was received.
    async fn count_events(&mut self) -> Result<(), DemoError> {
        let sent = self.sim.score().gateway.events_total;
        let arrived = self.until(sent, async || self.events("").await).await?;
        self.table.note("events received, of those sent", Exactly(sent), arrived);
        Ok(())
    }

    /// Submits a burst of operations in all guilds while calls fail and messages arrive, and kills the daemon during
    /// it.
    async fn burst(&mut self, places: &[DemoGuild]) -> Result<(), DemoError> {
        for fault in faults::faults() {
            self.sim.add_fault(fault)?;
        }
        let bursts: Vec<(Snowflake, Vec<DemoOperation>)> =
            places.iter().map(|place| (place.guild, operation::burst(place))).collect();
        let all = bursts.iter().map(|(_, tasks)| tasks.len() as u64).sum::<u64>();
        let before = effects(&self.sim.score());
        let stream = MessageStream::start(self.sim.address());
        for (guild, tasks) in &bursts {
            self.desk.ask_all(*guild, tasks).await?;
        }
        println!(
            "Burst: {all} operations in {} guilds while calls are slow or fail, connections break and messages arrive.",
            bursts.len()
        );

        let enough = all * KILLED_AFTER_TENTHS / 10;
        self.until(enough, async || effects(&self.sim.score()) - before).await?;
        let killed = self.worker.id();
        self.worker.kill().map_err(DemoError::Process)?;
        let done = effects(&self.sim.score()) - before;
        self.table.note("kill -9 during the burst", Exactly(1), u64::from((1..all).contains(&done)));
        println!("kill -9 {killed}: the daemon is killed after {done} of {all} operations took effect.");
        // The round that is in flight, and then one that is sent completely while no daemon is running.
        stream.round().await;
        let earlier = stream.sent();
        stream.round().await;
        let unheard = stream.sent() - earlier;
        self.worker.start_again().map_err(DemoError::Process)?;
        self.until(1, async || u64::from(self.desk.is_open().await)).await?;
        println!(
            "Restarted as process {}. It checks the outcome of the calls that were in flight, then continues.",
            self.worker.id()
        );

        let mut known = 0;
        for (guild, tasks) in &bursts {
            known += self.desk.ask_again(*guild, tasks).await?;
        }
        self.table.note("resubmitted and deduplicated", Exactly(all), known);
        println!(
            "All {all} are resubmitted with the same idempotency keys: {known} deduplicated, {} new.",
            all - known.min(all)
        );
        self.settle().await?;
        self.sim.remove_faults(None);
        self.count_messages(stream, unheard).await
    }

    /// Checks that the brain received every message, including those sent while no daemon was running.
    async fn count_messages(&mut self, stream: MessageStream, unheard: u64) -> Result<(), DemoError> {
        let written = stream.end().await?;
        let told = self.until(written, async || self.brain.heard().0).await?;
        let (_, again) = self.brain.heard();
        println!(
            "{written} messages were sent during the burst, at least {unheard} of them while the daemon was down. \
             The brain received {told}: {} lost. {again} were delivered twice, with the same id.",
            written - told.min(written)
        );
        self.table.note("some messages sent while down", Exactly(1), u64::from(unheard > 0));
        self.table.note("messages received by the brain", Exactly(written), told);
        Ok(())
    }

    /// Compares all results with the simulator's records.
    async fn judge(&mut self) -> Result<(), DemoError> {
        // The shards are connected again, too.
        let connected = async || self.desk.metric(shard::GATEWAY_SHARD_CONNECTED, "").await.unwrap_or(0);
        self.until(u64::from(SHARDS), connected).await?;
        let standing = self.desk.standing().await?;
        let score = self.sim.score();
        let verdict = effect_check::judge(self.desk.asked(), &score);
        let expected: u64 = self.desk.asked().values().map(|tasks| tasks.len() as u64).sum();
        let asked = self.desk.asked().values().flatten().filter(|task| !task.key.is_empty()).count() as u64;
        // Two operations for each member who joins (ensure the role, assign it), and one response.
        let given = 2 * JOINS * u64::from(GUILDS) + 1;
        let failed: u64 = statuses(&score, 500..600);
        println!(
            "Finished after {:.1} s. The simulator failed {failed} calls and cut {} connections.",
            self.begun.elapsed().as_secs_f64(),
            score.dropped
        );
        for lost in verdict.lost.iter().take(NAMED) {
            println!("Lost: {lost}.");
        }
        if verdict.lost.len() > NAMED {
            println!("And {} more.", verdict.lost.len() - NAMED);
        }
        let most = score.max_per_second.values().copied().max().unwrap_or(0);
        let limited = score.rate_limited;
        let rows: [(&'static str, Expected, u64); 12] = [
            ("operations accepted", Exactly(asked), self.desk.accepted()),
            ("  succeeded", Exactly(asked), standing.succeeded),
            ("  failed or needs review", Exactly(0), standing.failed),
            ("  missing or pending", Exactly(0), standing.missing + standing.pending),
            ("operations from handlers", Exactly(given), standing.given),
            ("effects (simulator)", Exactly(expected), verdict.found),
            ("  lost", Exactly(0), verdict.lost.len() as u64),
            ("  duplicates", Exactly(0), verdict.duplicates),
            ("  out of order in their guild", Exactly(0), verdict.out_of_order + score.overlaps),
            ("429 responses", Exactly(0), limited.user + limited.shared + limited.global),
            ("most calls in any second", AtMost(CALLS_PER_SECOND), u64::from(most)),
            // The restarted daemon has resumed the sessions of the killed one.
            ("identifies (simulator)", Exactly(u64::from(SHARDS)), score.gateway.identifies),
        ];
        for (what, expected, seen) in rows {
            self.table.note(what, expected, seen);
        }
        Ok(())
    }

    /// Waits until all accepted operations are finished.
    async fn settle(&self) -> Result<(), DemoError> {
        let settled = async || match self.desk.standing().await {
            Ok(standing) if standing.given_undone == 0 => standing.settled(),
            Ok(_) | Err(_) => 0,
        };
        self.until(self.desk.accepted(), settled).await?;
        Ok(())
    }

    /// Number of received events of this type; of all types, if `kind` is empty.
    async fn events(&self, kind: &str) -> u64 {
        let label = if kind.is_empty() { String::new() } else { format!("\"{kind}\"") };
        self.desk.metric(shard::GATEWAY_EVENTS, &label).await.unwrap_or(0)
    }

    /// Waits until a count is reached or the step's time is up. Returns the last count.
    async fn until(&self, enough: u64, count: impl AsyncFn() -> u64) -> Result<u64, DemoError> {
        let deadline = Instant::now() + STEP_TIMEOUT;
        loop {
            let seen = count().await;
            if seen >= enough || Instant::now() >= deadline {
                return Ok(seen);
            }
            if let Some(status) = self.worker.ended() {
                return Err(DemoError::Ended(status));
            }
            sleep(LOOK).await;
        }
    }
}

/// Number of effects of calls, over all guilds.
fn effects(score: &Score) -> u64 {
    score.effects.values().map(|effects| effects.len() as u64).sum()
}

/// Number of objects of this kind that calls have created.
fn created(score: &Score, kind: &str) -> u64 {
    let effects = score.effects.values().flatten();
    effects.filter(|effect| effect.verb == "create" && effect.kind == kind).count() as u64
}

/// Number of first responses with this final content.
fn edited(score: &Score, content: &str) -> u64 {
    let effects = score.effects.values().flatten();
    effects.filter(|effect| effect.verb == "update" && effect.kind == "message" && effect.name == content).count()
        as u64
}

/// Number of responses with a status in this range.
fn statuses(score: &Score, range: std::ops::Range<u16>) -> u64 {
    let all = score.routes.values().flat_map(|route| &route.statuses);
    all.filter(|(status, _)| range.contains(status)).map(|(_, count)| count).sum()
}
