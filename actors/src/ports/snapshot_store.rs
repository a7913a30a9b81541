//! Port to the store for snapshots.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use guildhall_core::state_key::GATE;

use crate::ports::OperationStore;

/// Pending call to the store.
pub type SnapshotFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, SnapshotError>> + Send + 'a>>;

/// The snapshot cannot be read or written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SnapshotError(
    /// Description of the failure.
    pub String,
);

/// Stores one text that survives the process.
pub trait SnapshotStore: Send + Sync + 'static {
    /// Returns the text that was last saved, if any.
    fn load(&self) -> SnapshotFuture<'_, Option<String>>;

    /// Replaces the text.
    fn save(&self, text: String) -> SnapshotFuture<'_, ()>;
}

/// Snapshot store in the operation store.
pub struct StateSnapshotStore {
    store: Arc<dyn OperationStore>,
    key: String,
}

impl StateSnapshotStore {
    /// Creates the store for an application's gate. Processes that share an operation store should each have a distinct
    /// process name; otherwise only the last write counts. The name must be the same after a restart.
    #[must_use]
    pub fn new(store: Arc<dyn OperationStore>, application: u64, process_name: Option<&str>) -> Self {
        let key = match process_name {
            None => format!("{GATE}{application}"),
            Some(process_name) => format!("{GATE}{application}:{process_name}"),
        };
        Self { store, key }
    }
}

impl SnapshotStore for StateSnapshotStore {
    fn load(&self) -> SnapshotFuture<'_, Option<String>> {
        let state = self.store.state(&self.key);
        Box::pin(async move { state.await.map_err(|error| SnapshotError(error.to_string())) })
    }

    fn save(&self, text: String) -> SnapshotFuture<'_, ()> {
        let set = self.store.set_state(&self.key, Some(text), None);
        Box::pin(async move { set.await.map_err(|error| SnapshotError(error.to_string())) })
    }
}
