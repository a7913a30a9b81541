//! State of an operation after each possible result of its execution.

use std::time::Duration;

use guildhall_core::operation::{FailureClass, OperationKind, OperationState, Payload, Queue, Reference};
use serde_json::json;
use tokio::time::Instant;

use crate::ports::{HoldScope, OperationStore as _};
use crate::testing::operations::{ScriptedResult, ScriptedSearch, TestCluster, paused};

const GUILD: u64 = 7;

#[test]
fn operations_run_in_order_with_one_commit_each() {
    paused(async {
        let world = TestCluster::new();
        let ids: Vec<_> = (0..50).map(|_| world.create(GUILD)).collect();
        let _operations = world.start();
        world.until_done().await;
        assert_eq!(world.discord.sent(), ids);
        assert!(ids.iter().all(|id| world.state(*id) == OperationState::Succeeded && world.discord.happened(*id) == 1));
        assert_eq!(world.store.commits(), 51, "the end of one and the start of the next are stored together");
        let row = world.store.row(ids[0]);
        assert_eq!((row.stored.attempts, row.stored.intent, row.attempts.len()), (1, None, 1));
        assert!(row.created.is_some() && row.result.unwrap().contains("id"));
    });
}

#[test]
fn later_submission_runs_as_soon_as_its_queue_is_woken() {
    paused(async {
        let world = TestCluster::new();
        let operations = world.start();
        let first = world.create(GUILD);
        world.until_state(first, OperationState::Succeeded).await;
        let second = world.create(GUILD);
        let started = Instant::now();
        operations.wake(Queue::Guild(GUILD));
        world.until_state(second, OperationState::Succeeded).await;
        assert!(started.elapsed() <= Duration::from_millis(100), "{:?}", started.elapsed());
    });
}

#[test]
fn delayed_operation_keeps_its_attempts_and_runs_when_due() {
    paused(async {
        let world = TestCluster::new();
        let id = world.create(GUILD);
        let hold = ScriptedResult::Hold { wait: Some(Duration::from_secs(10)), hold: HoldScope::Route };
        world.discord.script(id, [hold, hold]);
        let _operations = world.start();
        world.until_state(id, OperationState::Delayed).await;
        let held = world.store.row(id).stored;
        assert_eq!((held.attempts, held.delays, held.intent, held.parked), (0, 1, None, false));
        assert_eq!(held.error.unwrap().status, Some(429));
        world.until_state(id, OperationState::Succeeded).await;
        let done = world.store.row(id).stored;
        assert_eq!((done.attempts, done.delays, world.discord.happened(id)), (1, 2, 1));
        assert!(world.clock.now().since(done.operation.created_at) >= Duration::from_secs(20));
    });
}

#[test]
fn long_delayed_operation_is_parked_and_passed_by_unrelated_ones() {
    paused(async {
        let world = TestCluster::new();
        let held = world.assign(GUILD, 100, 1);
        let behind = world.assign(GUILD, 100, 1);
        let other = world.assign(GUILD, 200, 2);
        world
            .discord
            .script(held, [ScriptedResult::Hold { wait: Some(Duration::from_secs(3_000)), hold: HoldScope::Route }]);
        let operations = world.start();
        world.until_state(other, OperationState::Succeeded).await;
        assert!(world.store.row(held).stored.parked);
        assert_eq!(world.state(behind), OperationState::Queued);
        assert_eq!(operations.observe_one(Queue::Guild(GUILD)).await.unwrap().parked, 1);
        world.until_done().await;
        assert_eq!(world.discord.sent(), [other, held, behind]);
    });
}

#[test]
fn operation_with_a_global_delay_is_not_passed() {
    paused(async {
        let world = TestCluster::new();
        let (held, other) = (world.assign(GUILD, 100, 1), world.assign(GUILD, 200, 2));
        world.discord.script(held, [ScriptedResult::Hold { wait: None, hold: HoldScope::All }]);
        let _operations = world.start();
        world.until_done().await;
        assert_eq!(world.discord.sent(), [held, other]);
    });
}

#[test]
fn permanent_failure_ends_it_and_the_next_one_runs() {
    for class in [FailureClass::Validation, FailureClass::Forbidden, FailureClass::NotFound, FailureClass::Conflict] {
        paused(async move {
            let world = TestCluster::new();
            let (failed, next) = (world.create(GUILD), world.create(GUILD));
            world.discord.script(failed, [ScriptedResult::Fail(class)]);
            let _operations = world.start();
            world.until_done().await;
            let row = world.store.row(failed);
            assert_eq!((row.stored.state, row.stored.intent), (OperationState::Dead, None));
            assert_eq!(row.stored.error.unwrap().class, class);
            assert_eq!(row.attempts[0].class, class.name());
            assert_eq!(world.state(next), OperationState::Succeeded);
        });
    }
}

#[test]
fn transient_failure_is_retried_with_backoff_and_then_dead() {
    paused(async {
        let world = TestCluster::new();
        let (good, bad) = (world.create(GUILD), world.create(GUILD));
        world.discord.script(good, [ScriptedResult::Fail(FailureClass::Transient); 2]);
        world.discord.script(bad, [ScriptedResult::Fail(FailureClass::Transient); 3]);
        let _operations = world.start();
        world.until_state(good, OperationState::Succeeded).await;
        let waited = world.clock.now().since(world.store.row(good).stored.operation.created_at);
        assert!(waited >= Duration::from_secs(3), "1 s and 2 s: {waited:?}");
        world.until_done().await;
        let row = world.store.row(bad);
        assert_eq!((row.stored.state, row.stored.attempts, row.attempts.len()), (OperationState::Dead, 3, 3));
        assert_eq!(world.discord.sent(), [good, good, good, bad, bad, bad]);
    });
}

#[test]
fn effect_with_a_lost_response_is_found_and_not_repeated() {
    paused(async {
        let world = TestCluster::new();
        let id = world.create(GUILD);
        world.discord.script(id, [ScriptedResult::DoWithLostResponse]);
        world.discord.script_search(id, [ScriptedSearch::Hold(Duration::from_secs(5))]);
        let _operations = world.start();
        world.until_state(id, OperationState::Reconciling).await;
        assert!(world.store.row(id).stored.intent.is_some());
        world.until_state(id, OperationState::Succeeded).await;
        assert_eq!(world.discord.happened(id), 1);
        let since = world.clock.now().since(world.store.row(id).stored.operation.created_at);
        assert!(since >= world.config.request_timeout, "it may still have been in flight: {since:?}");
        assert!(world.store.row(id).created.is_some());
    });
}

#[test]
fn lost_call_is_sent_again_while_it_has_attempts() {
    paused(async {
        let world = TestCluster::new();
        let (again, lost) = (world.create(GUILD), world.create(GUILD));
        world.discord.script(again, [ScriptedResult::Fail(FailureClass::Ambiguous)]);
        world.discord.script(lost, [ScriptedResult::Fail(FailureClass::Ambiguous); 3]);
        let _operations = world.start();
        world.until_done().await;
        assert_eq!((world.state(again), world.discord.happened(again)), (OperationState::Succeeded, 1));
        assert_eq!((world.state(lost), world.discord.happened(lost)), (OperationState::Dead, 0));
        let executions = world.discord.executions();
        let of_first: Vec<_> =
            executions.iter().filter(|execution| execution.id == again).map(|execution| execution.intent_at).collect();
        assert!(of_first.windows(2).all(|pair| pair[0] == pair[1]), "the first intent is kept: {of_first:?}");
    });
}

#[test]
fn unclear_outcome_needs_review_and_blocks_nothing() {
    paused(async {
        let world = TestCluster::new();
        let (unclear, next) = (world.create(GUILD), world.create(GUILD));
        world.discord.script(unclear, [ScriptedResult::DoWithLostResponse]);
        world.discord.script_search(unclear, [ScriptedSearch::Unclear]);
        let _operations = world.start();
        world.until_done().await;
        assert_eq!((world.state(unclear), world.state(next)), (OperationState::NeedsReview, OperationState::Succeeded));
        assert_eq!(world.discord.happened(unclear), 1);
    });
}

#[test]
fn deadline_ends_waiting_and_late_operations() {
    paused(async {
        let world = TestCluster::new();
        let mut dated = world.operation(GUILD, OperationKind::CreateRole, &json!({ "name": "Mods" }));
        dated.deadline_at = Some(dated.created_at + Duration::from_secs(5));
        let id = world.submit(dated);
        let mut behind = world.operation(GUILD, OperationKind::CreateRole, &json!({ "name": "Mods" }));
        behind.deadline_at = Some(behind.created_at + Duration::from_secs(2));
        let behind = world.submit(behind);
        world.discord.script(id, [ScriptedResult::Hold { wait: Some(Duration::from_secs(30)), hold: HoldScope::All }]);
        let _operations = world.start();
        world.until_state(behind, OperationState::Dead).await;
        assert_eq!(world.state(id), OperationState::Delayed);
        world.until_state(id, OperationState::Dead).await;
        assert_eq!(world.store.row(id).stored.error.unwrap().class, FailureClass::Expired);
        assert!(world.discord.sent().is_empty());
    });
}

#[test]
fn references_are_resolved_and_a_missing_one_ends_the_operation() {
    paused(async {
        let world = TestCluster::new();
        let role =
            world.submit(world.operation(GUILD, OperationKind::CreateRole, &json!({ "name": "Mods", "key": "mods" })));
        let by_operation = json!({ "user_id": "100", "role_id": { "operation": role.to_string() } });
        let by_operation = world.submit(world.operation(GUILD, OperationKind::AssignRole, &by_operation));
        let by_key = json!({ "user_id": "200", "role_id": { "key": "mods" } });
        let by_key = world.submit(world.operation(GUILD, OperationKind::AssignRole, &by_key));
        let missing = json!({ "user_id": "200", "role_id": { "key": "nobody" } });
        let missing = world.submit(world.operation(GUILD, OperationKind::AssignRole, &missing));
        let ensure =
            world.submit(world.operation(GUILD, OperationKind::EnsureRole, &json!({ "name": "Mods", "key": "mods" })));
        let _operations = world.start();
        world.until_done().await;
        let created = world.store.row(role).created.unwrap();
        for execution in world.discord.executions() {
            match &execution.payload {
                Payload::AssignRole(assign) => assert_eq!(assign.role, Reference::Id(created)),
                Payload::EnsureRole(_) => assert_eq!(execution.existing, Some((created, None))),
                _ => assert_eq!(execution.id, role),
            }
        }
        assert_eq!(world.discord.sent(), [role, by_operation, by_key, ensure]);
        let error = world.store.row(missing).stored.error.unwrap();
        assert_eq!((world.state(missing), error.class), (OperationState::Dead, FailureClass::NotFound));
        assert!(error.message.contains("`nobody`"), "{error}");
    });
}

#[test]
fn operation_waits_for_a_reference_to_another_queue() {
    paused(async {
        let world = TestCluster::new();
        let elsewhere = world.create(8);
        world
            .discord
            .script(elsewhere, [ScriptedResult::Hold { wait: Some(Duration::from_secs(20)), hold: HoldScope::Route }]);
        let refers = json!({ "user_id": "100", "role_id": { "operation": elsewhere.to_string() } });
        let refers = world.submit(world.operation(GUILD, OperationKind::AssignRole, &refers));
        let _operations = world.start();
        world.until_state(refers, OperationState::Delayed).await;
        assert_eq!(world.store.row(refers).stored.attempts, 0);
        world.until_done().await;
        assert_eq!(world.discord.sent(), [elsewhere, refers]);
    });
}

#[test]
fn invalid_payload_ends_an_operation_without_a_call() {
    paused(async {
        let world = TestCluster::new();
        let invalid = world.submit(world.operation(GUILD, OperationKind::AssignRole, &json!({ "user": 1 })));
        let next = world.create(GUILD);
        let _operations = world.start();
        world.until_done().await;
        assert_eq!(world.store.row(invalid).stored.error.unwrap().class, FailureClass::Validation);
        assert_eq!(world.discord.sent(), [next]);
    });
}

#[test]
fn payloads_over_the_memory_limit_are_read_again_when_needed() {
    paused(async {
        let mut world = TestCluster::new();
        world.config.max_payload_bytes = 30;
        let ids: Vec<_> = (0..10).map(|_| world.create(GUILD)).collect();
        world.discord.script(ids[3], [ScriptedResult::Fail(FailureClass::Transient)]);
        let _operations = world.start();
        world.until_done().await;
        let mut sent = world.discord.sent();
        sent.dedup();
        assert_eq!(sent, ids);
        assert!(ids.iter().all(|id| world.discord.happened(*id) == 1));
    });
}

#[test]
fn cancelled_operation_is_not_sent_and_expedited_one_runs_now() {
    paused(async {
        let world = TestCluster::new();
        let (held, cancelled) = (world.create(GUILD), world.create(GUILD));
        world
            .discord
            .script(held, [ScriptedResult::Hold { wait: Some(Duration::from_secs(3_000)), hold: HoldScope::All }]);
        let operations = world.start();
        world.until_state(held, OperationState::Delayed).await;
        let (_, queue) = world.store.cancel(cancelled, world.clock.now()).await.unwrap().unwrap();
        operations.cancelled(cancelled, queue);
        let started = Instant::now();
        world.store.expedite(held, world.clock.now()).await.unwrap();
        operations.expedited(held, queue);
        world.until_done().await;
        assert!(started.elapsed() < Duration::from_secs(1));
        assert_eq!(world.discord.sent(), [held]);
        assert_eq!(world.state(cancelled), OperationState::Cancelled);
    });
}

#[test]
fn cancellation_without_notification_prevents_the_send() {
    paused(async {
        let world = TestCluster::new();
        let (first, cancelled, last) = (world.create(GUILD), world.create(GUILD), world.create(GUILD));
        world.discord.script(first, [ScriptedResult::Wait]);
        let _operations = world.start();
        world.discord.started().await;
        world.store.cancel(cancelled, world.clock.now()).await.unwrap().unwrap();
        world.discord.resume();
        world.until_done().await;
        assert_eq!(world.discord.sent(), [first, last]);
    });
}
