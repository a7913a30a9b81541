//! Operations of several calls: completed steps are stored, and are not repeated.

use std::time::Duration;

use guildhall_core::operation::{FailureClass, OperationId, OperationKind, OperationState, Queue};
use serde_json::json;
use tokio::runtime::{Builder, Runtime};
use tokio::task::LocalSet;

use crate::ports::{HoldScope, OperationStore as _, PauseTarget};
use crate::testing::operations::{ScriptedResult, ScriptedSearch, TestCluster, paused};

const GUILD: u64 = 7;
const QUEUE: Queue = Queue::Guild(GUILD);

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_time().start_paused(true).build().unwrap()
}

fn ensure_message(world: &TestCluster) -> OperationId {
    let payload = json!({ "key": "rules", "channel_id": "1", "content": "be kind", "pin": true });
    world.submit(world.operation(GUILD, OperationKind::EnsureMessage, &payload))
}

#[test]
fn step_survives_a_limit_and_a_long_outage() {
    let runtime = runtime();
    let _guard = runtime.enter();
    let world = TestCluster::new();
    let id = ensure_message(&world);
    world.discord.script(id, [ScriptedResult::SendThenHold(Duration::from_secs(20))]);
    let local = LocalSet::new();
    local.block_on(&runtime, async {
        let _operations = world.start();
        world.until_state(id, OperationState::Delayed).await;
    });
    drop(local);
    world.store.orphan();
    let held = world.store.row(id).stored;
    let first = held.intent.expect("a call had an effect: the intent stays open");
    assert_eq!((held.attempts, held.delays, held.progress.steps().len()), (0, 1, 1));
    LocalSet::new().block_on(&runtime, async {
        tokio::time::sleep(Duration::from_secs(300)).await;
        let _operations = world.start();
        world.until_done().await;
    });
    let executions = world.discord.executions();
    let resumed = executions.last().unwrap();
    assert_eq!((resumed.progress.clone(), resumed.intent_at), (held.progress, first), "it resumes where it was");
    let bound = resumed.existing.expect("the key is bound to the message from the first step on");
    assert_eq!(bound.1, Some(1));
    assert_eq!(
        (executions.len(), world.state(id), world.store.row(id).stored.intent),
        (2, OperationState::Succeeded, None)
    );
}

#[test]
fn cancel_is_refused_once_a_step_is_done() {
    paused(async {
        let world = TestCluster::new();
        let id = ensure_message(&world);
        world.discord.script(id, [ScriptedResult::SendThenHold(Duration::from_secs(20))]);
        let _operations = world.start();
        world.until_state(id, OperationState::Delayed).await;
        let refused = world.store.cancel(id, world.clock.now()).await.unwrap();
        assert_eq!(refused, Some((OperationState::Delayed, QUEUE)));
        world.until_state(id, OperationState::Succeeded).await;
    });
}

#[test]
fn later_call_that_waits_for_its_permit_is_not_in_flight() {
    let runtime = runtime();
    let _guard = runtime.enter();
    let world = TestCluster::new();
    let id = ensure_message(&world);
    world.discord.script(id, [ScriptedResult::SendThenWait]);
    let local = LocalSet::new();
    local.block_on(&runtime, async {
        let _operations = world.start();
        world.discord.started().await;
        world.until("its progress is stored", || !world.store.row(id).stored.progress.is_empty()).await;
        let row = world.store.row(id).stored;
        assert_eq!(
            (row.state, row.attempts, row.intent.is_some()),
            (OperationState::Queued, 0, true),
            "nothing is in flight"
        );
        let refused = world.store.cancel(id, world.clock.now()).await.unwrap();
        assert_eq!(refused, Some((OperationState::Queued, QUEUE)));
    });
    drop(local);
    world.store.orphan();
    let started = world.clock.now();
    LocalSet::new().block_on(&runtime, async {
        let _operations = world.start();
        world.until_done().await;
    });
    assert!(world.clock.now().since(started) < Duration::from_secs(1));
    assert_eq!((world.state(id), world.store.row(id).stored.attempts), (OperationState::Succeeded, 1));
}

#[test]
fn pause_takes_effect_while_a_later_call_waits() {
    paused(async {
        let world = TestCluster::new();
        let id = ensure_message(&world);
        world.discord.script(id, [ScriptedResult::SendThenWait]);
        let operations = world.start();
        world.discord.started().await;
        operations.pause(PauseTarget::Queue(QUEUE), true).await.unwrap();
        tokio::time::sleep(Duration::from_secs(60)).await;
        let row = world.store.row(id).stored;
        assert_eq!((row.state, row.attempts, row.progress.steps().len()), (OperationState::Queued, 0, 1));
        operations.pause(PauseTarget::Queue(QUEUE), false).await.unwrap();
        world.until_state(id, OperationState::Succeeded).await;
        assert_eq!(world.store.row(id).stored.attempts, 1);
    });
}

#[test]
fn deadline_after_a_step_says_what_was_done() {
    paused(async {
        let world = TestCluster::new();
        let payload = json!({ "key": "rules", "channel_id": "1", "content": "be kind", "pin": true });
        let mut dated = world.operation(GUILD, OperationKind::EnsureMessage, &payload);
        dated.deadline_at = Some(dated.created_at + Duration::from_secs(5));
        let id = world.submit(dated);
        world.discord.script(id, [ScriptedResult::SendThenHold(Duration::from_secs(20))]);
        let _operations = world.start();
        world.until_state(id, OperationState::Dead).await;
        let row = world.store.row(id).stored;
        let error = row.error.unwrap();
        assert_eq!(error.class, FailureClass::Expired);
        assert!(error.message.contains("before it was completed") && error.message.contains("sent message"), "{error}");
        assert_eq!(row.progress.steps().len(), 1);
    });
}

#[test]
fn intent_keeps_its_first_time_until_the_operation_is_done() {
    paused(async {
        let world = TestCluster::new();
        let id = world.create(GUILD);
        let hold = ScriptedResult::Hold { wait: Some(Duration::from_secs(5)), hold: HoldScope::Route };
        world.discord.script(id, [ScriptedResult::Fail(FailureClass::Ambiguous), hold]);
        world.discord.script_search(id, [ScriptedSearch::Search]);
        let _operations = world.start();
        world.until_state(id, OperationState::Reconciling).await;
        let first = world.store.row(id).stored.intent.unwrap();
        world.until_state(id, OperationState::Delayed).await;
        let held = world.store.row(id).stored;
        assert_eq!((held.intent, held.attempts), (Some(first), 1), "an earlier call may have had an effect");
        world.until_state(id, OperationState::Succeeded).await;
        assert!(world.discord.executions().iter().all(|execution| execution.intent_at.since(first) == Duration::ZERO));
        assert_eq!(world.store.row(id).stored.intent, None);
    });
}
