//! The open shards of a process. Opens and closes each of them.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use guildhall_actors::lease_guard::LeaseGuard;
use guildhall_actors::ports::{ShardView, StoredSession};
use guildhall_actors::shard::{ShardEnd as Exit, ShardHandle, ShardSender, StartShard};
use tokio::{
    sync::{mpsc, watch},
    time::timeout,
};
use twilight_gateway::Intents;

use super::ShardEnd;
use crate::discord::FatalClose;

/// A session that a shard resumes.
#[derive(Debug)]
pub struct ResumeState {
    /// The session.
    pub session: StoredSession,
    /// Sequence numbers of events that are forwarded without being parsed, because they crashed processes.
    pub unread: BTreeSet<u64>,
}

/// Parameters of a shard that is opened.
pub(super) struct OpenShard {
    pub(super) number: u32,
    pub(super) sender: ShardSender,
    pub(super) resume: Option<ResumeState>,
    pub(super) lease: LeaseGuard,
    pub(super) on_exit: Box<dyn FnOnce(Exit) + Send>,
}

/// Creates a shard.
pub(super) type PrepareShard = Box<dyn Fn(OpenShard) -> (ShardHandle, StartShard) + Send + Sync>;

/// The open shards of a process. Cheap to clone.
#[derive(Clone)]
pub struct ShardSet {
    inner: Arc<Inner>,
}

struct Inner {
    prepare: PrepareShard,
    intents: Intents,
    /// One for each thread. Each has capacity for every shard: a shard is reopened only after it has ended.
    threads: Vec<mpsc::Sender<StartShard>>,
    open: Mutex<BTreeMap<u32, ShardHandle>>,
    /// Notifies that a shard has ended.
    ended: watch::Sender<()>,
    ends: mpsc::Sender<ShardEnd>,
}

impl fmt::Debug for ShardSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShardSet").field("open", &self.open_numbers()).finish_non_exhaustive()
    }
}

impl ShardSet {
    pub(super) fn new(
        prepare: PrepareShard,
        intents: Intents,
        threads: Vec<mpsc::Sender<StartShard>>,
        ends: mpsc::Sender<ShardEnd>,
    ) -> Self {
        let (open, ended) = (Mutex::default(), watch::Sender::new(()));
        Self { inner: Arc::new(Inner { prepare, intents, threads, open, ended, ends }) }
    }

    /// Opens a shard. It resumes `resume`, if given, and closes by itself when the lease ends. Does nothing if the
    /// shard is open.
    pub fn open(&self, number: u32, sender: ShardSender, resume: Option<ResumeState>, lease: LeaseGuard) {
        let start = {
            let mut open = self.inner.open();
            if open.contains_key(&number) {
                return;
            }
            let inner = Arc::clone(&self.inner);
            let on_exit = Box::new(move |exit| inner.on_exit(number, exit));
            let (handle, start) = (self.inner.prepare)(OpenShard { number, sender, resume, lease, on_exit });
            open.insert(number, handle);
            start
        };
        let thread = &self.inner.threads[number as usize % self.inner.threads.len()];
        // Fails only if the thread has ended with the process; the shard, dropped, then reports its end.
        drop(thread.try_send(start));
    }

    /// Closes a shard with code 4000, so that its session can be resumed, and waits until the peer has responded. After
    /// the timeout, drops the connection. The shard has ended when this returns.
    pub async fn close(&self, number: u32, limit: Duration) {
        let gone = || !self.inner.open().contains_key(&number);
        self.request_stop(Some(number));
        if timeout(limit, self.wait_until(gone)).await.is_err() {
            let handle = self.inner.open().get(&number).cloned();
            handle.inspect(ShardHandle::abort);
            self.wait_until(gone).await;
        }
    }

    pub(super) async fn close_all(&self) {
        self.request_stop(None);
        self.wait_until(|| self.inner.open().is_empty()).await;
    }

    /// Closes a shard's connection with code 4000 and makes another one, which resumes the session. Returns `false` if
    /// the shard is not open. Does not wait for the restart.
    #[must_use]
    pub fn restart(&self, number: u32) -> bool {
        let handle = self.inner.open().get(&number).cloned();
        handle.inspect(ShardHandle::restart).is_some()
    }

    /// Status of the open shards, by number.
    #[must_use]
    pub fn views(&self) -> Vec<ShardView> {
        self.inner.open().values().map(ShardHandle::view).collect()
    }

    /// Whether a shard is open.
    #[must_use]
    pub fn is_open(&self, number: u32) -> bool {
        self.inner.open().contains_key(&number)
    }

    pub(super) fn open_numbers(&self) -> Vec<u32> {
        self.inner.open().keys().copied().collect()
    }

    /// Waits until a shard ends, for any reason. Shards that ended earlier do not count.
    pub async fn wait_for_end(&self) {
        let mut ended = self.inner.ended.subscribe();
        // Never fails: this set holds the sender.
        let _ = ended.changed().await;
    }

    fn request_stop(&self, shard: Option<u32>) {
        let open = self.inner.open();
        let closing = open.iter().filter(|(number, _)| shard.is_none_or(|shard| shard == **number));
        closing.for_each(|(_, handle)| handle.close());
    }

    async fn wait_until(&self, condition: impl Fn() -> bool) {
        let mut ended = self.inner.ended.subscribe();
        while !condition() {
            if ended.changed().await.is_err() {
                return;
            }
        }
    }
}

impl Inner {
    fn open(&self) -> MutexGuard<'_, BTreeMap<u32, ShardHandle>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn on_exit(&self, number: u32, exit: Exit) {
        self.open().remove(&number);
        let end = match exit {
            Exit::Closed | Exit::Lost => None,
            Exit::Refused { code } => {
                Some(ShardEnd::Refused(FatalClose { shard: number, code, intents: self.intents }))
            }
            Exit::Panicked => Some(ShardEnd::Panicked),
        };
        // The channel has capacity for every shard; its receiver may be gone.
        if let Some(end) = end {
            let _ = self.ends.try_send(end);
        }
        self.ended.send_replace(());
    }
}
