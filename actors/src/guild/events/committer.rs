//! Stores what handlers produced, together with the fact that they have finished with their events.

use std::collections::BTreeSet;
use std::sync::Arc;

use guildhall_core::time::UnixMs;

use super::durable_store::DurableEventStore;
use super::stream_positions::StreamPositions;
use crate::ports::{
    CommitResult, HandlerCommit, InboxDisposition, InboxKey, NewOperation, PostponeResult, SubmitResult,
};
use crate::shard::ownership::ShardOwnership;
use crate::submission::OperationService;
use crate::telemetry::emit;
use crate::telemetry::events::EventsCommitted;

/// Commits handler results, and wakes the queues of the operations among them.
pub(crate) struct EventCommitter {
    store: DurableEventStore,
    ownership: Arc<ShardOwnership>,
    operations: Arc<OperationService>,
    positions: Arc<StreamPositions>,
}

impl EventCommitter {
    pub(crate) fn new(
        store: DurableEventStore,
        ownership: Arc<ShardOwnership>,
        operations: Arc<OperationService>,
        positions: Arc<StreamPositions>,
    ) -> Self {
        Self { store, ownership, operations, positions }
    }

    /// Stores what becomes of an inbox entry that could not be handled, and the fallback of its interaction. Returns
    /// whether there is such an entry.
    pub(crate) async fn postpone(
        &self,
        key: &InboxKey,
        disposition: &InboxDisposition,
        fallback: Option<Box<NewOperation>>,
        now: UnixMs,
    ) -> bool {
        let PostponeResult { exists, fallback } = self
            .store
            .until_ok("put_off", |store| store.postpone(key.clone(), disposition.clone(), fallback.clone(), now))
            .await;
        self.operations.wake(fallback.and_then(|submitted| match submitted {
            SubmitResult::Accepted { queue, .. } => Some(queue),
            SubmitResult::Existing { .. } => None,
        }));
        exists
    }

    /// Stores all of these in one transaction, however long that takes.
    pub(crate) async fn commit(&self, mut items: Vec<HandlerCommit>) -> Vec<CommitResult> {
        if items.is_empty() {
            return Vec::new();
        }
        for item in items.iter_mut().filter(|item| !item.from_inbox) {
            item.claim = self.ownership.claim_of(&item.key.session);
        }
        let committed = self.store.until_ok("commit", |store| store.commit(items.clone())).await;
        let mut queues = BTreeSet::new();
        for (item, committed) in items.iter().zip(&committed) {
            match committed {
                CommitResult::Done(submitted) => {
                    self.positions.on_committed(&item.set);
                    let operations = item.operations.iter().chain(item.fallback.as_deref());
                    queues.extend(operations.zip(submitted).filter_map(|(operation, submitted)| match submitted {
                        SubmitResult::Accepted { queue, .. } => Some(*queue),
                        SubmitResult::Existing { .. } => operation.queue.fixed(),
                    }));
                }
                // Only the store knows the queues that belong to a tenant; it has notified them.
                CommitResult::Skipped => {
                    queues.extend(item.operations.iter().filter_map(|operation| operation.queue.fixed()));
                }
                CommitResult::Refused(_) => {}
            }
        }
        emit(EventsCommitted { items: items.len(), operations: items.iter().map(|item| item.operations.len()).sum() });
        self.operations.wake(queues);
        committed
    }
}
