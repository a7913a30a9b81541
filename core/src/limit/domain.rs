//! A domain: calls that share one global limit or none, and the order in which they are granted.

use super::caller::CallerId;
use super::global::GlobalLimit;
use super::readiness::Readiness;
use super::shared::MemberPermitId;
use super::turns::Turns;
use super::wait_queue::{Ticket, WaitQueueId};
use crate::lane::Lane;
use crate::response::Credential;
use crate::time::Timestamp;

/// Index of a domain.
pub(super) type DomainId = usize;

/// Calls that share a global limit.
#[derive(Debug)]
pub(super) struct Domain {
    pub(super) credential: Credential,
    /// `None` for calls that are exempt from the global limit.
    pub(super) global: Option<GlobalLimit>,
    /// Heads of wait queues that wait only for this domain, by lane.
    ready: [Turns; 3],
    /// Number of waiters that need a token of this domain, now or later.
    pub(super) waiting: usize,
    /// Number of calls in flight.
    pub(super) in_flight: usize,
    /// The last grant.
    used_at: Timestamp,
    /// When to check again.
    pub(super) wake: Option<Timestamp>,
    /// A global 429 of the credential: no call is granted before this time, exempt from the global limit or not.
    blocked_until: Timestamp,
}

impl Domain {
    pub(super) fn new(credential: Credential, global: Option<GlobalLimit>, now: Timestamp) -> Self {
        Self {
            credential,
            global,
            ready: [Turns::new(), Turns::new(), Turns::new()],
            waiting: 0,
            in_flight: 0,
            used_at: now,
            wake: None,
            blocked_until: Timestamp::ZERO,
        }
    }

    /// Whether this domain is for calls that are exempt from the global limit.
    pub(super) fn is_exempt(&self) -> bool {
        self.global.is_none()
    }

    /// When it was last used, if it has no calls and is not blocked.
    pub(super) fn unused_since(&self, now: Timestamp) -> Option<Timestamp> {
        let is_unused = self.waiting == 0 && self.in_flight == 0 && self.is_quiet() && self.blocked_until <= now;
        is_unused.then_some(self.used_at)
    }

    /// A global 429: no call is granted before `until`.
    pub(super) fn block(&mut self, until: Timestamp) {
        self.blocked_until = self.blocked_until.max(until);
    }

    /// When a call of this lane could be granted if no other call waited.
    pub(super) fn lane_readiness(&mut self, lane: Lane, now: Timestamp) -> Readiness {
        match (Readiness::not_before(self.blocked_until, now), &mut self.global) {
            (Readiness::Now, Some(global)) => global.lane_readiness(lane, now),
            (turn, _) => turn,
        }
    }

    /// The earliest time at which a new call of this lane could be granted; a lower bound.
    pub(super) fn estimate(&self, lane: Lane, caller: CallerId, now: Timestamp) -> Timestamp {
        let global = self.global.as_ref().map_or(now, |global| global.estimate(self.ahead(lane, caller), now));
        global.max(self.blocked_until)
    }

    pub(super) fn announce(&mut self, lane: Lane, caller: CallerId, ticket: Ticket, queue_id: WaitQueueId) {
        self.ready[lane.index()].insert(caller, ticket, queue_id);
    }

    pub(super) fn withdraw(&mut self, lane: Lane, caller: CallerId, ticket: Ticket, queue_id: WaitQueueId) {
        self.ready[lane.index()].remove(caller, ticket, queue_id);
    }

    pub(super) fn is_quiet(&self) -> bool {
        self.ready.iter().all(Turns::is_empty)
    }

    /// Number of ready calls that are granted before a new call of this lane and caller.
    pub(super) fn ahead(&self, lane: Lane, caller: CallerId) -> usize {
        let urgent: usize = self.ready[..lane.index()].iter().map(Turns::len).sum();
        urgent + self.ready[lane.index()].ahead(caller)
    }

    /// The next call to grant, if one is permitted now.
    pub(super) fn next(&mut self, now: Timestamp) -> Option<(Lane, Ticket, WaitQueueId)> {
        self.wake = None;
        let waiting = self.ready_lanes();
        if let Some(global) = &mut self.global {
            global.set_demand(waiting, self.waiting, now);
        }
        if self.is_quiet() {
            return None;
        }
        if now < self.blocked_until {
            return self.set_wake(Readiness::At(self.blocked_until));
        }
        let lane = match &mut self.global {
            None => Lane::ALL.into_iter().find(|lane| waiting[lane.index()])?,
            Some(global) => match global.readiness(now) {
                Readiness::Now => match global.choose_lane(waiting, now) {
                    Ok(lane) => lane,
                    Err(turn) => return self.set_wake(turn),
                },
                turn => return self.set_wake(turn),
            },
        };
        let (ticket, queue_id) = self.ready[lane.index()].first()?;
        Some((lane, ticket, queue_id))
    }

    fn set_wake(&mut self, turn: Readiness) -> Option<(Lane, Ticket, WaitQueueId)> {
        if let Readiness::At(then) = turn {
            self.wake = Some(then);
        }
        None
    }

    /// Takes a token for a call; `waiting` are the lanes that had ready calls when it was chosen.
    pub(super) fn take(
        &mut self,
        lane: Lane,
        caller: CallerId,
        waiting: [bool; 3],
        now: Timestamp,
    ) -> Option<MemberPermitId> {
        self.in_flight += 1;
        self.used_at = now;
        self.ready[lane.index()].took(caller);
        self.global.as_mut().and_then(|global| global.take(lane, waiting, now))
    }

    /// Which lanes have ready calls.
    pub(super) fn ready_lanes(&self) -> [bool; 3] {
        [0, 1, 2].map(|lane: usize| !self.ready[lane].is_empty())
    }
}
