//! Handle for the actor: requests permits, and cancels a request when its future is dropped.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use actix::Addr;
use actix::dev::SendError;
use guildhall_core::lane::Lane;
use guildhall_core::limit::{BucketPage, CallerId, DelayReason, LimiterView, PermitRequest, RouteBucket};
use guildhall_core::response::Credential;
use guildhall_core::route::{Route, RouteKey};
use tokio::sync::oneshot;

use super::shared::{BlockedElsewhere, LeaveSharedLimits, RemoveMembers};
use super::{
    AcquireId, AcquirePermit, CancelAcquire, FindBucket, ListBuckets, ObserveTokenBucket, OnWait, Permit,
    SetLimitReleaseListener, TokenBucket,
};
use crate::clock::Clock;
use crate::crash;
use crate::gate::ReleaseListener;

/// Reason why no permit was granted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no permit: {reason}")]
pub struct PermitError {
    /// Time until a permit may be available. `None` if waiting does not help.
    pub retry_after: Option<Duration>,
    /// Short reason, for metrics.
    pub reason: &'static str,
}

/// Client of the token bucket. Cheap to clone.
#[derive(Clone, Debug)]
pub struct TokenBucketHandle {
    pub(super) bucket: Addr<TokenBucket>,
    clock: Clock,
    next_id: Arc<AtomicU64>,
}

impl TokenBucketHandle {
    /// Creates a handle for a running actor. `clock` must be the clock of the actor.
    #[must_use]
    pub fn new(bucket: Addr<TokenBucket>, clock: Clock) -> Self {
        Self { bucket, clock, next_id: Arc::default() }
    }

    /// Waits for a permit, at most `max_wait`. If that cannot suffice, it returns at once. Dropping the future cancels
    /// the request.
    ///
    /// # Errors
    ///
    /// When no permit is available in time, or too many callers already wait.
    pub async fn acquire(
        &self,
        credential: Credential,
        route: Route,
        lane: Lane,
        max_wait: Duration,
    ) -> Result<Permit, PermitError> {
        self.acquire_or_wait(credential, route, lane, CallerId::NONE, max_wait, None).await
    }

    /// Like `acquire`, for a caller. Calls `on_wait` if the permit cannot be granted immediately.
    pub(crate) async fn acquire_or_wait(
        &self,
        credential: Credential,
        route: Route,
        lane: Lane,
        caller: CallerId,
        max_wait: Duration,
        on_wait: Option<OnWait>,
    ) -> Result<Permit, PermitError> {
        let id = AcquireId(self.next_id.fetch_add(1, Ordering::Relaxed));
        let key = route.key.clone();
        let request = PermitRequest { credential, route, lane, caller, deadline: self.clock.now() + max_wait };
        let (reply, receiver) = oneshot::channel();
        match self.bucket.try_send(AcquirePermit { id, request, reply, on_wait, input: crash::current() }) {
            Ok(()) => {}
            Err(SendError::Full(_)) => {
                return Err(PermitError {
                    retry_after: Some(Duration::from_secs(1)),
                    reason: DelayReason::Full.name(),
                });
            }
            Err(SendError::Closed(_)) => return Err(STOPPED),
        }
        let mut pending = CancelOnDrop { bucket: &self.bucket, id, is_waiting: true };
        let result = receiver.await;
        pending.is_waiting = false;
        match result {
            Ok(Ok(permit)) => Ok(permit.with_route(key)),
            Ok(Err(delay)) => {
                let retry_after = Some(delay.until.since(self.clock.now()));
                Err(PermitError { retry_after, reason: delay.reason.name() })
            }
            Err(_) => Err(STOPPED),
        }
    }

    /// The bucket of a route, as Discord last reported it.
    pub(crate) async fn find_bucket(&self, credential: Credential, route: RouteKey) -> Option<RouteBucket> {
        self.bucket.send(FindBucket { credential, route }).await.ok().flatten()
    }

    /// Another process was blocked by Discord for this time.
    pub fn on_blocked(&self, credential: Credential, duration: Duration) {
        // Rare, and the shared state is authoritative: a lost message is made up for by the next reply.
        let _ = self.bucket.try_send(BlockedElsewhere { credential, duration });
    }

    /// Sets the listener that is notified when callers may retry before their retry time.
    pub(crate) fn on_release(&self, listener: ReleaseListener) {
        // Once, at the start: the mailbox has room.
        self.bucket.do_send(SetLimitReleaseListener(listener));
    }

    /// Removes members of a shared limit that are certainly dead.
    pub fn remove_members(&self, dead: Vec<String>) {
        // If the mailbox is full, they are reported again.
        let _ = self.bucket.try_send(RemoveMembers(dead));
    }

    /// Leaves the shared limits. Nothing is granted under them from now on.
    pub async fn leave(&self) {
        // Fails only if the actor has stopped; then the other members notice the missing heartbeats.
        let _ = self.bucket.send(LeaveSharedLimits).await;
    }

    /// Snapshot of the limits. `None` if the process is shutting down.
    pub async fn observe(&self) -> Option<LimiterView> {
        self.bucket.send(ObserveTokenBucket).await.ok()
    }

    /// A page of buckets, starting at a position. `None` if the process is shutting down.
    pub async fn list(&self, from: u32, limit: usize) -> Option<BucketPage> {
        self.bucket.send(ListBuckets { from, limit }).await.ok()
    }
}

/// The actor has stopped, as the process soon will: the next process can send the call.
const STOPPED: PermitError = PermitError { retry_after: Some(Duration::from_secs(1)), reason: "shutting_down" };

/// A waiting request. Cancelled when dropped while it still waits.
struct CancelOnDrop<'a> {
    bucket: &'a Addr<TokenBucket>,
    id: AcquireId,
    is_waiting: bool,
}

impl Drop for CancelOnDrop<'_> {
    fn drop(&mut self) {
        if self.is_waiting {
            // At most once for each waiting request, so bounded by their number.
            self.bucket.do_send(CancelAcquire(self.id));
        }
    }
}
