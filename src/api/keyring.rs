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
pub(crate) const CACHE_TTL: Duration = Duration::from_secs(2);
/// Maximum number of cached keys, and of cached ids that do not exist.
const MAX_CACHED: usize = 10_000;
/// How many rejections of one key are recorded in the audit within the window below.
const MAX_AUDITED_REJECTIONS: u32 = 10;
const REJECTION_WINDOW: Duration = Duration::from_secs(60);

/// The stored form of a key's secret.
pub(crate) fn digest(secret: &str) -> [u8; 32] {
    Sha256::digest(secret).into()
}

/// Whether two digests are equal. Takes the same time for all that are not.
pub(crate) fn constant_time_eq(one: &[u8; 32], other: &[u8; 32]) -> bool {
    // Does not end before the last byte.
    std::hint::black_box(one.iter().zip(other).fold(0, |differs, (one, other)| differs | (one ^ other))) == 0
}

/// Recent rejections of a key.
struct RecentRejections {
    since: Instant,
    count: u32,
}

/// The keys that were looked up recently. Unknown ids do not displace keys.
#[derive(Default)]
pub(crate) struct Keyring {
    found: Mutex<HashMap<KeyId, (Arc<ApiKey>, Instant)>>,
    absent: Mutex<HashMap<KeyId, Instant>>,
    rejections: Mutex<HashMap<Arc<str>, RecentRejections>>,
}

impl std::fmt::Debug for Keyring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Keyring").finish_non_exhaustive()
    }
}

impl Keyring {
    /// The cached result for a key, if it is recent: the key, or that it does not exist.
    pub(crate) fn get_fresh(&self, id: KeyId, now: Instant) -> Option<Option<Arc<ApiKey>>> {
        let is_fresh = |sent_at: Instant| now.saturating_duration_since(sent_at) < CACHE_TTL;
        if let Some((key, _)) = lock(&self.found).get(&id).filter(|(_, sent_at)| is_fresh(*sent_at)) {
            return Some(Some(Arc::clone(key)));
        }
        lock(&self.absent).get(&id).is_some_and(|sent_at| is_fresh(*sent_at)).then_some(None)
    }

    /// Caches what the store returned to a query that was sent at `asked`.
    pub(crate) fn insert(&self, id: KeyId, key: Option<Arc<ApiKey>>, queried_at: Instant) {
        let is_fresh = |at: Instant| queried_at.saturating_duration_since(at) < CACHE_TTL;
        match key {
            Some(key) => {
                lock(&self.absent).remove(&id);
                let mut found = lock(&self.found);
                make_room(&mut found, |(_, at)| is_fresh(*at));
                found.insert(id, (key, queried_at));
            }
            None => {
                lock(&self.found).remove(&id);
                let mut absent = lock(&self.absent);
                make_room(&mut absent, |at| is_fresh(*at));
                absent.insert(id, queried_at);
            }
        }
    }

    /// Whether this rejection of a key is recorded in the audit: only a few of each key are, so that no caller fills
    /// the store with them.
    pub(crate) fn should_audit_rejection(&self, key: &Arc<str>, now: Instant) -> bool {
        let mut refusals = lock(&self.rejections);
        if refusals.len() >= MAX_CACHED {
            refusals.retain(|_, refused| now.saturating_duration_since(refused.since) < REJECTION_WINDOW);
            if refusals.len() >= MAX_CACHED {
                return false;
            }
        }
        let refused = refusals.entry(Arc::clone(key)).or_insert(RecentRejections { since: now, count: 0 });
        if now.saturating_duration_since(refused.since) >= REJECTION_WINDOW {
            *refused = RecentRejections { since: now, count: 0 };
        }
        refused.count = refused.count.saturating_add(1);
        refused.count <= MAX_AUDITED_REJECTIONS
    }
}

/// Makes room for one more. Removed entries are looked up again.
fn make_room<T>(seen: &mut HashMap<KeyId, T>, is_fresh: impl Fn(&T) -> bool) {
    if seen.len() >= MAX_CACHED {
        seen.retain(|_, one| is_fresh(one));
    }
    if seen.len() >= MAX_CACHED {
        seen.clear();
    }
}

/// Why a presented key is not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyRejection {
    /// The request has no key.
    Missing,
    /// There is no such key, or its secret differs: which of both is not said.
    Invalid,
    /// The key was valid until this time. Only who has its secret learns that.
    Expired(UnixMs),
    /// The key was revoked at this time, and perhaps replaced. Only who has its secret learns that.
    Revoked(UnixMs, Option<KeyId>),
}

/// The caller with this key, if the secret matches and the key is valid.
pub(crate) fn authenticate(
    key: &ApiKey,
    presented: &ParsedKey<'_>,
    now: UnixMs,
    request: Arc<str>,
) -> Result<Caller, KeyRejection> {
    // First: whether a key has expired or was revoked is for its holder only.
    if !constant_time_eq(&key.key.digest, &digest(presented.secret)) {
        return Err(KeyRejection::Invalid);
    }
    if let Some(at) = key.revoked_at.filter(|at| *at <= now) {
        return Err(KeyRejection::Revoked(at, key.rotated_to));
    }
    if let Some(at) = key.key.expires_at.filter(|at| *at <= now) {
        return Err(KeyRejection::Expired(at));
    }
    let is_operator = key.key.grant.has_scope(guildhall_core::access::Scope::Admin);
    Ok(Caller {
        key: Arc::from(key.key.id.as_str()),
        tenant: (!is_operator).then(|| Arc::clone(&key.key.tenant)),
        grant: Arc::new(key.key.grant.clone()),
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
            id: KeyId::from_random(7),
            tenant: Arc::from("acme"),
            name: "a key".to_owned(),
            digest: digest(SECRET),
            grant: Grant::read(["operations:read"]).unwrap(),
            created_at: UnixMs::new(0),
            expires_at,
        };
        ApiKey { key: made, revoked_at, rotated_to: None }
    }

    fn is_accepted(key: &ApiKey, secret: &str, now: u64) -> bool {
        authenticated(key, secret, now).is_ok()
    }

    fn authenticated(key: &ApiKey, secret: &str, now: u64) -> Result<Caller, KeyRejection> {
        authenticate(key, &ParsedKey { id: key.key.id, secret }, UnixMs::new(now), Arc::from("r"))
    }

    #[test]
    fn only_the_right_secret_learns_why_a_key_is_rejected() {
        let (expired, revoked) = (key(Some(UnixMs::new(10)), None), key(None, Some(UnixMs::new(10))));
        assert_eq!(authenticated(&expired, SECRET, 10).err(), Some(KeyRejection::Expired(UnixMs::new(10))));
        assert_eq!(authenticated(&revoked, SECRET, 10).err(), Some(KeyRejection::Revoked(UnixMs::new(10), None)));
        for key in [&expired, &revoked] {
            assert_eq!(authenticated(key, &SECRET.replace('0', "1"), 10).err(), Some(KeyRejection::Invalid));
        }
    }

    #[test]
    fn key_is_valid_until_it_expires_or_is_revoked() {
        let plain = key(None, None);
        assert!(is_accepted(&plain, SECRET, 5));
        assert!(!is_accepted(&plain, &SECRET.replace('0', "1"), 5));
        let ends = key(Some(UnixMs::new(10)), None);
        assert!(is_accepted(&ends, SECRET, 9) && !is_accepted(&ends, SECRET, 10));
        let revoked = key(None, Some(UnixMs::new(10)));
        assert!(is_accepted(&revoked, SECRET, 9) && !is_accepted(&revoked, SECRET, 10));
    }

    #[test]
    fn results_of_the_store_are_cached_briefly() {
        let (ring, start) = (Keyring::default(), Instant::now());
        let id = KeyId::from_random(7);
        assert!(ring.get_fresh(id, start).is_none());
        ring.insert(id, Some(Arc::new(key(None, None))), start);
        assert!(ring.get_fresh(id, start + CACHE_TTL / 2).flatten().is_some());
        assert!(ring.get_fresh(id, start + CACHE_TTL).is_none());
        ring.insert(id, None, start + CACHE_TTL);
        assert_eq!(ring.get_fresh(id, start + CACHE_TTL), Some(None));
    }

    #[test]
    fn unknown_ids_do_not_fill_the_cache() {
        let (ring, start) = (Keyring::default(), Instant::now());
        let good = KeyId::from_random(u128::MAX);
        ring.insert(good, Some(Arc::new(key(None, None))), start);
        for guess in 0..MAX_CACHED as u128 + 10 {
            ring.insert(KeyId::from_random(guess), None, start);
        }
        assert!(lock(&ring.absent).len() <= MAX_CACHED);
        assert!(ring.get_fresh(good, start).flatten().is_some(), "unknown ids must not displace a key");
    }

    #[test]
    fn only_a_few_rejections_of_a_key_are_audited() {
        let (ring, start, name) = (Keyring::default(), Instant::now(), Arc::from("a"));
        let written = (0..100).filter(|_| ring.should_audit_rejection(&name, start)).count();
        assert_eq!(written, MAX_AUDITED_REJECTIONS as usize);
        assert!(ring.should_audit_rejection(&Arc::from("b"), start));
        assert!(ring.should_audit_rejection(&name, start + REJECTION_WINDOW));
    }
}
