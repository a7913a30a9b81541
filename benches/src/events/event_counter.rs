//! Counts the events that guilds have handled.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use guildhall_actors::ports::EventObserver;
use guildhall_core::event::Event;

use crate::sender::Sender;
use crate::stats::Durations;

/// Observes every event that a guild has handled.
pub(super) struct EventCounter {
    sender: Sender,
    first_guild: u64,
    /// Number of handled events, by shard.
    handled: Vec<AtomicU64>,
    /// Last sequence number of each guild.
    last: Vec<AtomicU64>,
    out_of_order: AtomicU64,
    is_recording: AtomicBool,
    latencies: Mutex<Durations>,
}

impl EventCounter {
    pub(super) fn new(sender: Sender, shards: u32, first_guild: u64, guilds: usize) -> Self {
        Self {
            sender,
            first_guild,
            handled: (0..shards).map(|_| AtomicU64::new(0)).collect(),
            last: (0..guilds).map(|_| AtomicU64::new(0)).collect(),
            out_of_order: AtomicU64::new(0),
            is_recording: AtomicBool::new(false),
            latencies: Mutex::default(),
        }
    }

    /// Number of handled events of a shard.
    pub(super) fn handled_by_shard(&self, shard: u32) -> u64 {
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
    pub(super) fn start_recording(&self) {
        *self.latencies() = Durations::default();
        self.is_recording.store(true, Ordering::Release);
    }

    /// Stops recording, and returns the sorted latencies.
    pub(super) fn take_latencies(&self) -> Durations {
        self.is_recording.store(false, Ordering::Release);
        let mut measured = std::mem::take(&mut *self.latencies());
        measured.sort();
        measured
    }

    fn latencies(&self) -> MutexGuard<'_, Durations> {
        self.latencies.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl EventObserver for EventCounter {
    fn on_completed(&self, events: &mut dyn Iterator<Item = &Event>) {
        let mut recording = self.is_recording.load(Ordering::Acquire).then(|| (Instant::now(), self.latencies()));
        for event in events {
            let (shard, seq) = (event.origin.shard, event.origin.seq);
            let index = event.guild.map_or(0, |guild| guild - self.first_guild) >> 22;
            let last = self.last.get(usize::try_from(index).unwrap_or(usize::MAX));
            if last.is_none_or(|last| last.swap(seq, Ordering::AcqRel) >= seq) {
                self.out_of_order.fetch_add(1, Ordering::AcqRel);
            } else {
                self.handled[shard as usize].fetch_add(1, Ordering::AcqRel);
            }
            if let Some((now, latencies)) = &mut recording {
                latencies.push(self.sender.since_due(shard, seq, *now));
            }
        }
    }
}
