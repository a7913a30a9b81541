//! The events: a storm of joins over all guilds, and messages that each say something of their own.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use fastrand::Rng;
use guildhall_sim::{MessageSpec, Snowflake, StormEvent, StormSpec};

use crate::stage::Stage;

/// Joins a second. With the messages, and with what comes of both, it is some thousand events a second.
const JOINS: u32 = 950;
/// Between two messages.
const WRITES_EVERY: Duration = Duration::from_millis(40);

/// What was sent.
#[derive(Debug)]
pub(crate) struct Sent {
    /// Joins that have an effect, by guild.
    pub(crate) joins: BTreeMap<u64, u64>,
    /// What was written, by guild, in order.
    pub(crate) written: BTreeMap<u64, Vec<String>>,
    pub(crate) events_per_s: f64,
}

impl Sent {
    /// How many effects there should be.
    pub(crate) fn effects(&self) -> usize {
        let joins: u64 = self.joins.values().sum();
        usize::try_from(joins).unwrap() + self.written.values().map(Vec::len).sum::<usize>()
    }
}

/// Sends events for as long as `until` lasts.
pub(crate) async fn rages<T>(stage: &Stage, seed: u64, until: impl Future<Output = T>) -> (T, Sent) {
    let (over, began) = (AtomicBool::new(false), Instant::now());
    let before = stage.sim.gateway_score().events_total;
    let storms = async {
        let outcome = tokio::select! {
            outcome = until => outcome,
            () = storm(stage) => unreachable!("a storm has no end"),
        };
        over.store(true, Ordering::SeqCst);
        outcome
    };
    let (outcome, written) = tokio::join!(storms, writes(stage, seed, &over));
    let score = stage.sim.gateway_score();
    let events_per_s = (score.events_total - before) as f64 / began.elapsed().as_secs_f64();
    // One for each guild in turn, the oldest first, and again from the start.
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
