//! Waits for the completion of operations.
//!
//! ```text
//!  callers ──slot, ids──▶ CompletionWaiters ──which of these are finished?──▶ ChangeFeed
//!     ▲                     │ ▲ one query for all, when something has changed
//!     └──────── done ───────┘ └─ tick
//! ```
//!
//! One task queries for all waiters, and only after a change. It also queries at a long interval, because the
//! notification of another process may be lost.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use guildhall_core::operation::OperationId;
use tokio::sync::{Notify, oneshot};
use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::failpoint;
use crate::ports::ChangeFeed;
use crate::supervision::{self, Part};
use crate::telemetry::emit;
use crate::telemetry::submission::WaitersCounted;

/// Limits of waiting.
#[derive(Clone, Copy, Debug)]
pub struct CompletionConfig {
    /// Maximum number of waiting callers.
    pub max_callers: usize,
    /// Maximum number of operations that they wait for in total.
    pub max_operations: usize,
    /// Minimum interval between two queries.
    pub min_interval: Duration,
    /// Maximum interval between two queries, if there is no change.
    pub max_interval: Duration,
}

impl Default for CompletionConfig {
    fn default() -> Self {
        Self {
            max_callers: 256,
            max_operations: 10_000,
            min_interval: Duration::from_millis(20),
            max_interval: Duration::from_secs(2),
        }
    }
}

/// Lets callers wait for operations.
pub struct CompletionWaiters {
    registry: Arc<WaiterRegistry>,
    task: JoinHandle<()>,
}

/// The waiters, shared with the task.
struct WaiterRegistry {
    changes: Arc<dyn ChangeFeed>,
    config: CompletionConfig,
    waiting: Mutex<WaiterTable>,
    /// Notified when a waiter is added.
    waiter_added: Notify,
}

#[derive(Default)]
struct WaiterTable {
    callers: HashMap<u64, Waiter>,
    by_operation: HashMap<OperationId, HashSet<u64>>,
    /// Number of slots in use, and of the operations that they are for.
    slots: usize,
    operations: usize,
    next: u64,
}

struct Waiter {
    remaining: HashSet<OperationId>,
    done: oneshot::Sender<()>,
}

impl fmt::Debug for CompletionWaiters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompletionWaiters").field("config", &self.registry.config).finish_non_exhaustive()
    }
}

impl CompletionWaiters {
    /// Starts the task on the current runtime.
    #[must_use]
    pub fn start(changes: Arc<dyn ChangeFeed>, config: CompletionConfig) -> Self {
        let registry =
            Arc::new(WaiterRegistry { changes, config, waiting: Mutex::default(), waiter_added: Notify::new() });
        let task = supervision::spawn(Part::CompletionWaiters, run(Arc::clone(&registry)));
        Self { registry, task }
    }

    /// Reserves a slot to wait for this many operations. `None` if too many wait already. Reserve it before the
    /// operations are submitted.
    #[must_use]
    pub fn reserve(&self, operations: usize) -> Option<WaitSlot> {
        let config = &self.registry.config;
        let mut table = self.registry.waiting();
        let has_room = table.slots < config.max_callers && table.operations + operations <= config.max_operations;
        has_room.then(|| {
            table.slots += 1;
            table.operations += operations;
            emit(WaitersCounted { count: table.slots });
            WaitSlot { registry: Arc::clone(&self.registry), operations }
        })
    }
}

impl Drop for CompletionWaiters {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl WaiterRegistry {
    fn waiting(&self) -> MutexGuard<'_, WaiterTable> {
        // No code panics while it holds the lock.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, remaining: HashSet<OperationId>, done: oneshot::Sender<()>) -> WaiterGuard<'_> {
        let mut table = self.waiting();
        let waiter_id = table.next;
        table.next += 1;
        for id in &remaining {
            table.by_operation.entry(*id).or_default().insert(waiter_id);
        }
        table.callers.insert(waiter_id, Waiter { remaining, done });
        WaiterGuard { registry: self, id: waiter_id }
    }

    /// All operations with waiters.
    fn operation_ids(&self) -> Vec<OperationId> {
        self.waiting().by_operation.keys().copied().collect()
    }

    /// Removes finished operations, and notifies the callers that wait for no others.
    fn on_finished(&self, finished: &[OperationId]) {
        let mut table = self.waiting();
        for id in finished {
            for caller in table.by_operation.remove(id).unwrap_or_default() {
                let waiter = table.callers.get_mut(&caller);
                if waiter.is_some_and(|caller| {
                    caller.remaining.remove(id);
                    caller.remaining.is_empty()
                }) && let Some(caller) = table.callers.remove(&caller)
                {
                    // The caller may have stopped waiting.
                    let _ = caller.done.send(());
                }
            }
        }
    }
}

impl WaiterTable {
    fn remove(&mut self, caller: u64) {
        let Some(Waiter { remaining, .. }) = self.callers.remove(&caller) else { return };
        for id in remaining {
            if let Some(callers) = self.by_operation.get_mut(&id) {
                callers.remove(&caller);
                if callers.is_empty() {
                    self.by_operation.remove(&id);
                }
            }
        }
    }
}

/// A slot to wait for operations.
#[must_use = "the slot is released when this is dropped"]
pub struct WaitSlot {
    registry: Arc<WaiterRegistry>,
    operations: usize,
}

impl fmt::Debug for WaitSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WaitSlot").field("operations", &self.operations).finish_non_exhaustive()
    }
}

impl WaitSlot {
    /// Waits until all of these operations are finished, however long that takes. Operations beyond the size of the
    /// slot are ignored.
    pub async fn until_finished(&self, ids: impl IntoIterator<Item = OperationId>) {
        let remaining: HashSet<OperationId> = ids.into_iter().take(self.operations).collect();
        if remaining.is_empty() {
            return;
        }
        let (done, finished) = oneshot::channel();
        let _guard = self.registry.add(remaining, done);
        self.registry.waiter_added.notify_one();
        if finished.await.is_err() {
            // The task has ended: the process is about to end.
            std::future::pending::<()>().await;
        }
    }
}

impl Drop for WaitSlot {
    fn drop(&mut self) {
        let mut table = self.registry.waiting();
        table.slots -= 1;
        table.operations -= self.operations;
        emit(WaitersCounted { count: table.slots });
    }
}

/// Removes its waiter when it is dropped.
struct WaiterGuard<'a> {
    registry: &'a WaiterRegistry,
    id: u64,
}

impl Drop for WaiterGuard<'_> {
    fn drop(&mut self) {
        self.registry.waiting().remove(self.id);
    }
}

/// Queries which operations are finished, for all waiters together, until it is aborted.
async fn run(registry: Arc<WaiterRegistry>) {
    let CompletionConfig { min_interval, max_interval, .. } = registry.config;
    let mut ticks = registry.changes.ticks();
    loop {
        let ids = registry.operation_ids();
        if ids.is_empty() {
            registry.waiter_added.notified().await;
            continue;
        }
        failpoint::message(Part::CompletionWaiters);
        // Later changes cause another query.
        ticks.borrow_and_update();
        // A failed query is repeated.
        if let Ok(finished) = registry.changes.finished(ids).await {
            registry.on_finished(&finished);
        }
        sleep(min_interval).await;
        tokio::select! {
            // Without ticks, it queries at the maximum interval.
            Ok(()) = ticks.changed() => {}
            () = registry.waiter_added.notified() => {}
            () = sleep(max_interval) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use guildhall_core::operation::{ChangeCursor, VisibleChanges};
    use tokio::sync::watch;
    use tokio::time::{Instant, timeout};

    use super::*;
    use crate::ports::{ChangePage, OperationDetails, OperationFilter, StoreError, StoreFuture};

    /// Records finished operations, and counts queries.
    struct FakeChangeFeed {
        finished: Mutex<HashSet<OperationId>>,
        queries: AtomicUsize,
        ticks: watch::Sender<u64>,
    }

    impl FakeChangeFeed {
        fn new() -> Arc<Self> {
            Arc::new(Self { finished: Mutex::default(), queries: AtomicUsize::new(0), ticks: watch::Sender::new(0) })
        }

        fn finish(&self, id: OperationId) {
            self.finished.lock().unwrap().insert(id);
        }

        fn tick(&self) {
            self.ticks.send_modify(|tick| *tick += 1);
        }
    }

    impl ChangeFeed for FakeChangeFeed {
        fn for_tenant(self: Arc<Self>, _: Arc<str>) -> Arc<dyn ChangeFeed> {
            self
        }

        fn ticks(&self) -> watch::Receiver<u64> {
            self.ticks.subscribe()
        }

        fn visible(&self) -> StoreFuture<'_, VisibleChanges> {
            Box::pin(async { Ok(VisibleChanges::default()) })
        }

        fn follow(&self, _: ChangeCursor, _: OperationFilter, _: usize) -> StoreFuture<'_, ChangePage> {
            Box::pin(async { Err(StoreError::Unavailable("not supported here".to_owned())) })
        }

        fn finished(&self, ids: Vec<OperationId>) -> StoreFuture<'_, Vec<OperationId>> {
            self.queries.fetch_add(1, Ordering::Relaxed);
            let finished = self.finished.lock().unwrap();
            let found = ids.into_iter().filter(|id| finished.contains(id)).collect();
            Box::pin(async { Ok(found) })
        }

        fn get_all(&self, _: Vec<OperationId>) -> StoreFuture<'_, Vec<OperationDetails>> {
            Box::pin(async { Ok(Vec::new()) })
        }
    }

    fn id(n: u8) -> OperationId {
        OperationId::new(1, [n; 10])
    }

    #[tokio::test(start_paused = true)]
    async fn waiter_is_notified_when_its_last_operation_is_finished() {
        let feed = FakeChangeFeed::new();
        let waiters = CompletionWaiters::start(feed.clone(), CompletionConfig::default());
        let slot = waiters.reserve(2).unwrap();
        let both = slot.until_finished([id(1), id(2)]);
        tokio::pin!(both);
        feed.finish(id(1));
        feed.tick();
        assert!(timeout(Duration::from_secs(1), &mut both).await.is_err());
        let started = Instant::now();
        feed.finish(id(2));
        feed.tick();
        both.await;
        assert!(started.elapsed() <= Duration::from_millis(50), "a tick is enough: {:?}", started.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn completion_without_a_notification_is_found() {
        let feed = FakeChangeFeed::new();
        let waiters = CompletionWaiters::start(feed.clone(), CompletionConfig::default());
        let slot = waiters.reserve(1).unwrap();
        let waiting = tokio::spawn(async move { slot.until_finished([id(1)]).await });
        sleep(Duration::from_millis(100)).await;
        feed.finish(id(1));
        timeout(Duration::from_secs(3), waiting).await.unwrap().unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn many_waiters_share_one_query_per_change() {
        let feed = FakeChangeFeed::new();
        let waiters = CompletionWaiters::start(feed.clone(), CompletionConfig::default());
        let slots: Vec<_> = (0..200).map(|_| waiters.reserve(1).unwrap()).collect();
        let all = futures_util::future::join_all(slots.iter().zip(0..).map(|(slot, n)| slot.until_finished([id(n)])));
        assert!(timeout(Duration::from_secs(20), all).await.is_err());
        let queries = feed.queries.load(Ordering::Relaxed);
        assert!((5..=15).contains(&queries), "{queries} times in 20 seconds");
        assert!(waiters.registry.operation_ids().is_empty(), "waiters that stopped are removed");
        sleep(Duration::from_secs(60)).await;
        assert!(feed.queries.load(Ordering::Relaxed) <= queries + 1, "no queries without waiters");
    }

    #[tokio::test(start_paused = true)]
    async fn callers_and_operations_are_limited() {
        let config = CompletionConfig { max_callers: 2, max_operations: 10, ..CompletionConfig::default() };
        let waiters = CompletionWaiters::start(FakeChangeFeed::new(), config);
        let one = waiters.reserve(6).unwrap();
        assert!(waiters.reserve(5).is_none(), "11 operations");
        let two = waiters.reserve(4).unwrap();
        assert!(waiters.reserve(0).is_none(), "a third caller");
        drop((one, two));
        assert!(waiters.reserve(10).is_some());
    }
}
