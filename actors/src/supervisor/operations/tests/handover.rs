//! Queues that move from one process to another.

use std::time::Duration;

use guildhall_core::operation::{FailureClass, OperationKind, OperationState, Queue};
use serde_json::json;
use tokio::time::{Instant, sleep};

use crate::ports::HoldScope;
use crate::testing::operations::{Fault, ScriptedResult, TestCluster, paused};

const GUILD: u64 = 7;
const QUEUE: Queue = Queue::Guild(GUILD);

#[test]
fn release_of_a_queue_is_retried_until_the_store_accepts_it() {
    paused(async {
        let world = TestCluster::new();
        let id = world.create(GUILD);
        world
            .discord
            .script(id, [ScriptedResult::Hold { wait: Some(Duration::from_secs(10)), hold: HoldScope::Route }]);
        let (first, _second) = (world.start(), world.start());
        world.until_state(id, OperationState::Delayed).await;
        assert_eq!(world.store.owner(QUEUE), Some(1));
        world.store.assign(QUEUE, 2);
        let next = world.faults.calls();
        // Both poll once a second, and the release is retried ever less often.
        world.faults.plan((next..next + 60).map(|call| (call, Fault::Refuse)));
        first.members_changed();
        world.until_done().await;
        assert_eq!((world.store.owner(QUEUE), world.discord.happened(id)), (Some(2), 1));
    });
}

#[test]
fn guild_stops_after_a_slow_store_although_work_is_due_soon() {
    paused(async {
        let world = TestCluster::new();
        let first = world.create(GUILD);
        world.discord.script(first, [ScriptedResult::Wait]);
        let mut soon = world.operation(GUILD, OperationKind::CreateRole, &json!({ "name": "Mods" }));
        soon.eligible_at = soon.created_at + Duration::from_secs(4);
        let soon = world.submit(soon);
        let operations = world.start();
        world.discord.started().await;
        let next = world.faults.calls();
        world.faults.plan((next..next + 3).map(|call| (call, Fault::Refuse)));
        world.discord.resume();
        sleep(Duration::from_millis(10)).await;
        assert_eq!(world.state(first), OperationState::Running, "its outcome is not stored yet");
        world.store.assign(QUEUE, 2);
        operations.members_changed();
        let _other = world.start();
        world.until_done().await;
        assert_eq!((world.store.owner(QUEUE), world.discord.sent()), (Some(2), vec![first, soon]));
    });
}

#[test]
fn queue_assigned_during_a_claim_is_found_at_once() {
    paused(async {
        let mut world = TestCluster::new();
        world.config.poll_interval = Duration::from_secs(600);
        let operations = world.start();
        // After its first poll.
        sleep(Duration::from_millis(10)).await;
        let other = Queue::Guild(GUILD + 1);
        world.store.assign(other, 2);
        world.create(GUILD + 1);
        world.create(GUILD);
        world.faults.stall_claim();
        operations.wake(QUEUE);
        world.faults.stalled().await;
        world.store.assign(other, 1);
        operations.members_changed();
        sleep(Duration::from_millis(10)).await;
        world.faults.resume();
        let started = Instant::now();
        world.until_done().await;
        assert!(started.elapsed() < Duration::from_secs(60), "the next poll is ten minutes away");
        assert_eq!(world.store.owner(other), Some(1));
    });
}

#[test]
fn reconcile_without_a_lease_is_left_to_the_next_owner() {
    paused(async {
        let world = TestCluster::new();
        let id = world.create(GUILD);
        world.discord.script(id, [ScriptedResult::Fail(FailureClass::Ambiguous)]);
        let _operations = world.start();
        world.until_state(id, OperationState::Reconciling).await;
        world.store.end_lease(QUEUE);
        world.until_done().await;
        assert_eq!((world.state(id), world.discord.happened(id)), (OperationState::Succeeded, 1));
    });
}

#[test]
fn shutdown_does_not_wait_for_a_failing_store() {
    paused(async {
        let world = TestCluster::new();
        let id = world.create(GUILD);
        world
            .discord
            .script(id, [ScriptedResult::Hold { wait: Some(Duration::from_secs(600)), hold: HoldScope::Route }]);
        let operations = world.start();
        world.until_state(id, OperationState::Delayed).await;
        let next = world.faults.calls();
        world.faults.plan((next..next + 1_000).map(|call| (call, Fault::Refuse)));
        assert!(operations.drain(Duration::from_secs(5)).await);
        assert!(world.store.is_owned(QUEUE));
    });
}
