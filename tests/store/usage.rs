//! Usage of the store by callers and tenants, and its bounds.

use std::{collections::BTreeMap, sync::Arc};

use guildhall::store::Store;
use guildhall_actors::access::{AuditAction, AuditFilter, Caller};
use guildhall_actors::ports::{
    DeadLetterFilter, IdempotencyKey, KeyStore as _, NewOperation, OperationStore as _, OperationUpdate, SubmitError,
    SubmitResult, SweepSummary, UpdateResult,
};
use guildhall_core::{
    operation::{Failure, FailureClass, OperationKind, OperationState, Queue, QueueKey},
    usage::{Usage, UsageBound, UsageBoundExceeded, UsageLimit, UsageScope},
};
use sea_orm::{ConnectionTrait as _, Database, DbBackend, Statement};

use crate::setup::{
    Engine, GUILD, RETENTION, StoreLocation, at, claim, guild_operation, new_attempt, new_id, on_both, open_new_store,
    operation, operation_update, queue_of, record, submit, submit_error,
};

const QUEUE: Queue = Queue::Guild(GUILD);

/// A direct message of a tenant's key. Each user has its own queue.
fn direct_message(key: &str, tenant: &str, user: u64) -> NewOperation {
    NewOperation {
        tenant: Arc::from(tenant),
        caller: Arc::from(key),
        kind: OperationKind::SendDm,
        payload: format!(r#"{{"user_id":"{user}","content":"hello"}}"#),
        ..operation(QueueKey::user(user))
    }
}

fn with_key(operation: NewOperation, key: &str) -> NewOperation {
    let key = IdempotencyKey { scope: Arc::clone(&operation.caller), key: key.to_owned() };
    NewOperation { idempotency: Some(key), ..operation }
}

async fn scope_usage(store: &Store, scope: &str) -> Usage {
    let scope = UsageScope::read(scope).unwrap();
    store.usage(Some(vec![scope])).await.unwrap().scopes[0].used
}

fn exceeded(error: SubmitError) -> UsageBoundExceeded {
    match error {
        SubmitError::OverBound(exceeded) => exceeded,
        other => panic!("unexpected error: {other}"),
    }
}

/// Usage of all scopes by their counters, and by a count of all rows.
async fn usage_by_counters_and_rows(location: &StoreLocation, store: &Store) -> [BTreeMap<String, (i64, i64)>; 2] {
    const ROWS: &str = "SELECT caller, tenant, CASE WHEN finished_at IS NULL THEN 1 ELSE 0 END, bytes FROM operations
        UNION ALL SELECT caller, tenant, 0, bytes FROM dead_letters
        UNION ALL SELECT scope, tenant, 0, bytes FROM idempotency";
    let connection = Database::connect(location.raw_url()).await.unwrap();
    let engine = connection.get_database_backend();
    let select = match engine {
        DbBackend::Postgres => {
            format!("SELECT caller, tenant, CAST(n AS bigint), bytes FROM ({ROWS}) AS r (caller, tenant, n, bytes)")
        }
        _ => ROWS.to_owned(),
    };
    let mut by_rows: BTreeMap<String, (i64, i64)> = BTreeMap::new();
    for row in connection.query_all_raw(Statement::from_string(engine, select)).await.unwrap() {
        let (caller, tenant): (String, String) = (row.try_get_by_index(0).unwrap(), row.try_get_by_index(1).unwrap());
        let (operations, bytes): (i64, i64) = (row.try_get_by_index(2).unwrap(), row.try_get_by_index(3).unwrap());
        for scope in UsageScope::of(&caller, &tenant) {
            let sum = by_rows.entry(scope.to_string()).or_default();
            *sum = (sum.0 + operations, sum.1 + bytes);
        }
    }
    connection.close().await.unwrap();
    let usage = store.usage(None).await.unwrap();
    let by_counters =
        usage.scopes.into_iter().map(|one| (one.scope.to_string(), (one.used.operations, one.used.bytes)));
    [by_counters.collect(), by_rows]
}

async fn assert_counters_match_rows(location: &StoreLocation, store: &Store, after: &str) {
    let [by_counters, by_rows] = usage_by_counters_and_rows(location, store).await;
    assert_eq!(by_counters, by_rows, "after {after}");
}

async fn open_with_limits(engine: Engine, key: UsageLimit, tenant: UsageLimit) -> (Store, StoreLocation) {
    let mut location = StoreLocation::new(engine).await;
    location.settings.usage.key = key;
    location.settings.usage.tenant = tenant;
    (location.open().await, location)
}

const NO_LIMIT: UsageLimit = UsageLimit { operations: 0, bytes: 0 };

on_both! {
    async fn key_is_refused_past_its_operations_and_nothing_of_the_batch_stays(engine) {
        let (store, place) = open_with_limits(engine, UsageLimit { operations: 10, ..NO_LIMIT }, NO_LIMIT).await;
        let messages = |from: u64, count: u64| (from..from + count).map(|user| direct_message("k1", "acme", user)).collect::<Vec<_>>();
        store.submit(messages(1, 8)).await.unwrap();
        let UsageBoundExceeded { bound, used: before, more, max } = exceeded(submit_error(&store, messages(100, 3)).await);
        assert_eq!((bound, before, more, max), (UsageBound::KeyOperations, 8, 3, 10));
        assert_eq!(scope_usage(&store, "key:k1").await.operations, 8);
        store.submit(messages(200, 2)).await.unwrap();
        assert_eq!(exceeded(submit_error(&store, messages(300, 1)).await).used, 10);
        // Another key, another tenant and the operator are not affected.
        submit(&store, &direct_message("k2", "acme", 1)).await;
        submit(&store, &direct_message("k3", "rival", 1)).await;
        submit(&store, &operation(QueueKey::user(1))).await;
        assert_counters_match_rows(&place, &store, "refusals").await;
    }

    async fn key_is_refused_past_its_bytes(engine) {
        let (store, _place) = open_with_limits(engine, UsageLimit { bytes: 10_500, ..NO_LIMIT }, NO_LIMIT).await;
        let large = NewOperation { payload: format!("\"{}\"", "x".repeat(4_000)), ..direct_message("k1", "acme", 1) };
        submit(&store, &large).await;
        let again = NewOperation { id: new_id(), ..large };
        let exceeding = exceeded(submit_error(&store, vec![again.clone(), NewOperation { id: new_id(), ..again.clone() }]).await);
        assert_eq!((exceeding.bound, exceeding.max), (UsageBound::KeyBytes, 10_500));
        assert!(exceeding.used > 4_000 && exceeding.used < 6_000 && exceeding.more > 8_000, "{exceeding:?}");
        submit(&store, &again).await;
    }

    async fn keys_of_a_tenant_share_its_bounds(engine) {
        let (store, _place) = open_with_limits(engine, NO_LIMIT, UsageLimit { operations: 4, ..NO_LIMIT }).await;
        for (key, user) in [("k1", 1), ("k1", 2), ("k2", 3), ("k2", 4)] {
            submit(&store, &direct_message(key, "acme", user)).await;
        }
        let exceeding = exceeded(submit_error(&store, vec![direct_message("k3", "acme", 5)]).await);
        assert_eq!((exceeding.bound, exceeding.used, exceeding.max), (UsageBound::TenantOperations, 4, 4));
        submit(&store, &direct_message("k4", "rival", 5)).await;
        submit(&store, &operation(QueueKey::user(6))).await;
        assert_eq!(scope_usage(&store, "tenant:acme").await.operations, 4);
    }

    async fn operator_and_each_handler_have_bounds_of_their_own(engine) {
        let mut place = StoreLocation::new(engine).await;
        place.settings.usage.operator = UsageLimit { operations: 2, ..NO_LIMIT };
        let store = place.open().await;
        let handler = |name: &str| NewOperation { caller: Arc::from(name), ..guild_operation() };
        store.submit(vec![guild_operation(), guild_operation()]).await.unwrap();
        assert_eq!(exceeded(submit_error(&store, vec![guild_operation()]).await).bound, UsageBound::OperatorOperations);
        store.submit(vec![handler("handler:a"), handler("handler:a")]).await.unwrap();
        assert_eq!(exceeded(submit_error(&store, vec![handler("handler:a")]).await).used, 2);
        submit(&store, &handler("handler:b")).await;
    }

    async fn replays_succeed_when_the_share_is_full(engine) {
        let (store, _place) = open_with_limits(engine, UsageLimit { operations: 1, ..NO_LIMIT }, NO_LIMIT).await;
        let first = with_key(direct_message("k1", "acme", 1), "once");
        submit(&store, &first).await;
        let replay = NewOperation { id: new_id(), ..first.clone() };
        let answer = store.submit(vec![replay.clone()]).await.unwrap().remove(0);
        assert!(matches!(answer, SubmitResult::Existing { id, .. } if id == first.id), "{answer:?}");
        // With a new operation it is a batch like any other.
        assert_eq!(exceeded(submit_error(&store, vec![replay, direct_message("k1", "acme", 2)]).await).more, 1);
    }

    async fn dead_letters_count_until_they_are_discarded(engine) {
        let (store, place) = open_with_limits(engine, NO_LIMIT, UsageLimit { bytes: 5_000, ..NO_LIMIT }).await;
        let dying = NewOperation { payload: format!("\"{}\"", "x".repeat(1_200)), ..direct_message("k1", "acme", 1) };
        submit(&store, &dying).await;
        let fence = claim(&store, queue_of(&dying)).await.fence;
        let dead = OperationUpdate {
            error: Some(Failure::new(FailureClass::Transient, "no")),
            ..operation_update(&dying, fence, OperationState::Dead)
        };
        assert_eq!(record(&store, dead).await, UpdateResult::Done);
        let full = scope_usage(&store, "tenant:acme").await;
        assert!(full.operations == 0 && full.bytes > 4_000, "{full:?}");
        assert_eq!(exceeded(submit_error(&store, vec![direct_message("k1", "acme", 2)]).await).bound, UsageBound::TenantBytes);
        assert_counters_match_rows(&place, &store, "a dead letter").await;
        assert_eq!(store.discard(DeadLetterFilter { limit: 9, ..DeadLetterFilter::default() }).await.unwrap(), 1);
        submit(&store, &direct_message("k1", "acme", 2)).await;
        assert_counters_match_rows(&place, &store, "a discard").await;
        // The operation itself counts until it is swept.
        store.sweep(RETENTION, at(1_000_000)).await.unwrap();
        assert_eq!(scope_usage(&store, "tenant:acme").await.operations, 1);
        assert_counters_match_rows(&place, &store, "a sweep").await;
    }

    async fn outcomes_are_recorded_when_the_share_is_full(engine) {
        let (store, place) = open_with_limits(engine, UsageLimit { operations: 1, bytes: 1 << 20 }, NO_LIMIT).await;
        let full = with_key(direct_message("k1", "acme", 1), "once");
        submit(&store, &full).await;
        let fence = claim(&store, queue_of(&full)).await.fence;
        let result = format!("\"{}\"", "r".repeat(2 << 20));
        let done = OperationUpdate { result: Some(result), ..operation_update(&full, fence, OperationState::Succeeded) };
        assert_eq!(record(&store, done).await, UpdateResult::Done);
        let used = scope_usage(&store, "key:k1").await;
        assert!(used.operations == 0 && used.bytes > 4 << 20, "{used:?}");
        assert_counters_match_rows(&place, &store, "a large result").await;
    }

    async fn attempts_are_bounded_and_the_first_and_last_stay(engine) {
        let (store, place) = open_new_store(engine).await;
        let delayed = guild_operation();
        submit(&store, &delayed).await;
        let fence = claim(&store, QUEUE).await.fence;
        for nth in 1..=60 {
            let attempt = guildhall_actors::ports::Attempt { started_at: at(nth), ended_at: at(nth), ..new_attempt(0) };
            let change = OperationUpdate {
                attempts: 0,
                delays: u32::try_from(nth).unwrap(),
                attempt: Some(attempt),
                at: at(nth),
                ..operation_update(&delayed, fence, OperationState::Delayed)
            };
            assert_eq!(record(&store, change).await, UpdateResult::Done);
        }
        let attempts = store.get(delayed.id).await.unwrap().unwrap().attempts;
        let started: Vec<u64> = attempts.iter().map(|attempt| attempt.started_at.millis() - at(0).millis()).collect();
        assert_eq!(started, (1..=4).chain(49..=60).collect::<Vec<_>>());
        assert_counters_match_rows(&place, &store, "many delays").await;
    }

    async fn counters_equal_a_recount_after_any_sequence(engine) {
        let mut random = fastrand::Rng::with_seed(17);
        let (mut store, place) = open_new_store(engine).await;
        let callers = [("k1", "acme"), ("k2", "acme"), ("k3", "rival"), ("admin", ""), ("handler:a", "")];
        let mut live: Vec<NewOperation> = Vec::new();
        for step in 0..120_u64 {
            let what = match random.u8(0..10) {
                0..4 => {
                    let batch: Vec<_> = (0..random.u64(1..4))
                        .map(|nth| {
                            let (key, tenant) = callers[random.usize(0..callers.len())];
                            let new = direct_message(key, tenant, random.u64(1..6));
                            if random.bool() { with_key(new, &format!("{step}-{nth}")) } else { new }
                        })
                        .collect();
                    store.submit(batch.clone()).await.unwrap();
                    live.extend(batch);
                    "submit"
                }
                4..7 if !live.is_empty() => {
                    let operation = live.swap_remove(random.usize(0..live.len()));
                    let states = [OperationState::Succeeded, OperationState::Dead, OperationState::NeedsReview, OperationState::Running];
                    let state = states[random.usize(0..states.len())];
                    let claims = store.claim(guildhall_actors::ports::ClaimFrom::Queues(vec![queue_of(&operation)])).await.unwrap();
                    if let [claim] = claims.as_slice() {
                        let result = (state == OperationState::Succeeded).then(|| "\"done\"".to_owned());
                        let attempt = Some(new_attempt(1));
                        let change = OperationUpdate { result, attempt, delays: random.u32(0..20), ..operation_update(&operation, claim.fence, state) };
                        record(&store, change).await;
                        store.release(queue_of(&operation), claim.fence).await.unwrap();
                    }
                    "record"
                }
                7 if !live.is_empty() => {
                    let operation = live.swap_remove(random.usize(0..live.len()));
                    store.cancel(operation.id, at(20)).await.unwrap();
                    "cancel"
                }
                8 => {
                    let letters = store.dead_letters(DeadLetterFilter { limit: 2, redriven: Some(false), ..DeadLetterFilter::default() }).await.unwrap();
                    let again: Vec<_> = letters.iter().map(|letter| NewOperation { redrive_of: Some(letter.id), ..direct_message("k2", &letter.tenant, 3) }).collect();
                    if random.bool() && !again.is_empty() {
                        store.redrive(again).await.unwrap();
                    } else {
                        store.discard(DeadLetterFilter { limit: 1, ..DeadLetterFilter::default() }).await.unwrap();
                    }
                    "redrive or discard"
                }
                _ if random.bool() => {
                    store.sweep(RETENTION, at(random.u64(0..200_000))).await.unwrap();
                    "sweep"
                }
                _ => {
                    store.close().await;
                    store = place.open().await;
                    "restart"
                }
            };
            if step % 10 == 9 || what == "restart" {
                assert_counters_match_rows(&place, &store, what).await;
            }
        }
        // When everything is gone, nothing is counted.
        for operation in live {
            store.cancel(operation.id, at(20)).await.unwrap();
        }
        assert_counters_match_rows(&place, &store, "the end").await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_of_one_postgres_count_together() {
    let (store, location) =
        open_with_limits(Engine::Postgres, UsageLimit { operations: 4, ..NO_LIMIT }, NO_LIMIT).await;
    let other = location.open().await;
    for (store, user) in [(&store, 1), (&other, 2), (&store, 3), (&other, 4)] {
        submit(store, &direct_message("k1", "acme", user)).await;
    }
    for store in [&store, &other] {
        assert_eq!(exceeded(submit_error(store, vec![direct_message("k1", "acme", 5)]).await).used, 4);
    }
    // One process removes what another accepted. The count of a process stays after its end.
    let first = direct_message("k2", "acme", 9);
    submit(&other, &first).await;
    store.cancel(first.id, at(1)).await.unwrap();
    other.close().await;
    assert_counters_match_rows(&location, &store, "the end of a process").await;
    store.sweep(RETENTION, at(0)).await.unwrap();
    assert_counters_match_rows(&location, &store, "merging its rows").await;
    let connection = Database::connect(location.raw_url()).await.unwrap();
    let rows = connection
        .query_all_raw(Statement::from_string(DbBackend::Postgres, "SELECT DISTINCT instance FROM usage"))
        .await;
    assert!(rows.unwrap().len() <= 2);
    connection.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn full_file_refuses_operations_and_records_outcomes() {
    let mut location = StoreLocation::new(Engine::Sqlite).await;
    location.settings.max_bytes = 4 << 20;
    let store = location.open().await;
    let mut accepted = Vec::new();
    let limit_error = loop {
        // Many keys, so that the file is full before any share is.
        let (key, tenant) = (format!("k{}", accepted.len()), format!("t{}", accepted.len()));
        let large = NewOperation {
            payload: format!("\"{}\"", "x".repeat(50_000)),
            ..direct_message(&key, &tenant, accepted.len() as u64)
        };
        match store.submit(vec![large.clone()]).await {
            Ok(_) => accepted.push(large),
            Err(error) => break exceeded(error),
        }
        assert!(accepted.len() < 200, "4 MiB hold no more");
    };
    assert_eq!(
        (limit_error.bound, limit_error.bound.setting(), limit_error.max),
        (UsageBound::File, "store.max_bytes", 2 << 20)
    );
    assert!(accepted.len() > 10, "{}", accepted.len());
    // There is head room: the outcome of every operation is recorded, even if all of them become dead letters.
    for operation in &accepted {
        let fence = claim(&store, queue_of(operation)).await.fence;
        let done = OperationUpdate {
            attempt: Some(new_attempt(1)),
            ..operation_update(operation, fence, OperationState::Dead)
        };
        assert_eq!(record(&store, done).await, UpdateResult::Done);
    }
    store.set_state("still", Some("written".to_owned()), None).await.unwrap();
    while store.sweep(RETENTION, at(1_000_000)).await.unwrap() != SweepSummary::default() {}
    submit(&store, &direct_message("k1", "acme", 1)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_key_cannot_fill_a_file() {
    let mut location = StoreLocation::new(Engine::Sqlite).await;
    location.settings.max_bytes = 16 << 20;
    let store = location.open().await;
    let empty = store.usage(None).await.unwrap().file.unwrap().used;
    let batch = |from: u64| (from..from + 100).map(|user| direct_message("k1", "acme", user)).collect::<Vec<_>>();
    let mut count = 0;
    let limit_error = loop {
        match store.submit(batch(count)).await {
            Ok(_) => count += 100,
            Err(error) => break exceeded(error),
        }
    };
    assert_eq!((limit_error.bound, limit_error.max), (UsageBound::KeyBytes, 1 << 20));
    let file = store.usage(None).await.unwrap().file.unwrap();
    assert!(file.used < file.accepts_until / 2, "{file:?} after {count}");
    // The count includes what the operations still need until they finish.
    let (grown, counted) = (file.used - empty, scope_usage(&store, "key:k1").await.bytes.unsigned_abs());
    assert!(grown < counted && grown > counted / 4, "{grown} bytes written, {counted} counted");
    submit(&store, &direct_message("k2", "rival", 1)).await;
    submit(&store, &guild_operation()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn oldest_audit_rows_of_a_key_are_removed_past_its_bound() {
    for engine in [Engine::Sqlite, Engine::Postgres] {
        let mut location = StoreLocation::new(engine).await;
        location.settings.max_audit = 10;
        let store = location.open().await;
        let note = |key: &str, detail: usize| {
            let caller = Caller { key: Arc::from(key), ..Caller::operator() };
            caller.audit_record(AuditAction::OperationsCancel, at(1)).with_detail(detail.to_string())
        };
        for nth in 0..25 {
            store.add_audit_record(note("k1", nth)).await.unwrap();
        }
        store.add_audit_record(note("k2", 0)).await.unwrap();
        while store.sweep_access(at(0)).await.unwrap() > 0 {}
        let rows = store.audit(AuditFilter { limit: 100, ..AuditFilter::default() }).await.unwrap();
        let count_of = |key: &str| rows.iter().filter(|row| &*row.record.key == key).count();
        assert_eq!((count_of("k1"), count_of("k2")), (10, 1), "{engine:?}");
        let oldest =
            rows.iter().filter(|row| &*row.record.key == "k1").map(|row| row.record.detail.parse::<u32>().unwrap());
        assert_eq!(oldest.min(), Some(15), "the newest stay");
    }
}
