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
    pub callers_most: usize,
    /// Maximum number of operations that they wait for in total.
    pub operations_most: usize,
    /// Minimum interval between two queries.
    pub every: Duration,
    /// Maximum interval between two queries, if there is no change.
    pub at_least_every: Duration,
}

impl Default for CompletionConfig {
    fn default() -> Self {
        Self {
            callers_most: 256,
            operations_most: 10_000,
            every: Duration::from_millis(20),
            at_least_every: Duration::from_secs(2),
        }
    }
}

/// Lets callers wait for operations.
pub struct CompletionWaiters {
    room: Arc<WaiterRegistry>,
    looks_out: JoinHandle<()>,
}

/// The waiters, shared with the task.
struct WaiterRegistry {
    changes: Arc<dyn ChangeFeed>,
    config: CompletionConfig,
    waiting: Mutex<WaiterTable>,
    /// Notified when a waiter is added.
    begun: Notify,
}

#[derive(Default)]
struct WaiterTable {
    callers: HashMap<u64, Waiter>,
    by_operation: HashMap<OperationId, HashSet<u64>>,
    /// Number of slots in use, and of the operations that they are for.
    seats: usize,
    operations: usize,
    next: u64,
}

struct Waiter {
    left: HashSet<OperationId>,
    done: oneshot::Sender<()>,
}

impl fmt::Debug for CompletionWaiters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompletionWaiters").field("config", &self.room.config).finish_non_exhaustive()
    }
}

impl CompletionWaiters {
    /// Starts the task on the current runtime.
    #[must_use]
    pub fn start(changes: Arc<dyn ChangeFeed>, config: CompletionConfig) -> Self {
        let room = Arc::new(WaiterRegistry { changes, config, waiting: Mutex::default(), begun: Notify::new() });
        let looks_out = supervision::spawn(Part::CompletionWaiters, look_out(Arc::clone(&room)));
        Self { room, looks_out }
    }

    /// Reserves a slot to wait for so many operations. `None` if too many wait already. Reserve it before the
    /// operations are submitted.
    #[must_use]
    pub fn seat(&self, operations: usize) -> Option<WaitSlot> {
        let config = &self.room.config;
        let mut waiting = self.room.waiting();
        let has_room = waiting.seats < config.callers_most && waiting.operations + operations <= config.operations_most;
        has_room.then(|| {
            waiting.seats += 1;
            waiting.operations += operations;
            emit(WaitersCounted { count: waiting.seats });
            WaitSlot { room: Arc::clone(&self.room), operations }
        })
    }
}

impl Drop for CompletionWaiters {
    fn drop(&mut self) {
        self.looks_out.abort();
    }
}

impl WaiterRegistry {
    fn waiting(&self) -> MutexGuard<'_, WaiterTable> {
        // No code panics while it holds the lock.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enter(&self, left: HashSet<OperationId>, done: oneshot::Sender<()>) -> WaiterGuard<'_> {
        let mut waiting = self.waiting();
        let place = waiting.next;
        waiting.next += 1;
        for id in &left {
            waiting.by_operation.entry(*id).or_default().insert(place);
        }
        waiting.callers.insert(place, Waiter { left, done });
        WaiterGuard { room: self, place }
    }

    /// All operations with waiters.
    fn sought(&self) -> Vec<OperationId> {
        self.waiting().by_operation.keys().copied().collect()
    }

    /// Removes finished operations, and notifies the callers that wait for no others.
    fn on_ended(&self, ended: &[OperationId]) {
        let mut waiting = self.waiting();
        for id in ended {
            for caller in waiting.by_operation.remove(id).unwrap_or_default() {
                let left = waiting.callers.get_mut(&caller);
                if left.is_some_and(|caller| {
                    caller.left.remove(id);
                    caller.left.is_empty()
                }) && let Some(caller) = waiting.callers.remove(&caller)
                {
                    // The caller may have stopped waiting.
                    let _ = caller.done.send(());
                }
            }
        }
    }
}

impl WaiterTable {
    fn forget(&mut self, caller: u64) {
        let Some(Waiter { left, .. }) = self.callers.remove(&caller) else { return };
        for id in left {
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
    room: Arc<WaiterRegistry>,
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
    pub async fn until_ended(&self, ids: impl IntoIterator<Item = OperationId>) {
        let left: HashSet<OperationId> = ids.into_iter().take(self.operations).collect();
        if left.is_empty() {
            return;
        }
        let (done, ended) = oneshot::channel();
        let _place = self.room.enter(left, done);
        self.room.begun.notify_one();
        if ended.await.is_err() {
            // The task has ended: the process is about to end.
            std::future::pending::<()>().await;
        }
    }
}

impl Drop for WaitSlot {
    fn drop(&mut self) {
        let mut waiting = self.room.waiting();
        waiting.seats -= 1;
        waiting.operations -= self.operations;
        emit(WaitersCounted { count: waiting.seats });
    }
}

/// Removes its waiter when it is dropped.
struct WaiterGuard<'a> {
    room: &'a WaiterRegistry,
    place: u64,
}

impl Drop for WaiterGuard<'_> {
    fn drop(&mut self) {
        self.room.waiting().forget(self.place);
    }
}

/// Queries which operations are finished, for all waiters together, until it is aborted.
async fn look_out(room: Arc<WaiterRegistry>) {
    let CompletionConfig { every, at_least_every, .. } = room.config;
    let mut ticks = room.changes.ticks();
    loop {
        let sought = room.sought();
        if sought.is_empty() {
            room.begun.notified().await;
            continue;
        }
        failpoint::message(Part::CompletionWaiters);
        // Later changes cause another query.
        ticks.borrow_and_update();
        // A failed query is repeated.
        if let Ok(ended) = room.changes.ended(sought).await {
            room.on_ended(&ended);
        }
        sleep(every).await;
        tokio::select! {
            // Without ticks, it queries at the maximum interval.
            Ok(()) = ticks.changed() => {}
            () = room.begun.notified() => {}
            () = sleep(at_least_every) => {}
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
    struct Ledger {
        ended: Mutex<HashSet<OperationId>>,
        asked: AtomicUsize,
        ticks: watch::Sender<u64>,
    }

    impl Ledger {
        fn new() -> Arc<Self> {
            Arc::new(Self { ended: Mutex::default(), asked: AtomicUsize::new(0), ticks: watch::Sender::new(0) })
        }

        fn end(&self, id: OperationId) {
            self.ended.lock().unwrap().insert(id);
        }

        fn tick(&self) {
            self.ticks.send_modify(|tick| *tick += 1);
        }
    }

    impl ChangeFeed for Ledger {
        fn within(self: Arc<Self>, _: Arc<str>) -> Arc<dyn ChangeFeed> {
            self
        }

        fn ticks(&self) -> watch::Receiver<u64> {
            self.ticks.subscribe()
        }

        fn seen(&self) -> StoreFuture<'_, VisibleChanges> {
            Box::pin(async { Ok(VisibleChanges::default()) })
        }

        fn follow(&self, _: ChangeCursor, _: OperationFilter, _: usize) -> StoreFuture<'_, ChangePage> {
            Box::pin(async { Err(StoreError::Unavailable("not supported here".to_owned())) })
        }

        fn ended(&self, ids: Vec<OperationId>) -> StoreFuture<'_, Vec<OperationId>> {
            self.asked.fetch_add(1, Ordering::Relaxed);
            let ended = self.ended.lock().unwrap();
            let found = ids.into_iter().filter(|id| ended.contains(id)).collect();
            Box::pin(async { Ok(found) })
        }

        fn show_all(&self, _: Vec<OperationId>) -> StoreFuture<'_, Vec<OperationDetails>> {
            Box::pin(async { Ok(Vec::new()) })
        }
    }

    fn id(n: u8) -> OperationId {
        OperationId::new(1, [n; 10])
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_waits_for_several_is_told_when_the_last_has_ended() {
        let ledger = Ledger::new();
        let waits = CompletionWaiters::start(ledger.clone(), CompletionConfig::default());
        let seat = waits.seat(2).unwrap();
        let both = seat.until_ended([id(1), id(2)]);
        tokio::pin!(both);
        ledger.end(id(1));
        ledger.tick();
        assert!(timeout(Duration::from_secs(1), &mut both).await.is_err());
        let began = Instant::now();
        ledger.end(id(2));
        ledger.tick();
        both.await;
        assert!(began.elapsed() <= Duration::from_millis(50), "a tick is enough: {:?}", began.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn what_ended_without_a_word_is_found_all_the_same() {
        let ledger = Ledger::new();
        let waits = CompletionWaiters::start(ledger.clone(), CompletionConfig::default());
        let seat = waits.seat(1).unwrap();
        let waiting = tokio::spawn(async move { seat.until_ended([id(1)]).await });
        sleep(Duration::from_millis(100)).await;
        ledger.end(id(1));
        timeout(Duration::from_secs(3), waiting).await.unwrap().unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn however_many_wait_the_store_is_asked_once_for_a_change_and_seldom_without_one() {
        let ledger = Ledger::new();
        let waits = CompletionWaiters::start(ledger.clone(), CompletionConfig::default());
        let seats: Vec<_> = (0..200).map(|_| waits.seat(1).unwrap()).collect();
        let all = futures_util::future::join_all(seats.iter().zip(0..).map(|(seat, n)| seat.until_ended([id(n)])));
        assert!(timeout(Duration::from_secs(20), all).await.is_err());
        let asked = ledger.asked.load(Ordering::Relaxed);
        assert!((5..=15).contains(&asked), "{asked} times in 20 seconds");
        assert!(waits.room.sought().is_empty(), "waiters that stopped are removed");
        sleep(Duration::from_secs(60)).await;
        assert!(ledger.asked.load(Ordering::Relaxed) <= asked + 1, "no queries without waiters");
    }

    #[tokio::test(start_paused = true)]
    async fn there_is_room_for_so_many_callers_and_operations_and_no_more() {
        let config = CompletionConfig { callers_most: 2, operations_most: 10, ..CompletionConfig::default() };
        let waits = CompletionWaiters::start(Ledger::new(), config);
        let one = waits.seat(6).unwrap();
        assert!(waits.seat(5).is_none(), "11 operations");
        let two = waits.seat(4).unwrap();
        assert!(waits.seat(0).is_none(), "a third caller");
        drop((one, two));
        assert!(waits.seat(10).is_some());
    }
}
