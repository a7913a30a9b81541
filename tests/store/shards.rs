//! Ownership of shards.

use std::time::Duration;

use guildhall::settings::LeaseSettings;
use guildhall::store::{ClusterEvent, Store};
use guildhall_actors::ports::{CommitResult, EventStore as _, HandlerCommit, StoredSession};
use guildhall_actors::shard::{ClaimedShards, DesiredShards, ShardClaim, ShardStore as _};
use sea_orm::{ConnectionTrait as _, Database};
use tokio::time::timeout;

use crate::events_setup::{commit, handled, session};
use crate::setup::{Engine, Place, STUCK};

const ALL: DesiredShards = DesiredShards { shards: 4, first: 0, last: 3, shared: true };

async fn place() -> Place {
    let mut place = Place::new(Engine::Postgres).await;
    place.settings.lease = LeaseSettings {
        heartbeat: Duration::from_millis(300),
        // No lease expires within a test.
        lasts: Duration::from_secs(60),
        margin: Duration::from_millis(200),
    };
    place
}

async fn claim(store: &Store, wanted: DesiredShards) -> ClaimedShards {
    store.claim_shards(wanted).await.unwrap()
}

fn numbers(claims: &[ShardClaim]) -> Vec<u32> {
    claims.iter().map(|claim| claim.shard).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_has_one_process_which_has_all_shards_at_once_and_again_after_a_restart() {
    let place = Place::new(Engine::Sqlite).await;
    let store = place.open().await;
    let first = claim(&store, ALL).await;
    assert_eq!((numbers(&first.claims), first.elsewhere, first.too_many), (vec![0, 1, 2, 3], 0, 0));
    assert_eq!(claim(&store, ALL).await, ClaimedShards::default(), "it owns them already");
    assert!(first.claims.iter().all(|claim| store.shard_right(*claim).holds()));
    store.close().await;
    let store = place.open().await;
    let second = claim(&store, ALL).await;
    assert_eq!(numbers(&second.claims), [0, 1, 2, 3]);
    assert!(first.claims.iter().zip(&second.claims).all(|(first, second)| first.fence < second.fence));
    store.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_take_their_part_give_back_what_others_lack_and_take_what_is_given_back() {
    let place = place().await;
    let first = place.open().await;
    let mut all = claim(&first, ALL).await.claims;
    assert_eq!(numbers(&all), [0, 1, 2, 3], "there is no other process");
    let second = place.open().await;
    let mut notices = first.notices();
    let nothing = claim(&second, ALL).await;
    assert_eq!((nothing.claims.len(), nothing.elsewhere), (0, 4));
    let told = async { while notices.recv().await.unwrap() != ClusterEvent::Shards {} };
    timeout(STUCK, told).await.unwrap();
    assert_eq!(claim(&first, ALL).await.too_many, 2, "the other process requests them");
    let given = all.split_off(2);
    first.release_shards(given.clone()).await.unwrap();
    assert!(given.iter().all(|claim| !first.shard_right(*claim).holds()));
    assert_eq!(claim(&first, ALL).await, ClaimedShards { elsewhere: 2, ..ClaimedShards::default() }, "it has its part");
    let part = claim(&second, ALL).await;
    assert_eq!(numbers(&part.claims), [2, 3]);
    assert!(part.claims[0].fence > given[0].fence);
    // A second release has no effect.
    first.release_shards(given).await.unwrap();
    assert!(part.claims.iter().all(|claim| second.shard_right(*claim).holds()));
    assert_eq!(claim(&second, ALL).await.elsewhere, 2);
    // A process that ends releases everything.
    second.close().await;
    assert_eq!(numbers(&claim(&first, ALL).await.claims), [2, 3]);
    first.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_names_its_shards_has_all_of_them_that_are_free() {
    let place = place().await;
    let (first, second) = (place.open().await, place.open().await);
    let wants = |first, last| DesiredShards { first, last, shared: false, ..ALL };
    assert_eq!(numbers(&claim(&first, wants(0, 2)).await.claims), [0, 1, 2]);
    let rest = claim(&second, wants(1, 3)).await;
    assert_eq!((numbers(&rest.claims), rest.elsewhere, rest.too_many), (vec![3], 2, 0));
    assert_eq!(claim(&first, wants(0, 2)).await.too_many, 0, "no process requests them");
    first.close().await;
    second.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_process_that_lost_a_shard_still_writes_changes_nothing() {
    let place = place().await;
    let store = place.open().await;
    let claims = claim(&store, ALL).await.claims;
    let kept = |confirmed, claim: &ShardClaim| StoredSession {
        shards: 4,
        under: Some(claim.fence),
        ..session(claim.shard, "s", confirmed)
    };
    let done = |seq, claim: &ShardClaim| HandlerCommit { under: Some(*claim), ..handled("s", seq, "h") };
    store.keep_sessions(vec![kept(3, &claims[0])]).await.unwrap();
    assert_eq!(commit(&store, done(4, &claims[0])).await, CommitResult::Done(Vec::new()));
    // As another process would, if this one had been frozen for long.
    let other = Database::connect(place.raw_url()).await.unwrap();
    let mut notices = store.notices();
    other.execute_unprepared("DELETE FROM instances").await.unwrap();
    let told = async { while notices.recv().await.unwrap() != ClusterEvent::Disowned {} };
    timeout(STUCK, told).await.unwrap();
    assert!(!store.shard_right(claims[0]).holds());
    store.keep_sessions(vec![kept(9, &claims[0])]).await.unwrap();
    assert_eq!(commit(&store, done(10, &claims[0])).await, CommitResult::Before);
    let known = |sessions: Vec<StoredSession>| sessions.iter().map(|kept| kept.confirmed).collect::<Vec<_>>();
    assert_eq!(known(store.sessions().await.unwrap()), [3]);
    assert_eq!(store.handled_after("s", 3).await.unwrap().len(), 1);
    // It may claim them again, and continues from the stored state.
    let again = claim(&store, ALL).await.claims;
    assert_eq!(numbers(&again), [0, 1, 2, 3]);
    store.keep_sessions(vec![kept(5, &claims[0]), kept(6, &again[0])]).await.unwrap();
    assert_eq!(known(store.sessions().await.unwrap()), [6]);
    assert_eq!(commit(&store, done(7, &again[0])).await, CommitResult::Done(Vec::new()));
    other.close().await.unwrap();
    store.close().await;
}
