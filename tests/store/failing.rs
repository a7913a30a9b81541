//! The store while its engine fails.

use std::{future::poll_fn, sync::Arc, task::Poll, time::Duration};

use guildhall::store::{Health, Store};
use guildhall_actors::ports::{
    ClaimFrom, IdempotencyKey, NewOperation, OperationStore as _, StoreError, SubmitError, UpdateResult,
};
use guildhall_core::operation::{OperationState, Queue};
use sea_orm::{ConnectionTrait as _, Database};
use tokio::{sync::Barrier, time::timeout};

use crate::{
    postgres::PostgresServer,
    setup::{
        Engine, GUILD, Place, STUCK, at, change, claim, fresh, in_guild, keyed, record, settings_for, state_of, submit,
    },
};

const QUEUE: Queue = Queue::Guild(GUILD);

fn says(error: &SubmitError) -> &str {
    match error {
        SubmitError::Store(StoreError::Unavailable(says)) => says,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_busy_file_is_told_and_nothing_is_kept_until_it_is_free() {
    let mut place = Place::new(Engine::Sqlite).await;
    place.settings.timeout = Duration::from_millis(400);
    let store = place.open().await;
    let other = Database::connect(place.raw_url()).await.unwrap();
    other.execute_unprepared("BEGIN IMMEDIATE").await.unwrap();
    let operation = keyed("once");
    let error = store.submit(vec![operation.clone()]).await.unwrap_err();
    assert!(says(&error).contains("busy") && says(&error).contains("store.timeout_ms"), "{error}");
    assert!(matches!(*store.watch().borrow(), Health::Down(_)));
    other.execute_unprepared("ROLLBACK").await.unwrap();
    assert!(store.load(QUEUE, 0, 9).await.unwrap().operations.is_empty());
    submit(&store, &operation).await;
    assert_eq!(*store.watch().borrow(), Health::Up);
    assert_eq!(store.load(QUEUE, 0, 9).await.unwrap().operations.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_store_refuses_and_keeps_what_it_accepted() {
    let mut place = Place::new(Engine::Sqlite).await;
    place.settings.max_bytes = 2 << 20;
    let store = place.open().await;
    let mut accepted = Vec::new();
    let error = loop {
        let operation = NewOperation { payload: format!("\"{}\"", "x".repeat(20_000)), ..in_guild() };
        match store.submit(vec![operation.clone()]).await {
            Ok(_) => accepted.push(operation.id),
            Err(error) => break error,
        }
        assert!(accepted.len() < 100, "2 MiB hold no more");
    };
    assert!(matches!(error, SubmitError::OverBound(_)), "{error}");
    // Other writes have head room, which ends as well.
    let mut values = 0;
    let error = loop {
        match store.set_state(&format!("value:{values}"), Some("x".repeat(20_000)), None).await {
            Ok(()) => values += 1,
            Err(error) => break error,
        }
        assert!(values < 100, "2 MiB hold no more");
    };
    assert!(error.to_string().contains("free disk space"), "{error}");
    assert!(accepted.len() > 10);
    store.close().await;
    place.settings.max_bytes = 0;
    let store = place.open().await;
    let left: Vec<_> =
        store.load(QUEUE, 0, 999).await.unwrap().operations.iter().map(|stored| stored.operation.id).collect();
    assert_eq!(left, accepted);
    submit(&store, &in_guild()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_bad_request_does_not_fail_the_others() {
    let (store, place) = fresh(Engine::Sqlite).await;
    let poison = Database::connect(place.raw_url()).await.unwrap();
    let trigger = "CREATE TRIGGER poison BEFORE INSERT ON operations WHEN NEW.reason = 'poison'
        BEGIN SELECT RAISE(ABORT, 'poison'); END";
    poison.execute_unprepared(trigger).await.unwrap();
    let barrier = Arc::new(Barrier::new(40));
    let callers: Vec<_> = (0..40)
        .map(|nth| {
            let (store, barrier) = (store.clone(), Arc::clone(&barrier));
            let reason = (nth % 10 == 0).then(|| "poison".to_owned());
            tokio::spawn(async move {
                barrier.wait().await;
                let refused = store.submit(vec![NewOperation { reason: reason.clone(), ..in_guild() }]).await.is_err();
                assert_eq!(refused, reason.is_some());
            })
        })
        .collect();
    for caller in callers {
        caller.await.unwrap();
    }
    assert_eq!(store.load(QUEUE, 0, 99).await.unwrap().operations.len(), 36);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_nobody_waits_for_is_given_back() {
    let (store, _place) = fresh(Engine::Sqlite).await;
    submit(&store, &in_guild()).await;
    for _ in 0..20 {
        // Polled once: the request is in flight, and then its caller is gone.
        let mut asking = store.claim(ClaimFrom::Queues(vec![QUEUE]));
        let polled = poll_fn(|context| Poll::Ready(asking.as_mut().poll(context))).await;
        assert!(polled.is_pending());
        drop(asking);
    }
    let freed = async {
        loop {
            let claims = store.claim(ClaimFrom::Due { now: at(0), limit: 1 }).await.unwrap();
            if let [claim] = claims.as_slice() {
                return *claim;
            }
        }
    };
    assert_eq!(timeout(STUCK, freed).await.unwrap().queue, QUEUE);
}

async fn submit_at_last(store: &Store, operation: &NewOperation) {
    let trying = async {
        while let Err(error) = store.submit(vec![operation.clone()]).await {
            says(&error);
            tokio::task::yield_now().await;
        }
    };
    timeout(STUCK, trying).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_restarts_loses_nothing_and_doubles_nothing() {
    let mut server = PostgresServer::start();
    let mut settings = settings_for(&server.database().await);
    settings.timeout = Duration::from_secs(5);
    let store = Store::open(&settings).await.unwrap();
    let running = in_guild();
    submit(&store, &running).await;
    let fence = claim(&store, QUEUE).await.fence;
    let barrier = Arc::new(Barrier::new(11));
    let callers: Vec<_> = (0..10)
        .map(|caller| {
            let (store, barrier) = (store.clone(), Arc::clone(&barrier));
            tokio::spawn(async move {
                for nth in 0..20 {
                    if nth == 5 {
                        barrier.wait().await;
                    }
                    let key = IdempotencyKey { scope: Arc::from("restart"), key: format!("{caller}/{nth}") };
                    submit_at_last(&store, &NewOperation { idempotency: Some(key), ..in_guild() }).await;
                }
            })
        })
        .collect();
    barrier.wait().await;
    server.kill();
    let down = timeout(STUCK, store.watch().wait_for(|health| *health != Health::Up)).await.map(drop);
    down.expect("the store did not report that it is down");
    server.start_again();
    for caller in callers {
        timeout(STUCK, caller).await.unwrap().unwrap();
    }
    assert_eq!(store.load(QUEUE, 0, 999).await.unwrap().operations.len(), 201);
    assert_eq!(
        record(&store, change(&running, fence, OperationState::Succeeded)).await,
        UpdateResult::Done,
        "the claim is still valid"
    );
    assert_eq!(state_of(&store, running.id).await, OperationState::Succeeded);
    store.close().await;
}
