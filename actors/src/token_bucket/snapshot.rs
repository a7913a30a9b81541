//! State of the limiter that survives a restart.

use std::sync::Arc;

use actix::{Handler, Message, MessageResult};
use guildhall_core::limit::SavedLimiter;
use guildhall_core::snapshot::{ShutdownKind, SnapshotAge};

use super::{TokenBucket, TokenBucketHandle};
use crate::snapshot::DirtyFlag;

/// Restores the state of an earlier run. Must be sent before any permit is requested.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct RestoreLimits {
    limits: SavedLimiter,
    age: SnapshotAge,
    ending: ShutdownKind,
}

/// Requests the state to save.
#[derive(Message)]
#[rtype(result = "SavedLimiter")]
pub(super) struct SnapshotLimits;

impl TokenBucket {
    /// Sets this flag whenever state changes that must be saved.
    #[must_use]
    pub(crate) fn with_dirty_flag(mut self, dirty_flag: Arc<DirtyFlag>) -> Self {
        self.dirty_flag = Some(dirty_flag);
        self
    }

    /// Sets the dirty flag if there are unsaved changes.
    pub(super) fn mark_dirty(&mut self) {
        if let (Some(dirty_flag), Some(urgency)) = (&self.dirty_flag, self.limiter.take_unsaved()) {
            dirty_flag.set(urgency);
        }
    }
}

impl TokenBucketHandle {
    /// Restores the state of an earlier run, which ended in this way. `None` if the process is shutting down.
    pub(crate) async fn restore(&self, limits: SavedLimiter, age: SnapshotAge, ending: ShutdownKind) -> Option<()> {
        self.bucket.send(RestoreLimits { limits, age, ending }).await.ok()
    }

    /// Returns the state to save. `None` if the process is shutting down.
    pub(crate) async fn snapshot(&self) -> Option<SavedLimiter> {
        self.bucket.send(SnapshotLimits).await.ok()
    }
}

impl Handler<RestoreLimits> for TokenBucket {
    type Result = ();

    fn handle(&mut self, RestoreLimits { limits, age, ending }: RestoreLimits, ctx: &mut Self::Context) {
        self.step(ctx, |bucket, _, now| bucket.limiter.restore(&limits, age, ending, now));
    }
}

impl Handler<SnapshotLimits> for TokenBucket {
    type Result = MessageResult<SnapshotLimits>;

    fn handle(&mut self, SnapshotLimits: SnapshotLimits, _: &mut Self::Context) -> Self::Result {
        MessageResult(self.limiter.save(self.clock.now()))
    }
}
