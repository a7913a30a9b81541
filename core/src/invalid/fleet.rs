//! The other processes behind the same address, as far as this one knows of them.
//!
//! Discord counts for all of them together; no process sees what another has under way, and none can ask before each call.
//! So whoever keeps the common count lends. Each process has a *ceiling*, up to which its own count and its calls under way
//! may grow unasked, and at every moment
//!
//! ```text
//!   counted in the window  +  Σ over all processes (ceiling − acknowledged)  ≤  limit
//! ```
//!
//! An invalid answer takes a place that was lent and, once acknowledged, one in the count: the sum stays. It grows only when
//! the keeper lends more, which it does within the limit. So the limit holds whoever can or cannot reach the keeper, and
//! however old what they know is, as long as
//!
//! - a process lowers its ceiling before it says so, and a lost answer leaves it lower than the keeper believes;
//! - a ceiling that nobody renews ends one window after it was asked for, and the keeper holds the places of a silent
//!   process until what that one did meanwhile has left the window as well.

use std::time::Duration;

use serde::Serialize;

use super::charge_runs::ChargeRun;
use super::holders::LargeHolderCounts;
use super::owner::Holder;
use super::window_counter::WindowCounter;
use super::{InvalidBudgetExceeded, InvalidConfig};
use crate::lane::Lane;
use crate::time::Timestamp;

/// When to ask again for more room: about as long as it takes to be lent some.
const SOON: Duration = Duration::from_secs(1);

/// What a process does that has heard nothing of the others for a whole window, or never.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LedgerFallback {
    /// It lets nothing out. The limit holds.
    #[default]
    Stop,
    /// It counts its own answers times the members there were. The limit holds only if all others do the same.
    Share,
}

/// What a process tells whoever keeps the common count, and what it asks by that: to be lent more, or again as much.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LenderRequest {
    /// When it asks.
    pub asked: Timestamp,
    /// Its invalid answers since it started.
    pub counted: u64,
    /// How many of them are in no common count that it has heard of.
    pub unacknowledged: u64,
    /// Its calls under way.
    pub in_flight: u32,
    /// Up to where `counted + in_flight` may grow unasked. It keeps to that, whether it is answered or not.
    pub ceiling: u64,
    /// The common count as it remembers it, for a keeper that has forgotten.
    pub total: u32,
    /// How many processes had places lent, as it remembers.
    pub holders: u32,
    /// How many one key, tenant or guild may have.
    pub cap: u32,
    /// How many it may add for any one of them unasked. It keeps to that like to the ceiling.
    pub exposure: u32,
    /// How many the others may, as it remembers, for a keeper that has forgotten.
    pub elsewhere_exposure: u32,
    /// Who its invalid answers are charged to that are in no common count that it has heard of.
    pub runs: Vec<ChargeRun>,
    /// The large holders as it remembers them, for a keeper that has forgotten.
    pub large: Vec<(Holder, u32)>,
}

/// A large holder: how many of its invalid answers leave the window, and in how long. In that order.
pub type LargeHolder = (Holder, Vec<(Duration, u32)>);

/// What the keeper of the common count answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LenderReply {
    /// When it was asked.
    pub asked: Timestamp,
    /// [`LenderRequest::counted`] of the question: so many are in the common count now.
    pub acknowledged: u64,
    /// The ceiling from now on. A lower one than before is a request: it is met as soon as calls under way allow it.
    pub ceiling: u64,
    /// The common count: how many leave the window, and in how long. In that order.
    pub slots: Vec<(Duration, u32)>,
    /// How many processes were heard in the last seconds.
    pub members: u32,
    /// How many have places lent, silent ones among them.
    pub holders: u32,
    /// Calls that the others had under way when they were last heard.
    pub elsewhere: u32,
    /// How many it may add for any one holder unasked, from now on.
    pub exposure: u32,
    /// How many the others may.
    pub elsewhere_exposure: u32,
    /// What a holder that is not listed may have, at most.
    pub floor: u32,
    /// The common counts of the large holders: how many leave the window, and in how long. In that order.
    pub large: Vec<LargeHolder>,
}

/// What a process itself has counted and has under way.
#[derive(Clone, Copy)]
pub(super) struct LocalCounts {
    pub(super) counted: u64,
    pub(super) in_flight: u32,
}

impl LocalCounts {
    /// What it will have counted if all calls under way come back invalid.
    fn exposed(self) -> u64 {
        self.counted + u64::from(self.in_flight)
    }
}

#[derive(Debug)]
pub(super) struct Fleet {
    when_lost: LedgerFallback,
    window: Duration,
    /// Until when the ceiling holds; nothing if it never did, or does no longer.
    lease: Option<Timestamp>,
    ceiling: u64,
    acknowledged: u64,
    /// The common count.
    slots: WindowCounter,
    members: u32,
    holders: u32,
    elsewhere: u32,
    /// What may be added for one holder unasked, here and elsewhere.
    pub(super) exposure: u32,
    pub(super) elsewhere_exposure: u32,
    /// The common counts of holders.
    pub(super) common: LargeHolderCounts,
}

impl Fleet {
    /// Others that nothing is known of yet. Own ones up to `forgotten` have left the window, and concern nobody.
    pub(super) fn new(window: Duration, when_lost: LedgerFallback, own: LocalCounts, forgotten: u64) -> Self {
        Self {
            when_lost,
            window,
            lease: None,
            ceiling: own.exposed(),
            acknowledged: forgotten,
            slots: WindowCounter::new(window),
            members: 1,
            holders: 0,
            elsewhere: 0,
            exposure: 0,
            elsewhere_exposure: 0,
            common: LargeHolderCounts::none(),
        }
    }

    /// Whether the ceiling still holds.
    pub(super) const fn is_heard(&self) -> bool {
        self.lease.is_some()
    }

    pub(super) const fn members(&self) -> u32 {
        self.members
    }

    /// Calls of the others under way.
    pub(super) const fn elsewhere(&self) -> u32 {
        self.elsewhere
    }

    /// Does what time has brought.
    pub(super) fn turn(&mut self, now: Timestamp) {
        if self.lease.is_some_and(|end| end <= now) {
            self.lease = None;
        }
        self.slots.total(now);
    }

    pub(super) fn next_wake(&self) -> Option<Timestamp> {
        self.lease.into_iter().chain(self.slots.next_end()).min()
    }

    /// The common count, with what is not in it yet as if all members did alike.
    pub(super) fn used(&mut self, own: LocalCounts, now: Timestamp) -> u32 {
        self.slots.total(now).saturating_add(self.extra(own))
    }

    /// The common count by when it leaves, and how many of our own are not in it yet.
    pub(super) fn counted(&self, own: LocalCounts) -> (&WindowCounter, u64) {
        (&self.slots, own.counted - self.acknowledged)
    }

    /// When [`Fleet::used`] will have fallen below `most` by time alone.
    pub(super) fn below(&self, most: u32, own: LocalCounts, now: Timestamp) -> Timestamp {
        self.slots.below(most.saturating_sub(self.extra(own)), now)
    }

    fn extra(&self, own: LocalCounts) -> u32 {
        let unacknowledged = own.counted - self.acknowledged;
        u32::try_from(unacknowledged.saturating_mul(u64::from(self.members))).unwrap_or(u32::MAX)
    }

    /// Whether a call may go by what was lent. Lanes stop within it as they do within the whole, so that what may wait
    /// leaves room for what may not.
    pub(super) fn check(
        &self,
        lane: Lane,
        config: &InvalidConfig,
        own: LocalCounts,
        now: Timestamp,
    ) -> Result<(), InvalidBudgetExceeded> {
        if self.lease.is_none() {
            return match self.when_lost {
                LedgerFallback::Stop => Err(InvalidBudgetExceeded::new(now + SOON, "invalid_requests_unheard")),
                LedgerFallback::Share => Ok(()),
            };
        }
        let lent = self.ceiling - self.acknowledged;
        let wanted = own.exposed() - self.acknowledged + 1;
        let (most, share) = (config.percent(Lane::Interactive), config.percent(lane));
        let fits = wanted <= lent && wanted.saturating_mul(u64::from(most)) <= lent.saturating_mul(u64::from(share));
        if fits { Ok(()) } else { Err(InvalidBudgetExceeded::new(now + SOON, "invalid_requests_lent")) }
    }

    /// Whether half of what was lent is taken: time to ask for more.
    pub(super) fn is_short(&self, own: LocalCounts) -> bool {
        (own.exposed() - self.acknowledged) * 2 >= self.ceiling - self.acknowledged
    }

    /// `exposed` is the most that may have to be added for one holder.
    pub(super) fn ask(
        &mut self,
        own: LocalCounts,
        runs: Vec<ChargeRun>,
        exposed: u32,
        cap: u32,
        now: Timestamp,
    ) -> LenderRequest {
        self.turn(now);
        // Without a lease it holds only what is still under way.
        let ceiling = if self.lease.is_some() { self.ceiling } else { 0 };
        self.ceiling = ceiling.max(own.exposed());
        let exposure = if self.lease.is_some() { self.exposure } else { 0 };
        self.exposure = exposure.max(exposed);
        let large = self.common.holders().map(|holder| (holder.clone(), self.common.listed(holder, now)));
        let mut large: Vec<(Holder, u32)> = large.filter(|(_, count)| *count > 0).collect();
        large.sort_unstable();
        LenderRequest {
            asked: now,
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

    /// Whether the answer could be taken.
    pub(super) fn synced(&mut self, synced: &LenderReply, own: LocalCounts, now: Timestamp) -> bool {
        let LenderReply { asked, acknowledged, ceiling, ref slots, members, holders, elsewhere, .. } = *synced;
        if acknowledged < self.acknowledged || acknowledged > own.counted {
            return false;
        }
        self.lease = Some(asked + self.window);
        self.acknowledged = acknowledged;
        self.ceiling = ceiling.max(own.exposed());
        self.slots.refill(slots.iter().map(|(leaves, count)| (now + *leaves, *count)));
        self.members = members.max(1);
        self.holders = holders;
        self.elsewhere = elsewhere;
        self.exposure = synced.exposure;
        self.elsewhere_exposure = synced.elsewhere_exposure;
        let large = synced.large.iter().map(|(holder, slots)| {
            (holder.clone(), slots.iter().map(|(leaves, count)| (now + *leaves, *count)).collect())
        });
        self.common = LargeHolderCounts::new(self.window, large, synced.floor, asked + self.window);
        self.turn(now);
        true
    }

    /// Gives back all that was lent but for what is still under way.
    pub(super) fn leave(&mut self) {
        self.lease = None;
    }

    pub(super) fn snapshot(&mut self, own: LocalCounts, now: Timestamp) -> FleetSnapshot {
        self.turn(now);
        let left = self.lease.map_or(0, |_| self.ceiling.saturating_sub(own.exposed()));
        FleetSnapshot {
            total: self.slots.total(now),
            members: self.members,
            unacknowledged: own.counted - self.acknowledged,
            lent: left,
            lease_ms: self.lease.map(|end| u64::try_from(end.since(now).as_millis()).unwrap_or(u64::MAX)),
        }
    }
}

/// What is to be seen of the common count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct FleetSnapshot {
    /// Invalid requests of all processes in the window, when it was last heard.
    pub total: u32,
    /// How many processes there were then.
    pub members: u32,
    /// Own ones that are not in the total yet.
    pub unacknowledged: u64,
    /// How many more calls may go out unasked.
    pub lent: u64,
    /// For how long; nothing if nothing was heard for so long that it is over.
    pub lease_ms: Option<u64>,
}
