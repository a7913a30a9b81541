//! What a guild and its supervisor know of each other without asking.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use guildhall_core::operation::OperationId;
use guildhall_core::time::UnixMs;
use tokio::sync::Notify;

use crate::supervisor::QueueSignal;
use crate::supervisor::operations::wakeups::ReleasedConditions;

/// Words that are kept for a guild at most. One that is lost is found out when the operation's turn comes.
const WORDS: usize = 1_024;
const BUSY: u64 = u64::MAX;
const NEVER: u64 = u64::MAX;

/// What a guild was told since it last looked.
#[derive(Debug, Default)]
pub(super) struct PendingSignals {
    pub(super) words: Vec<QueueSignal>,
    pub(super) released: ReleasedConditions,
}

/// What a guild and its supervisor know of each other without asking: a guild of which much is said is asked no more
/// often for it.
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

    /// Something was submitted, or done to operations of this guild.
    pub(crate) fn wake(&self, words: impl IntoIterator<Item = QueueSignal>) {
        let mut heard = locked(&self.heard);
        let room = WORDS.saturating_sub(heard.words.len());
        heard.words.extend(words.into_iter().take(room));
        drop(heard);
        self.woken.store(true, Ordering::SeqCst);
        self.notify.notify_one();
    }

    /// The gate has changed: operations that it held back are due.
    pub(crate) fn release(&self, released: &ReleasedConditions) {
        locked(&self.heard).released.merge(released);
        self.woken.store(true, Ordering::SeqCst);
        self.notify.notify_one();
    }

    /// Whether it is being woken.
    pub(super) fn is_woken(&self) -> bool {
        self.woken.load(Ordering::SeqCst)
    }

    /// What was said since this was last asked; nothing if it was not woken.
    pub(super) fn listen(&self) -> Option<PendingSignals> {
        self.woken.swap(false, Ordering::SeqCst).then(|| std::mem::take(&mut *locked(&self.heard)))
    }

    /// Something has to be looked at.
    pub(super) fn nudge(&self) {
        self.notify.notify_one();
    }

    pub(super) async fn nudged(&self) {
        self.notify.notified().await;
    }

    pub(super) fn rest(&self, now: UnixMs, due: Option<UnixMs>) {
        self.due.store(due.map_or(NEVER, UnixMs::millis), Ordering::SeqCst);
        // A guild that rests anew has not been resting all the time.
        let _ = self.resting_since.compare_exchange(BUSY, now.millis(), Ordering::SeqCst, Ordering::SeqCst);
    }

    pub(super) fn work(&self) {
        self.resting_since.store(BUSY, Ordering::SeqCst);
    }

    /// Since when it has had nothing to do, if it has nothing to do.
    pub(crate) fn resting_since(&self) -> Option<UnixMs> {
        let since = self.resting_since.load(Ordering::SeqCst);
        (since != BUSY).then(|| UnixMs::new(since))
    }

    /// When it goes on by itself.
    pub(crate) fn due(&self) -> Option<UnixMs> {
        let due = self.due.load(Ordering::SeqCst);
        (due != NEVER).then(|| UnixMs::new(due))
    }

    pub(super) fn execute(&self, id: Option<OperationId>) {
        *locked(&self.executing) = id;
    }

    /// What it was at when it was last heard of.
    pub(crate) fn executing(&self) -> Option<OperationId> {
        *locked(&self.executing)
    }

    pub(super) fn end(&self) {
        self.ended.store(true, Ordering::SeqCst);
    }

    /// Whether it came to its end as it should.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::SeqCst)
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
