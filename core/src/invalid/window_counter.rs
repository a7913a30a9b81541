//! Counter over a sliding window. It needs little memory and is never too low.

use std::collections::VecDeque;
use std::time::Duration;

use crate::time::Timestamp;

/// Number of slots per window. A count stays for up to one slot longer than the window.
const SLOTS: u64 = 120;

#[derive(Debug)]
struct Slot {
    /// When all its counts have left the window.
    end: Timestamp,
    count: u32,
}

/// Width of a slot, in microseconds.
pub(super) fn slot_width(window: Duration) -> u64 {
    (u64::try_from(window.as_micros()).unwrap_or(u64::MAX) / SLOTS).max(1)
}

/// When a count at `now` expires: by the end of its slot, so that it never expires early.
pub(super) fn slot_end(width: u64, window: Duration, now: Timestamp) -> Timestamp {
    Timestamp::from_micros((now.micros() / width).saturating_add(1).saturating_mul(width)) + window
}

/// At most one slot more than [`SLOTS`], oldest first.
#[derive(Debug)]
pub(super) struct WindowCounter {
    width: u64,
    window: Duration,
    slots: VecDeque<Slot>,
    total: u32,
}

impl WindowCounter {
    pub(super) fn new(window: Duration) -> Self {
        Self { width: slot_width(window), window, slots: VecDeque::new(), total: 0 }
    }

    pub(super) fn add(&mut self, now: Timestamp) {
        self.forget(now);
        self.total += 1;
        let end = slot_end(self.width, self.window, now);
        match self.slots.back_mut() {
            Some(last) if last.end >= end => last.count += 1,
            Some(_) | None => self.slots.push_back(Slot { end, count: 1 }),
        }
    }

    /// Replaces the counts by those of another counter: expiry and count, oldest first.
    pub(super) fn refill(&mut self, slots: impl Iterator<Item = (Timestamp, u32)>) {
        self.slots = slots.map(|(end, count)| Slot { end, count }).collect();
        self.total = self.slots.iter().fold(0, |sum, slot| sum.saturating_add(slot.count));
    }

    /// The sum of this counter and another one.
    pub(super) fn with(&self, other: &Self) -> Self {
        let mut both = Self::new(self.window);
        let mut slots: Vec<(Timestamp, u32)> = self.leaving().chain(other.leaving()).collect();
        slots.sort_unstable();
        both.refill(slots.into_iter());
        both
    }

    /// How many expire, and when, oldest first.
    pub(super) fn leaving(&self) -> impl Iterator<Item = (Timestamp, u32)> + '_ {
        self.slots.iter().map(|slot| (slot.end, slot.count))
    }

    pub(super) fn total(&mut self, now: Timestamp) -> u32 {
        self.forget(now);
        self.total
    }

    /// The same, without dropping what has expired.
    pub(super) fn total_at(&self, now: Timestamp) -> u32 {
        let counts = self.slots.iter().filter(|slot| slot.end > now);
        counts.fold(0, |sum, slot| sum.saturating_add(slot.count))
    }

    /// When the total falls below `max`, if nothing is added.
    pub(super) fn time_below(&self, max: u32, now: Timestamp) -> Timestamp {
        let mut remaining = self.total;
        for slot in &self.slots {
            if remaining < max {
                break;
            }
            remaining = remaining.saturating_sub(slot.count);
            if remaining < max {
                return slot.end;
            }
        }
        // A threshold of 0 is never met: retry when everything counted now has expired.
        if remaining < max { now } else { now + self.window }
    }

    /// When the oldest expire.
    pub(super) fn next_end(&self) -> Option<Timestamp> {
        self.slots.front().map(|slot| slot.end)
    }

    fn forget(&mut self, now: Timestamp) {
        while let Some(slot) = self.slots.front()
            && slot.end <= now
        {
            self.total = self.total.saturating_sub(slot.count);
            self.slots.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_bounded_however_often_something_is_counted() {
        let mut slots = WindowCounter::new(Duration::from_secs(600));
        for millis in (0..2_000_000).step_by(100) {
            slots.add(Timestamp::from_millis(millis));
            assert!(slots.slots.len() as u64 <= SLOTS + 1);
        }
        // Ten a second for ten minutes, plus the rest of the oldest slot.
        assert!((6_000..=6_050).contains(&slots.total));
    }
}
