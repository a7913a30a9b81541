//! Looks keys up in the store, with a limit on look-ups and none on callers.
//!
//! ```text
//!  key ──▶ keyring: looked up recently ────────────────────────────────────────▶ found, or unknown
//!             └──▶ directory: does the id exist? ──▶ queue ──▶ few batches at once ──▶ store
//! ```
//!
//! Ids are not secret, but they cannot be guessed. So a flood of wrong keys names ids that do not exist, or a few that
//! do. The former wait behind keys that exist and behind those of other addresses; the latter are compared with the
//! digest that the keyring has. A valid key is found whatever else its address sends, also right after a start.

mod directory;
mod queue;

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use guildhall_actors::ports::{ApiKey, KeyStore, StoreError};
use guildhall_actors::supervision::{Part, spawn_finite_on, spawn_work_on};
use guildhall_actors::wall_clock::WallClock;
use guildhall_core::access::KeyId;
use tokio::{
    runtime::Handle,
    sync::{OnceCell, watch},
    time::timeout,
};

use self::{
    directory::KeyDirectory,
    queue::{LookupQueue, LookupQueueLimits},
};
use super::{
    events::{KeyLookedUp, LookupResult},
    keyring::Keyring,
};
use crate::{events::emit, settings::IpNetwork};

/// How long a caller waits for its key to be looked up.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(5);
/// Number of batches that are queried at once.
const WORKERS: usize = 2;
/// Ids in one batch.
const BATCH_SIZE: usize = 64;
/// Limits for waiting ids that are not known to exist.
const LIMITS: LookupQueueLimits = LookupQueueLimits { per_address: 256, total: 4_096 };

/// The key could not be looked up.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LookupError {
    /// Too many keys wait, or the store took too long.
    #[error("the key was not looked up in time, because too many other keys are being looked up")]
    Busy,
    #[error(transparent)]
    Store(#[from] StoreError),
}

type LookupOutcome = Result<Option<Arc<ApiKey>>, StoreError>;
/// Identifies the callers that wait for an id: those of one address, or all if the id is known to exist.
type Waiter = (Option<IpNetwork>, KeyId);

/// Looks keys up. Clones share everything.
#[derive(Clone)]
pub(crate) struct KeyLookup {
    shared: Arc<Shared>,
}

struct Shared {
    keyring: Arc<Keyring>,
    state: Mutex<State>,
    /// Set once the directory has been read for the first time.
    loaded: OnceCell<()>,
    clock: WallClock,
}

struct State {
    queue: LookupQueue<IpNetwork, KeyId>,
    waiters: HashMap<Waiter, watch::Sender<Option<LookupOutcome>>>,
    workers: usize,
    directory: KeyDirectory,
}

impl std::fmt::Debug for KeyLookup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KeyLookup").finish_non_exhaustive()
    }
}

/// The store of keys, and the runtime that it belongs to.
#[derive(Clone)]
pub(crate) struct KeySource {
    pub(crate) keys: Arc<dyn KeyStore>,
    pub(crate) runtime: Handle,
}

impl KeyLookup {
    pub(crate) fn new(keyring: Arc<Keyring>, clock: WallClock) -> Self {
        let state = State {
            queue: LookupQueue::new(LIMITS),
            waiters: HashMap::new(),
            workers: 0,
            directory: KeyDirectory::default(),
        };
        let shared = Shared { keyring, state: Mutex::new(state), loaded: OnceCell::new(), clock };
        Self { shared: Arc::new(shared) }
    }

    /// The key with this id, for a caller at this address; `None` if it does not exist. Recent results are cached.
    pub(crate) async fn find(
        &self,
        source: &KeySource,
        id: KeyId,
        address: IpNetwork,
    ) -> Result<Option<Arc<ApiKey>>, LookupError> {
        if let Some(cached) = self.shared.keyring.get_fresh(id, Instant::now()) {
            return Ok(cached);
        }
        let found = match timeout(LOOKUP_TIMEOUT, self.look_up(source, id, address)).await {
            Ok(found) => found,
            Err(_) => Err(LookupError::Busy),
        };
        emit(KeyLookedUp {
            result: match &found {
                Ok(Some(_)) => LookupResult::Found,
                Ok(None) => LookupResult::Unknown,
                Err(LookupError::Busy) => LookupResult::Busy,
                Err(LookupError::Store(_)) => LookupResult::Failed,
            },
        });
        found
    }

    /// Adds an id that this process has just created.
    pub(crate) fn on_key_created(&self, id: KeyId) {
        self.shared.lock().directory.insert(id);
    }

    async fn look_up(
        &self,
        source: &KeySource,
        id: KeyId,
        address: IpNetwork,
    ) -> Result<Option<Arc<ApiKey>>, LookupError> {
        self.shared.loaded.get_or_try_init(|| self.load(source)).await?;
        let mut found = self.wait_for(source, id, address).ok_or(LookupError::Busy)?;
        let found = found.wait_for(Option::is_some).await;
        // The sender was dropped: another id needed the room.
        let found = found.ok().and_then(|found| found.clone()).ok_or(LookupError::Busy)?;
        Ok(found?)
    }

    /// Reads which ids exist, before any is classified.
    async fn load(&self, source: &KeySource) -> Result<(), StoreError> {
        self.shared.lock().directory.start_refresh(Instant::now());
        let (shared, keys) = (Arc::clone(&self.shared), Arc::clone(&source.keys));
        let loading = spawn_work_on(&source.runtime, async move { shared.refresh(&*keys).await });
        loading.await.unwrap_or_else(|_| Err(StoreError::Unavailable("the process is shutting down".to_owned())))
    }

    /// Joins the callers that wait for an id; `None` if there is no room.
    fn wait_for(
        &self,
        source: &KeySource,
        id: KeyId,
        address: IpNetwork,
    ) -> Option<watch::Receiver<Option<LookupOutcome>>> {
        let mut state = self.shared.lock();
        let exists = state.directory.contains(id);
        if !exists && state.directory.start_refresh(Instant::now()) {
            let (shared, keys) = (Arc::clone(&self.shared), Arc::clone(&source.keys));
            // An error is reported by the store; the next unknown id tries again.
            spawn_work_on(&source.runtime, async move { drop(shared.refresh(&*keys).await) });
        }
        let waiter = ((!exists).then_some(address), id);
        if let Some(found) = state.waiters.get(&waiter) {
            return Some(found.subscribe());
        }
        match waiter.0 {
            None => state.queue.push_existing(id),
            Some(address) => {
                if let Some((address, evicted)) = state.queue.push(address, id).ok()? {
                    state.waiters.remove(&(Some(address), evicted));
                }
            }
        }
        let (sender, found) = watch::channel(None);
        state.waiters.insert(waiter, sender);
        if state.workers < WORKERS {
            state.workers += 1;
            let (shared, keys) = (Arc::clone(&self.shared), Arc::clone(&source.keys));
            spawn_finite_on(&source.runtime, Part::KeyLookup, async move { Worker(shared).run(&*keys).await });
        }
        Some(found)
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // No code panics while it is locked.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads which ids exist, or which are new since the last time.
    async fn refresh(&self, keys: &dyn KeyStore) -> Result<(), StoreError> {
        let (since, limit) = self.lock().directory.next_query();
        let now = self.clock.now();
        let ids = keys.key_ids(since, limit).await?;
        self.lock().directory.add(ids, now);
        Ok(())
    }

    /// The next ids that a caller still waits for; empty if there are none, and then the worker has ended.
    fn next_batch(&self) -> Vec<Waiter> {
        let mut state = self.lock();
        loop {
            let mut batch = state.queue.take(BATCH_SIZE);
            if batch.is_empty() {
                state.workers -= 1;
                return batch;
            }
            // The callers of these are gone.
            batch.retain(|waiter| {
                let waits = state.waiters.get(waiter).is_some_and(|sender| !sender.is_closed());
                if !waits {
                    state.waiters.remove(waiter);
                }
                waits
            });
            if !batch.is_empty() {
                return batch;
            }
        }
    }

    fn answer(&self, batch: &[Waiter], found: impl Fn(KeyId) -> LookupOutcome, queried_at: Instant) {
        for waiter in batch {
            let found = found(waiter.1);
            let mut state = self.lock();
            if let Ok(key) = &found {
                self.keyring.insert(waiter.1, key.clone(), queried_at);
                match key {
                    Some(_) => state.directory.insert(waiter.1),
                    None => state.directory.remove(waiter.1),
                }
            }
            if let Some(sender) = state.waiters.remove(waiter) {
                drop(sender.send(Some(found)));
            }
        }
    }
}

/// Processes batches until there are none.
struct Worker(Arc<Shared>);

impl Worker {
    async fn run(self, keys: &dyn KeyStore) {
        let mut guard = WorkerGuard { shared: &self.0, batch: Vec::new(), finished: false };
        loop {
            guard.batch = self.0.next_batch();
            if guard.batch.is_empty() {
                guard.finished = true;
                return;
            }
            let (ids, sent_at) = (guard.batch.iter().map(|(_, id)| *id).collect(), Instant::now());
            match keys.find_keys(ids).await {
                Ok(found) => {
                    let found: HashMap<KeyId, Arc<ApiKey>> =
                        found.into_iter().map(|key| (key.key.id, Arc::new(key))).collect();
                    self.0.answer(&guard.batch, |id| Ok(found.get(&id).cloned()), sent_at);
                }
                // One corrupt row must not block the other keys.
                Err(StoreError::Corrupt(_)) if guard.batch.len() > 1 => {
                    for waiter in &guard.batch {
                        let sent_at = Instant::now();
                        let found = keys.key(waiter.1).await.map(|key| key.map(Arc::new));
                        self.0.answer(std::slice::from_ref(waiter), |_| found.clone(), sent_at);
                    }
                }
                Err(error) => self.0.answer(&guard.batch, |_| Err(error.clone()), sent_at),
            }
        }
    }
}

/// Counts a worker that panicked or was cancelled as ended, and releases the callers that wait for its batch.
struct WorkerGuard<'a> {
    shared: &'a Shared,
    batch: Vec<Waiter>,
    /// It ended by itself, and is counted already.
    finished: bool,
}

impl Drop for WorkerGuard<'_> {
    fn drop(&mut self) {
        if self.finished {
            return;
        }
        let mut state = self.shared.lock();
        state.workers -= 1;
        for waiter in &self.batch {
            state.waiters.remove(waiter);
        }
    }
}

#[cfg(test)]
mod tests;
