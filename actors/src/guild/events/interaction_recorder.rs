//! Records the interactions that this deployment receives, so that callers may respond to them.
//!
//! ```text
//!  interaction ─┬▶ deferred at once ─────────┐
//!               └▶ recorded, by group commit ┴▶ handlers
//! ```
//!
//! An interaction is recorded before a handler receives it: a brain may respond through the API of another process at once.
//! The deferral does not wait for it. Interactions without a handler are recorded too.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::Shared;
use guildhall_core::event::Event;
use guildhall_core::interaction::ReceivedInteraction;
use tokio::time::timeout;

use super::durable_store::DurableEventStore;
use crate::supervision::{Part, spawn_finite};
use crate::telemetry::emit;
use crate::telemetry::events::InteractionsNotRecorded;
use crate::wall_clock::WallClock;

/// Maximum number of interactions that wait for the store. Further ones are not recorded.
const MAX_IN_FLIGHT: usize = 65_536;

/// How long a slow store may delay a handler that Discord waits for.
const RECORD_TIMEOUT: Duration = Duration::from_millis(500);

/// Resolves when interactions are recorded, for any number of waiters.
pub(crate) type RecordingFuture = Shared<Pin<Box<dyn Future<Output = ()> + Send>>>;

/// Records received interactions.
pub(crate) struct InteractionRecorder {
    store: DurableEventStore,
    clock: WallClock,
    in_flight: AtomicUsize,
}

impl InteractionRecorder {
    pub(crate) fn new(store: DurableEventStore, clock: WallClock) -> Self {
        Self { store, clock, in_flight: AtomicUsize::new(0) }
    }

    /// Reserves room for `count` interactions, if there is any.
    fn reserve(&self, count: usize) -> bool {
        let reserve = |in_flight: usize| Some(in_flight + count).filter(|total| *total <= MAX_IN_FLIGHT);
        self.in_flight.fetch_update(Ordering::Relaxed, Ordering::Relaxed, reserve).is_ok()
    }

    fn release(&self, count: usize) {
        self.in_flight.fetch_sub(count, Ordering::Relaxed);
    }

    /// Records the interactions among these events in one write. `None` if there are none to record, or too many wait.
    pub(crate) fn prepare<'a>(self: &Arc<Self>, events: impl Iterator<Item = &'a Event>) -> Option<RecordingFuture> {
        let received: Vec<_> = events.filter_map(ReceivedInteraction::of).collect();
        let now = self.clock.now();
        let received: Vec<_> = received.into_iter().filter(|one| !one.has_expired(now)).collect();
        let count = received.len();
        if count == 0 {
            return None;
        }
        if !self.reserve(count) {
            emit(InteractionsNotRecorded { count });
            return None;
        }
        let recorder = Arc::clone(self);
        let record = async move {
            recorder.store.until_ok("interactions", |store| store.record_interactions(received.clone())).await;
            recorder.release(count);
        };
        Some((Box::pin(record) as Pin<Box<dyn Future<Output = ()> + Send>>).shared())
    }

    /// Like [`prepare`](Self::prepare), but starts at once and continues without waiters.
    pub(crate) fn start<'a>(self: &Arc<Self>, events: impl Iterator<Item = &'a Event>) -> Option<RecordingFuture> {
        let recording = self.prepare(events)?;
        spawn_finite(Part::InteractionRecorder, recording.clone());
        Some(recording)
    }
}

/// Waits until interactions are recorded, but only for a short time, because Discord waits for the response.
pub(crate) async fn wait_until_recorded(recording: RecordingFuture) {
    // A slow store must not delay the response to Discord.
    let _ = timeout(RECORD_TIMEOUT, recording).await;
}
