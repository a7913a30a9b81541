//! A cache of API keys.
//!
//! A key that was read recently is not read again; a revoked key is rejected when its cache entry expires, which is
//! what "revoked" promises.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use guildhall_actors::access::Caller;
use guildhall_actors::ports::ApiKey;
use guildhall_core::{
    access::{KeyId, ParsedKey},
    time::UnixMs,
};
use sha2::{Digest as _, Sha256};

/// How long a result from the store is used.
pub(crate) const FRESH: Duration = Duration::from_secs(2);
/// Maximum number of cached keys, and of cached ids that do not exist.
const REMEMBERED_MOST: usize = 10_000;
/// How many rejections of one key are recorded in the audit within the window below.
const REFUSALS_MOST: u32 = 10;
const REFUSALS_EVERY: Duration = Duration::from_secs(60);

/// The stored form of a key's secret.
pub(crate) fn digest(secret: &str) -> [u8; 32] {
    Sha256::digest(secret).into()
}

/// Whether two digests are equal. Takes the same time for all that are not.
pub(crate) fn is_same(one: &[u8; 32], other: &[u8; 32]) -> bool {
    // Does not end before the last byte.
    std::hint::black_box(one.iter().zip(other).fold(0, |differs, (one, other)| differs | (one ^ other))) == 0
}

/// Recent rejections of a key.
struct Refusals {
    since: Instant,
    count: u32,
}

/// The keys that were looked up recently. Unknown ids do not displace keys.
#[derive(Default)]
pub(crate) struct Keyring {
    found: Mutex<HashMap<KeyId, (Arc<ApiKey>, Instant)>>,
    absent: Mutex<HashMap<KeyId, Instant>>,
    refusals: Mutex<HashMap<Arc<str>, Refusals>>,
}

impl std::fmt::Debug for Keyring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Keyring").finish_non_exhaustive()
    }
}

impl Keyring {
    /// The cached result for a key, if it is recent: the key, or that it does not exist.
    pub(crate) fn recall(&self, id: KeyId, now: Instant) -> Option<Option<Arc<ApiKey>>> {
        let is_fresh = |asked: Instant| now.saturating_duration_since(asked) < FRESH;
        if let Some((key, _)) = lock(&self.found).get(&id).filter(|(_, asked)| is_fresh(*asked)) {
            return Some(Some(Arc::clone(key)));
        }
        lock(&self.absent).get(&id).is_some_and(|asked| is_fresh(*asked)).then_some(None)
    }

    /// Caches what the store returned to a query that was sent at `asked`.
    pub(crate) fn remember(&self, id: KeyId, key: Option<Arc<ApiKey>>, asked: Instant) {
        let is_fresh = |at: Instant| asked.saturating_duration_since(at) < FRESH;
        match key {
            Some(key) => {
                lock(&self.absent).remove(&id);
                let mut found = lock(&self.found);
                make_room(&mut found, |(_, at)| is_fresh(*at));
                found.insert(id, (key, asked));
            }
            None => {
                lock(&self.found).remove(&id);
                let mut absent = lock(&self.absent);
                make_room(&mut absent, |at| is_fresh(*at));
                absent.insert(id, asked);
            }
        }
    }

    /// Whether this rejection of a key is recorded in the audit: only a few of each key are, so that no caller fills
    /// the store with them.
    pub(crate) fn writes_down(&self, key: &Arc<str>, now: Instant) -> bool {
        let mut refusals = lock(&self.refusals);
        if refusals.len() >= REMEMBERED_MOST {
            refusals.retain(|_, refused| now.saturating_duration_since(refused.since) < REFUSALS_EVERY);
            if refusals.len() >= REMEMBERED_MOST {
                return false;
            }
        }
        let refused = refusals.entry(Arc::clone(key)).or_insert(Refusals { since: now, count: 0 });
        if now.saturating_duration_since(refused.since) >= REFUSALS_EVERY {
            *refused = Refusals { since: now, count: 0 };
        }
        refused.count = refused.count.saturating_add(1);
        refused.count <= REFUSALS_MOST
    }
}

/// Makes room for one more. Removed entries are looked up again.
fn make_room<T>(seen: &mut HashMap<KeyId, T>, is_fresh: impl Fn(&T) -> bool) {
    if seen.len() >= REMEMBERED_MOST {
        seen.retain(|_, one| is_fresh(one));
    }
    if seen.len() >= REMEMBERED_MOST {
        seen.clear();
    }
}

/// The caller with this key, if the secret matches and the key is valid.
pub(crate) fn caller(key: &ApiKey, shown: &ParsedKey<'_>, now: UnixMs, request: Arc<str>) -> Option<Caller> {
    let fits = is_same(&key.made.digest, &digest(shown.secret));
    let is_operator = key.made.grant.may(guildhall_core::access::Scope::Admin);
    (fits && key.is_good(now)).then(|| Caller {
        key: Arc::from(key.made.id.as_str()),
        tenant: (!is_operator).then(|| Arc::clone(&key.made.tenant)),
        grant: Arc::new(key.made.grant.clone()),
        request,
        trace: None,
    })
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // No code panics while it is locked.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use guildhall_actors::ports::NewApiKey;
    use guildhall_core::access::Grant;

    use super::*;

    const SECRET: &str = "abcdefghijklmnopqrstuvwxyz-ABCDEFGHIJK_0123";

    fn key(expires_at: Option<UnixMs>, revoked_at: Option<UnixMs>) -> ApiKey {
        let made = NewApiKey {
            id: KeyId::from_chance(7),
            tenant: Arc::from("acme"),
            name: "a key".to_owned(),
            digest: digest(SECRET),
            grant: Grant::read(["operations:read"]).unwrap(),
            created_at: UnixMs::new(0),
            expires_at,
        };
        ApiKey { made, revoked_at, rotated_to: None }
    }

    fn is_let_in(key: &ApiKey, secret: &str, now: u64) -> bool {
        caller(key, &ParsedKey { id: key.made.id, secret }, UnixMs::new(now), Arc::from("r")).is_some()
    }

    #[test]
    fn a_key_is_good_until_it_ends_or_is_taken_back_and_never_with_another_secret() {
        let plain = key(None, None);
        assert!(is_let_in(&plain, SECRET, 5));
        assert!(!is_let_in(&plain, &SECRET.replace('0', "1"), 5));
        let ends = key(Some(UnixMs::new(10)), None);
        assert!(is_let_in(&ends, SECRET, 9) && !is_let_in(&ends, SECRET, 10));
        let revoked = key(None, Some(UnixMs::new(10)));
        assert!(is_let_in(&revoked, SECRET, 9) && !is_let_in(&revoked, SECRET, 10));
    }

    #[test]
    fn what_the_store_said_is_believed_for_a_moment_only() {
        let (ring, start) = (Keyring::default(), Instant::now());
        let id = KeyId::from_chance(7);
        assert!(ring.recall(id, start).is_none());
        ring.remember(id, Some(Arc::new(key(None, None))), start);
        assert!(ring.recall(id, start + FRESH / 2).flatten().is_some());
        assert!(ring.recall(id, start + FRESH).is_none());
        ring.remember(id, None, start + FRESH);
        assert_eq!(ring.recall(id, start + FRESH), Some(None));
    }

    #[test]
    fn guesses_do_not_fill_the_memory() {
        let (ring, start) = (Keyring::default(), Instant::now());
        let good = KeyId::from_chance(u128::MAX);
        ring.remember(good, Some(Arc::new(key(None, None))), start);
        for guess in 0..REMEMBERED_MOST as u128 + 10 {
            ring.remember(KeyId::from_chance(guess), None, start);
        }
        assert!(lock(&ring.absent).len() <= REMEMBERED_MOST);
        assert!(ring.recall(good, start).flatten().is_some(), "unknown ids must not displace a key");
    }

    #[test]
    fn a_few_refusals_of_a_key_are_written_down_then_none_for_a_while() {
        let (ring, start, name) = (Keyring::default(), Instant::now(), Arc::from("a"));
        let written = (0..100).filter(|_| ring.writes_down(&name, start)).count();
        assert_eq!(written, REFUSALS_MOST as usize);
        assert!(ring.writes_down(&Arc::from("b"), start));
        assert!(ring.writes_down(&name, start + REFUSALS_EVERY));
    }
}
