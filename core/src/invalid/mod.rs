//! The ledger of invalid requests. It prevents a ban of this address.
//!
//! Discord counts responses with 401, 403 and 429 (unless shared) by address, and bans the address for an hour after
//! 10,000 in ten minutes. Less urgent work stops long before that, and finally all work does.
//!
//! All calls in flight may come back invalid. So a call makes a reservation before it is sent, and `used + in flight`
//! stays below the threshold of its lane: whatever the responses are, the limit holds.
//!
//! No key, tenant or guild may use more than a share of it: see `share.rs`.
//!
//! Processes behind the same address share one budget. [`InvalidLedger::share`] makes a process one of them; `fleet.rs`
//! describes the consequences, and why the limit still holds.

mod charge_runs;
mod fleet;
#[cfg(test)]
mod fleet_tests;
mod holders;
#[cfg(any(test, feature = "testing"))]
mod lender;
mod owner;
mod peak_processes;
mod saved_state;
mod share;
#[cfg(test)]
mod share_tests;
mod spenders;
mod storms;
#[cfg(test)]
mod tests;
mod window_counter;

pub use charge_runs::ChargeRun;
pub use fleet::{FleetSnapshot, LargeHolder, LedgerFallback, LenderReply, LenderRequest};
#[cfg(any(test, feature = "testing"))]
pub use lender::Lender;
pub use owner::{CallOwner, Holder, HolderKind, Submitter};
pub use saved_state::{SavedHolders, SavedInvalidLedger};
pub use share::{HolderSnapshot, ShareExceeded, ShareSnapshot};
pub use spenders::Spender;
pub use storms::{ForbiddenStorms, StormConfig, StormKey, StormRefusal};

use std::time::Duration;

use serde::Serialize;

use crate::lane::Lane;
use crate::route::RouteKey;
use crate::time::Timestamp;

use charge_runs::ChargeRuns;
use fleet::{Fleet, LocalCounts};
use holders::{Holders, LargeHolderCounts};
use peak_processes::PeakProcesses;
use spenders::Spenders;
use window_counter::WindowCounter;

/// Retry delay if there is room as soon as calls in flight end.
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// Settings of the ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidConfig {
    /// Maximum number of invalid requests that Discord allows.
    pub limit: u32,
    /// Window of the limit.
    pub window: Duration,
    /// Background work stops at this share of the limit, in percent.
    pub background_percent: u32,
    /// Operations stop at this share of the limit, in percent.
    pub operation_percent: u32,
    /// Everything stops at this share of the limit, in percent.
    pub interactive_percent: u32,
    /// Maximum share of the limit for one key, tenant or guild, in percent.
    pub share_percent: u32,
}

impl Default for InvalidConfig {
    fn default() -> Self {
        Self {
            limit: 10_000,
            window: Duration::from_secs(600),
            background_percent: 50,
            operation_percent: 80,
            interactive_percent: 95,
            share_percent: 25,
        }
    }
}

impl InvalidConfig {
    /// Number of invalid requests at which a lane stops.
    #[must_use]
    pub const fn threshold(&self, lane: Lane) -> u32 {
        (self.limit as u64 * self.percent(lane) as u64 / 100) as u32
    }

    const fn percent(&self, lane: Lane) -> u32 {
        match lane {
            Lane::Interactive => self.interactive_percent,
            Lane::Operation => self.operation_percent,
            Lane::Background => self.background_percent,
        }
    }
}

/// A reservation for a call in flight. Must be passed to [`InvalidLedger::complete`].
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a reservation that is not completed counts forever"]
pub struct Reservation {
    owner: CallOwner,
    route: RouteKey,
}

impl Reservation {
    /// The guild of the call, if any.
    #[must_use]
    pub const fn guild(&self) -> Option<u64> {
        self.owner.guild
    }
}

/// The budget for this lane is used up.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the invalid request budget is used up for now")]
pub struct InvalidBudgetExceeded {
    /// When there is room again, as far as known.
    pub until: Timestamp,
    /// The reason, for metrics: `invalid_requests` if the count stops the lane, `invalid_requests_lent` if this process
    /// has used up its allowance, `invalid_requests_unheard` if the lender has not replied for too long,
    /// `invalid_requests_{key,tenant,guild}_share` if the caller has used up its share.
    pub reason: &'static str,
    /// The holder that has used up its share, if that is the reason.
    pub share: Option<ShareExceeded>,
}

impl InvalidBudgetExceeded {
    const fn new(until: Timestamp, reason: &'static str) -> Self {
        Self { until, reason, share: None }
    }
}

/// The ledger of one address, or of one of the processes behind it.
#[derive(Debug)]
pub struct InvalidLedger {
    config: InvalidConfig,
    /// Own invalid requests in the window.
    slots: WindowCounter,
    /// Own invalid requests since the start.
    counted: u64,
    in_flight: u32,
    spenders: Spenders,
    fleet: Option<Fleet>,
    /// Processes behind this address that count separately, including this one.
    processes: PeakProcesses,
    /// Count of earlier runs of this process, and of the processes that shared the address.
    restored: WindowCounter,
    /// Counts of holders in this process.
    holders: Holders,
    /// Invalid responses that the lender has not acknowledged, by owner.
    runs: ChargeRuns,
    /// Counts of holders in earlier runs of this process.
    restored_holders: LargeHolderCounts,
    /// Count of the largest holder, and when it was last determined.
    largest: u32,
    largest_at: Timestamp,
    /// Calls rejected because of a share.
    held_by_share: u64,
    /// Whether a holder has used half of what this process may add for it without another request.
    short_of_exposure: bool,
}

impl InvalidLedger {
    /// An empty ledger of the only process behind its address.
    #[must_use]
    pub fn new(config: InvalidConfig) -> Self {
        Self {
            config,
            slots: WindowCounter::new(config.window),
            counted: 0,
            in_flight: 0,
            spenders: Spenders::new(config.window),
            fleet: None,
            processes: PeakProcesses::single_process(config.window),
            restored: WindowCounter::new(config.window),
            holders: Holders::new(config.window),
            runs: ChargeRuns::default(),
            restored_holders: LargeHolderCounts::empty(),
            largest: 0,
            largest_at: Timestamp::ZERO,
            held_by_share: 0,
            short_of_exposure: false,
        }
    }

    /// From now on other processes share this address. Until the first [`InvalidLedger::on_reply`] this one sends
    /// nothing, unless its fallback is the share.
    pub fn share(&mut self, fallback: LedgerFallback, now: Timestamp) {
        let forgotten = self.counted - u64::from(self.slots.total(now));
        self.unacknowledge(forgotten, now);
        self.fleet = Some(Fleet::new(self.config.window, fallback, self.local_counts(), forgotten));
    }

    /// Sets the number of processes behind this address, including this one, if each counts separately: each uses its
    /// part of the budget. What processes that have ended spent still counts for a window.
    pub fn set_processes(&mut self, count: u32, now: Timestamp) {
        self.processes.set(count, now);
    }

    /// Makes a reservation for a call of this owner on this route.
    ///
    /// # Errors
    ///
    /// When this call and all calls in flight together could exceed the threshold of its lane, the allowance of this
    /// process, or the share of one of its holders.
    pub fn admit(
        &mut self,
        lane: Lane,
        owner: impl Into<CallOwner>,
        route: &RouteKey,
        now: Timestamp,
    ) -> Result<Reservation, InvalidBudgetExceeded> {
        let threshold = self.config.threshold(lane);
        let used = self.used(now);
        if used.saturating_add(self.total_in_flight(now)) >= threshold {
            let until = if used < threshold { now + RETRY_DELAY } else { self.time_below(threshold, now) };
            return Err(InvalidBudgetExceeded::new(until, "invalid_requests"));
        }
        if let Some(fleet) = &self.fleet {
            fleet.check(lane, &self.config, self.local_counts(), now)?;
        }
        let owner = owner.into();
        self.check_share(&owner, now)?;
        self.holders.reserve(&owner);
        self.watch_exposure(&owner);
        self.in_flight += 1;
        Ok(Reservation { owner, route: route.clone() })
    }

    /// Whether a call of this lane has room now, by the count or, with a holder, by that holder's share.
    pub fn has_room(&mut self, lane: Lane, holder: Option<&Holder>, now: Timestamp) -> bool {
        match holder {
            Some(holder) => self.has_share(holder, now),
            None => {
                let is_free = self.used(now).saturating_add(self.total_in_flight(now)) < self.config.threshold(lane);
                is_free
                    && self
                        .fleet
                        .as_ref()
                        .is_none_or(|fleet| fleet.check(lane, &self.config, self.local_counts(), now).is_ok())
            }
        }
    }

    /// Ends the reservation of a call, and counts the call if its response was invalid.
    pub fn complete(&mut self, reservation: Reservation, was_invalid: bool, now: Timestamp) {
        let Reservation { owner, route } = reservation;
        self.in_flight -= 1;
        if was_invalid {
            self.counted += 1;
            self.slots.add(now);
            self.charge(&owner, now);
            self.spenders.add(owner.guild, route, now);
        }
        self.holders.release(&owner);
    }

    /// The count at `now`, over all processes as far as this one knows.
    pub fn used(&mut self, now: Timestamp) -> u32 {
        self.expire_holders(now);
        let own = self.local_counts();
        let in_window = self.slots.total(now);
        let recalled = self.restored.total(now);
        self.processes.forget(now);
        let Some(fleet) = &mut self.fleet else {
            return in_window.saturating_mul(self.processes.peak(now)).saturating_add(recalled);
        };
        fleet.expire(now);
        if fleet.has_lease() {
            // What was restored is in the common count, unless no other process remembers it.
            fleet.used(own, now).max(in_window.saturating_add(recalled))
        } else {
            in_window.saturating_mul(fleet.members()).saturating_add(recalled)
        }
    }

    /// Calls in flight in all processes, each of which may become invalid.
    fn total_in_flight(&self, now: Timestamp) -> u32 {
        match &self.fleet {
            None => self.in_flight.saturating_mul(self.processes.peak(now)),
            Some(fleet) if fleet.has_lease() => self.in_flight.saturating_add(fleet.in_flight_elsewhere()),
            Some(fleet) => self.in_flight.saturating_mul(fleet.members()),
        }
    }

    /// When the count falls below `max` by expiry alone.
    fn time_below(&self, max: u32, now: Timestamp) -> Timestamp {
        let here = |max: u32| self.slots.with(&self.restored).time_below(max, now);
        match &self.fleet {
            None => here(max.div_ceil(self.processes.peak(now))),
            Some(fleet) if fleet.has_lease() => fleet.time_below(max, self.local_counts(), now).max(here(max)),
            Some(fleet) => here(max.div_ceil(fleet.members())),
        }
    }

    const fn local_counts(&self) -> LocalCounts {
        LocalCounts { counted: self.counted, in_flight: self.in_flight }
    }

    /// The window of the count.
    #[must_use]
    pub const fn window(&self) -> Duration {
        self.config.window
    }

    /// The used part of the limit.
    pub fn used_ratio(&mut self, now: Timestamp) -> f64 {
        f64::from(self.used(now)) / f64::from(self.config.limit.max(1))
    }

    /// The most urgent lane that the count stops; all lanes below are stopped too.
    pub fn stopped_lane(&mut self, now: Timestamp) -> Option<Lane> {
        let used = self.used(now);
        Lane::ALL.into_iter().find(|lane| used >= self.config.threshold(*lane))
    }

    /// When the count decreases or an allowance expires by time alone.
    #[must_use]
    pub fn next_wake(&self) -> Option<Timestamp> {
        let others = self.fleet.as_ref().and_then(Fleet::next_wake);
        let processes = self.processes.next_end();
        self.slots.next_end().into_iter().chain(self.restored.next_end()).chain(others).chain(processes).min()
    }

    /// Whether it shares its budget and has a valid allowance; always true for a ledger without sharing.
    #[must_use]
    pub fn has_lease(&self) -> bool {
        self.fleet.as_ref().is_none_or(Fleet::has_lease)
    }

    /// Whether half of the allowance is used, or half of what may be added for one holder, so that it should request
    /// more. Always false without sharing.
    #[must_use]
    pub fn is_short(&self) -> bool {
        self.fleet.as_ref().is_some_and(|fleet| self.short_of_exposure || fleet.is_short(self.local_counts()))
    }

    /// Creates a request to the lender; `None` without sharing.
    pub fn request(&mut self, now: Timestamp) -> Option<LenderRequest> {
        self.request_with(false, now)
    }

    fn request_with(&mut self, leaves: bool, now: Timestamp) -> Option<LenderRequest> {
        let (own, cap) = (self.local_counts(), self.config.share_cap());
        let (runs, exposed) = (self.reported_runs(leaves), self.holders.max_exposed());
        self.fleet.as_mut().map(|fleet| fleet.request(own, runs, exposed, cap, now))
    }

    /// Applies a reply of the lender.
    pub fn on_reply(&mut self, reply: &LenderReply, now: Timestamp) {
        let own = self.local_counts();
        if self.fleet.as_mut().is_some_and(|fleet| fleet.on_reply(reply, own, now)) {
            self.acknowledge(reply.acknowledged, now);
            self.short_of_exposure = false;
        }
    }

    /// Returns the allowance; gives the last [`LenderRequest`]. After this only calls in flight remain.
    pub fn leave(&mut self, now: Timestamp) -> Option<LenderRequest> {
        if let Some(fleet) = &mut self.fleet {
            fleet.leave();
        }
        self.request_with(true, now)
    }

    /// The largest sources of invalid requests of this process, largest first.
    pub fn top_spenders(&mut self, now: Timestamp) -> Vec<Spender> {
        self.spenders.top(now)
    }

    /// Returns a view of the ledger.
    pub fn snapshot(&mut self, now: Timestamp) -> InvalidLedgerSnapshot {
        let own = self.local_counts();
        InvalidLedgerSnapshot {
            used: self.used(now),
            own: self.slots.total(now),
            in_flight: self.in_flight,
            limit: self.config.limit,
            window_seconds: self.config.window.as_secs(),
            ratio: self.used_ratio(now),
            thresholds: LaneThresholds {
                interactive: self.config.threshold(Lane::Interactive),
                operation: self.config.threshold(Lane::Operation),
                background: self.config.threshold(Lane::Background),
            },
            shared: self.fleet.as_mut().map(|fleet| fleet.snapshot(own, now)),
            top_spenders: self.top_spenders(now),
            share: self.share_snapshot(now),
        }
    }
}

/// View of the ledger.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct InvalidLedgerSnapshot {
    /// Invalid requests in the window, of all processes as far as this one knows.
    pub used: u32,
    /// Those of this process.
    pub own: u32,
    /// Calls in flight, each of which may become invalid.
    pub in_flight: u32,
    /// Maximum that Discord allows.
    pub limit: u32,
    /// Window in seconds.
    pub window_seconds: u64,
    /// `used / limit`.
    pub ratio: f64,
    /// Thresholds of the lanes.
    pub thresholds: LaneThresholds,
    /// State of the shared budget; `None` if the budget is not shared.
    pub shared: Option<FleetSnapshot>,
    /// Largest spenders, largest first.
    pub top_spenders: Vec<Spender>,
    /// Share of keys, tenants and guilds, and the largest holders.
    pub share: ShareSnapshot,
}

/// Threshold of each lane, in invalid requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct LaneThresholds {
    /// Everything stops.
    pub interactive: u32,
    /// All but interactive work stops.
    pub operation: u32,
    /// Background work stops.
    pub background: u32,
}
