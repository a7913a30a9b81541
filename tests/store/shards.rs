//! Ownership of shards.

use std::time::Duration;

use guildhall::settings::LeaseSettings;
use guildhall::store::{ClusterEvent, Store};
use guildhall_actors::ports::{CommitResult, EventStore as _, HandlerCommit, StoredSession};
use guildhall_actors::shard::{ClaimedShards, DesiredShards, ShardClaim, ShardStore as _};
use sea_orm::{ConnectionTrait as _, Database};
use tokio::time::timeout;

use crate::events_setup::{commit, handled, session};
use crate::setup::{Engine, StoreLocation, TEST_TIMEOUT};

const ALL: DesiredShards = DesiredShards { shards: 4, first: 0, last: 3, shared: true };

async fn new_location() -> StoreLocation {
    let mut location = StoreLocation::new(Engine::Postgres).await;
    location.settings.lease = LeaseSettings {
        heartbeat: Duration::from_millis(300),
        // No lease expires within a test.
        duration: Duration::from_secs(60),
        margin: Duration::from_millis(200),
    };
    location
}

async fn claim(store: &Store, desired: DesiredShards) -> ClaimedShards {
    store.claim_shards(desired).await.unwrap()
}

fn shard_ids(claims: &[ShardClaim]) -> Vec<u32> {
    claims.iter().map(|claim| claim.shard).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sqlite_process_owns_all_shards_also_after_a_restart() {
    let location = StoreLocation::new(Engine::Sqlite).await;
    let store = location.open().await;
    let first = claim(&store, ALL).await;
    assert_eq!((shard_ids(&first.claims), first.elsewhere, first.too_many), (vec![0, 1, 2, 3], 0, 0));
    assert_eq!(claim(&store, ALL).await, ClaimedShards::default(), "it owns them already");
    assert!(first.claims.iter().all(|claim| store.shard_lease(*claim).holds()));
    store.close().await;
    let store = location.open().await;
    let second = claim(&store, ALL).await;
    assert_eq!(shard_ids(&second.claims), [0, 1, 2, 3]);
    assert!(first.claims.iter().zip(&second.claims).all(|(first, second)| first.fence < second.fence));
    store.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_share_shards_and_release_them_on_request() {
    let location = new_location().await;
    let first = location.open().await;
    let mut all = claim(&first, ALL).await.claims;
    assert_eq!(shard_ids(&all), [0, 1, 2, 3], "there is no other process");
    let second = location.open().await;
    let mut notices = first.cluster_events();
    let nothing = claim(&second, ALL).await;
    assert_eq!((nothing.claims.len(), nothing.elsewhere), (0, 4));
    let notified = async { while notices.recv().await.unwrap() != ClusterEvent::Shards {} };
    timeout(TEST_TIMEOUT, notified).await.unwrap();
    assert_eq!(claim(&first, ALL).await.too_many, 2, "the other process requests them");
    let released = all.split_off(2);
    first.release_shards(released.clone()).await.unwrap();
    assert!(released.iter().all(|claim| !first.shard_lease(*claim).holds()));
    assert_eq!(claim(&first, ALL).await, ClaimedShards { elsewhere: 2, ..ClaimedShards::default() }, "it has its part");
    let claimed = claim(&second, ALL).await;
    assert_eq!(shard_ids(&claimed.claims), [2, 3]);
    assert!(claimed.claims[0].fence > released[0].fence);
    // A second release has no effect.
    first.release_shards(released).await.unwrap();
    assert!(claimed.claims.iter().all(|claim| second.shard_lease(*claim).holds()));
    assert_eq!(claim(&second, ALL).await.elsewhere, 2);
    // A process that ends releases everything.
    second.close().await;
    assert_eq!(shard_ids(&claim(&first, ALL).await.claims), [2, 3]);
    first.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn explicit_shard_range_claims_all_free_shards_in_it() {
    let location = new_location().await;
    let (first, second) = (location.open().await, location.open().await);
    let desired = |first, last| DesiredShards { first, last, shared: false, ..ALL };
    assert_eq!(shard_ids(&claim(&first, desired(0, 2)).await.claims), [0, 1, 2]);
    let rest = claim(&second, desired(1, 3)).await;
    assert_eq!((shard_ids(&rest.claims), rest.elsewhere, rest.too_many), (vec![3], 2, 0));
    assert_eq!(claim(&first, desired(0, 2)).await.too_many, 0, "no process requests them");
    first.close().await;
    second.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writes_after_losing_a_shard_are_fenced() {
    let location = new_location().await;
    let store = location.open().await;
    let claims = claim(&store, ALL).await.claims;
    let stored_session = |confirmed, claim: &ShardClaim| StoredSession {
        shards: 4,
        fence: Some(claim.fence),
        ..session(claim.shard, "s", confirmed)
    };
    let done = |seq, claim: &ShardClaim| HandlerCommit { claim: Some(*claim), ..handled("s", seq, "h") };
    store.save_sessions(vec![stored_session(3, &claims[0])]).await.unwrap();
    assert_eq!(commit(&store, done(4, &claims[0])).await, CommitResult::Done(Vec::new()));
    // As another process would, if this one had been frozen for long.
    let other = Database::connect(location.raw_url()).await.unwrap();
    let mut notices = store.cluster_events();
    other.execute_unprepared("DELETE FROM instances").await.unwrap();
    let notified = async { while notices.recv().await.unwrap() != ClusterEvent::LeaseLost {} };
    timeout(TEST_TIMEOUT, notified).await.unwrap();
    assert!(!store.shard_lease(claims[0]).holds());
    store.save_sessions(vec![stored_session(9, &claims[0])]).await.unwrap();
    assert_eq!(commit(&store, done(10, &claims[0])).await, CommitResult::Skipped);
    let confirmed_numbers = |sessions: Vec<StoredSession>| {
        sessions.iter().map(|stored_session| stored_session.confirmed).collect::<Vec<_>>()
    };
    assert_eq!(confirmed_numbers(store.sessions().await.unwrap()), [3]);
    assert_eq!(store.handled_after("s", 3).await.unwrap().len(), 1);
    // It may claim them again, and continues from the stored state.
    let reclaimed = claim(&store, ALL).await.claims;
    assert_eq!(shard_ids(&reclaimed), [0, 1, 2, 3]);
    store.save_sessions(vec![stored_session(5, &claims[0]), stored_session(6, &reclaimed[0])]).await.unwrap();
    assert_eq!(confirmed_numbers(store.sessions().await.unwrap()), [6]);
    assert_eq!(commit(&store, done(7, &reclaimed[0])).await, CommitResult::Done(Vec::new()));
    other.close().await.unwrap();
    store.close().await;
}
