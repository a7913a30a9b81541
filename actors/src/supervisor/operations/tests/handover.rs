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
fn a_queue_that_the_store_does_not_take_back_for_a_while_is_taken_back_when_it_does() {
    paused(async {
        let world = TestCluster::new();
        let id = world.create(GUILD);
        world
            .discord
            .script(id, [ScriptedResult::Hold { wait: Some(Duration::from_secs(10)), hold: HoldScope::Route }]);
        let (first, _second) = (world.start(), world.start());
        world.until_state(id, OperationState::Delayed).await;
        assert_eq!(world.store.owner(QUEUE), Some(1));
        world.store.give(QUEUE, 2);
        let next = world.chaos.calls();
        // Both poll once a second, and the release is retried ever less often.
        world.chaos.plan((next..next + 60).map(|call| (call, Fault::Refuse)));
        first.members_changed();
        world.until_done().await;
        assert_eq!((world.store.owner(QUEUE), world.discord.happened(id)), (Some(2), 1));
    });
}

#[test]
fn a_guild_that_is_told_to_leave_while_the_store_takes_its_time_leaves_although_something_is_due_soon() {
    paused(async {
        let world = TestCluster::new();
        let first = world.create(GUILD);
        world.discord.script(first, [ScriptedResult::Wait]);
        let mut soon = world.operation(GUILD, OperationKind::CreateRole, &json!({ "name": "Mods" }));
        soon.eligible_at = soon.created_at + Duration::from_secs(4);
        let soon = world.submit(soon);
        let operations = world.start();
        world.discord.began().await;
        let next = world.chaos.calls();
        world.chaos.plan((next..next + 3).map(|call| (call, Fault::Refuse)));
        world.discord.go_on();
        sleep(Duration::from_millis(10)).await;
        assert_eq!(world.state(first), OperationState::Running, "its outcome is not stored yet");
        world.store.give(QUEUE, 2);
        operations.members_changed();
        let _other = world.start();
        world.until_done().await;
        assert_eq!((world.store.owner(QUEUE), world.discord.sent()), (Some(2), vec![first, soon]));
    });
}

#[test]
fn a_queue_that_comes_over_while_another_is_taken_is_found_at_once() {
    paused(async {
        let mut world = TestCluster::new();
        world.config.poll = Duration::from_secs(600);
        let operations = world.start();
        // After its first poll.
        sleep(Duration::from_millis(10)).await;
        let other = Queue::Guild(GUILD + 1);
        world.store.give(other, 2);
        world.create(GUILD + 1);
        world.create(GUILD);
        world.chaos.stall_claim();
        operations.wake(QUEUE);
        world.chaos.stalled().await;
        world.store.give(other, 1);
        operations.members_changed();
        sleep(Duration::from_millis(10)).await;
        world.chaos.go_on();
        let began = Instant::now();
        world.until_done().await;
        assert!(began.elapsed() < Duration::from_secs(60), "the next poll is ten minutes away");
        assert_eq!(world.store.owner(other), Some(1));
    });
}

#[test]
fn one_that_is_to_be_looked_for_without_the_right_to_is_looked_for_by_whoever_has_it_next() {
    paused(async {
        let world = TestCluster::new();
        let id = world.create(GUILD);
        world.discord.script(id, [ScriptedResult::Fail(FailureClass::Ambiguous)]);
        let _operations = world.start();
        world.until_state(id, OperationState::Reconciling).await;
        world.store.end_right(QUEUE);
        world.until_done().await;
        assert_eq!((world.state(id), world.discord.happened(id)), (OperationState::Succeeded, 1));
    });
}

#[test]
fn a_process_that_ends_does_not_wait_for_a_store_that_takes_nothing_back() {
    paused(async {
        let world = TestCluster::new();
        let id = world.create(GUILD);
        world
            .discord
            .script(id, [ScriptedResult::Hold { wait: Some(Duration::from_secs(600)), hold: HoldScope::Route }]);
        let operations = world.start();
        world.until_state(id, OperationState::Delayed).await;
        let next = world.chaos.calls();
        world.chaos.plan((next..next + 1_000).map(|call| (call, Fault::Refuse)));
        assert!(operations.drain(Duration::from_secs(5)).await);
        assert!(world.store.is_owned(QUEUE));
    });
}
