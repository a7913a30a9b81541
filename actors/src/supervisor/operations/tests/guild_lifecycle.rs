//! Which queues are active, when, and how much runs at once.

use std::time::Duration;

use guildhall_core::lane::Lane;
use guildhall_core::operation::{OperationId, OperationKind, OperationState, Queue, QueueKey};
use serde_json::json;
use tokio::time::{Instant, sleep};

use crate::ports::{HoldScope, OperationStore as _, PauseTarget};
use crate::testing::operations::{Fault, ScriptedResult, TestCluster, paused};

const GUILD: u64 = 7;
const QUEUE: Queue = Queue::Guild(GUILD);

/// The queue of an interaction.
fn interaction_queue(id: u64) -> Queue {
    QueueKey::interaction(id).queue("default")
}

fn reply(world: &TestCluster, interaction: u64) -> OperationId {
    let payload = json!({ "interaction_id": interaction.to_string(), "interaction_token": "aW50ZXJhY3Rpb24", "ephemeral": false });
    let mut operation = world.operation(GUILD, OperationKind::DeferReply, &payload);
    (operation.queue, operation.lane) = (QueueKey::interaction(interaction), Lane::Interactive);
    // Each has its own guild: the fake Discord rejects two concurrent operations in one.
    operation.guild = Some(interaction);
    world.submit(operation)
}

#[test]
fn idle_guild_stops_and_restarts_when_woken() {
    paused(async {
        let world = TestCluster::new();
        let first = world.create(GUILD);
        let operations = world.start();
        world.until_state(first, OperationState::Succeeded).await;
        assert_eq!(operations.observe().await.unwrap().active, 1);
        world.until("the guild stops", || !world.store.is_owned(QUEUE)).await;
        let idle = world.clock.now().since(world.store.row(first).stored.operation.created_at);
        assert!(idle >= world.config.idle_after);
        sleep(Duration::from_millis(10)).await;
        assert_eq!(operations.observe().await.unwrap().active, 0);
        let second = world.create(GUILD);
        operations.wake(QUEUE);
        world.until_state(second, OperationState::Succeeded).await;
    });
}

#[test]
fn wakeup_of_a_stopping_guild_is_not_lost() {
    paused(async {
        let mut world = TestCluster::new();
        (world.config.idle_after, world.config.poll_interval) = (Duration::from_secs(2), Duration::from_secs(10));
        let first = world.create(GUILD);
        let operations = world.start();
        world.until_state(first, OperationState::Succeeded).await;
        world.faults.stall_release();
        world.faults.stalled().await;
        let second = world.create(GUILD);
        let started = Instant::now();
        operations.wake(QUEUE);
        sleep(Duration::from_millis(100)).await;
        assert_eq!(world.state(second), OperationState::Queued, "the guild is stopping");
        world.faults.resume();
        world.until_state(second, OperationState::Succeeded).await;
        assert!(started.elapsed() <= Duration::from_millis(200), "{:?}", started.elapsed());
    });
}

#[test]
fn guild_woken_during_a_stop_request_stays() {
    paused(async {
        let mut world = TestCluster::new();
        (world.config.idle_after, world.config.poll_interval) = (Duration::from_secs(2), Duration::from_secs(10));
        let first = world.create(GUILD);
        let operations = world.start();
        world.until_state(first, OperationState::Succeeded).await;
        // It is woken at each point of a poll interval, and sometimes the stop was already requested.
        for _ in 0..200 {
            let id = world.create(GUILD);
            operations.wake(QUEUE);
            let started = Instant::now();
            world.until_state(id, OperationState::Succeeded).await;
            assert!(started.elapsed() <= Duration::from_millis(200), "{:?}", started.elapsed());
            sleep(Duration::from_millis(2_331)).await;
        }
    });
}

#[test]
fn idle_guilds_make_room_and_all_get_their_turn() {
    paused(async {
        let mut world = TestCluster::new();
        world.config.max_active = 3;
        let ids: Vec<_> = (1..=20).map(|guild| world.create(guild)).collect();
        let operations = world.start();
        let started = Instant::now();
        let mut max = 0;
        while world.store.unfinished() > 0 {
            max = max.max(operations.observe().await.unwrap().active);
            sleep(Duration::from_millis(20)).await;
        }
        assert_eq!(max, 3);
        assert!(started.elapsed() < Duration::from_secs(30), "{:?}", started.elapsed());
        assert!(ids.iter().all(|id| world.state(*id) == OperationState::Succeeded));
    });
}

#[test]
fn woken_guilds_wait_for_room_and_are_not_forgotten() {
    paused(async {
        let mut world = TestCluster::new();
        world.config.max_active = 2;
        let operations = world.start();
        sleep(Duration::from_millis(10)).await;
        let ids: Vec<_> = (1..=10)
            .map(|guild| {
                let id = world.create(guild);
                operations.wake(Queue::Guild(guild));
                id
            })
            .collect();
        world.until_done().await;
        assert!(ids.iter().all(|id| world.discord.happened(*id) == 1));
        assert_eq!(operations.observe().await.unwrap().waiting, 0);
    });
}

#[test]
fn interactions_do_not_wait_for_room_nor_for_other_guilds() {
    paused(async {
        let mut world = TestCluster::new();
        (world.config.max_active, world.config.max_running, world.config.per_second) = (1, 1, 1);
        let busy = world.create(1);
        world.discord.script(busy, [ScriptedResult::Wait]);
        let operations = world.start();
        world.discord.started().await;
        let started = Instant::now();
        let replies: Vec<_> = (100..110)
            .map(|interaction| {
                let id = reply(&world, interaction);
                operations.wake(interaction_queue(interaction));
                id
            })
            .collect();
        world
            .until("all are answered", || replies.iter().all(|id| world.state(*id) == OperationState::Succeeded))
            .await;
        assert!(started.elapsed() <= Duration::from_millis(100), "{:?}", started.elapsed());
        world.until("the queue is released", || !world.store.is_owned(interaction_queue(105))).await;
        assert_eq!(world.state(busy), OperationState::Running);
        world.discord.resume();
        world.until_done().await;
    });
}

#[test]
fn concurrency_is_limited_and_a_long_queue_does_not_starve_others() {
    paused(async {
        let mut world = TestCluster::new();
        world.config.max_running = 1;
        let many: Vec<_> = (0..10).map(|_| world.create(1)).collect();
        world.discord.script(many[0], [ScriptedResult::Wait]);
        let _operations = world.start();
        world.discord.started().await;
        let one = world.create(2);
        sleep(Duration::from_secs(3)).await;
        assert_eq!(world.state(one), OperationState::Queued);
        world.discord.resume();
        world.until_done().await;
        let position = world.discord.sent().iter().position(|id| *id == one).unwrap();
        assert!(position <= 2, "it was executed as number {position}");
    });
}

#[test]
fn starts_per_second_are_limited() {
    paused(async {
        let mut world = TestCluster::new();
        world.config.per_second = 10;
        for n in 0..20 {
            world.create(n % 4 + 1);
        }
        let _operations = world.start();
        let started = Instant::now();
        world.until_done().await;
        assert!(started.elapsed() >= Duration::from_millis(1_900), "{:?}", started.elapsed());
    });
}

#[test]
fn paused_queue_starts_nothing_until_resumed() {
    paused(async {
        let world = TestCluster::new();
        let (first, second) = (world.create(GUILD), world.create(GUILD));
        let other = world.create(8);
        world.discord.script(first, [ScriptedResult::Wait]);
        let operations = world.start();
        world.discord.started().await;
        operations.pause(PauseTarget::Queue(QUEUE), true).await.unwrap();
        sleep(Duration::from_millis(10)).await;
        world.discord.resume();
        sleep(Duration::from_secs(20)).await;
        assert_eq!(
            (world.state(first), world.state(second)),
            (OperationState::Succeeded, OperationState::Queued),
            "the running operation has finished"
        );
        assert_eq!(world.state(other), OperationState::Succeeded);
        assert!(operations.observe_one(QUEUE).await.unwrap().paused);
        operations.pause(PauseTarget::Queue(QUEUE), false).await.unwrap();
        world.until_state(second, OperationState::Succeeded).await;
        operations.pause(PauseTarget::All, true).await.unwrap();
        let third = world.create(GUILD);
        operations.wake(QUEUE);
        let fourth = world.create(9);
        operations.wake(Queue::Guild(9));
        sleep(Duration::from_secs(20)).await;
        assert_eq!((world.state(third), world.state(fourth)), (OperationState::Queued, OperationState::Queued));
        operations.pause(PauseTarget::All, false).await.unwrap();
        world.until_done().await;
    });
}

#[test]
fn pause_by_another_process_is_noticed() {
    paused(async {
        let world = TestCluster::new();
        let first = world.create(GUILD);
        let operations = world.start();
        world.until_state(first, OperationState::Succeeded).await;
        world.store.pause(PauseTarget::Queue(QUEUE), true).await.unwrap();
        sleep(Duration::from_secs(6)).await;
        let second = world.create(GUILD);
        operations.wake(QUEUE);
        sleep(Duration::from_secs(6)).await;
        assert_eq!(world.state(second), OperationState::Queued);
    });
}

#[test]
fn drain_finishes_running_operations_and_releases_all_queues() {
    paused(async {
        let world = TestCluster::new();
        let (first, second) = (world.create(GUILD), world.create(GUILD));
        let held = world.create(8);
        world.discord.script(first, [ScriptedResult::Wait]);
        world
            .discord
            .script(held, [ScriptedResult::Hold { wait: Some(Duration::from_secs(3_000)), hold: HoldScope::All }]);
        let operations = world.start();
        world.discord.started().await;
        world.until_state(held, OperationState::Delayed).await;
        assert!(!operations.drain(Duration::from_secs(1)).await, "one is still running");
        world.discord.resume();
        assert!(operations.drain(Duration::from_secs(1)).await);
        assert_eq!((world.state(first), world.state(second)), (OperationState::Succeeded, OperationState::Queued));
        assert!(!world.store.is_owned(QUEUE) && !world.store.is_owned(Queue::Guild(8)));
        let _successor = world.start();
        world.until_done().await;
        assert_eq!(world.discord.sent(), [first, second, held]);
    });
}

#[test]
fn later_work_runs_when_due_and_a_failing_store_is_retried() {
    paused(async {
        let world = TestCluster::new();
        let mut later = world.operation(GUILD, OperationKind::CreateRole, &json!({ "name": "Mods" }));
        later.eligible_at = later.created_at + Duration::from_millis(7_300);
        let later = world.submit(later);
        world.faults.plan((0..4).map(|call| (call, Fault::Refuse)));
        let _operations = world.start();
        sleep(Duration::from_millis(7_250)).await;
        assert_eq!(world.state(later), OperationState::Scheduled);
        sleep(Duration::from_millis(100)).await;
        assert_eq!(world.state(later), OperationState::Succeeded);
    });
}
