//! The admin key: a configured one, or a generated one that the processes of a store share.

use std::{
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    time::{Duration, Instant},
};

use guildhall_actors::supervision::spawn_work_on;
use guildhall_core::access::ParsedKey;
use tokio::{sync::Mutex as AsyncMutex, time::timeout};

use super::{admin_key::AdminKey, key_lookup::KeySource, keyring::CACHE_TTL};

/// How long a request waits for the store. After that the last known key is used: the operator must have access while
/// the store is down.
const STORE_TIMEOUT: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) struct OperatorKey {
    key: AdminKey,
    shared: OnceLock<Arc<SharedKey>>,
}

/// The key in the store, as last read.
#[derive(Debug)]
struct SharedKey {
    last: Mutex<(Option<AdminKey>, Instant)>,
    /// Held by the request that reads the key.
    reading: AsyncMutex<()>,
}

impl OperatorKey {
    pub(crate) fn new(key: AdminKey) -> Self {
        Self { key, shared: OnceLock::new() }
    }

    /// From now on the key is the one in the store: another process may replace it.
    pub(crate) fn enable_sharing(&self) {
        let last = Mutex::new((Some(self.key), Instant::now()));
        drop(self.shared.set(Arc::new(SharedKey { last, reading: AsyncMutex::new(()) })));
    }

    /// Whether this is the admin key. A replaced key is rejected once the cached one has expired.
    pub(crate) async fn matches(&self, presented: &str, source: impl FnOnce() -> Option<KeySource>) -> bool {
        let Some(shared) = self.shared.get() else { return self.key.matches(presented) };
        let (is_match, is_fresh) = shared.compare(presented);
        // An API key is never a generated admin key, so it does not have to wait.
        if is_fresh || (!is_match && ParsedKey::read(presented).is_some()) {
            return is_match;
        }
        if let Some(source) = source() {
            // The last known key is used if this takes too long.
            drop(timeout(STORE_TIMEOUT, shared.refresh(source)).await);
        }
        shared.compare(presented).0
    }
}

impl SharedKey {
    /// Whether this is the key as last read, and whether it was read recently.
    fn compare(&self, presented: &str) -> (bool, bool) {
        let (key, read_at) = *self.lock();
        (key.is_some_and(|key| key.matches(presented)), read_at.elapsed() < CACHE_TTL)
    }

    async fn refresh(self: &Arc<Self>, source: KeySource) {
        let _reading = self.reading.lock().await;
        if self.lock().1.elapsed() < CACHE_TTL {
            return;
        }
        let shared = Arc::clone(self);
        let read = spawn_work_on(&source.runtime, async move {
            let queried_at = Instant::now();
            match source.keys.admin_key().await {
                Ok(stored) => *shared.lock() = (stored.map(|stored| AdminKey::from_digest(stored.digest)), queried_at),
                // The store reports the error; the key stays as it is, and the store is queried again later.
                Err(_) => shared.lock().1 = queried_at,
            }
        });
        drop(read.await);
    }

    fn lock(&self) -> MutexGuard<'_, (Option<AdminKey>, Instant)> {
        // No code panics while it is locked.
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
