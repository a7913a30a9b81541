//! What comes of events that were read together.

use std::sync::Arc;

use tokio::time::Instant;

use crate::guild::events::interaction_recorder::RecordingFuture;
use crate::guild::events::routed_event::{CreditReturn, GatewaySession, RoutedBatch};
use crate::supervision::{Part, spawn_finite};

/// What comes of events that were read together.
pub(super) struct RoutingResult {
    pub(super) lot: RoutedBatch,
    /// Numbers of those that nobody wants.
    pub(super) unwanted: Vec<u64>,
    /// What nobody has to wait for.
    pub(super) arrived: CreditReturn,
    /// Interactions without handlers.
    pub(super) unhandled: Vec<u64>,
    pub(super) unhandled_arrived: CreditReturn,
    /// The recording of the interactions among them.
    pub(super) recording: Option<RecordingFuture>,
}

impl RoutingResult {
    pub(super) fn new(session: &Arc<GatewaySession>, read_at: Instant, most: usize) -> Self {
        Self {
            lot: RoutedBatch::new(session, read_at, most),
            unwanted: Vec::new(),
            arrived: CreditReturn::default(),
            unhandled: Vec::new(),
            unhandled_arrived: CreditReturn::default(),
            recording: None,
        }
    }

    /// Confirms interactions without handlers once they are recorded: a restart before that receives them again.
    pub(super) fn confirm_recorded(&mut self) {
        let Some(recording) = self.recording.take().filter(|_| !self.unhandled.is_empty()) else { return };
        let session = Arc::clone(&self.lot.reading.session);
        let (numbers, arrived) = (std::mem::take(&mut self.unhandled), self.unhandled_arrived);
        // If it broke, its session would never be confirmed past these.
        spawn_finite(Part::InteractionRecorder, async move {
            recording.await;
            session.done(numbers.into_iter(), arrived);
        });
    }
}
