//! An operation that waits for its permit: nothing of it was sent, and no intent is stored.

use std::time::Duration;

use guildhall_core::operation::{FailureClass, OperationId, OperationKind, OperationState, Queue};
use serde_json::json;
use tokio::runtime::{Builder, Runtime};
use tokio::task::LocalSet;
use tokio::time::sleep;

use crate::ports::{OperationStore as _, PauseTarget};
use crate::supervisor::OperationsHandle;
use crate::testing::operations::{ScriptedResult, TestCluster, paused};

const GUILD: u64 = 7;
const QUEUE: Queue = Queue::Guild(GUILD);

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_time().start_paused(true).build().unwrap()
}

/// One operation is finished, and the next waits for its permit.
async fn start_waiting(world: &TestCluster) -> (OperationsHandle, OperationId, OperationId) {
    let (first, second) = (world.create(GUILD), world.create(GUILD));
    world.discord.script(second, [ScriptedResult::WaitForPermit]);
    let operations = world.start();
    world.discord.started().await;
    sleep(Duration::from_millis(10)).await;
    (operations, first, second)
}

#[test]
fn outcome_is_stored_before_the_next_operation_waits() {
    paused(async {
        let world = TestCluster::new();
        let (_operations, first, second) = start_waiting(&world).await;
        let row = world.store.row(second).stored;
        assert_eq!(
            (world.state(first), row.state, row.attempts),
            (OperationState::Succeeded, OperationState::Queued, 0)
        );
        assert_eq!(row.intent, None);
        world.discord.resume();
        world.until_done().await;
        let row = world.store.row(second).stored;
        assert_eq!((row.state, row.attempts, world.discord.happened(second)), (OperationState::Succeeded, 1, 1));
    });
}

#[test]
fn operation_killed_while_waiting_is_sent_without_a_delay() {
    for creates in [true, false] {
        let runtime = runtime();
        let _guard = runtime.enter();
        let world = TestCluster::new();
        let local = LocalSet::new();
        let second = local.block_on(&runtime, async {
            let first = world.create(GUILD);
            let second = if creates { world.create(GUILD) } else { world.assign(GUILD, 100, 1) };
            world.discord.script(second, [ScriptedResult::WaitForPermit]);
            let _operations = world.start();
            world.discord.started().await;
            world.until_state(first, OperationState::Succeeded).await;
            second
        });
        drop(local);
        world.store.orphan();
        let next = world.create(GUILD);
        let started = world.clock.now();
        LocalSet::new().block_on(&runtime, async {
            let _operations = world.start();
            world.until_done().await;
        });
        assert!(world.clock.now().since(started) < Duration::from_secs(1));
        let of_second = world.discord.executions().iter().filter(|execution| execution.id == second).count();
        assert_eq!((of_second, world.discord.happened(second)), (2, 1), "executed twice, sent once, never reconciled");
        assert_eq!(world.discord.sent().last(), Some(&next));
    }
}

#[test]
fn operation_cancelled_while_waiting_is_not_sent() {
    paused(async {
        let world = TestCluster::new();
        let (operations, _, second) = start_waiting(&world).await;
        let third = world.create(GUILD);
        operations.wake(QUEUE);
        let cancelled = world.store.cancel(second, world.clock.now()).await.unwrap();
        assert_eq!(cancelled, Some((OperationState::Cancelled, QUEUE)));
        operations.cancelled(second, QUEUE);
        // The permit is never granted.
        world.until_state(third, OperationState::Succeeded).await;
        assert_eq!(world.discord.happened(second), 0);
    });
}

#[test]
fn cancellation_without_notification_while_waiting_prevents_the_send() {
    paused(async {
        let world = TestCluster::new();
        let (_operations, _, second) = start_waiting(&world).await;
        let third = world.create(GUILD);
        world.store.cancel(second, world.clock.now()).await.unwrap();
        world.discord.resume();
        world.until_done().await;
        assert_eq!((world.state(second), world.discord.happened(second)), (OperationState::Cancelled, 0));
        assert_eq!(world.state(third), OperationState::Succeeded);
    });
}

#[test]
fn operation_paused_while_waiting_is_not_sent_until_resumed() {
    paused(async {
        let world = TestCluster::new();
        let (operations, _, second) = start_waiting(&world).await;
        let commits = world.store.commits();
        operations.pause(PauseTarget::Queue(QUEUE), true).await.unwrap();
        sleep(Duration::from_secs(60)).await;
        let row = world.store.row(second).stored;
        assert_eq!((row.state, row.attempts, world.store.commits()), (OperationState::Queued, 0, commits));
        assert_eq!(world.discord.happened(second), 0);
        operations.pause(PauseTarget::Queue(QUEUE), false).await.unwrap();
        world.until_state(second, OperationState::Succeeded).await;
        assert_eq!((world.store.row(second).stored.attempts, world.discord.happened(second)), (1, 1));
    });
}

#[test]
fn process_that_ends_does_not_wait_for_a_permit() {
    paused(async {
        let world = TestCluster::new();
        let (operations, _, second) = start_waiting(&world).await;
        let started = world.clock.now();
        assert!(operations.drain(Duration::from_secs(10)).await);
        assert!(world.clock.now().since(started) < Duration::from_secs(1));
        let row = world.store.row(second).stored;
        assert_eq!((row.state, row.intent, world.store.owner(QUEUE)), (OperationState::Queued, None, None));
        assert_eq!(world.discord.happened(second), 0);
    });
}

#[test]
fn deadline_that_passes_while_it_waits_ends_it_unsent() {
    paused(async {
        let world = TestCluster::new();
        let mut dated = world.operation(GUILD, OperationKind::CreateRole, &json!({ "name": "Mods" }));
        dated.deadline_at = Some(dated.created_at + Duration::from_secs(2));
        let dated = world.submit(dated);
        world.discord.script(dated, [ScriptedResult::WaitForPermit]);
        let _operations = world.start();
        world.discord.started().await;
        sleep(Duration::from_secs(3)).await;
        world.discord.resume();
        world.until_state(dated, OperationState::Dead).await;
        let row = world.store.row(dated).stored;
        assert_eq!((row.error.unwrap().class, row.intent), (FailureClass::Expired, None));
        assert_eq!(world.discord.happened(dated), 0);
    });
}

#[test]
fn lease_that_ends_while_it_waits_leaves_it_to_the_next_owner() {
    paused(async {
        let world = TestCluster::new();
        let (_operations, _, second) = start_waiting(&world).await;
        world.store.end_lease(QUEUE);
        world.discord.resume();
        world.until_state(second, OperationState::Succeeded).await;
        assert_eq!((world.discord.happened(second), world.store.row(second).stored.attempts), (1, 1));
    });
}
