//! The port to what outlives the process.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use guildhall_core::state_key::GATE;

use crate::ports::OperationStore;

/// A call to the memory under way.
pub type SnapshotFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, SnapshotError>> + Send + 'a>>;

/// The memory cannot be read or written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SnapshotError(
    /// Why.
    pub String,
);

/// One text that outlives the process.
pub trait SnapshotStore: Send + Sync + 'static {
    /// What was kept last; nothing if nothing was.
    fn recall(&self) -> SnapshotFuture<'_, Option<String>>;

    /// Keeps a text in place of the last.
    fn keep(&self, text: String) -> SnapshotFuture<'_, ()>;
}

/// A memory in the store of operations.
pub struct StateSnapshotStore {
    store: Arc<dyn OperationStore>,
    key: String,
}

impl StateSnapshotStore {
    /// The memory of an application's gate. Of several processes with the same store each should have a place of its own,
    /// or the last to keep something is the one that is remembered; `seat` names it, and must be the same after a restart.
    #[must_use]
    pub fn new(store: Arc<dyn OperationStore>, application: u64, seat: Option<&str>) -> Self {
        let key = match seat {
            None => format!("{GATE}{application}"),
            Some(seat) => format!("{GATE}{application}:{seat}"),
        };
        Self { store, key }
    }
}

impl SnapshotStore for StateSnapshotStore {
    fn recall(&self) -> SnapshotFuture<'_, Option<String>> {
        let state = self.store.state(&self.key);
        Box::pin(async move { state.await.map_err(|error| SnapshotError(error.to_string())) })
    }

    fn keep(&self, text: String) -> SnapshotFuture<'_, ()> {
        let set = self.store.set_state(&self.key, Some(text), None);
        Box::pin(async move { set.await.map_err(|error| SnapshotError(error.to_string())) })
    }
}
