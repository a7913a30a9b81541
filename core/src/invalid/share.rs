//! The share of the ledger that one key, tenant or guild may use: a hard cap that is never lent.
//!
//! A call is admitted only if none of its holders could exceed its cap, including all of their calls in flight.
//! Processes that share the budget know the common count of every large holder, and each limits what it may add for any
//! one holder without another request (its *exposure*) to what the lender has granted. So
//!
//! ```text
//!   common count of a holder  +  own exposure  +  exposures granted to the other processes  ≤  cap
//! ```
//!
//! holds for the process with the latest request, and the others cannot have added more than they were granted by then.

use std::collections::HashSet;
use std::time::Duration;

use serde::Serialize;

use super::charge_runs::ChargeRun;
use super::fleet::Fleet;
use super::holders::HolderCounts;
use super::owner::{CallOwner, Holder, HolderKind};
use super::window_counter::WindowCounter;
use super::{InvalidBudgetExceeded, InvalidConfig, InvalidLedger, RETRY_DELAY};
use crate::time::Timestamp;

/// Distance between the retry times of consecutive rejected calls, so that they do not all come back at once.
const RETRY_SPACING: Duration = Duration::from_millis(10);

/// The retry times are spread over at most one part in this many of the window.
const SPREAD: u32 = 10;

/// How often per window the largest holder is determined, if nothing else triggers it.
const SLOTS: u32 = 60;

/// Maximum number of holders in the view.
const MAX_REPORTED: usize = 20;

impl InvalidConfig {
    /// Maximum number of invalid requests of one key, tenant or guild in the window.
    #[must_use]
    pub const fn share_cap(&self) -> u32 {
        let cap = (self.limit as u64 * self.share_percent as u64 / 100) as u32;
        if cap == 0 { 1 } else { cap }
    }
}

/// A holder has used up its share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShareExceeded {
    /// The holder.
    pub holder: Holder,
    /// Its invalid requests in the window, and its calls in flight.
    pub used: u32,
    /// Its maximum.
    pub cap: u32,
    /// Whether this is the first rejection since its last admitted call.
    pub is_first: bool,
}

/// Usage of a holder, as far as this process knows.
struct HolderUsage {
    /// Invalid responses in the window.
    used: u32,
    /// The same plus calls in flight, and what other processes may add without another request.
    taken: u32,
    /// Whether this process may add one more for it without another request.
    may_add: bool,
}

impl InvalidLedger {
    /// Checks whether the shares of its holders permit a call of this owner.
    pub(super) fn check_share(&mut self, owner: &CallOwner, now: Timestamp) -> Result<(), InvalidBudgetExceeded> {
        let cap = self.config.share_cap();
        for holder in owner.holders() {
            if self.has_share(&holder, now) {
                continue;
            }
            let held = self.usage_of(&holder, now);
            self.short_of_exposure |= !held.may_add;
            let room_at = self.room_at(&holder, cap, now);
            let before = self.holders.refuse(&holder);
            let apart = RETRY_SPACING.saturating_mul(before).min(self.config.window / SPREAD);
            let used = held.used.saturating_add(self.holders.of(&holder).in_flight);
            self.held_by_share += 1;
            return Err(InvalidBudgetExceeded {
                until: room_at + apart,
                reason: holder.kind().reason(),
                share: Some(ShareExceeded { holder, used, cap, is_first: before == 0 }),
            });
        }
        Ok(())
    }

    /// Records whether a call has used half of what may be added for one of its holders without another request.
    pub(super) fn watch_exposure(&mut self, owner: &CallOwner) {
        if let Some(fleet) = &self.fleet {
            let is_short = |holder: &Holder| self.holders.of(holder).exposed().saturating_mul(2) >= fleet.exposure;
            self.short_of_exposure |= owner.holders().any(|holder| is_short(&holder));
        }
    }

    /// Whether a holder has room in its share.
    pub(super) fn has_share(&self, holder: &Holder, now: Timestamp) -> bool {
        let held = self.usage_of(holder, now);
        held.taken < self.config.share_cap() && held.may_add
    }

    fn usage_of(&self, holder: &Holder, now: Timestamp) -> HolderUsage {
        let counts = self.holders.of(holder);
        let HolderCounts { counted, in_flight, unacknowledged, .. } = counts;
        let here = counted.saturating_add(self.restored_holders.of(holder, now));
        match &self.fleet {
            None => HolderUsage { used: here, taken: here.saturating_add(in_flight), may_add: true },
            Some(fleet) if fleet.has_lease() => {
                let used = fleet.common.of(holder, now).saturating_add(unacknowledged).max(here);
                let taken = used.saturating_add(in_flight).saturating_add(fleet.elsewhere_exposure);
                HolderUsage { used, taken, may_add: counts.exposed() < fleet.exposure }
            }
            Some(fleet) => {
                let recalled = self.restored_holders.of(holder, now);
                let used = counted.saturating_mul(fleet.members()).saturating_add(recalled);
                let taken = used.saturating_add(in_flight.saturating_mul(fleet.members()));
                HolderUsage { used, taken, may_add: true }
            }
        }
    }

    /// When a holder has room by expiry alone; soon, if calls in flight or other processes block it.
    fn room_at(&self, holder: &Holder, cap: u32, now: Timestamp) -> Timestamp {
        let below = |max: u32, leaving: Vec<(Timestamp, u32)>| {
            let mut slots = WindowCounter::new(self.config.window);
            slots.refill(leaving.into_iter());
            slots.time_below(max, now)
        };
        let mut here: Vec<(Timestamp, u32)> =
            self.holders.leaving(holder).chain(self.restored_holders.leaving(holder)).collect();
        here.retain(|(end, _)| *end > now);
        here.sort_unstable();
        let room_at = match &self.fleet {
            None => below(cap, here),
            Some(fleet) if fleet.has_lease() => {
                let unacknowledged = self.holders.of(holder).unacknowledged;
                let max = cap.saturating_sub(fleet.elsewhere_exposure);
                let mut common = fleet.common.leaving(holder);
                common.retain(|(end, _)| *end > now);
                // If the others may add more than is left, it depends on them.
                if max <= unacknowledged { now } else { below(max - unacknowledged, common).max(below(max, here)) }
            }
            Some(fleet) => below(cap.div_ceil(fleet.members()), here),
        };
        room_at.max(now + RETRY_DELAY)
    }

    /// Drops what has left the window.
    pub(super) fn expire_holders(&mut self, now: Timestamp) {
        if self.fleet.is_some() {
            // As long as they may be in the window of any process.
            for (owner, count) in self.runs.forget(now.before(self.config.window * 2)) {
                self.holders.acknowledge(&owner, count);
            }
        }
        let dropped = self.holders.forget(now);
        if dropped || (self.largest > 0 && now.since(self.largest_at) >= self.config.window / SLOTS) {
            self.restored_holders.forget(now);
            self.update_largest(now);
        }
    }

    /// Records an invalid response to a call of this owner: number `self.counted` since the start.
    pub(super) fn charge(&mut self, owner: &CallOwner, now: Timestamp) {
        let shared = self.fleet.is_some();
        self.holders.count(owner, shared, now);
        if shared {
            self.runs.add(owner, self.counted, now);
        }
        for holder in owner.holders() {
            self.largest = self.largest.max(self.displayed_used(&holder, now));
        }
    }

    /// Records that the lender has all of the first `number` responses.
    pub(super) fn acknowledge(&mut self, number: u64, now: Timestamp) {
        for (owner, count) in self.runs.acknowledge(number) {
            self.holders.acknowledge(&owner, count);
        }
        if let Some(fleet) = &mut self.fleet {
            // The grant may be less than the calls in flight.
            fleet.exposure = fleet.exposure.max(self.holders.max_exposed());
        }
        self.update_largest(now);
    }

    /// Marks everything that is counted here as missing from the common count.
    pub(super) fn unacknowledge(&mut self, forgotten: u64, now: Timestamp) {
        self.holders.forget(now);
        self.holders.unacknowledge_all();
        for (holder, counts) in self.holders.all().filter(|(_, counts)| counts.counted > 0) {
            let (start, end) = (forgotten, forgotten + u64::from(counts.counted));
            self.runs.push(ChargeRun { owner: holder.into(), start, end }, now);
        }
    }

    /// What is reported to the lender about holders: invalid responses that it may not know of and, when the process
    /// leaves, calls in flight.
    pub(super) fn reported_runs(&self, leaves: bool) -> Vec<ChargeRun> {
        let unacknowledged = self.runs.iter().cloned();
        let in_flight = self.holders.all().filter(|(_, counts)| leaves && counts.in_flight > 0);
        let in_flight = in_flight.map(|(holder, counts)| ChargeRun {
            owner: holder.into(),
            start: self.counted,
            end: self.counted + u64::from(counts.in_flight),
        });
        unacknowledged.chain(in_flight).collect()
    }

    /// Count of a holder for display: what is certain, not the possible maximum.
    pub(super) fn displayed_used(&self, holder: &Holder, now: Timestamp) -> u32 {
        let HolderCounts { counted, unacknowledged, .. } = self.holders.of(holder);
        let here = counted.saturating_add(self.restored_holders.listed(holder, now));
        let common = self.fleet.as_ref().filter(|fleet| fleet.has_lease());
        let common = common.map_or(0, |fleet| fleet.common.listed(holder, now).saturating_add(unacknowledged));
        here.max(common)
    }

    /// The same by expiry.
    pub(super) fn displayed_leaving(&self, holder: &Holder, now: Timestamp) -> Vec<(Timestamp, u32)> {
        let HolderCounts { counted, unacknowledged, .. } = self.holders.of(holder);
        let recalled = self.restored_holders.listed(holder, now);
        if let Some(fleet) = self.fleet.as_ref().filter(|fleet| fleet.has_lease())
            && fleet.common.listed(holder, now).saturating_add(unacknowledged) > counted.saturating_add(recalled)
        {
            let mut common = fleet.common.leaving(holder);
            common.push((now + self.config.window, unacknowledged));
            return common;
        }
        let here = self.holders.leaving(holder);
        if recalled > 0 { here.chain(self.restored_holders.leaving(holder)).collect() } else { here.collect() }
    }

    pub(super) fn known_holders(&self) -> HashSet<&Holder> {
        let common = self.fleet.iter().flat_map(|fleet: &Fleet| fleet.common.holders());
        self.holders.all().map(|(holder, _)| holder).chain(self.restored_holders.holders()).chain(common).collect()
    }

    pub(super) fn update_largest(&mut self, now: Timestamp) {
        let used = self.known_holders().into_iter().map(|holder| self.displayed_used(holder, now));
        self.largest = used.max().unwrap_or(0);
        self.largest_at = now;
    }

    /// Used part of the share of the largest holder.
    #[must_use]
    pub fn largest_share_ratio(&self) -> f64 {
        f64::from(self.largest) / f64::from(self.config.share_cap())
    }

    /// Returns a view of the shares.
    pub(super) fn share_snapshot(&self, now: Timestamp) -> ShareSnapshot {
        let cap = self.config.share_cap();
        let mut holders: Vec<HolderSnapshot> = self
            .known_holders()
            .into_iter()
            .map(|holder| {
                let (held, in_flight) = (self.usage_of(holder, now), self.holders.of(holder).in_flight);
                let used = self.displayed_used(holder, now);
                let room_in = || self.room_at(holder, cap, now).since(now);
                let capped = used.saturating_add(in_flight) >= cap || (used > 0 && held.taken >= cap);
                HolderSnapshot {
                    by: holder.kind(),
                    id: holder.id(),
                    used,
                    in_flight,
                    ratio: f64::from(used) / f64::from(cap),
                    capped,
                    room_in_ms: capped.then(|| u64::try_from(room_in().as_millis()).unwrap_or(u64::MAX)),
                }
            })
            .collect();
        let capped = holders.iter().filter(|holder| holder.capped).count();
        let order = |holder: &HolderSnapshot| (holder.used, holder.in_flight);
        holders.sort_unstable_by(|one, other| order(other).cmp(&order(one)).then_with(|| one.id.cmp(&other.id)));
        holders.truncate(MAX_REPORTED);
        ShareSnapshot { percent: self.config.share_percent, cap, held: self.held_by_share, capped, holders }
    }
}

/// View of the shares.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ShareSnapshot {
    /// The share, in percent of the limit.
    pub percent: u32,
    /// The same in invalid requests.
    pub cap: u32,
    /// Calls of this process that were rejected because of it, since the start.
    pub held: u64,
    /// Number of holders without room.
    pub capped: usize,
    /// The largest holders, the largest first.
    pub holders: Vec<HolderSnapshot>,
}

/// View of a holder.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct HolderSnapshot {
    /// Kind of the holder.
    pub by: HolderKind,
    /// Its id or name.
    pub id: String,
    /// Its invalid requests in the window.
    pub used: u32,
    /// Its calls in flight in this process.
    pub in_flight: u32,
    /// `used / cap`.
    pub ratio: f64,
    /// Whether its calls wait.
    pub capped: bool,
    /// Time until there is room again.
    pub room_in_ms: Option<u64>,
}
