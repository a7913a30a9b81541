//! Resolves a call to its domain and its wait queue, and decides when the wait queue permits it.

use super::{Delay, DelayReason, Limiter, PermitRequest};
use crate::limit::bucket::Bucket;
use crate::limit::domain::{Domain, DomainId};
use crate::limit::readiness::Readiness;
use crate::limit::route_table::{HashId, RouteLimit};
use crate::limit::sublimit::Sublimit;
use crate::limit::wait_queue::{QueueLimit, SublimitKey, WaitQueueId, WaitQueueKey};
use crate::response::Credential;
use crate::route::Route;
use crate::time::Timestamp;

impl Limiter {
    pub(super) fn domain_of(&mut self, ask: &PermitRequest) -> DomainId {
        let exempt = ask.route.interaction && self.config.interactions_exempt;
        self.domain_for(ask.credential, exempt)
    }

    pub(super) fn domain_for(&mut self, credential: Credential, exempt: bool) -> DomainId {
        let is_its = |domain: &Domain| domain.credential == credential && domain.is_exempt() == exempt;
        self.domains.iter().position(is_its).unwrap_or_else(|| {
            let global = (!exempt).then(|| self.global_of());
            self.add_domain(credential, global)
        })
    }

    /// The first wait queue of a call: that of a sublimit if one applies, else that of its route.
    pub(super) fn lot_of(&mut self, ask: &PermitRequest, now: Timestamp) -> Option<WaitQueueId> {
        let Route { key, major, sub, .. } = &ask.route;
        if sub.is_some() {
            return self.side_lot(ask, now);
        }
        if self.sides > 0 {
            let whose = self.book.whose(ask.credential)?;
            let side = SublimitKey { whose, route: key.clone(), major: *major, sub: None };
            if let Some(id) = self.yard.find(&WaitQueueKey::Side(Box::new(side)))
                && !self.yard.lot(id).is_idle(now)
            {
                return Some(id);
            }
        }
        self.ordinary_lot(ask, now)
    }

    pub(super) fn side_lot(&mut self, ask: &PermitRequest, now: Timestamp) -> Option<WaitQueueId> {
        let Route { key, major, sub, .. } = &ask.route;
        let whose = self.book.whose(ask.credential)?;
        let side = SublimitKey { whose, route: key.clone(), major: *major, sub: *sub };
        let id = self
            .yard
            .find_or_make(&WaitQueueKey::Side(Box::new(side)), now, || QueueLimit::Side(Sublimit::new(*sub)))?;
        self.sides = self.sides.max(1);
        Some(id)
    }

    pub(super) fn ordinary_lot(&mut self, ask: &PermitRequest, now: Timestamp) -> Option<WaitQueueId> {
        let key = &ask.route.key;
        match self.book.of(ask.credential, key, now) {
            RouteLimit::Hash(hash) => self.bucket_lot(ask, hash, now),
            RouteLimit::Free(_) => {
                let free = WaitQueueKey::Free(self.book.whose(ask.credential)?, key.clone());
                self.yard.find_or_make(&free, now, || QueueLimit::Open)
            }
            RouteLimit::Unknown => {
                let unknown =
                    WaitQueueKey::Unknown(self.book.whose(ask.credential)?, key.template().into(), key.is_read());
                self.yard.find_or_make(&unknown, now, || QueueLimit::Probe { in_flight: false })
            }
        }
    }

    /// When the wait queue permits its next call, `next`.
    pub(super) fn turn(&mut self, lot: WaitQueueId, next: &PermitRequest, now: Timestamp) -> Readiness {
        match &mut self.yard.lot(lot).keeper {
            QueueLimit::Bucket(bucket) => bucket.turn(now),
            QueueLimit::Open => Readiness::Now,
            QueueLimit::Side(side) => side.turn(now),
            QueueLimit::Probe { in_flight: true } => Readiness::OnAnswer,
            QueueLimit::Probe { in_flight: false } => match self.kin(next, now) {
                // The response of the last probe was lost, so that probe may still be in flight.
                None => self.ghost_of(next, now).map_or(Readiness::Now, Readiness::At),
                Some(kin) => match &mut self.yard.lot(kin).keeper {
                    QueueLimit::Bucket(bucket) => match bucket.turn(now) {
                        // A related bucket that is closed for hours is no reason to wait: it may be a different bucket.
                        Readiness::At(then) if then.since(now) > self.config.kin_patience => Readiness::Now,
                        turn => turn,
                    },
                    _ => Readiness::Now,
                },
            },
        }
    }

    /// When the last lost probe of this object can no longer arrive.
    pub(super) fn ghost_of(&self, ask: &PermitRequest, now: Timestamp) -> Option<Timestamp> {
        let ghosts = self.ghosts.iter().filter(|ghost| ghost.haunts(ask));
        ghosts.map(|ghost| ghost.gone).filter(|gone| *gone > now).max()
    }

    /// A call of a route has completed: re-evaluates an unknown route that waits for its bucket.
    pub(super) fn review_kin(&mut self, ask: &PermitRequest, now: Timestamp) {
        let key = &ask.route.key;
        if self.waiters.is_empty() || key.is_read() {
            return;
        }
        let Some(whose) = self.book.whose(ask.credential) else { return };
        let unknown = WaitQueueKey::Unknown(whose, key.template().into(), false);
        if let Some(lot) = self.yard.find(&unknown) {
            self.review(lot, now);
        }
    }

    /// A bucket of the same object that an unknown route may turn out to share.
    pub(super) fn kin(&mut self, ask: &PermitRequest, now: Timestamp) -> Option<WaitQueueId> {
        let hash = self.book.kin(ask.credential, &ask.route.key).next()?;
        self.bucket_lot(ask, hash, now)
    }

    /// The bucket of a hash for a call's object. A new bucket starts with the limit of the hash, minus the lost probes
    /// that were sent to the object before its hash was known. If a previous process may have used the bucket, it
    /// starts with a probe.
    pub(super) fn bucket_lot(&mut self, ask: &PermitRequest, hash: HashId, now: Timestamp) -> Option<WaitQueueId> {
        let bucket = WaitQueueKey::Bucket(self.book.whose(ask.credential)?, hash, ask.route.major);
        if let Some(lot) = self.yard.find(&bucket) {
            return Some(lot);
        }
        let traits = self.book.traits(hash);
        let is_haunted = self.book.is_haunted(hash, now);
        let mut fresh = if is_haunted { Bucket::unseen(traits) } else { Bucket::sibling(traits) };
        self.ghosts.retain(|ghost| ghost.gone > now);
        for ghost in self.ghosts.iter().filter(|ghost| ghost.haunts(ask)) {
            let number = fresh.take();
            fresh.lose(number, ghost.gone);
        }
        self.yard.find_or_make(&bucket, now, || QueueLimit::Bucket(fresh))
    }

    pub(super) fn may_go_at_once(
        &mut self,
        ask: &PermitRequest,
        domain: DomainId,
        lot: WaitQueueId,
        now: Timestamp,
    ) -> bool {
        if self.yard.lot(lot).queues.is_some() || matches!(self.yard.lot(lot).keeper, QueueLimit::Side(_)) {
            return false;
        }
        let there = &mut self.domains[domain];
        let is_free = there.is_quiet() && there.turn_of(ask.lane, now) == Readiness::Now;
        is_free && self.turn(lot, ask, now) == Readiness::Now
    }

    pub(super) fn estimate(
        &mut self,
        ask: &PermitRequest,
        domain: DomainId,
        lot: WaitQueueId,
        now: Timestamp,
    ) -> Delay {
        let global = self.domains[domain].estimate(ask.lane, now);
        let lot = self.yard.lot(lot);
        let ahead = lot.ahead(ask.lane);
        let route = match &lot.keeper {
            QueueLimit::Bucket(bucket) => bucket.estimate(ahead, now),
            QueueLimit::Side(side) => side.estimate(ahead, now),
            QueueLimit::Open | QueueLimit::Probe { .. } => now,
        };
        if route > global {
            Delay { until: route, reason: DelayReason::Route }
        } else {
            Delay { until: global, reason: DelayReason::Global }
        }
    }
}
