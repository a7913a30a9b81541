//! The load of events: joins in all guilds, and messages with unique content. Meanwhile connections break and calls are
//! slow.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use fastrand::Rng;
use guildhall_sim::{Fault, FaultAction, GatewayFault, MessageSpec, Snowflake, Stage as On, StormEvent, StormSpec};

use super::fixture::{RestartFixture, SHARDS};

/// Joins a second. With the messages and their effects, there are about a thousand events a second.
const JOINS_PER_SECOND: u32 = 950;
/// Interval between two messages.
const WRITE_INTERVAL: Duration = Duration::from_millis(40);

/// The events that were sent.
#[derive(Debug)]
pub(crate) struct SentEvents {
    /// Joins that have an effect, by guild.
    pub(crate) joins: BTreeMap<u64, u64>,
    /// Contents of messages, by guild, in order.
    pub(crate) written: BTreeMap<u64, Vec<String>>,
    pub(crate) events_per_s: f64,
}

impl SentEvents {
    /// Expected number of effects.
    pub(crate) fn effects(&self) -> usize {
        let joins: u64 = self.joins.values().sum();
        usize::try_from(joins).unwrap() + self.written.values().map(Vec::len).sum::<usize>()
    }
}

/// Sends events until `until` completes.
pub(crate) async fn run_load<T>(
    fixture: &RestartFixture,
    seed: u64,
    until: impl Future<Output = T>,
) -> (T, SentEvents) {
    for at in [On::Effect, On::Answer] {
        fixture.sim.add_fault(slow_calls(at)).unwrap();
    }
    let (finished, started) = (AtomicBool::new(false), Instant::now());
    let before = fixture.sim.gateway_score().events_total;
    let sending = async {
        let outcome = tokio::select! {
            outcome = until => outcome,
            () = send_joins(fixture) => unreachable!("the load of joins does not end"),
            () = break_connections(fixture, seed) => unreachable!("the loop of faults does not end"),
        };
        finished.store(true, Ordering::SeqCst);
        outcome
    };
    let (outcome, written) = tokio::join!(sending, write_messages(fixture, seed, &finished));
    fixture.sim.remove_faults(None);
    let score = fixture.sim.gateway_score();
    let events_per_s = (score.events_total - before) as f64 / started.elapsed().as_secs_f64();
    // One for each guild in turn, oldest first, and again from the start.
    let joins = score.events_by_type.get("GUILD_MEMBER_ADD").copied().unwrap_or_default();
    let joins_of = |nth: u64| joins / fixture.guild_count + u64::from(nth < joins % fixture.guild_count);
    let welcoming = fixture.event_guilds.iter().filter(|event_guild| event_guild.has_join_effect);
    let joins = welcoming.map(|event_guild| (event_guild.guild, joins_of(event_guild.index))).collect();
    (outcome, SentEvents { joins, written, events_per_s })
}

async fn send_joins(fixture: &RestartFixture) {
    let event = StormEvent::GuildMemberAdd;
    fixture
        .sim
        .storm(StormSpec { events_per_s: JOINS_PER_SECOND, seconds: 80_000.0, event, ..StormSpec::default() })
        .await;
}

/// Some calls are slow before or after their effect, so that restarts hit them in flight.
fn slow_calls(at: On) -> Fault {
    let action = FaultAction::Latency { fixed_ms: 0, jitter_ms: 60, at };
    Fault { route: "*".to_owned(), action, probability: 0.3, count: None, skip: 0 }
}

/// Breaks connections now and then, in ways that keep their sessions.
async fn break_connections(fixture: &RestartFixture, seed: u64) {
    let mut rng = Rng::with_seed(!seed);
    loop {
        tokio::time::sleep(Duration::from_millis(rng.u64(100..1_000))).await;
        let shard = Some(rng.u32(..SHARDS));
        let fault = match rng.u8(..4) {
            0 => GatewayFault::Disconnect { shard, code: 4000, cut: false, hold_ms: rng.u64(..200) },
            1 => GatewayFault::Disconnect { shard, code: 4000, cut: true, hold_ms: rng.u64(..200) },
            2 => GatewayFault::Reconnect { shard },
            _ => GatewayFault::InvalidSession { shard, resumable: true },
        };
        fixture.sim.gateway_fault(fault);
    }
}

async fn write_messages(fixture: &RestartFixture, seed: u64, finished: &AtomicBool) -> BTreeMap<u64, Vec<String>> {
    let mut rng = Rng::with_seed(seed);
    let mut clock = tokio::time::interval(WRITE_INTERVAL);
    let (mut written, mut number) = (BTreeMap::<u64, Vec<String>>::new(), 0_u64);
    while !finished.load(Ordering::SeqCst) {
        clock.tick().await;
        number += 1;
        let event_guild = fixture.event_guilds[rng.usize(..fixture.event_guilds.len())];
        let content = format!("mark-{number}");
        let spec = MessageSpec {
            channel_id: Snowflake::new(event_guild.channel),
            guild_id: None,
            content: content.clone(),
            user_id: None,
            count: 1,
            per_second: 0.0,
        };
        fixture.sim.send_messages(spec).await.unwrap();
        written.entry(event_guild.guild).or_default().push(content);
    }
    written
}
