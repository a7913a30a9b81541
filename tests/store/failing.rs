//! The store while its engine fails.

use std::{future::poll_fn, sync::Arc, task::Poll, time::Duration};

use guildhall::store::{Health, Store};
use guildhall_actors::ports::{
    ClaimFrom, IdempotencyKey, NewOperation, OperationStore as _, StoreError, SubmitError, UpdateResult,
};
use guildhall_core::operation::{OperationState, Queue};
use guildhall_testkit::postgres::PostgresServer;
use sea_orm::{ConnectionTrait as _, Database};
use tokio::{sync::Barrier, time::timeout};

use crate::setup::{
    Engine, GUILD, StoreLocation, TEST_TIMEOUT, at, claim, guild_operation, open_new_store, operation_update,
    operation_with_key, record, settings_for, state_of, submit,
};

const QUEUE: Queue = Queue::Guild(GUILD);

fn unavailable_message(error: &SubmitError) -> &str {
    match error {
        SubmitError::Store(StoreError::Unavailable(message)) => message,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn busy_file_is_reported_and_stores_nothing() {
    let mut location = StoreLocation::new(Engine::Sqlite).await;
    location.settings.timeout = Duration::from_millis(400);
    let store = location.open().await;
    let other = Database::connect(location.raw_url()).await.unwrap();
    other.execute_unprepared("BEGIN IMMEDIATE").await.unwrap();
    let operation = operation_with_key("once");
    let error = store.submit(vec![operation.clone()]).await.unwrap_err();
    assert!(
        unavailable_message(&error).contains("busy") && unavailable_message(&error).contains("store.timeout_ms"),
        "{error}"
    );
    assert!(matches!(*store.watch_health().borrow(), Health::Down(_)));
    other.execute_unprepared("ROLLBACK").await.unwrap();
    assert!(store.load(QUEUE, 0, 9).await.unwrap().operations.is_empty());
    submit(&store, &operation).await;
    assert_eq!(*store.watch_health().borrow(), Health::Up);
    assert_eq!(store.load(QUEUE, 0, 9).await.unwrap().operations.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn full_store_refuses_and_keeps_accepted_operations() {
    let mut location = StoreLocation::new(Engine::Sqlite).await;
    location.settings.max_bytes = 2 << 20;
    let store = location.open().await;
    let mut accepted = Vec::new();
    let error = loop {
        let operation = NewOperation { payload: format!("\"{}\"", "x".repeat(20_000)), ..guild_operation() };
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
    location.settings.max_bytes = 0;
    let store = location.open().await;
    let stored_ids: Vec<_> =
        store.load(QUEUE, 0, 999).await.unwrap().operations.iter().map(|stored| stored.operation.id).collect();
    assert_eq!(stored_ids, accepted);
    submit(&store, &guild_operation()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn failing_request_does_not_fail_the_others() {
    let (store, location) = open_new_store(Engine::Sqlite).await;
    let poison = Database::connect(location.raw_url()).await.unwrap();
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
                let refused =
                    store.submit(vec![NewOperation { reason: reason.clone(), ..guild_operation() }]).await.is_err();
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
async fn abandoned_claim_is_released() {
    let (store, _location) = open_new_store(Engine::Sqlite).await;
    submit(&store, &guild_operation()).await;
    for _ in 0..20 {
        // Polled once: the request is in flight, and then its caller is gone.
        let mut claiming = store.claim(ClaimFrom::Queues(vec![QUEUE]));
        let polled = poll_fn(|context| Poll::Ready(claiming.as_mut().poll(context))).await;
        assert!(polled.is_pending());
        drop(claiming);
    }
    let claimable = async {
        loop {
            let claims = store.claim(ClaimFrom::Due { now: at(0), limit: 1 }).await.unwrap();
            if let [claim] = claims.as_slice() {
                return *claim;
            }
        }
    };
    assert_eq!(timeout(TEST_TIMEOUT, claimable).await.unwrap().queue, QUEUE);
}

async fn submit_with_retry(store: &Store, operation: &NewOperation) {
    let retrying = async {
        while let Err(error) = store.submit(vec![operation.clone()]).await {
            unavailable_message(&error);
            tokio::task::yield_now().await;
        }
    };
    timeout(TEST_TIMEOUT, retrying).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_restart_loses_and_duplicates_nothing() {
    let mut server = PostgresServer::start();
    let mut settings = settings_for(&server.create_database().await);
    settings.timeout = Duration::from_secs(5);
    let store = Store::open(&settings).await.unwrap();
    let running = guild_operation();
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
                    submit_with_retry(&store, &NewOperation { idempotency: Some(key), ..guild_operation() }).await;
                }
            })
        })
        .collect();
    barrier.wait().await;
    server.kill();
    let down = timeout(TEST_TIMEOUT, store.watch_health().wait_for(|health| *health != Health::Up)).await.map(drop);
    down.expect("the store did not report that it is down");
    server.start_again();
    for caller in callers {
        timeout(TEST_TIMEOUT, caller).await.unwrap().unwrap();
    }
    assert_eq!(store.load(QUEUE, 0, 999).await.unwrap().operations.len(), 201);
    assert_eq!(
        record(&store, operation_update(&running, fence, OperationState::Succeeded)).await,
        UpdateResult::Done,
        "the claim is still valid"
    );
    assert_eq!(state_of(&store, running.id).await, OperationState::Succeeded);
    store.close().await;
}
