//! Saved state of the ledger: the recent invalid requests, so that a process that restarts over and over cannot exceed
//! the limit.

use serde::{Deserialize, Serialize};

use super::holders::LargeHolderCounts;
use super::{Holder, InvalidLedger, WindowCounter};
use crate::snapshot::{SnapshotAge, duration_ms};
use crate::time::Timestamp;

/// Maximum number of saved slots: more than two counts together can have.
const MAX_SLOTS: usize = 512;

/// Larger than any limit; a larger saved count is corrupt.
const MAX_COUNT: u32 = 1_000_000;

/// Saved state of the ledger: remaining times in milliseconds, and counts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SavedInvalidLedger(Vec<(u64, u32)>);

impl SavedInvalidLedger {
    /// The total count.
    #[must_use]
    pub fn total(&self) -> u32 {
        self.0.iter().fold(0, |sum, (_, count)| sum.saturating_add(*count))
    }

    /// The count that remains at this age.
    #[must_use]
    pub fn remaining(&self, age: SnapshotAge) -> u32 {
        let counts = self.0.iter().filter(|(lasting, _)| age.remaining(*lasting).is_some());
        counts.fold(0, |sum, (_, count)| sum.saturating_add(*count))
    }
}

/// Maximum number of saved holders.
const MAX_HOLDERS: usize = 256;

/// Saved state of keys, tenants and guilds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SavedHolders {
    /// The largest holders, encoded by [`Holder::encode`]: remaining times and counts.
    holders: Vec<(String, Vec<(u64, u32)>)>,
    /// Maximum count of any other holder.
    others: u32,
}

impl InvalidLedger {
    /// Returns the state of holders to save.
    #[must_use]
    pub fn save_holders(&self, now: Timestamp) -> SavedHolders {
        let mut largest: Vec<(u32, &Holder)> =
            self.known_holders().into_iter().map(|holder| (self.displayed_used(holder, now), holder)).collect();
        largest.retain(|(used, _)| *used > 0);
        largest.sort_unstable_by(|one, other| other.cmp(one));
        let others = largest.get(MAX_HOLDERS).map_or(0, |(used, _)| *used).max(self.restored_holders.floor(now));
        largest.truncate(MAX_HOLDERS);
        let slots = |holder: &Holder| {
            let mut slots: Vec<(u64, u32)> = self
                .displayed_leaving(holder, now)
                .into_iter()
                .filter(|(end, count)| *end > now && *count > 0)
                .map(|(end, count)| (duration_ms(end.since(now)), count))
                .collect();
            slots.sort_unstable_by(|one, other| other.cmp(one));
            slots.truncate(MAX_SLOTS);
            slots
        };
        SavedHolders { holders: largest.iter().map(|(_, holder)| (holder.encode(), slots(holder))).collect(), others }
    }

    /// Restores the state of holders from an earlier run of this process. `more` is added to each of them if that run
    /// ended suddenly.
    pub fn restore_holders(&mut self, saved: &SavedHolders, more: u32, age: SnapshotAge, now: Timestamp) {
        let longest = self.config.window + self.config.window / 60;
        let until = now + longest;
        let largest = saved.holders.iter().take(MAX_HOLDERS).filter_map(|(holder, slots)| {
            let holder = Holder::decode(holder)?;
            let left = |&(lasting, count): &(u64, u32)| {
                Some((now + age.remaining(lasting)?.min(longest), count.min(MAX_COUNT)))
            };
            let mut slots: Vec<(Timestamp, u32)> = slots.iter().take(MAX_SLOTS).filter_map(left).collect();
            if more > 0 {
                slots.push((now + self.config.window, more));
            }
            slots.sort_unstable();
            Some((holder, slots))
        });
        // A holder that was not among the largest is not limited for requests that it may not have made.
        let floor = saved.others.saturating_add(more).min(self.config.share_cap() / 2);
        self.restored_holders = LargeHolderCounts::new(self.config.window, largest, floor, until);
        self.update_largest(now);
    }

    /// Returns the state to save. Calls in flight are not included, since most of them only wait for their turn.
    #[must_use]
    pub fn save(&self, now: Timestamp) -> SavedInvalidLedger {
        let here = self.slots.with(&self.restored);
        let mut local: Vec<(Timestamp, u32)> = here.leaving().collect();
        if let Some(fleet) = self.fleet.as_ref().filter(|fleet| fleet.has_lease()) {
            let (common, unacknowledged) = fleet.counted(self.local_counts());
            let unacknowledged = u32::try_from(unacknowledged).unwrap_or(u32::MAX);
            let mut there: Vec<(Timestamp, u32)> = common.leaving().collect();
            there.push((now + self.config.window, unacknowledged));
            if total(&there, now) > total(&local, now) {
                local = there;
            }
        }
        let mut slots: Vec<(u64, u32)> = local
            .into_iter()
            .filter(|(end, count)| *end > now && *count > 0)
            .map(|(end, count)| (duration_ms(end.since(now)), count))
            .collect();
        // Beyond the maximum, those that expire first are dropped.
        slots.sort_unstable_by(|one, other| other.cmp(one));
        slots.truncate(MAX_SLOTS);
        SavedInvalidLedger(slots)
    }

    /// Restores the state of an earlier run of this process. If that run had counted any and ended suddenly, it may not
    /// have saved all: `more` is added.
    pub fn restore(&mut self, saved: &SavedInvalidLedger, more: u32, age: SnapshotAge, now: Timestamp) {
        // Counts stay for up to this much longer than the window.
        let longest = self.config.window + self.config.window / 60;
        let mut slots: Vec<(Timestamp, u32)> = saved
            .0
            .iter()
            .take(MAX_SLOTS)
            .filter_map(|(lasting, count)| Some((now + age.remaining(*lasting)?.min(longest), (*count).min(MAX_COUNT))))
            .collect();
        if more > 0 {
            slots.push((now + self.config.window, more));
        }
        slots.sort_unstable();
        let mut recalled = WindowCounter::new(self.config.window);
        recalled.refill(slots.into_iter());
        // When restored twice, the larger count is used.
        if recalled.total(now) > self.restored.total(now) {
            self.restored = recalled;
        }
    }
}

fn total(slots: &[(Timestamp, u32)], now: Timestamp) -> u32 {
    slots.iter().filter(|(end, _)| *end > now).fold(0, |sum, (_, count)| sum.saturating_add(*count))
}
