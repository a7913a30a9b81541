//! Result of routing a batch of events.

use std::sync::Arc;

use tokio::time::Instant;

use crate::guild::events::interaction_recorder::RecordingFuture;
use crate::guild::events::routed_event::{CreditReturn, GatewaySession, RoutedBatch};
use crate::supervision::{Part, spawn_finite};

/// Result of routing a batch of events.
pub(super) struct RoutingResult {
    pub(super) batch: RoutedBatch,
    /// Sequence numbers of events without handlers.
    pub(super) unmatched: Vec<u64>,
    /// Credit of events that need no handling.
    pub(super) credit: CreditReturn,
    /// Sequence numbers of interactions without handlers.
    pub(super) unhandled: Vec<u64>,
    pub(super) unhandled_credit: CreditReturn,
    /// Recording of the interactions in the batch.
    pub(super) recording: Option<RecordingFuture>,
}

impl RoutingResult {
    pub(super) fn new(session: &Arc<GatewaySession>, read_at: Instant, capacity: usize) -> Self {
        Self {
            batch: RoutedBatch::new(session, read_at, capacity),
            unmatched: Vec::new(),
            credit: CreditReturn::default(),
            unhandled: Vec::new(),
            unhandled_credit: CreditReturn::default(),
            recording: None,
        }
    }

    /// Confirms interactions without handlers once they are recorded: a restart before that receives them again.
    pub(super) fn confirm_recorded(&mut self) {
        let Some(recording) = self.recording.take().filter(|_| !self.unhandled.is_empty()) else { return };
        let session = Arc::clone(&self.batch.read_batch.session);
        let (numbers, credit) = (std::mem::take(&mut self.unhandled), self.unhandled_credit);
        // If this task failed, the session would never be confirmed past these events.
        spawn_finite(Part::InteractionRecorder, async move {
            recording.await;
            session.complete(numbers.into_iter(), credit);
        });
    }
}
