//! What the limiter remembers over a restart.

use std::sync::Arc;

use actix::{Handler, Message, MessageResult};
use guildhall_core::limit::LimiterMemory;
use guildhall_core::memory::Age;

use super::{TokenBucket, Tokens};
use crate::memory::Bell;

/// What an earlier life remembered. To be sent before any permit is asked for.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct RecallLimits {
    limits: LimiterMemory,
    age: Age,
}

/// Asks for what must not be forgotten.
#[derive(Message)]
#[rtype(result = "LimiterMemory")]
pub(super) struct RememberLimits;

impl TokenBucket {
    /// Rings this bell whenever something changes that must not be forgotten.
    #[must_use]
    pub(crate) fn remembering(mut self, bell: Arc<Bell>) -> Self {
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

impl Tokens {
    /// Hands over what an earlier life remembered; `None` if the process is ending.
    pub(crate) async fn recall(&self, limits: LimiterMemory, age: Age) -> Option<()> {
        self.bucket.send(RecallLimits { limits, age }).await.ok()
    }

    /// What must not be forgotten; `None` if the process is ending.
    pub(crate) async fn remember(&self) -> Option<LimiterMemory> {
        self.bucket.send(RememberLimits).await.ok()
    }
}

impl Handler<RecallLimits> for TokenBucket {
    type Result = ();

    fn handle(&mut self, RecallLimits { limits, age }: RecallLimits, ctx: &mut Self::Context) {
        self.step(ctx, |bucket, _, now| bucket.limiter.recall(&limits, age, now));
    }
}

impl Handler<RememberLimits> for TokenBucket {
    type Result = MessageResult<RememberLimits>;

    fn handle(&mut self, RememberLimits: RememberLimits, _: &mut Self::Context) -> Self::Result {
        MessageResult(self.limiter.remember(self.clock.now()))
    }
}
