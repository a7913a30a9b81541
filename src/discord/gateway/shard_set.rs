//! The open shards of a process. Opens and closes each of them.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use guildhall_actors::lease_guard::LeaseGuard;
use guildhall_actors::ports::{ShardView, StoredSession};
use guildhall_actors::shard::ShardSender;
use guildhall_actors::supervision::{Part, PartGuard};
use tokio::{
    sync::{mpsc, watch},
    time::timeout,
};

use super::{ShardEnd, status::ShardStatus};

/// A shard that runs until it ends.
pub(super) type ShardFuture = Pin<Box<dyn Future<Output = ShardEnd> + Send>>;
/// A shard with its cleanup.
pub(super) type ThreadTask = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A session that a shard resumes.
#[derive(Debug)]
pub struct ResumeState {
    /// The session.
    pub session: StoredSession,
    /// Sequence numbers of events that are forwarded without being parsed, because they crashed processes.
    pub unread: BTreeSet<u64>,
}

/// Parameters of a shard.
pub(super) struct ShardSpec {
    pub(super) number: u32,
    pub(super) feed: ShardSender,
    pub(super) resume: Option<ResumeState>,
    pub(super) right: LeaseGuard,
    pub(super) stopped: watch::Receiver<bool>,
    /// Changes when the shard must reconnect.
    pub(super) restarts: watch::Receiver<()>,
    pub(super) vitals: Arc<ShardStatus>,
}

/// The open shards of a process. Cheap to clone.
#[derive(Clone)]
pub struct ShardSet {
    inner: Arc<Inner>,
}

struct Inner {
    hire: Box<dyn Fn(ShardSpec) -> ShardFuture + Send + Sync>,
    /// One for each thread. Each has capacity for every shard: a shard is reopened only after it has ended.
    desks: Vec<mpsc::Sender<ThreadTask>>,
    open: Mutex<BTreeMap<u32, ShardControl>>,
    /// Notifies that a shard has ended.
    ended: watch::Sender<()>,
    tell: mpsc::Sender<ShardEnd>,
}

struct ShardControl {
    stop: watch::Sender<bool>,
    cut: watch::Sender<bool>,
    restart: watch::Sender<()>,
    vitals: Arc<ShardStatus>,
}

impl fmt::Debug for ShardSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShardSet").field("open", &self.all_open()).finish_non_exhaustive()
    }
}

impl ShardSet {
    pub(super) fn new(
        hire: Box<dyn Fn(ShardSpec) -> ShardFuture + Send + Sync>,
        desks: Vec<mpsc::Sender<ThreadTask>>,
        tell: mpsc::Sender<ShardEnd>,
    ) -> Self {
        let (open, ended) = (Mutex::default(), watch::Sender::new(()));
        Self { inner: Arc::new(Inner { hire, desks, open, ended, tell }) }
    }

    /// Opens a shard. It resumes `resume`, if given, and closes by itself when the lease ends. Does nothing if the
    /// shard is open.
    pub fn open(&self, number: u32, feed: ShardSender, resume: Option<ResumeState>, right: LeaseGuard) {
        let (stop, stopped) = watch::channel(false);
        let (cut, mut is_cut) = watch::channel(false);
        let (restart, restarts) = watch::channel(());
        let vitals = ShardStatus::new();
        {
            let mut open = self.inner.open();
            if open.contains_key(&number) {
                return;
            }
            open.insert(number, ShardControl { stop, cut, restart, vitals: Arc::clone(&vitals) });
        }
        let run = (self.inner.hire)(ShardSpec { number, feed, resume, right, stopped, restarts, vitals });
        let guard = Some(PartGuard::new(Part::Shard));
        let leaving = ShardExitGuard { guard, inner: Arc::clone(&self.inner), number, end: ShardEnd::Panicked };
        let work = Box::pin(async move {
            // Moves the whole guard into the task, not only the field that is set below.
            let mut leaving = leaving;
            leaving.end = tokio::select! {
                end = run => end,
                _ = is_cut.wait_for(|cut| *cut) => ShardEnd::Closed,
            };
        });
        let desk = &self.inner.desks[number as usize % self.inner.desks.len()];
        // Fails only if the thread has ended with the process; the dropped guard then reports the end.
        drop(desk.try_send(work));
    }

    /// Closes a shard with code 4000, so that its session can be resumed, and waits until the peer has responded. After
    /// the timeout, drops the connection. The shard has ended when this returns.
    pub async fn close(&self, number: u32, within: Duration) {
        let gone = || !self.inner.open().contains_key(&number);
        self.dismiss(Some(number));
        if timeout(within, self.until(gone)).await.is_err() {
            if let Some(place) = self.inner.open().get(&number) {
                place.cut.send_replace(true);
            }
            self.until(gone).await;
        }
    }

    pub(super) async fn close_all(&self) {
        self.dismiss(None);
        self.until(|| self.inner.open().is_empty()).await;
    }

    /// Closes a shard's connection with code 4000 and makes another one, which resumes the session. Returns `false` if
    /// the shard is not open. Does not wait for the restart.
    #[must_use]
    pub fn restart(&self, number: u32) -> bool {
        let open = self.inner.open();
        let place = open.get(&number);
        place.is_some_and(|place| {
            place.restart.send_replace(());
            true
        })
    }

    /// Status of the open shards, by number.
    #[must_use]
    pub fn views(&self) -> Vec<ShardView> {
        self.inner.open().iter().map(|(number, place)| place.vitals.view(*number)).collect()
    }

    /// Whether a shard is open.
    #[must_use]
    pub fn is_open(&self, number: u32) -> bool {
        self.inner.open().contains_key(&number)
    }

    pub(super) fn all_open(&self) -> Vec<u32> {
        self.inner.open().keys().copied().collect()
    }

    /// Waits until a shard ends, for any reason. Shards that ended earlier do not count.
    pub async fn an_end(&self) {
        let mut ended = self.inner.ended.subscribe();
        // Never fails: this set holds the sender.
        let _ = ended.changed().await;
    }

    fn dismiss(&self, which: Option<u32>) {
        for (number, place) in &*self.inner.open() {
            if which.is_none_or(|which| which == *number) {
                place.stop.send_replace(true);
            }
        }
    }

    async fn until(&self, holds: impl Fn() -> bool) {
        let mut ended = self.inner.ended.subscribe();
        while !holds() {
            if ended.changed().await.is_err() {
                return;
            }
        }
    }
}

impl Inner {
    fn open(&self) -> MutexGuard<'_, BTreeMap<u32, ShardControl>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reports the end of a running shard, however it ends.
struct ShardExitGuard {
    /// First, so that a panic is noticed before its consequences.
    guard: Option<PartGuard>,
    inner: Arc<Inner>,
    number: u32,
    end: ShardEnd,
}

impl Drop for ShardExitGuard {
    fn drop(&mut self) {
        match (self.end, self.guard.take()) {
            (ShardEnd::Panicked, guard) => drop(guard),
            // Closed as requested, lost to another process, or rejected by Discord, which the daemon handles.
            (ShardEnd::Closed | ShardEnd::Lost | ShardEnd::Refused(_), guard) => {
                guard.into_iter().for_each(PartGuard::finish);
            }
        }
        self.inner.open().remove(&self.number);
        match self.end {
            ShardEnd::Closed | ShardEnd::Lost => {}
            // The channel has capacity for every shard; its receiver may be gone.
            ShardEnd::Refused(_) | ShardEnd::Panicked => drop(self.inner.tell.try_send(self.end)),
        }
        self.inner.ended.send_replace(());
    }
}
