//! Scheduled operations: they join their queue when they are due, and block nothing before.

use std::time::Duration;

use guildhall_core::operation::{FailureClass, OperationId, OperationKind, OperationState, Queue};
use guildhall_core::time::UnixMs;
use serde_json::json;
use tokio::runtime::Builder;
use tokio::task::LocalSet;
use tokio::time::sleep;

use crate::ports::{DelayedBy, NewOperation, OperationStore as _};
use crate::testing::operations::{Fault, ScriptedResult, TestCluster, paused};

const GUILD: u64 = 7;
const QUEUE: Queue = Queue::Guild(GUILD);

fn create(world: &TestCluster) -> NewOperation {
    world.operation(GUILD, OperationKind::CreateRole, &json!({ "name": "Mods" }))
}

fn delay_by(seconds: u64, operation: NewOperation) -> NewOperation {
    NewOperation { eligible_at: operation.created_at + Duration::from_secs(seconds), ..operation }
}

fn referring(world: &TestCluster, target: OperationId) -> NewOperation {
    let payload = json!({ "user_id": "5", "role_id": { "operation": target } });
    NewOperation { refers_to: vec![target], ..world.operation(GUILD, OperationKind::AssignRole, &payload) }
}

fn sent(world: &TestCluster) -> Vec<OperationId> {
    let mut sent = world.discord.sent();
    sent.dedup();
    sent
}

fn finished_at(world: &TestCluster, id: OperationId) -> UnixMs {
    world.store.row(id).attempts.last().unwrap().ended_at
}

#[test]
fn scheduled_operation_blocks_nothing_and_runs_when_due() {
    paused(async {
        let world = TestCluster::new();
        let operation = delay_by(30, create(&world));
        let due = operation.eligible_at;
        let late = world.submit(operation);
        let soon = world.create(GUILD);
        let operations = world.start();
        world.until_state(soon, OperationState::Succeeded).await;
        assert_eq!(world.state(late), OperationState::Scheduled);
        sleep(Duration::from_secs(10)).await;
        let later = world.create(GUILD);
        operations.wake(QUEUE);
        world.until_state(later, OperationState::Succeeded).await;
        assert_eq!(world.state(late), OperationState::Scheduled);
        world.until_done().await;
        assert_eq!(sent(&world), [soon, later, late]);
        assert!(finished_at(&world, late).since(due) < Duration::from_millis(100));
    });
}

#[test]
fn due_operation_runs_before_those_accepted_later() {
    paused(async {
        let world = TestCluster::new();
        // The queue has no owner when the operation becomes due.
        let early = world.submit(delay_by(5, create(&world)));
        sleep(Duration::from_secs(10)).await;
        let second = world.create(GUILD);
        let _operations = world.start();
        world.until_done().await;
        assert_eq!(sent(&world), [early, second]);
    });
}

#[test]
fn operation_joins_in_time_while_its_queue_waits() {
    paused(async {
        let world = TestCluster::new();
        let head = world.create(GUILD);
        world.discord.script(head, [ScriptedResult::Fail(FailureClass::Transient); 2]);
        let operations = world.start();
        world.until_state(head, OperationState::Retrying).await;
        let late = world.submit(delay_by(3, create(&world)));
        operations.wake(QUEUE);
        let due = world.clock.now() + Duration::from_secs(3);
        world.until_state(late, OperationState::Queued).await;
        assert!(world.clock.now().since(due) <= Duration::from_millis(200), "the first operation waits for longer");
        assert_eq!(world.state(head), OperationState::Retrying);
        world.until_done().await;
        assert_eq!(sent(&world), [head, late]);
    });
}

#[test]
fn operations_with_the_same_time_join_in_order_of_acceptance() {
    paused(async {
        let world = TestCluster::new();
        let by_policy = |seconds| NewOperation { delayed_by: DelayedBy::Policy, ..delay_by(seconds, create(&world)) };
        let ids: Vec<_> = [4, 4, 6, 6, 6].map(|seconds| world.submit(by_policy(seconds))).into();
        let first = world.submit(by_policy(2));
        let _operations = world.start();
        world.until_done().await;
        let order: Vec<_> = std::iter::once(first).chain(ids).collect();
        assert_eq!(sent(&world), order);
    });
}

#[test]
fn operation_follows_a_scheduled_one_that_it_refers_to() {
    paused(async {
        let world = TestCluster::new();
        let target = world.submit(delay_by(20, create(&world)));
        let follows = world.submit(referring(&world, target));
        let other = world.create(GUILD);
        let _operations = world.start();
        world.until_state(other, OperationState::Succeeded).await;
        assert_eq!((world.state(target), world.state(follows)), (OperationState::Scheduled, OperationState::Scheduled));
        world.until_done().await;
        assert_eq!(sent(&world), [other, target, follows]);
        assert_eq!(world.state(follows), OperationState::Succeeded);
    });
}

#[test]
fn expedite_and_cancel_affect_operations_that_refer_to_it() {
    paused(async {
        let world = TestCluster::new();
        let target = world.submit(delay_by(3_000, create(&world)));
        let follows = world.submit(referring(&world, target));
        let gone = world.submit(delay_by(3_000, create(&world)));
        let orphaned = world.submit(referring(&world, gone));
        let operations = world.start();
        sleep(Duration::from_secs(1)).await;
        let started = world.clock.now();
        let expedited = world.store.expedite(target, started).await.unwrap();
        assert_eq!(expedited, Some((OperationState::Queued, QUEUE)));
        operations.expedited(target, QUEUE);
        assert_eq!(world.store.cancel(gone, started).await.unwrap(), Some((OperationState::Cancelled, QUEUE)));
        operations.cancelled(gone, QUEUE);
        world.until_done().await;
        assert!(world.clock.now().since(started) < Duration::from_secs(5));
        assert_eq!((world.state(follows), world.state(orphaned)), (OperationState::Succeeded, OperationState::Dead));
        assert_eq!(sent(&world), [target, follows]);
    });
}

#[test]
fn deadline_ends_a_scheduled_operation() {
    paused(async {
        let world = TestCluster::new();
        let deadline = world.clock.now() + Duration::from_secs(10);
        let target = world.submit(delay_by(3_000, create(&world)));
        let late = NewOperation { deadline_at: Some(deadline), ..referring(&world, target) };
        let late = world.submit(late);
        let _operations = world.start();
        world.until_state(late, OperationState::Dead).await;
        assert!(world.clock.now().since(deadline) <= Duration::from_millis(200));
        assert_eq!(world.store.row(late).stored.error.unwrap().class, FailureClass::Expired);
        assert_eq!(world.state(target), OperationState::Scheduled);
    });
}

#[test]
fn queue_with_scheduled_work_is_released_and_claimed_when_due() {
    paused(async {
        let world = TestCluster::new();
        let late = world.submit(delay_by(3_000, create(&world)));
        let operations = world.start();
        operations.wake(QUEUE);
        world.until("the queue is claimed", || world.store.is_owned(QUEUE)).await;
        world.until("the queue is released", || !world.store.is_owned(QUEUE)).await;
        assert_eq!(world.state(late), OperationState::Scheduled);
        world.until_state(late, OperationState::Succeeded).await;
    });
}

/// Operations for every case of scheduling, and the order in which they must be sent.
fn all_cases() -> (TestCluster, Vec<OperationId>) {
    let world = TestCluster::new();
    let target = world.submit(delay_by(5, create(&world)));
    let follows = world.submit(referring(&world, target));
    let last = world.submit(delay_by(8, create(&world)));
    let first = world.create(GUILD);
    (world, vec![first, target, follows, last])
}

/// Runs processes one after the other until everything is finished.
fn run_to_end(world: &TestCluster, runtime: &tokio::runtime::Runtime) {
    for _ in 0..100 {
        let local = LocalSet::new();
        let killed = local.block_on(runtime, async {
            let _operations = world.start();
            tokio::select! {
                () = world.until_done() => false,
                () = world.faults.killed() => true,
            }
        });
        drop(local);
        if !killed {
            return;
        }
        world.store.orphan();
    }
    panic!("operations do not finish");
}

#[test]
fn fault_at_any_step_keeps_the_order_of_joins() {
    let runtime = || Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    let calls = {
        let runtime = runtime();
        let _guard = runtime.enter();
        let (world, ids) = all_cases();
        run_to_end(&world, &runtime);
        assert_eq!(sent(&world), ids);
        world.faults.calls()
    };
    assert!(calls > 8, "{calls}");
    for fault in [Fault::KillBefore, Fault::KillAfter, Fault::Refuse, Fault::LoseResponse] {
        for step in 0..calls {
            let runtime = runtime();
            let _guard = runtime.enter();
            let (world, ids) = all_cases();
            world.faults.plan([(step, fault)]);
            run_to_end(&world, &runtime);
            assert_eq!(sent(&world), ids, "{fault:?} at {step}");
            assert!(ids.iter().all(|id| world.state(*id) == OperationState::Succeeded), "{fault:?} at {step}");
        }
    }
}
