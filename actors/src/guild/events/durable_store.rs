//! The event store, with every call repeated until it succeeds.

use std::sync::Arc;

use crate::crash::{CrashStore, CrashedInput, Input};
use crate::ports::{EventStore, StoreFuture};
use crate::supervisor::store_retry::StoreRetry;

/// Calls to the event store that always succeed, however long that takes.
#[derive(Clone)]
pub(crate) struct DurableEventStore {
    store: Arc<dyn EventStore>,
    crashes: Arc<dyn CrashStore>,
    retry: StoreRetry,
}

impl DurableEventStore {
    pub(crate) fn new(store: Arc<dyn EventStore>, crashes: Arc<dyn CrashStore>, retry: StoreRetry) -> Self {
        Self { store, crashes, retry }
    }

    /// Repeats a call until it succeeds. `what` names it in logs and metrics.
    pub(crate) async fn until_ok<'a, T>(
        &'a self,
        what: &'static str,
        call: impl Fn(&'a dyn EventStore) -> StoreFuture<'a, T>,
    ) -> T {
        self.retry.until_ok(what, || call(&*self.store)).await
    }

    /// Inputs that ended a process so often that they must be set aside.
    pub(crate) async fn inputs_to_set_aside(&self) -> Vec<CrashedInput> {
        self.retry.until_ok("crashes", || self.crashes.inputs_to_set_aside()).await
    }

    /// Forgets that an input ended processes.
    pub(crate) async fn forget_crash(&self, input: &Input) {
        self.retry.until_ok("crashes", || self.crashes.forget_crashes(vec![input.clone()])).await;
    }
}
