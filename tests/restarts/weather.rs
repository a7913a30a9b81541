//! The load of events: joins in all guilds, and messages with unique content. Meanwhile connections break and calls are
//! slow.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use fastrand::Rng;
use guildhall_sim::{Fault, FaultAction, GatewayFault, MessageSpec, Snowflake, Stage as On, StormEvent, StormSpec};

use crate::stage::{SHARDS, Stage};

/// Joins a second. With the messages and their effects, there are about a thousand events a second.
const JOINS: u32 = 950;
/// Interval between two messages.
const WRITES_EVERY: Duration = Duration::from_millis(40);

/// The events that were sent.
#[derive(Debug)]
pub(crate) struct Sent {
    /// Joins that have an effect, by guild.
    pub(crate) joins: BTreeMap<u64, u64>,
    /// Contents of messages, by guild, in order.
    pub(crate) written: BTreeMap<u64, Vec<String>>,
    pub(crate) events_per_s: f64,
}

impl Sent {
    /// Expected number of effects.
    pub(crate) fn effects(&self) -> usize {
        let joins: u64 = self.joins.values().sum();
        usize::try_from(joins).unwrap() + self.written.values().map(Vec::len).sum::<usize>()
    }
}

/// Sends events until `until` completes.
pub(crate) async fn rages<T>(stage: &Stage, seed: u64, until: impl Future<Output = T>) -> (T, Sent) {
    for at in [On::Effect, On::Answer] {
        stage.sim.add_fault(slow(at)).unwrap();
    }
    let (over, began) = (AtomicBool::new(false), Instant::now());
    let before = stage.sim.gateway_score().events_total;
    let storms = async {
        let outcome = tokio::select! {
            outcome = until => outcome,
            () = storm(stage) => unreachable!("the load of joins does not end"),
            () = strikes(stage, seed) => unreachable!("the loop of faults does not end"),
        };
        over.store(true, Ordering::SeqCst);
        outcome
    };
    let (outcome, written) = tokio::join!(storms, writes(stage, seed, &over));
    stage.sim.remove_faults(None);
    let score = stage.sim.gateway_score();
    let events_per_s = (score.events_total - before) as f64 / began.elapsed().as_secs_f64();
    // One for each guild in turn, oldest first, and again from the start.
    let joins = score.events_by_type.get("GUILD_MEMBER_ADD").copied().unwrap_or_default();
    let of = |nth: u64| joins / stage.guilds + u64::from(nth < joins % stage.guilds);
    let welcoming = stage.places.iter().filter(|place| place.welcomes);
    let joins = welcoming.map(|place| (place.guild, of(place.nth))).collect();
    (outcome, Sent { joins, written, events_per_s })
}

async fn storm(stage: &Stage) {
    let event = StormEvent::GuildMemberAdd;
    stage.sim.storm(StormSpec { events_per_s: JOINS, seconds: 80_000.0, event, ..StormSpec::default() }).await;
}

/// Some calls are slow before or after their effect, so that restarts hit them in flight.
fn slow(at: On) -> Fault {
    let action = FaultAction::Latency { fixed_ms: 0, jitter_ms: 60, at };
    Fault { route: "*".to_owned(), action, probability: 0.3, count: None, skip: 0 }
}

/// Breaks connections now and then, in ways that keep their sessions.
async fn strikes(stage: &Stage, seed: u64) {
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
        stage.sim.gateway_fault(fault);
    }
}

async fn writes(stage: &Stage, seed: u64, over: &AtomicBool) -> BTreeMap<u64, Vec<String>> {
    let mut rng = Rng::with_seed(seed);
    let mut clock = tokio::time::interval(WRITES_EVERY);
    let (mut written, mut number) = (BTreeMap::<u64, Vec<String>>::new(), 0_u64);
    while !over.load(Ordering::SeqCst) {
        clock.tick().await;
        number += 1;
        let place = stage.places[rng.usize(..stage.places.len())];
        let content = format!("mark-{number}");
        let spec = MessageSpec {
            channel_id: Snowflake::new(place.channel),
            guild_id: None,
            content: content.clone(),
            user_id: None,
            count: 1,
            per_second: 0.0,
        };
        stage.sim.write(spec).await.unwrap();
        written.entry(place.guild).or_default().push(content);
    }
    written
}
