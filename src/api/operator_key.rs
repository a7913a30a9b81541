//! The admin key: a configured one, or a generated one that the processes of a store share.

use std::{
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    time::{Duration, Instant},
};

use guildhall_actors::supervision::spawn_work_on;
use guildhall_core::access::ParsedKey;
use tokio::{sync::Mutex as AsyncMutex, time::timeout};

use super::{admin_key::AdminKey, key_lookup::KeySource, keyring::FRESH};

/// How long a request waits for the store. After that the last known key is used: the operator must have access while
/// the store is down.
const WAIT: Duration = Duration::from_secs(1);

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
    pub(crate) fn share(&self) {
        let last = Mutex::new((Some(self.key), Instant::now()));
        drop(self.shared.set(Arc::new(SharedKey { last, reading: AsyncMutex::new(()) })));
    }

    /// Whether this is the admin key. A replaced key is rejected once the cached one has expired.
    pub(crate) async fn fits(&self, shown: &str, source: impl FnOnce() -> Option<KeySource>) -> bool {
        let Some(shared) = self.shared.get() else { return self.key.fits(shown) };
        let (fits, is_fresh) = shared.compare(shown);
        // An API key is never a generated admin key, so it does not have to wait.
        if is_fresh || (!fits && ParsedKey::read(shown).is_some()) {
            return fits;
        }
        if let Some(source) = source() {
            // The last known key is used if this takes too long.
            drop(timeout(WAIT, shared.refresh(source)).await);
        }
        shared.compare(shown).0
    }
}

impl SharedKey {
    /// Whether this is the key as last read, and whether it was read recently.
    fn compare(&self, shown: &str) -> (bool, bool) {
        let (key, read_at) = *self.lock();
        (key.is_some_and(|key| key.fits(shown)), read_at.elapsed() < FRESH)
    }

    async fn refresh(self: &Arc<Self>, source: KeySource) {
        let _reading = self.reading.lock().await;
        if self.lock().1.elapsed() < FRESH {
            return;
        }
        let shared = Arc::clone(self);
        let read = spawn_work_on(&source.runtime, async move {
            let asked = Instant::now();
            match source.keys.admin_key().await {
                Ok(stored) => *shared.lock() = (stored.map(|stored| AdminKey::from_digest(stored.digest)), asked),
                // The store reports the error; the key stays as it is, and the store is queried again later.
                Err(_) => shared.lock().1 = asked,
            }
        });
        drop(read.await);
    }

    fn lock(&self) -> MutexGuard<'_, (Option<AdminKey>, Instant)> {
        // No code panics while it is locked.
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
