//! Part of the ledger that each key, tenant and guild uses.
//!
//! Memory is bounded by the ledger itself: every invalid response in the window and every call in flight has at most
//! three holders, and a holder exists only while it has at least one of either.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use super::owner::{CallOwner, Holder};
use super::window_counter::{WindowCounter, slot_end, slot_width};
use crate::time::Timestamp;

/// Counts of one holder in this process.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct HolderCounts {
    /// Invalid responses in the window.
    pub(super) counted: u32,
    /// Calls in flight.
    pub(super) in_flight: u32,
    /// Invalid responses that are not in the common count yet.
    pub(super) unacknowledged: u32,
    /// Calls rejected since the last admitted one.
    pub(super) refused: u32,
}

impl HolderCounts {
    /// Maximum that the common count may still have to add from here.
    pub(super) const fn exposed(&self) -> u32 {
        self.unacknowledged.saturating_add(self.in_flight)
    }

    const fn is_empty(&self) -> bool {
        self.counted == 0 && self.in_flight == 0 && self.unacknowledged == 0
    }
}

#[derive(Debug)]
struct HolderSlot {
    end: Timestamp,
    counts: HashMap<Holder, u32>,
}

/// The holders of this process.
#[derive(Debug)]
pub(super) struct Holders {
    width: u64,
    window: Duration,
    /// Counts by expiry, oldest first.
    slots: VecDeque<HolderSlot>,
    counts: HashMap<Holder, HolderCounts>,
}

impl Holders {
    pub(super) fn new(window: Duration) -> Self {
        Self { width: slot_width(window), window, slots: VecDeque::new(), counts: HashMap::new() }
    }

    /// Records that a call of this owner is sent.
    pub(super) fn reserve(&mut self, owner: &CallOwner) {
        for holder in owner.holders() {
            let counts = self.counts.entry(holder).or_default();
            counts.in_flight += 1;
            counts.refused = 0;
        }
    }

    /// Records that a call of this owner has ended.
    pub(super) fn release(&mut self, owner: &CallOwner) {
        for holder in owner.holders() {
            self.change(&holder, |counts| counts.in_flight = counts.in_flight.saturating_sub(1));
        }
    }

    /// Counts an invalid response.
    pub(super) fn count(&mut self, owner: &CallOwner, shared: bool, now: Timestamp) {
        let end = slot_end(self.width, self.window, now);
        if self.slots.back().is_none_or(|last| last.end < end) {
            self.slots.push_back(HolderSlot { end, counts: HashMap::new() });
        }
        let Some(slot) = self.slots.back_mut() else { return };
        for holder in owner.holders() {
            *slot.counts.entry(holder.clone()).or_default() += 1;
            let holder_counts = self.counts.entry(holder).or_default();
            holder_counts.counted += 1;
            holder_counts.unacknowledged += u32::from(shared);
        }
    }

    /// Records that `count` invalid responses of this owner are in the common count now, or have left the window.
    pub(super) fn acknowledge(&mut self, owner: &CallOwner, count: u32) {
        for holder in owner.holders() {
            self.change(&holder, |counts| counts.unacknowledged = counts.unacknowledged.saturating_sub(count));
        }
    }

    /// Marks everything that is counted here as missing from the common count.
    pub(super) fn unacknowledge_all(&mut self) {
        self.counts.values_mut().for_each(|counts| counts.unacknowledged = counts.counted);
    }

    /// Records a rejected call; returns the number of consecutive rejections before it.
    pub(super) fn refuse(&mut self, holder: &Holder) -> u32 {
        let Some(counts) = self.counts.get_mut(holder) else { return 0 };
        counts.refused = counts.refused.saturating_add(1);
        counts.refused - 1
    }

    fn change(&mut self, holder: &Holder, change: impl FnOnce(&mut HolderCounts)) {
        if let Some(counts) = self.counts.get_mut(holder) {
            change(counts);
            if counts.is_empty() {
                self.counts.remove(holder);
            }
        }
    }

    /// Drops what has left the window; returns whether there was any.
    pub(super) fn forget(&mut self, now: Timestamp) -> bool {
        let mut dropped = false;
        while let Some(slot) = self.slots.pop_front_if(|slot| slot.end <= now) {
            dropped = true;
            for (holder, count) in slot.counts {
                self.change(&holder, |counts| counts.counted = counts.counted.saturating_sub(count));
            }
        }
        dropped
    }

    pub(super) fn of(&self, holder: &Holder) -> HolderCounts {
        self.counts.get(holder).copied().unwrap_or_default()
    }

    /// How many of its invalid responses leave the window, and when, oldest first.
    pub(super) fn leaving(&self, holder: &Holder) -> impl Iterator<Item = (Timestamp, u32)> {
        self.slots.iter().filter_map(|slot| Some((slot.end, *slot.counts.get(holder)?)))
    }

    /// All holders with a count here.
    pub(super) fn all(&self) -> impl Iterator<Item = (&Holder, &HolderCounts)> {
        self.counts.iter()
    }

    /// The maximum that the common count may have to add for one holder.
    pub(super) fn max_exposed(&self) -> u32 {
        self.counts.values().map(HolderCounts::exposed).max().unwrap_or(0)
    }
}

/// Counts of holders from elsewhere: from all processes, or from an earlier run of this one. Only large holders are
/// listed.
#[derive(Debug)]
pub(super) struct LargeHolderCounts {
    listed: HashMap<Holder, WindowCounter>,
    /// Maximum count of a holder that is not listed.
    floor: u32,
    /// When `floor` expires.
    until: Timestamp,
}

impl LargeHolderCounts {
    pub(super) fn empty() -> Self {
        Self { listed: HashMap::new(), floor: 0, until: Timestamp::ZERO }
    }

    pub(super) fn new(
        window: Duration,
        listed: impl Iterator<Item = (Holder, Vec<(Timestamp, u32)>)>,
        floor: u32,
        until: Timestamp,
    ) -> Self {
        let slots = |leaving: Vec<(Timestamp, u32)>| {
            let mut slots = WindowCounter::new(window);
            slots.refill(leaving.into_iter());
            slots
        };
        Self { listed: listed.map(|(holder, leaving)| (holder, slots(leaving))).collect(), floor, until }
    }

    /// Maximum count of a holder.
    pub(super) fn of(&self, holder: &Holder, now: Timestamp) -> u32 {
        match self.listed.get(holder) {
            Some(slots) => slots.total_at(now),
            None if now < self.until => self.floor,
            None => 0,
        }
    }

    /// Count of a listed holder.
    pub(super) fn listed(&self, holder: &Holder, now: Timestamp) -> u32 {
        self.listed.get(holder).map_or(0, |slots| slots.total_at(now))
    }

    /// Counts by expiry, oldest first.
    pub(super) fn leaving(&self, holder: &Holder) -> Vec<(Timestamp, u32)> {
        match self.listed.get(holder) {
            Some(slots) => slots.leaving().collect(),
            None if self.floor > 0 => vec![(self.until, self.floor)],
            None => Vec::new(),
        }
    }

    pub(super) fn holders(&self) -> impl Iterator<Item = &Holder> {
        self.listed.keys()
    }

    /// Maximum count of a holder that is not listed, at `now`.
    pub(super) fn floor(&self, now: Timestamp) -> u32 {
        if now < self.until { self.floor } else { 0 }
    }

    /// Drops holders whose counts have all left the window.
    pub(super) fn forget(&mut self, now: Timestamp) {
        self.listed.retain(|_, slots| slots.total(now) > 0);
    }
}
