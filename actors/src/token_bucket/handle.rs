//! The way to the actor: asking for a permit, and taking that back by no longer waiting.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use actix::Addr;
use actix::dev::SendError;
use guildhall_core::lane::Lane;
use guildhall_core::limit::{BucketPage, DelayReason, LimiterView, PermitRequest};
use guildhall_core::response::Credential;
use guildhall_core::route::Route;
use tokio::sync::oneshot;

use super::shared::{BlockedElsewhere, LeaveSharedLimits, RemoveMembers};
use super::{
    AcquireId, AcquirePermit, CancelAcquire, ListBuckets, ObserveTokenBucket, OnWait, Permit, SetLimitReleaseListener,
    TokenBucket,
};
use crate::clock::Clock;
use crate::crash;
use crate::gate::ReleaseListener;

/// Why there is no permit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no permit: {reason}")]
pub struct PermitError {
    /// How long to wait before there may be one; nothing if waiting does not help.
    pub retry_after: Option<Duration>,
    /// The reason, for metrics: a short word.
    pub reason: &'static str,
}

/// Asks the token bucket for permits. Cheap to clone.
#[derive(Clone, Debug)]
pub struct TokenBucketHandle {
    pub(super) bucket: Addr<TokenBucket>,
    clock: Clock,
    names: Arc<AtomicU64>,
}

impl TokenBucketHandle {
    /// The way to a running actor; `clock` must be the actor's own.
    #[must_use]
    pub fn new(bucket: Addr<TokenBucket>, clock: Clock) -> Self {
        Self { bucket, clock, names: Arc::default() }
    }

    /// Waits for a permit, at most `max_wait`. If that cannot suffice, the answer comes at once. Whoever stops waiting
    /// gives up its place.
    ///
    /// # Errors
    ///
    /// When there is no permit in time, or too many wait already.
    pub async fn acquire(
        &self,
        credential: Credential,
        route: Route,
        lane: Lane,
        max_wait: Duration,
    ) -> Result<Permit, PermitError> {
        self.acquire_or_wait(credential, route, lane, max_wait, None).await
    }

    /// As [`Tokens::acquire`]. Calls `on_wait` if the permit cannot be granted immediately.
    pub(crate) async fn acquire_or_wait(
        &self,
        credential: Credential,
        route: Route,
        lane: Lane,
        max_wait: Duration,
        on_wait: Option<OnWait>,
    ) -> Result<Permit, PermitError> {
        let name = AcquireId(self.names.fetch_add(1, Ordering::Relaxed));
        let key = route.key.clone();
        let ask = PermitRequest { credential, route, lane, deadline: self.clock.now() + max_wait };
        let (reply, answer) = oneshot::channel();
        match self.bucket.try_send(AcquirePermit { name, ask, reply, on_wait, input: crash::current() }) {
            Ok(()) => {}
            Err(SendError::Full(_)) => {
                return Err(PermitError {
                    retry_after: Some(Duration::from_secs(1)),
                    reason: DelayReason::Full.name(),
                });
            }
            Err(SendError::Closed(_)) => return Err(GONE),
        }
        let mut place = CancelOnDrop { bucket: &self.bucket, name, waits: true };
        let answered = answer.await;
        place.waits = false;
        match answered {
            Ok(Ok(permit)) => Ok(permit.of(key)),
            Ok(Err(delay)) => {
                let retry_after = Some(delay.until.since(self.clock.now()));
                Err(PermitError { retry_after, reason: delay.reason.name() })
            }
            Err(_) => Err(GONE),
        }
    }

    /// Another process was told by Discord to leave it alone for so long.
    pub fn blocked(&self, credential: Credential, lasts: Duration) {
        // Rare, and state elsewhere is the truth: what finds no room is heard with the next answer.
        let _ = self.bucket.try_send(BlockedElsewhere { credential, lasts });
    }

    /// From now on `listener` is told when callers may come again before the time that they were told.
    pub(crate) fn on_release(&self, listener: ReleaseListener) {
        // Once, at the start: there is room in the mailbox.
        self.bucket.do_send(SetLimitReleaseListener(listener));
    }

    /// Members of a shared limit that are certainly dead.
    pub fn bury(&self, dead: Vec<String>) {
        // Whoever finds no room reports them again.
        let _ = self.bucket.try_send(RemoveMembers(dead));
    }

    /// Says goodbye to the processes that share the limits. Nothing is granted under them from now on.
    pub async fn leave(&self) {
        // Fails only if the actor is gone, and then the others find out by the silence.
        let _ = self.bucket.send(LeaveSharedLimits).await;
    }

    /// What is to be seen of the limits; `None` if the process is ending.
    pub async fn observe(&self) -> Option<LimiterView> {
        self.bucket.send(ObserveTokenBucket).await.ok()
    }

    /// A page of buckets, from a place on; `None` if the process is ending.
    pub async fn list(&self, from: u32, most: usize) -> Option<BucketPage> {
        self.bucket.send(ListBuckets { from, most }).await.ok()
    }
}

/// The actor is gone, as the process soon will be: the next one can send it.
const GONE: PermitError = PermitError { retry_after: Some(Duration::from_secs(1)), reason: "shutting_down" };

/// A place among those who wait, given up when it is dropped while its owner still waits.
struct CancelOnDrop<'a> {
    bucket: &'a Addr<TokenBucket>,
    name: AcquireId,
    waits: bool,
}

impl Drop for CancelOnDrop<'_> {
    fn drop(&mut self) {
        if self.waits {
            // Once for each that waits, so bounded as they are.
            self.bucket.do_send(CancelAcquire(self.name));
        }
    }
}
