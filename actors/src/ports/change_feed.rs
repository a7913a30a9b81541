//! The port to operations as they change, for whoever follows them or waits for them.

use std::sync::Arc;

use guildhall_core::operation::{ChangeCursor, OperationId, VisibleChanges};
use tokio::sync::watch;

use crate::ports::{OperationDetails, OperationFilter, StoreFuture};

/// An operation that has changed.
#[derive(Clone, Debug)]
pub struct ChangedOperation {
    /// The number of the change that touched it last.
    pub change: u64,
    /// What it is now, without its tries.
    pub shown: OperationDetails,
}

/// What there is after a frontier, all of it as it was at one moment.
#[derive(Clone, Debug)]
pub struct ChangePage {
    /// How much could be seen.
    pub seen: VisibleChanges,
    /// The highest change of all operations that were forgotten.
    pub forgotten: Option<u64>,
    /// Operations that have changed, in [the order](ChangeCursor::order) in which they have to be told.
    pub changed: Vec<ChangedOperation>,
    /// Whether there may be more than these.
    pub more: bool,
}

/// Operations as they change. Every change that was kept is found here, whichever process made it, for as long as its
/// operation is kept and does not change again.
pub trait ChangeFeed: Send + Sync {
    /// The same as a tenant sees them: whatever is followed or shown through it is that tenant's.
    fn within(self: Arc<Self>, tenant: Arc<str>) -> Arc<dyn ChangeFeed>;

    /// Ticks when something may have changed. A change of another process may tick late, or not at all: look now and then
    /// without it.
    fn ticks(&self) -> watch::Receiver<u64>;

    /// How much can be seen now.
    fn seen(&self) -> StoreFuture<'_, VisibleChanges>;

    /// What there is after a frontier, of the operations that a filter names: so many at most. `before` and `limit` of the
    /// filter are not looked at.
    fn follow(&self, from: ChangeCursor, filter: OperationFilter, most: usize) -> StoreFuture<'_, ChangePage>;

    /// Those of these operations that are done, or were forgotten since.
    fn ended(&self, ids: Vec<OperationId>) -> StoreFuture<'_, Vec<OperationId>>;

    /// These operations with their tries, in no order; those that are kept.
    fn show_all(&self, ids: Vec<OperationId>) -> StoreFuture<'_, Vec<OperationDetails>>;
}
