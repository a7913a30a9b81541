//! State that a guild shares with its supervisor.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use guildhall_core::operation::OperationId;
use guildhall_core::time::UnixMs;
use tokio::sync::Notify;

use crate::supervisor::QueueSignal;
use crate::supervisor::operations::wakeups::ReleasedConditions;

/// Maximum number of pending signals. A lost one is noticed when the operation is next.
const MAX_SIGNALS: usize = 1_024;
const BUSY: u64 = u64::MAX;
const NEVER: u64 = u64::MAX;

/// Signals since the guild last looked.
#[derive(Debug, Default)]
pub(super) struct PendingSignals {
    pub(super) signals: Vec<QueueSignal>,
    pub(super) released: ReleasedConditions,
}

/// State that a guild shares with its supervisor. Any number of signals between two looks wakes the guild once.
#[derive(Debug)]
pub(crate) struct GuildShared {
    notify: Notify,
    woken: AtomicBool,
    pending: Mutex<PendingSignals>,
    idle_since: AtomicU64,
    due: AtomicU64,
    executing: Mutex<Option<OperationId>>,
    finished: AtomicBool,
}

impl GuildShared {
    pub(crate) fn new() -> Self {
        Self {
            notify: Notify::new(),
            woken: AtomicBool::new(false),
            pending: Mutex::default(),
            idle_since: AtomicU64::new(BUSY),
            due: AtomicU64::new(NEVER),
            executing: Mutex::default(),
            finished: AtomicBool::new(false),
        }
    }

    /// Wakes the guild: operations were submitted or changed.
    pub(crate) fn wake(&self, signals: impl IntoIterator<Item = QueueSignal>) {
        let mut pending = lock(&self.pending);
        let remaining = MAX_SIGNALS.saturating_sub(pending.signals.len());
        pending.signals.extend(signals.into_iter().take(remaining));
        drop(pending);
        self.woken.store(true, Ordering::SeqCst);
        self.notify.notify_one();
    }

    /// Wakes the guild: the gate has changed, and operations that it delayed are due.
    pub(crate) fn release(&self, released: &ReleasedConditions) {
        lock(&self.pending).released.merge(released);
        self.woken.store(true, Ordering::SeqCst);
        self.notify.notify_one();
    }

    /// Whether a wake-up is pending.
    pub(super) fn is_woken(&self) -> bool {
        self.woken.load(Ordering::SeqCst)
    }

    /// Takes the pending signals. `None` if it was not woken.
    pub(super) fn take_signals(&self) -> Option<PendingSignals> {
        self.woken.swap(false, Ordering::SeqCst).then(|| std::mem::take(&mut *lock(&self.pending)))
    }

    /// Makes the guild check its requests.
    pub(super) fn nudge(&self) {
        self.notify.notify_one();
    }

    pub(super) async fn nudged(&self) {
        self.notify.notified().await;
    }

    pub(super) fn set_idle(&self, now: UnixMs, due: Option<UnixMs>) {
        self.due.store(due.map_or(NEVER, UnixMs::millis), Ordering::SeqCst);
        // Keeps the start of the idle time if the guild was idle before.
        let _ = self.idle_since.compare_exchange(BUSY, now.millis(), Ordering::SeqCst, Ordering::SeqCst);
    }

    pub(super) fn set_busy(&self) {
        self.idle_since.store(BUSY, Ordering::SeqCst);
    }

    /// Since when it is idle, if it is.
    pub(crate) fn idle_since(&self) -> Option<UnixMs> {
        let since = self.idle_since.load(Ordering::SeqCst);
        (since != BUSY).then(|| UnixMs::new(since))
    }

    /// When it continues without being woken.
    pub(crate) fn due(&self) -> Option<UnixMs> {
        let due = self.due.load(Ordering::SeqCst);
        (due != NEVER).then(|| UnixMs::new(due))
    }

    pub(super) fn set_executing(&self, id: Option<OperationId>) {
        *lock(&self.executing) = id;
    }

    /// The operation that it executes, or executed when it crashed.
    pub(crate) fn executing(&self) -> Option<OperationId> {
        *lock(&self.executing)
    }

    pub(super) fn set_finished(&self) {
        self.finished.store(true, Ordering::SeqCst);
    }

    /// Whether it ended without a crash.
    pub(crate) fn has_finished(&self) -> bool {
        self.finished.load(Ordering::SeqCst)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
