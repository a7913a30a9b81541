//! Look-ups while the store is slow, fails, or is under load.

use std::sync::atomic::{AtomicUsize, Ordering};

use guildhall_actors::access::{AuditFilter, AuditRecord, StoredAuditRecord};
use guildhall_actors::ports::{
    AddKeyResult, GeneratedAdminKey, KeyFilter, NewApiKey, RevokeResult, RotateResult, StoreFuture,
};
use guildhall_core::{access::Grant, time::UnixMs};
use tokio::{
    sync::Semaphore,
    task::{JoinHandle, yield_now},
};

use super::*;

/// A store that completes a look-up when the test permits it.
struct SlowKeys {
    existing: Vec<KeyId>,
    /// Ids that exist, but are not in the directory at the start.
    later: Vec<KeyId>,
    corrupt: Option<KeyId>,
    permits: Semaphore,
    running: AtomicUsize,
    max_running: AtomicUsize,
    batches: AtomicUsize,
}

impl SlowKeys {
    fn new(existing: Vec<KeyId>) -> Self {
        Self {
            existing,
            later: Vec::new(),
            corrupt: None,
            permits: Semaphore::new(0),
            running: AtomicUsize::new(0),
            max_running: AtomicUsize::new(0),
            batches: AtomicUsize::new(0),
        }
    }

    fn read(&self, id: KeyId) -> Result<Option<ApiKey>, StoreError> {
        if self.corrupt == Some(id) {
            return Err(StoreError::Corrupt("a row".to_owned()));
        }
        let exists = self.existing.contains(&id) || self.later.contains(&id);
        Ok(exists.then(|| ApiKey {
            key: NewApiKey {
                id,
                tenant: Arc::from("acme"),
                name: "a key".to_owned(),
                digest: [0; 32],
                grant: Grant::everything(),
                created_at: UnixMs::new(1),
                expires_at: None,
            },
            revoked_at: None,
            rotated_to: None,
        }))
    }
}

impl KeyStore for SlowKeys {
    fn for_tenant(self: Arc<Self>, _tenant: Arc<str>) -> Arc<dyn KeyStore> {
        self
    }

    fn admin_key(&self) -> StoreFuture<'_, Option<GeneratedAdminKey>> {
        unreachable!("look-ups read no admin key")
    }

    fn key(&self, id: KeyId) -> StoreFuture<'_, Option<ApiKey>> {
        Box::pin(async move { self.read(id) })
    }

    fn find_keys(&self, ids: Vec<KeyId>) -> StoreFuture<'_, Vec<ApiKey>> {
        Box::pin(async move {
            assert!(ids.len() <= BATCH_SIZE);
            self.batches.fetch_add(1, Ordering::SeqCst);
            let running = self.running.fetch_add(1, Ordering::SeqCst) + 1;
            self.max_running.fetch_max(running, Ordering::SeqCst);
            let permit = self.permits.acquire().await;
            self.running.fetch_sub(1, Ordering::SeqCst);
            permit.map_err(|_| StoreError::Unavailable("the store is closed".to_owned()))?.forget();
            ids.into_iter().filter_map(|id| self.read(id).transpose()).collect()
        })
    }

    fn key_ids(&self, _since: UnixMs, _limit: usize) -> StoreFuture<'_, Vec<KeyId>> {
        Box::pin(async move { Ok(self.existing.clone()) })
    }

    fn keys(&self, _filter: KeyFilter) -> StoreFuture<'_, Vec<ApiKey>> {
        unreachable!("look-ups list no keys")
    }

    fn add_key(&self, _key: NewApiKey, _note: AuditRecord) -> StoreFuture<'_, AddKeyResult> {
        unreachable!("look-ups change nothing")
    }

    fn revoke_key(&self, _id: KeyId, _note: AuditRecord) -> StoreFuture<'_, RevokeResult> {
        unreachable!("look-ups change nothing")
    }

    fn rotate_key(
        &self,
        _old: KeyId,
        _new: NewApiKey,
        _until: UnixMs,
        _note: AuditRecord,
    ) -> StoreFuture<'_, RotateResult> {
        unreachable!("look-ups change nothing")
    }

    fn add_audit_record(&self, _note: AuditRecord) -> StoreFuture<'_, ()> {
        unreachable!("look-ups change nothing")
    }

    fn audit(&self, _filter: AuditFilter) -> StoreFuture<'_, Vec<StoredAuditRecord>> {
        unreachable!("look-ups read no audit")
    }

    fn sweep_access(&self, _before: UnixMs) -> StoreFuture<'_, u64> {
        unreachable!("look-ups change nothing")
    }
}

type Outcome = Result<Option<Arc<ApiKey>>, LookupError>;

struct Fixture {
    keys: Arc<SlowKeys>,
    lookup: KeyLookup,
}

impl Fixture {
    fn new(keys: SlowKeys) -> Self {
        Self { keys: Arc::new(keys), lookup: KeyLookup::new(Arc::default(), WallClock::system()) }
    }

    fn find(&self, id: KeyId, address: &str) -> JoinHandle<Outcome> {
        let source = KeySource { keys: Arc::clone(&self.keys) as Arc<dyn KeyStore>, runtime: Handle::current() };
        let (lookup, address) = (self.lookup.clone(), IpNetwork::of(address.parse().unwrap(), 32));
        tokio::spawn(async move { lookup.find(&source, id, address).await })
    }

    /// Lets the store complete this many batches.
    async fn answer(&self, batches: usize) {
        self.keys.permits.add_permits(batches);
        yield_to_tasks().await;
    }
}

/// Runs every task as far as it gets. There is one thread, and nothing waits for time.
async fn yield_to_tasks() {
    for _ in 0..1_000 {
        yield_now().await;
    }
}

fn id(number: usize) -> KeyId {
    KeyId::from_random(number as u128)
}

#[tokio::test]
async fn a_flood_delays_neither_existing_keys_nor_other_addresses() {
    let fixture = Fixture::new(SlowKeys { later: vec![id(2)], ..SlowKeys::new(vec![id(1)]) });
    let flood: Vec<_> = (1_000..3_000).map(|number| fixture.find(id(number), "192.0.2.1")).collect();
    yield_to_tasks().await;
    let own = fixture.find(id(1), "192.0.2.1");
    let new = fixture.find(id(2), "198.51.100.1");
    yield_to_tasks().await;
    // The batches that were running, and the next one.
    fixture.answer(WORKERS + 1).await;
    assert!(own.is_finished() && own.await.unwrap().unwrap().is_some(), "a key that exists, of the same address");
    assert!(new.is_finished() && new.await.unwrap().unwrap().is_some(), "a new key of another address");
    fixture.answer(1_000).await;
    let mut answers = [0; 2];
    for one in flood {
        match one.await.unwrap() {
            Ok(found) => {
                assert!(found.is_none());
                answers[0] += 1;
            }
            Err(LookupError::Busy) => answers[1] += 1,
            Err(LookupError::Store(error)) => panic!("{error}"),
        }
    }
    assert!(answers[0] >= LIMITS.per_address && answers[1] > 1_000, "{answers:?}");
    assert!(fixture.keys.max_running.load(Ordering::SeqCst) <= WORKERS);
    let state = fixture.lookup.shared.lock();
    assert!(state.waiters.is_empty() && state.workers == 0);
}

#[tokio::test]
async fn callers_of_one_key_share_a_look_up() {
    let fixture = Fixture::new(SlowKeys::new(vec![id(1)]));
    let callers: Vec<_> = (0..500).map(|_| fixture.find(id(1), "192.0.2.1")).collect();
    yield_to_tasks().await;
    fixture.answer(1).await;
    for caller in callers {
        assert!(caller.await.unwrap().unwrap().is_some());
    }
    assert_eq!(fixture.keys.batches.load(Ordering::SeqCst), 1);
    assert!(fixture.find(id(1), "192.0.2.1").await.unwrap().unwrap().is_some(), "the result is cached");
}

#[tokio::test]
async fn a_failed_store_is_an_error_and_not_an_unknown_key() {
    let fixture = Fixture::new(SlowKeys::new(vec![id(1)]));
    fixture.keys.permits.close();
    for number in [1, 2] {
        let found = fixture.find(id(number), "192.0.2.1").await.unwrap();
        assert!(matches!(found, Err(LookupError::Store(StoreError::Unavailable(_)))), "{found:?}");
    }
}

#[tokio::test]
async fn corrupt_row_does_not_block_other_keys() {
    let fixture = Fixture::new(SlowKeys { corrupt: Some(id(2)), ..SlowKeys::new(vec![id(1), id(2), id(3)]) });
    // The workers are busy, so that these three wait and become one batch.
    let busy: Vec<_> = (10..10 + WORKERS).map(|number| fixture.find(id(number), "192.0.2.1")).collect();
    yield_to_tasks().await;
    let found: Vec<_> = [1, 2, 3].map(|number| fixture.find(id(number), "192.0.2.1")).into();
    yield_to_tasks().await;
    fixture.answer(busy.len() + 3).await;
    let mut exist = Vec::new();
    for one in found {
        exist.push(one.await.unwrap().ok().map(|key| key.is_some()));
    }
    assert_eq!(exist, [Some(true), None, Some(true)]);
}

#[tokio::test]
async fn callers_that_hang_up_are_not_looked_up() {
    let fixture = Fixture::new(SlowKeys::new(Vec::new()));
    let busy: Vec<_> = (10..10 + WORKERS).map(|number| fixture.find(id(number), "192.0.2.1")).collect();
    yield_to_tasks().await;
    let gone: Vec<_> = (100..300).map(|number| fixture.find(id(number), "192.0.2.1")).collect();
    yield_to_tasks().await;
    gone.iter().for_each(JoinHandle::abort);
    yield_to_tasks().await;
    fixture.answer(1_000).await;
    assert!(busy.iter().all(JoinHandle::is_finished));
    assert!(fixture.keys.batches.load(Ordering::SeqCst) <= WORKERS * 2, "only the batches that were taken before");
    assert!(fixture.lookup.shared.lock().waiters.is_empty());
}
