//! Saved state of the ledger: the recent invalid requests, so that a process that restarts over and over cannot exceed
//! the limit.

use serde::{Deserialize, Serialize};

use super::holders::LargeHolderCounts;
use super::{Holder, InvalidLedger, WindowCounter};
use crate::snapshot::{SnapshotAge, lasting_ms};
use crate::time::Timestamp;

/// Maximum number of saved slots: more than two counts together can have.
const MOST: usize = 512;

/// Larger than any limit; a larger saved count is corrupt.
const MOST_COUNTED: u32 = 1_000_000;

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
    pub fn left(&self, age: SnapshotAge) -> u32 {
        let counts = self.0.iter().filter(|(lasting, _)| age.left(*lasting).is_some());
        counts.fold(0, |sum, (_, count)| sum.saturating_add(*count))
    }
}

/// Maximum number of saved holders.
const MOST_HOLDERS: usize = 256;

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
    pub fn remember_holders(&self, now: Timestamp) -> SavedHolders {
        let mut known: Vec<(u32, &Holder)> =
            self.known_holders().into_iter().map(|holder| (self.shown_used(holder, now), holder)).collect();
        known.retain(|(used, _)| *used > 0);
        known.sort_unstable_by(|one, other| other.cmp(one));
        let others = known.get(MOST_HOLDERS).map_or(0, |(used, _)| *used).max(self.recalled_holders.floor(now));
        known.truncate(MOST_HOLDERS);
        let slots = |holder: &Holder| {
            let mut slots: Vec<(u64, u32)> = self
                .shown_leaving(holder, now)
                .into_iter()
                .filter(|(end, count)| *end > now && *count > 0)
                .map(|(end, count)| (lasting_ms(end.since(now)), count))
                .collect();
            slots.sort_unstable_by(|one, other| other.cmp(one));
            slots.truncate(MOST);
            slots
        };
        SavedHolders { holders: known.iter().map(|(_, holder)| (holder.encode(), slots(holder))).collect(), others }
    }

    /// Restores the state of holders from an earlier run of this process. `more` is added to each of them if that run
    /// ended suddenly.
    pub fn recall_holders(&mut self, memory: &SavedHolders, more: u32, age: SnapshotAge, now: Timestamp) {
        let longest = self.config.window + self.config.window / 60;
        let until = now + longest;
        let listed = memory.holders.iter().take(MOST_HOLDERS).filter_map(|(holder, slots)| {
            let holder = Holder::decode(holder)?;
            let left =
                |&(lasting, count): &(u64, u32)| Some((now + age.left(lasting)?.min(longest), count.min(MOST_COUNTED)));
            let mut slots: Vec<(Timestamp, u32)> = slots.iter().take(MOST).filter_map(left).collect();
            if more > 0 {
                slots.push((now + self.config.window, more));
            }
            slots.sort_unstable();
            Some((holder, slots))
        });
        // A holder that was not among the largest is not limited for requests that it may not have made.
        let floor = memory.others.saturating_add(more).min(self.config.share_cap() / 2);
        self.recalled_holders = LargeHolderCounts::new(self.config.window, listed, floor, until);
        self.find_largest(now);
    }

    /// Returns the state to save. Calls in flight are not included, since most of them only wait for their turn.
    #[must_use]
    pub fn remember(&self, now: Timestamp) -> SavedInvalidLedger {
        let here = self.slots.with(&self.recalled);
        let mut known: Vec<(Timestamp, u32)> = here.leaving().collect();
        if let Some(fleet) = self.fleet.as_ref().filter(|fleet| fleet.is_heard()) {
            let (common, unacknowledged) = fleet.counted(self.own());
            let unacknowledged = u32::try_from(unacknowledged).unwrap_or(u32::MAX);
            let mut there: Vec<(Timestamp, u32)> = common.leaving().collect();
            there.push((now + self.config.window, unacknowledged));
            if total(&there, now) > total(&known, now) {
                known = there;
            }
        }
        let mut slots: Vec<(u64, u32)> = known
            .into_iter()
            .filter(|(end, count)| *end > now && *count > 0)
            .map(|(end, count)| (lasting_ms(end.since(now)), count))
            .collect();
        // Beyond the maximum, those that expire first are dropped.
        slots.sort_unstable_by(|one, other| other.cmp(one));
        slots.truncate(MOST);
        SavedInvalidLedger(slots)
    }

    /// Restores the state of an earlier run of this process. If that run had counted any and ended suddenly, it may not
    /// have saved all: `more` is added.
    pub fn recall(&mut self, memory: &SavedInvalidLedger, more: u32, age: SnapshotAge, now: Timestamp) {
        // Counts stay for up to this much longer than the window.
        let longest = self.config.window + self.config.window / 60;
        let mut slots: Vec<(Timestamp, u32)> = memory
            .0
            .iter()
            .take(MOST)
            .filter_map(|(lasting, count)| Some((now + age.left(*lasting)?.min(longest), (*count).min(MOST_COUNTED))))
            .collect();
        if more > 0 {
            slots.push((now + self.config.window, more));
        }
        slots.sort_unstable();
        let mut recalled = WindowCounter::new(self.config.window);
        recalled.refill(slots.into_iter());
        // When restored twice, the larger count is used.
        if recalled.total(now) > self.recalled.total(now) {
            self.recalled = recalled;
        }
    }
}

fn total(slots: &[(Timestamp, u32)], now: Timestamp) -> u32 {
    slots.iter().filter(|(end, _)| *end > now).fold(0, |sum, (_, count)| sum.saturating_add(*count))
}
