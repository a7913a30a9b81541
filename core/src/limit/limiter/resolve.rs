//! Resolves a call to its domain and its wait queue, and decides when the wait queue permits it.

use super::{Delay, DelayReason, Limiter, PermitRequest, RouteBucket};
use crate::limit::domain::{Domain, DomainId};
use crate::limit::readiness::Readiness;
use crate::limit::route_table::{HashId, RouteLimit};
use crate::limit::sublimit::Sublimit;
use crate::limit::wait_queue::{QueueLimit, SublimitKey, WaitQueueId, WaitQueueKey};
use crate::response::Credential;
use crate::route::{Route, RouteKey};
use crate::time::Timestamp;

impl Limiter {
    /// The bucket of a route, as Discord last reported it; `None` if that is not known, or the route has no limit.
    #[must_use]
    pub fn bucket_of(&self, credential: Credential, route: &RouteKey) -> Option<RouteBucket> {
        match self.routes.limit_of(credential, route, self.now) {
            RouteLimit::Hash(hash) => {
                Some(RouteBucket { hash: self.routes.shared_name(hash), limit: self.routes.spec(hash).limit })
            }
            RouteLimit::Free(_) | RouteLimit::Unknown => None,
        }
    }

    pub(super) fn domain_for_request(&mut self, request: &PermitRequest, now: Timestamp) -> Option<DomainId> {
        let exempt = request.route.interaction && self.config.interactions_exempt;
        self.domain_for(request.credential, exempt, now)
    }

    /// The domain of a credential, which is added if needed; `None` if it is a token of a caller and too many others are
    /// in use.
    pub(super) fn domain_for(&mut self, credential: Credential, exempt: bool, now: Timestamp) -> Option<DomainId> {
        let is_its = |domain: &Domain| domain.credential == credential && domain.is_exempt() == exempt;
        if let Some(existing) = self.domains.iter().position(is_its) {
            return Some(existing);
        }
        let free = match credential {
            Credential::Application(_) | Credential::Anonymous => None,
            Credential::Token(_) => self.domain_of_unused_token(now)?,
        };
        let global = (!exempt).then(|| self.new_global_limit());
        Some(self.add_domain(credential, global, free, now))
    }

    /// A domain that a new token of a caller can have; the inner value is `None` if there may be one more, the outer one
    /// if all are in use.
    fn domain_of_unused_token(&mut self, now: Timestamp) -> Option<Option<DomainId>> {
        let is_token = |domain: &Domain| matches!(domain.credential, Credential::Token(_));
        if self.domains.iter().filter(|domain| is_token(domain)).count() < self.config.max_token_domains {
            return Some(None);
        }
        // By then no call of the last user can arrive any more, and no token of its window is missing.
        let rest = (self.config.window + self.config.margin + self.config.request_timeout) * 2;
        let unused = self.domains.iter().enumerate().filter(|(_, domain)| is_token(domain));
        let unused = unused.filter_map(|(id, domain)| Some((domain.unused_since(now)?, id)));
        let (_, oldest) = unused.min().filter(|(since, _)| now.since(*since) >= rest)?;
        let credential = self.domains[oldest].credential;
        // Its domain for exempt calls stays, and is replaced in its turn.
        let has_other =
            self.domains.iter().enumerate().any(|(id, domain)| id != oldest && domain.credential == credential);
        if !has_other && let Some(credential_id) = self.routes.forget_credential(credential) {
            self.queues.forget_credential(credential_id);
            self.lost_probes.retain(|probe| probe.credential != credential);
        }
        Some(Some(oldest))
    }

    /// The first wait queue of a call: that of a sublimit if one applies, else that of its route.
    pub(super) fn queue_for(&mut self, request: &PermitRequest, now: Timestamp) -> Option<WaitQueueId> {
        let Route { key, major, sub, .. } = &request.route;
        if sub.is_some() {
            return self.sublimit_queue(request, now);
        }
        if self.sublimits > 0 {
            let credential_id = self.routes.credential_id(request.credential)?;
            let sublimit_key = SublimitKey { credential_id, route: key.clone(), major: *major, sub: None };
            if let Some(id) = self.queues.find(&WaitQueueKey::Sublimit(Box::new(sublimit_key)))
                && !self.queues.queue(id).is_idle(now)
            {
                return Some(id);
            }
        }
        self.route_queue(request, now)
    }

    pub(super) fn sublimit_queue(&mut self, request: &PermitRequest, now: Timestamp) -> Option<WaitQueueId> {
        let Route { key, major, sub, .. } = &request.route;
        let credential_id = self.routes.credential_id(request.credential)?;
        let sublimit_key = SublimitKey { credential_id, route: key.clone(), major: *major, sub: *sub };
        let id = self.queues.find_or_insert(&WaitQueueKey::Sublimit(Box::new(sublimit_key)), now, || {
            // The previous process may not have saved the last call.
            let unsaved = self.routes.unsaved_calls();
            QueueLimit::Sublimit(Sublimit::after(*sub, unsaved))
        })?;
        self.sublimits = self.sublimits.max(1);
        Some(id)
    }

    pub(super) fn route_queue(&mut self, request: &PermitRequest, now: Timestamp) -> Option<WaitQueueId> {
        let key = &request.route.key;
        match self.routes.limit_of(request.credential, key, now) {
            RouteLimit::Hash(hash) => self.bucket_queue(request, hash, now),
            RouteLimit::Free(_) => {
                let free = WaitQueueKey::Free(self.routes.credential_id(request.credential)?, key.clone());
                self.queues.find_or_insert(&free, now, || QueueLimit::Open)
            }
            RouteLimit::Unknown => {
                let unknown = WaitQueueKey::Unknown(
                    self.routes.credential_id(request.credential)?,
                    key.template().into(),
                    key.is_read(),
                );
                self.queues.find_or_insert(&unknown, now, || QueueLimit::Probe { in_flight: false })
            }
        }
    }

    /// When the wait queue permits its next call, `next`.
    pub(super) fn readiness(&mut self, queue_id: WaitQueueId, next: &PermitRequest, now: Timestamp) -> Readiness {
        match &mut self.queues.queue(queue_id).limit {
            QueueLimit::Bucket(bucket) => bucket.readiness(now),
            QueueLimit::Open => Readiness::Now,
            QueueLimit::Sublimit(sublimit) => sublimit.readiness(now),
            QueueLimit::Probe { in_flight: true } => Readiness::OnResponse,
            QueueLimit::Probe { in_flight: false } => match self.related_bucket(next, now) {
                // The response of the last probe was lost, so that probe may still be in flight.
                None => self.lost_probe_until(next, now).map_or(Readiness::Now, Readiness::At),
                Some(related) => match &mut self.queues.queue(related).limit {
                    QueueLimit::Bucket(bucket) => match bucket.readiness(now) {
                        // A related bucket that is closed for hours is no reason to wait: it may be a different bucket.
                        Readiness::At(then) if then.since(now) > self.config.shared_bucket_timeout => Readiness::Now,
                        turn => turn,
                    },
                    _ => Readiness::Now,
                },
            },
        }
    }

    /// When the last lost probe of this object can no longer arrive.
    pub(super) fn lost_probe_until(&self, request: &PermitRequest, now: Timestamp) -> Option<Timestamp> {
        let probes = self.lost_probes.iter().filter(|probe| probe.matches(request));
        probes.map(|probe| probe.gone).filter(|gone| *gone > now).max()
    }

    /// A call of a route has completed: re-evaluates an unknown route that waits for its bucket.
    pub(super) fn review_related(&mut self, request: &PermitRequest, now: Timestamp) {
        let key = &request.route.key;
        if self.waiters.is_empty() || key.is_read() {
            return;
        }
        let Some(credential_id) = self.routes.credential_id(request.credential) else { return };
        let unknown = WaitQueueKey::Unknown(credential_id, key.template().into(), false);
        if let Some(queue_id) = self.queues.find(&unknown) {
            self.review(queue_id, now);
        }
    }

    /// A bucket of the same object that an unknown route may turn out to share.
    pub(super) fn related_bucket(&mut self, request: &PermitRequest, now: Timestamp) -> Option<WaitQueueId> {
        let hash = self.routes.related_hashes(request.credential, &request.route.key).next()?;
        self.bucket_queue(request, hash, now)
    }

    /// The bucket of a hash for a call's object. A new bucket starts with the limit of the hash, minus the lost probes
    /// that were sent to the object before its hash was known. If a previous process may have used the bucket, it
    /// starts with a probe, and if that process may have used it up, with a wait.
    pub(super) fn bucket_queue(
        &mut self,
        request: &PermitRequest,
        hash: HashId,
        now: Timestamp,
    ) -> Option<WaitQueueId> {
        let bucket = WaitQueueKey::Bucket(self.routes.credential_id(request.credential)?, hash, request.route.major);
        if let Some(queue_id) = self.queues.find(&bucket) {
            return Some(queue_id);
        }
        let mut fresh = self.routes.new_bucket(hash, now);
        self.lost_probes.retain(|probe| probe.gone > now);
        for probe in self.lost_probes.iter().filter(|probe| probe.matches(request)) {
            let number = fresh.take();
            fresh.mark_lost(number, probe.gone);
        }
        self.queues.find_or_insert(&bucket, now, || QueueLimit::Bucket(fresh))
    }

    pub(super) fn can_grant_now(
        &mut self,
        request: &PermitRequest,
        domain: DomainId,
        queue_id: WaitQueueId,
        now: Timestamp,
    ) -> bool {
        if self.queues.queue(queue_id).queues.is_some()
            || matches!(self.queues.queue(queue_id).limit, QueueLimit::Sublimit(_))
        {
            return false;
        }
        let domain_state = &mut self.domains[domain];
        let is_free = domain_state.is_quiet() && domain_state.lane_readiness(request.lane, now) == Readiness::Now;
        is_free && self.readiness(queue_id, request, now) == Readiness::Now
    }

    pub(super) fn estimate(
        &mut self,
        request: &PermitRequest,
        domain: DomainId,
        queue: WaitQueueId,
        now: Timestamp,
    ) -> Delay {
        let global = self.domains[domain].estimate(request.lane, request.caller, now);
        let queue = self.queues.queue(queue);
        let ahead = queue.ahead(request.lane, request.caller);
        let route = match &queue.limit {
            QueueLimit::Bucket(bucket) => bucket.estimate(ahead, now),
            QueueLimit::Sublimit(sublimit) => sublimit.estimate(ahead, now),
            QueueLimit::Open | QueueLimit::Probe { .. } => now,
        };
        if route > global {
            Delay { until: route, reason: DelayReason::Route }
        } else {
            Delay { until: global, reason: DelayReason::Global }
        }
    }
}
