//! State that a guild shares with its supervisor.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use guildhall_core::operation::OperationId;
use guildhall_core::time::UnixMs;
use tokio::sync::Notify;

use crate::supervisor::QueueSignal;
use crate::supervisor::operations::wakeups::ReleasedConditions;

/// Maximum number of pending signals. A lost one is noticed when the operation is next.
const WORDS: usize = 1_024;
const BUSY: u64 = u64::MAX;
const NEVER: u64 = u64::MAX;

/// Signals since the guild last looked.
#[derive(Debug, Default)]
pub(super) struct PendingSignals {
    pub(super) words: Vec<QueueSignal>,
    pub(super) released: ReleasedConditions,
}

/// State that a guild shares with its supervisor. Any number of signals between two looks wakes the guild once.
#[derive(Debug)]
pub(crate) struct GuildShared {
    notify: Notify,
    woken: AtomicBool,
    heard: Mutex<PendingSignals>,
    resting_since: AtomicU64,
    due: AtomicU64,
    executing: Mutex<Option<OperationId>>,
    ended: AtomicBool,
}

impl GuildShared {
    pub(crate) fn new() -> Self {
        Self {
            notify: Notify::new(),
            woken: AtomicBool::new(false),
            heard: Mutex::default(),
            resting_since: AtomicU64::new(BUSY),
            due: AtomicU64::new(NEVER),
            executing: Mutex::default(),
            ended: AtomicBool::new(false),
        }
    }

    /// Wakes the guild: operations were submitted or changed.
    pub(crate) fn wake(&self, words: impl IntoIterator<Item = QueueSignal>) {
        let mut heard = locked(&self.heard);
        let room = WORDS.saturating_sub(heard.words.len());
        heard.words.extend(words.into_iter().take(room));
        drop(heard);
        self.woken.store(true, Ordering::SeqCst);
        self.notify.notify_one();
    }

    /// Wakes the guild: the gate has changed, and operations that it delayed are due.
    pub(crate) fn release(&self, released: &ReleasedConditions) {
        locked(&self.heard).released.merge(released);
        self.woken.store(true, Ordering::SeqCst);
        self.notify.notify_one();
    }

    /// Whether a wake-up is pending.
    pub(super) fn is_woken(&self) -> bool {
        self.woken.load(Ordering::SeqCst)
    }

    /// Takes the pending signals. `None` if it was not woken.
    pub(super) fn listen(&self) -> Option<PendingSignals> {
        self.woken.swap(false, Ordering::SeqCst).then(|| std::mem::take(&mut *locked(&self.heard)))
    }

    /// Makes the guild check its requests.
    pub(super) fn nudge(&self) {
        self.notify.notify_one();
    }

    pub(super) async fn nudged(&self) {
        self.notify.notified().await;
    }

    pub(super) fn rest(&self, now: UnixMs, due: Option<UnixMs>) {
        self.due.store(due.map_or(NEVER, UnixMs::millis), Ordering::SeqCst);
        // Keeps the start of the idle time if the guild was idle before.
        let _ = self.resting_since.compare_exchange(BUSY, now.millis(), Ordering::SeqCst, Ordering::SeqCst);
    }

    pub(super) fn work(&self) {
        self.resting_since.store(BUSY, Ordering::SeqCst);
    }

    /// Since when it is idle, if it is.
    pub(crate) fn resting_since(&self) -> Option<UnixMs> {
        let since = self.resting_since.load(Ordering::SeqCst);
        (since != BUSY).then(|| UnixMs::new(since))
    }

    /// When it continues without being woken.
    pub(crate) fn due(&self) -> Option<UnixMs> {
        let due = self.due.load(Ordering::SeqCst);
        (due != NEVER).then(|| UnixMs::new(due))
    }

    pub(super) fn execute(&self, id: Option<OperationId>) {
        *locked(&self.executing) = id;
    }

    /// The operation that it executes, or executed when it crashed.
    pub(crate) fn executing(&self) -> Option<OperationId> {
        *locked(&self.executing)
    }

    pub(super) fn end(&self) {
        self.ended.store(true, Ordering::SeqCst);
    }

    /// Whether it ended without a crash.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::SeqCst)
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
