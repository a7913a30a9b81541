//! The other processes behind the same address, as far as this process knows them.
//!
//! Discord counts the requests of all of them together; no process sees what another has in flight, and none can ask
//! before each call. So the lender, which has the common count, lends parts of the limit. Each process has a *ceiling*,
//! up to which its own count and its calls in flight may grow without a request to the lender, and at every moment
//!
//! ```text
//!   counted in the window  +  Σ over all processes (ceiling − acknowledged)  ≤  limit
//! ```
//!
//! An invalid response moves one from the lent part to the count once it is acknowledged: the sum stays the same. The
//! sum grows only when the lender lends more, which it does within the limit. So the limit holds no matter which
//! processes can reach the lender and how old their information is, as long as
//!
//! - a process lowers its ceiling before it reports it, so that a lost reply leaves it lower than the lender assumes;
//! - a ceiling that is not renewed expires one window after it was requested, and the lender reserves the lent part of
//!   a silent process until its later responses have left the window as well.

use std::time::Duration;

use serde::Serialize;

use super::charge_runs::ChargeRun;
use super::holders::LargeHolderCounts;
use super::owner::Holder;
use super::window_counter::WindowCounter;
use super::{InvalidBudgetExceeded, InvalidConfig};
use crate::lane::Lane;
use crate::time::Timestamp;

/// Delay before the next request for more allowance: about as long as it takes to get some.
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// Behaviour of a process that has had no reply from the lender for a whole window, or never.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LedgerFallback {
    /// It sends nothing. The limit holds.
    #[default]
    Stop,
    /// It multiplies its own count by the last known number of members. The limit holds only if all others do the same.
    Share,
}

/// Report of a process to the lender, and its request for a new or renewed allowance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LenderRequest {
    /// Time of the request.
    pub requested_at: Timestamp,
    /// Invalid responses since the process started.
    pub counted: u64,
    /// How many of them are not in any common count that the process has received.
    pub unacknowledged: u64,
    /// Calls in flight.
    pub in_flight: u32,
    /// Maximum of `counted + in_flight` without another request. The process respects it, with or without a reply.
    pub ceiling: u64,
    /// The common count as the process remembers it, for a lender that has lost its state.
    pub total: u32,
    /// Number of processes with a lent allowance, as the process remembers it.
    pub holders: u32,
    /// Maximum count of one key, tenant or guild.
    pub cap: u32,
    /// How many it may add for any one of them without another request. It respects this like the ceiling.
    pub exposure: u32,
    /// The same for all other processes, as it remembers it, for a lender that has lost its state.
    pub elsewhere_exposure: u32,
    /// Owners of its invalid responses that are not in any common count that it has received.
    pub runs: Vec<ChargeRun>,
    /// The large holders as it remembers them, for a lender that has lost its state.
    pub large: Vec<(Holder, u32)>,
}

/// A large holder, with the number of its invalid responses that leave the window after each duration, in order.
pub type LargeHolder = (Holder, Vec<(Duration, u32)>);

/// Reply of the lender.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LenderReply {
    /// Time of the request.
    pub requested_at: Timestamp,
    /// [`LenderRequest::counted`] of the request: the common count includes all of these now.
    pub acknowledged: u64,
    /// The new ceiling. A lower one than before takes effect as soon as the calls in flight allow it.
    pub ceiling: u64,
    /// The common count: how many leave the window after each duration, in order.
    pub slots: Vec<(Duration, u32)>,
    /// Number of processes with a request in the last seconds.
    pub members: u32,
    /// Number of processes with a lent allowance, including silent ones.
    pub holders: u32,
    /// Calls in flight in the other processes, as of their last request.
    pub in_flight_elsewhere: u32,
    /// How many the process may add for any one holder without another request, from now on.
    pub exposure: u32,
    /// The same for all other processes.
    pub elsewhere_exposure: u32,
    /// Maximum count of a holder that is not listed.
    pub floor: u32,
    /// The common counts of the large holders: how many leave the window after each duration, in order.
    pub large: Vec<LargeHolder>,
}

/// The process's own count and calls in flight.
#[derive(Clone, Copy)]
pub(super) struct LocalCounts {
    pub(super) counted: u64,
    pub(super) in_flight: u32,
}

impl LocalCounts {
    /// The count if all calls in flight come back invalid.
    fn exposed(self) -> u64 {
        self.counted + u64::from(self.in_flight)
    }
}

#[derive(Debug)]
pub(super) struct Fleet {
    fallback: LedgerFallback,
    window: Duration,
    /// Expiry of the ceiling; `None` if it was never valid, or is no longer valid.
    lease: Option<Timestamp>,
    ceiling: u64,
    acknowledged: u64,
    /// The common count.
    slots: WindowCounter,
    members: u32,
    holders: u32,
    in_flight_elsewhere: u32,
    /// What may be added for one holder without another request, here and in the other processes.
    pub(super) exposure: u32,
    pub(super) elsewhere_exposure: u32,
    /// The common counts of holders.
    pub(super) common: LargeHolderCounts,
}

impl Fleet {
    /// State before the first reply. Own responses up to `forgotten` have left the window and do not count.
    pub(super) fn new(window: Duration, fallback: LedgerFallback, own: LocalCounts, forgotten: u64) -> Self {
        Self {
            fallback,
            window,
            lease: None,
            ceiling: own.exposed(),
            acknowledged: forgotten,
            slots: WindowCounter::new(window),
            members: 1,
            holders: 0,
            in_flight_elsewhere: 0,
            exposure: 0,
            elsewhere_exposure: 0,
            common: LargeHolderCounts::empty(),
        }
    }

    /// Whether the ceiling is still valid.
    pub(super) const fn has_lease(&self) -> bool {
        self.lease.is_some()
    }

    pub(super) const fn members(&self) -> u32 {
        self.members
    }

    /// Calls in flight in the other processes.
    pub(super) const fn in_flight_elsewhere(&self) -> u32 {
        self.in_flight_elsewhere
    }

    /// Drops what has expired.
    pub(super) fn expire(&mut self, now: Timestamp) {
        if self.lease.is_some_and(|end| end <= now) {
            self.lease = None;
        }
        self.slots.total(now);
    }

    pub(super) fn next_wake(&self) -> Option<Timestamp> {
        self.lease.into_iter().chain(self.slots.next_end()).min()
    }

    /// The common count, plus own responses that are not in it yet, multiplied by the number of members.
    pub(super) fn used(&mut self, own: LocalCounts, now: Timestamp) -> u32 {
        self.slots.total(now).saturating_add(self.extra(own))
    }

    /// The common count by expiry, and the number of own responses that are not in it yet.
    pub(super) fn counted(&self, own: LocalCounts) -> (&WindowCounter, u64) {
        (&self.slots, own.counted - self.acknowledged)
    }

    /// When [`Fleet::used`] falls below `max` by expiry alone.
    pub(super) fn time_below(&self, max: u32, own: LocalCounts, now: Timestamp) -> Timestamp {
        self.slots.time_below(max.saturating_sub(self.extra(own)), now)
    }

    fn extra(&self, own: LocalCounts) -> u32 {
        let unacknowledged = own.counted - self.acknowledged;
        u32::try_from(unacknowledged.saturating_mul(u64::from(self.members))).unwrap_or(u32::MAX)
    }

    /// Whether the allowance permits a call. Lanes stop at the same percentages of the allowance as of the whole limit,
    /// so that less urgent work leaves room for urgent work.
    pub(super) fn check(
        &self,
        lane: Lane,
        config: &InvalidConfig,
        own: LocalCounts,
        now: Timestamp,
    ) -> Result<(), InvalidBudgetExceeded> {
        if self.lease.is_none() {
            return match self.fallback {
                LedgerFallback::Stop => Err(InvalidBudgetExceeded::new(now + RETRY_DELAY, "invalid_requests_unheard")),
                LedgerFallback::Share => Ok(()),
            };
        }
        let lent = self.ceiling - self.acknowledged;
        let needed = own.exposed() - self.acknowledged + 1;
        let (max_percent, share) = (config.percent(Lane::Interactive), config.percent(lane));
        let fits =
            needed <= lent && needed.saturating_mul(u64::from(max_percent)) <= lent.saturating_mul(u64::from(share));
        if fits { Ok(()) } else { Err(InvalidBudgetExceeded::new(now + RETRY_DELAY, "invalid_requests_lent")) }
    }

    /// Whether half of the allowance is used: time to request more.
    pub(super) fn is_short(&self, own: LocalCounts) -> bool {
        (own.exposed() - self.acknowledged) * 2 >= self.ceiling - self.acknowledged
    }

    /// Creates a request. `exposed` is the maximum that may have to be added for one holder.
    pub(super) fn request(
        &mut self,
        own: LocalCounts,
        runs: Vec<ChargeRun>,
        exposed: u32,
        cap: u32,
        now: Timestamp,
    ) -> LenderRequest {
        self.expire(now);
        // Without a lease, the allowance covers only calls in flight.
        let ceiling = if self.lease.is_some() { self.ceiling } else { 0 };
        self.ceiling = ceiling.max(own.exposed());
        let exposure = if self.lease.is_some() { self.exposure } else { 0 };
        self.exposure = exposure.max(exposed);
        let large = self.common.holders().map(|holder| (holder.clone(), self.common.listed(holder, now)));
        let mut large: Vec<(Holder, u32)> = large.filter(|(_, count)| *count > 0).collect();
        large.sort_unstable();
        LenderRequest {
            requested_at: now,
            counted: own.counted,
            unacknowledged: own.counted - self.acknowledged,
            in_flight: own.in_flight,
            ceiling: self.ceiling,
            total: self.slots.total(now),
            holders: self.holders,
            cap,
            exposure: self.exposure,
            elsewhere_exposure: self.elsewhere_exposure,
            runs,
            large,
        }
    }

    /// Applies a reply. Returns whether it was valid.
    pub(super) fn on_reply(&mut self, reply: &LenderReply, own: LocalCounts, now: Timestamp) -> bool {
        let LenderReply {
            requested_at,
            acknowledged,
            ceiling,
            ref slots,
            members,
            holders,
            in_flight_elsewhere: elsewhere,
            ..
        } = *reply;
        if acknowledged < self.acknowledged || acknowledged > own.counted {
            return false;
        }
        self.lease = Some(requested_at + self.window);
        self.acknowledged = acknowledged;
        self.ceiling = ceiling.max(own.exposed());
        self.slots.refill(slots.iter().map(|(leaves, count)| (now + *leaves, *count)));
        self.members = members.max(1);
        self.holders = holders;
        self.in_flight_elsewhere = elsewhere;
        self.exposure = reply.exposure;
        self.elsewhere_exposure = reply.elsewhere_exposure;
        let large = reply.large.iter().map(|(holder, slots)| {
            (holder.clone(), slots.iter().map(|(leaves, count)| (now + *leaves, *count)).collect())
        });
        self.common = LargeHolderCounts::new(self.window, large, reply.floor, requested_at + self.window);
        self.expire(now);
        true
    }

    /// Returns the allowance, except for calls in flight.
    pub(super) fn leave(&mut self) {
        self.lease = None;
    }

    pub(super) fn snapshot(&mut self, own: LocalCounts, now: Timestamp) -> FleetSnapshot {
        self.expire(now);
        let remaining = self.lease.map_or(0, |_| self.ceiling.saturating_sub(own.exposed()));
        FleetSnapshot {
            total: self.slots.total(now),
            members: self.members,
            unacknowledged: own.counted - self.acknowledged,
            lent: remaining,
            lease_ms: self.lease.map(|end| u64::try_from(end.since(now).as_millis()).unwrap_or(u64::MAX)),
        }
    }
}

/// View of the common count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct FleetSnapshot {
    /// Invalid requests of all processes in the window, as of the last reply.
    pub total: u32,
    /// Number of processes then.
    pub members: u32,
    /// Own requests that are not in the total yet.
    pub unacknowledged: u64,
    /// How many more calls may be sent without another request.
    pub lent: u64,
    /// Remaining time of the lease; `None` if it has expired.
    pub lease_ms: Option<u64>,
}
