//! What the limiter remembers over a restart.

use std::sync::Arc;

use actix::{Handler, Message, MessageResult};
use guildhall_core::limit::SavedLimiter;
use guildhall_core::snapshot::SnapshotAge;

use super::{TokenBucket, TokenBucketHandle};
use crate::snapshot::DirtyFlag;

/// What an earlier life remembered. To be sent before any permit is asked for.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct RestoreLimits {
    limits: SavedLimiter,
    age: SnapshotAge,
}

/// Asks for what must not be forgotten.
#[derive(Message)]
#[rtype(result = "SavedLimiter")]
pub(super) struct SnapshotLimits;

impl TokenBucket {
    /// Rings this bell whenever something changes that must not be forgotten.
    #[must_use]
    pub(crate) fn remembering(mut self, bell: Arc<DirtyFlag>) -> Self {
        self.bell = Some(bell);
        self
    }

    /// Says that there is something to keep, if there is.
    pub(super) fn ring(&mut self) {
        if let (Some(bell), Some(urgency)) = (&self.bell, self.limiter.take_unsaved()) {
            bell.ring(urgency);
        }
    }
}

impl TokenBucketHandle {
    /// Hands over what an earlier life remembered; `None` if the process is ending.
    pub(crate) async fn recall(&self, limits: SavedLimiter, age: SnapshotAge) -> Option<()> {
        self.bucket.send(RestoreLimits { limits, age }).await.ok()
    }

    /// What must not be forgotten; `None` if the process is ending.
    pub(crate) async fn remember(&self) -> Option<SavedLimiter> {
        self.bucket.send(SnapshotLimits).await.ok()
    }
}

impl Handler<RestoreLimits> for TokenBucket {
    type Result = ();

    fn handle(&mut self, RestoreLimits { limits, age }: RestoreLimits, ctx: &mut Self::Context) {
        self.step(ctx, |bucket, _, now| bucket.limiter.recall(&limits, age, now));
    }
}

impl Handler<SnapshotLimits> for TokenBucket {
    type Result = MessageResult<SnapshotLimits>;

    fn handle(&mut self, SnapshotLimits: SnapshotLimits, _: &mut Self::Context) -> Self::Result {
        MessageResult(self.limiter.remember(self.clock.now()))
    }
}
