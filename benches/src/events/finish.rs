//! Counts the events that guilds have handled.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use guildhall_actors::ports::EventObserver;
use guildhall_core::event::Event;

use crate::sender::Sender;
use crate::stats::Durations;

/// Observes every event that a guild has handled.
pub(super) struct Finish {
    sender: Sender,
    first_guild: u64,
    /// Number of handled events, by shard.
    handled: Vec<AtomicU64>,
    /// Last sequence number of each guild.
    last: Vec<AtomicU64>,
    out_of_order: AtomicU64,
    measures: AtomicBool,
    latencies: Mutex<Durations>,
}

impl Finish {
    pub(super) fn new(sender: Sender, shards: u32, first_guild: u64, guilds: usize) -> Self {
        Self {
            sender,
            first_guild,
            handled: (0..shards).map(|_| AtomicU64::new(0)).collect(),
            last: (0..guilds).map(|_| AtomicU64::new(0)).collect(),
            out_of_order: AtomicU64::new(0),
            measures: AtomicBool::new(false),
            latencies: Mutex::default(),
        }
    }

    /// Number of handled events of a shard.
    pub(super) fn of_shard(&self, shard: u32) -> u64 {
        self.handled[shard as usize].load(Ordering::Acquire)
    }

    /// Number of handled events.
    pub(super) fn handled(&self) -> u64 {
        self.handled.iter().map(|handled| handled.load(Ordering::Acquire)).sum()
    }

    /// Number of events that arrived after a later one of their guild, or twice.
    pub(super) fn out_of_order(&self) -> u64 {
        self.out_of_order.load(Ordering::Acquire)
    }

    /// Starts to record latencies.
    pub(super) fn measure(&self) {
        *self.latencies() = Durations::default();
        self.measures.store(true, Ordering::Release);
    }

    /// Stops recording, and returns the sorted latencies.
    pub(super) fn measured(&self) -> Durations {
        self.measures.store(false, Ordering::Release);
        let mut measured = std::mem::take(&mut *self.latencies());
        measured.sort();
        measured
    }

    fn latencies(&self) -> MutexGuard<'_, Durations> {
        self.latencies.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl EventObserver for Finish {
    fn done(&self, events: &mut dyn Iterator<Item = &Event>) {
        let mut measures = self.measures.load(Ordering::Acquire).then(|| (Instant::now(), self.latencies()));
        for event in events {
            let (shard, seq) = (event.origin.shard, event.origin.seq);
            let place = event.guild.map_or(0, |guild| guild - self.first_guild) >> 22;
            let last = self.last.get(usize::try_from(place).unwrap_or(usize::MAX));
            if last.is_none_or(|last| last.swap(seq, Ordering::AcqRel) >= seq) {
                self.out_of_order.fetch_add(1, Ordering::AcqRel);
            } else {
                self.handled[shard as usize].fetch_add(1, Ordering::AcqRel);
            }
            if let Some((now, latencies)) = &mut measures {
                latencies.push(self.sender.since_due(shard, seq, *now));
            }
        }
    }
}
