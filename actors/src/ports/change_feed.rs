//! Port to the feed of changed operations.

use std::sync::Arc;

use guildhall_core::operation::{ChangeCursor, OperationId, VisibleChanges};
use tokio::sync::watch;

use crate::ports::{OperationDetails, OperationFilter, StoreFuture};

/// An operation that has changed.
#[derive(Clone, Debug)]
pub struct ChangedOperation {
    /// Number of its last change.
    pub change: u64,
    /// Its current state, without its attempts.
    pub details: OperationDetails,
}

/// Changes after a cursor, in a consistent snapshot.
#[derive(Clone, Debug)]
pub struct ChangePage {
    /// Range of visible changes.
    pub visible: VisibleChanges,
    /// The highest change of all deleted operations.
    pub max_deleted: Option<u64>,
    /// Changed operations, in [the order](ChangeCursor::order) in which they must be reported.
    pub changed: Vec<ChangedOperation>,
    /// Whether there may be more.
    pub has_more: bool,
}

/// Feed of changed operations. Every stored change appears here, whichever process made it, until its operation is
/// deleted or changes again.
pub trait ChangeFeed: Send + Sync {
    /// The same feed restricted to a tenant.
    fn for_tenant(self: Arc<Self>, tenant: Arc<str>) -> Arc<dyn ChangeFeed>;

    /// Ticks when something may have changed. A change of another process may tick late, or not at all: also poll at a
    /// long interval.
    fn ticks(&self) -> watch::Receiver<u64>;

    /// Range of changes that are visible now.
    fn visible(&self) -> StoreFuture<'_, VisibleChanges>;

    /// A limited number of changes after a cursor, of the operations that match a filter. `before` and `limit` of the
    /// filter are ignored.
    fn follow(&self, from: ChangeCursor, filter: OperationFilter, limit: usize) -> StoreFuture<'_, ChangePage>;

    /// Those of these operations that are finished or deleted.
    fn finished(&self, ids: Vec<OperationId>) -> StoreFuture<'_, Vec<OperationId>>;

    /// These operations with their attempts, in any order. Unknown ids are skipped.
    fn get_all(&self, ids: Vec<OperationId>) -> StoreFuture<'_, Vec<OperationDetails>>;
}
