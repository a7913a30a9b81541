//! Waiting for the end of operations.
//!
//! ```text
//!  callers ──seat, ids──▶ Waits ──which of all these have ended?──▶ Changes
//!     ▲                     │ ▲ one question for all, when something has changed
//!     └──────── done ───────┘ └─ tick
//! ```
//!
//! However many wait, one task asks, and only after something has changed; now and then without that, since the word of
//! another process may get lost.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use guildhall_core::operation::OperationId;
use tokio::sync::{Notify, oneshot};
use tokio::task::JoinHandle;
use tokio::time::sleep;

use super::Changes;
use crate::failpoint;
use crate::supervision::{self, Part};
use crate::telemetry::desk::WaitersCounted;
use crate::telemetry::emit;

/// The bounds of waiting.
#[derive(Clone, Copy, Debug)]
pub struct WaitsConfig {
    /// Callers that wait at once.
    pub callers_most: usize,
    /// Operations that they wait for, all together.
    pub operations_most: usize,
    /// The least time between two questions to the store.
    pub every: Duration,
    /// How long nothing has to be heard before it is asked anyway.
    pub at_least_every: Duration,
}

impl Default for WaitsConfig {
    fn default() -> Self {
        Self {
            callers_most: 256,
            operations_most: 10_000,
            every: Duration::from_millis(20),
            at_least_every: Duration::from_secs(2),
        }
    }
}

/// Knows who waits for what.
pub struct Waits {
    room: Arc<Room>,
    looks_out: JoinHandle<()>,
}

/// Where they wait.
struct Room {
    changes: Arc<dyn Changes>,
    config: WaitsConfig,
    waiting: Mutex<Waiting>,
    /// Somebody has begun to wait.
    begun: Notify,
}

#[derive(Default)]
struct Waiting {
    callers: HashMap<u64, Caller>,
    by_operation: HashMap<OperationId, HashSet<u64>>,
    /// Seats that are taken, and the operations that they are for.
    seats: usize,
    operations: usize,
    next: u64,
}

struct Caller {
    left: HashSet<OperationId>,
    done: oneshot::Sender<()>,
}

impl fmt::Debug for Waits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Waits").field("config", &self.room.config).finish_non_exhaustive()
    }
}

impl Waits {
    /// Begins to look out, on the runtime that this is called on.
    #[must_use]
    pub fn start(changes: Arc<dyn Changes>, config: WaitsConfig) -> Self {
        let room = Arc::new(Room { changes, config, waiting: Mutex::default(), begun: Notify::new() });
        let looks_out = supervision::spawn(Part::CompletionWaiters, look_out(Arc::clone(&room)));
        Self { room, looks_out }
    }

    /// Room to wait for so many operations; nothing if too many wait already. To be taken before they are submitted.
    #[must_use]
    pub fn seat(&self, operations: usize) -> Option<Seat> {
        let config = &self.room.config;
        let mut waiting = self.room.waiting();
        let has_room = waiting.seats < config.callers_most && waiting.operations + operations <= config.operations_most;
        has_room.then(|| {
            waiting.seats += 1;
            waiting.operations += operations;
            emit(WaitersCounted { count: waiting.seats });
            Seat { room: Arc::clone(&self.room), operations }
        })
    }
}

impl Drop for Waits {
    fn drop(&mut self) {
        self.looks_out.abort();
    }
}

impl Room {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        // Nobody panics while holding it.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enter(&self, left: HashSet<OperationId>, done: oneshot::Sender<()>) -> Place<'_> {
        let mut waiting = self.waiting();
        let place = waiting.next;
        waiting.next += 1;
        for id in &left {
            waiting.by_operation.entry(*id).or_default().insert(place);
        }
        waiting.callers.insert(place, Caller { left, done });
        Place { room: self, place }
    }

    /// All that is waited for.
    fn sought(&self) -> Vec<OperationId> {
        self.waiting().by_operation.keys().copied().collect()
    }

    /// These have ended: whoever waited for the last of them is told.
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
                    // Whoever has stopped waiting does not care.
                    let _ = caller.done.send(());
                }
            }
        }
    }
}

impl Waiting {
    fn forget(&mut self, caller: u64) {
        let Some(Caller { left, .. }) = self.callers.remove(&caller) else { return };
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

/// Room to wait for some operations.
#[must_use = "nobody else has the room while this is kept"]
pub struct Seat {
    room: Arc<Room>,
    operations: usize,
}

impl fmt::Debug for Seat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Seat").field("operations", &self.operations).finish_non_exhaustive()
    }
}

impl Seat {
    /// Waits until all of these have ended, however long that takes. Those past the seat's room are not waited for.
    pub async fn until_ended(&self, ids: impl IntoIterator<Item = OperationId>) {
        let left: HashSet<OperationId> = ids.into_iter().take(self.operations).collect();
        if left.is_empty() {
            return;
        }
        let (done, ended) = oneshot::channel();
        let _place = self.room.enter(left, done);
        self.room.begun.notify_one();
        if ended.await.is_err() {
            // Nobody looks out any more: the process is about to end.
            std::future::pending::<()>().await;
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut waiting = self.room.waiting();
        waiting.seats -= 1;
        waiting.operations -= self.operations;
        emit(WaitersCounted { count: waiting.seats });
    }
}

/// Is forgotten by whoever stops waiting.
struct Place<'a> {
    room: &'a Room,
    place: u64,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.room.waiting().forget(self.place);
    }
}

/// Asks what has ended, for all at once, for as long as it is let.
async fn look_out(room: Arc<Room>) {
    let WaitsConfig { every, at_least_every, .. } = room.config;
    let mut ticks = room.changes.ticks();
    loop {
        let sought = room.sought();
        if sought.is_empty() {
            room.begun.notified().await;
            continue;
        }
        failpoint::message(Part::CompletionWaiters);
        // What changes from here on is asked for next time.
        ticks.borrow_and_update();
        // A store that cannot tell is asked again.
        if let Ok(ended) = room.changes.ended(sought).await {
            room.on_ended(&ended);
        }
        sleep(every).await;
        tokio::select! {
            // Without ticks it is asked now and then.
            Ok(()) = ticks.changed() => {}
            () = room.begun.notified() => {}
            () = sleep(at_least_every) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use guildhall_core::operation::{Frontier, Seen};
    use tokio::sync::watch;
    use tokio::time::{Instant, timeout};

    use super::*;
    use crate::operations::{Followed, ListFilter, Shown, StoreError, StoreFuture};

    /// Knows what has ended, and how often it was asked.
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

    impl Changes for Ledger {
        fn within(self: Arc<Self>, _: Arc<str>) -> Arc<dyn Changes> {
            self
        }

        fn ticks(&self) -> watch::Receiver<u64> {
            self.ticks.subscribe()
        }

        fn seen(&self) -> StoreFuture<'_, Seen> {
            Box::pin(async { Ok(Seen::default()) })
        }

        fn follow(&self, _: Frontier, _: ListFilter, _: usize) -> StoreFuture<'_, Followed> {
            Box::pin(async { Err(StoreError::Unavailable("nobody follows here".to_owned())) })
        }

        fn ended(&self, ids: Vec<OperationId>) -> StoreFuture<'_, Vec<OperationId>> {
            self.asked.fetch_add(1, Ordering::Relaxed);
            let ended = self.ended.lock().unwrap();
            let found = ids.into_iter().filter(|id| ended.contains(id)).collect();
            Box::pin(async { Ok(found) })
        }

        fn show_all(&self, _: Vec<OperationId>) -> StoreFuture<'_, Vec<Shown>> {
            Box::pin(async { Ok(Vec::new()) })
        }
    }

    fn id(n: u8) -> OperationId {
        OperationId::new(1, [n; 10])
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_waits_for_several_is_told_when_the_last_has_ended() {
        let ledger = Ledger::new();
        let waits = Waits::start(ledger.clone(), WaitsConfig::default());
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
        let waits = Waits::start(ledger.clone(), WaitsConfig::default());
        let seat = waits.seat(1).unwrap();
        let waiting = tokio::spawn(async move { seat.until_ended([id(1)]).await });
        sleep(Duration::from_millis(100)).await;
        ledger.end(id(1));
        timeout(Duration::from_secs(3), waiting).await.unwrap().unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn however_many_wait_the_store_is_asked_once_for_a_change_and_seldom_without_one() {
        let ledger = Ledger::new();
        let waits = Waits::start(ledger.clone(), WaitsConfig::default());
        let seats: Vec<_> = (0..200).map(|_| waits.seat(1).unwrap()).collect();
        let all = futures_util::future::join_all(seats.iter().zip(0..).map(|(seat, n)| seat.until_ended([id(n)])));
        assert!(timeout(Duration::from_secs(20), all).await.is_err());
        let asked = ledger.asked.load(Ordering::Relaxed);
        assert!((5..=15).contains(&asked), "{asked} times in 20 seconds");
        assert!(waits.room.sought().is_empty(), "whoever has stopped waiting is forgotten");
        sleep(Duration::from_secs(60)).await;
        assert!(ledger.asked.load(Ordering::Relaxed) <= asked + 1, "nobody waits, and nobody asks");
    }

    #[tokio::test(start_paused = true)]
    async fn there_is_room_for_so_many_callers_and_operations_and_no_more() {
        let config = WaitsConfig { callers_most: 2, operations_most: 10, ..WaitsConfig::default() };
        let waits = Waits::start(Ledger::new(), config);
        let one = waits.seat(6).unwrap();
        assert!(waits.seat(5).is_none(), "11 operations");
        let two = waits.seat(4).unwrap();
        assert!(waits.seat(0).is_none(), "a third caller");
        drop((one, two));
        assert!(waits.seat(10).is_some());
    }
}
