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
fn of_interaction(id: u64) -> Queue {
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
fn a_guild_that_has_nothing_to_do_leaves_and_comes_back_when_something_is_new() {
    paused(async {
        let world = TestCluster::new();
        let first = world.create(GUILD);
        let operations = world.start();
        world.until_state(first, OperationState::Succeeded).await;
        assert_eq!(operations.observe().await.unwrap().active, 1);
        world.until("the guild stops", || !world.store.is_owned(QUEUE)).await;
        let rested = world.clock.now().since(world.store.row(first).stored.operation.created_at);
        assert!(rested >= world.config.idle_after);
        sleep(Duration::from_millis(10)).await;
        assert_eq!(operations.observe().await.unwrap().active, 0);
        let second = world.create(GUILD);
        operations.wake(QUEUE);
        world.until_state(second, OperationState::Succeeded).await;
    });
}

#[test]
fn a_wake_that_comes_while_a_guild_leaves_is_not_lost() {
    paused(async {
        let mut world = TestCluster::new();
        (world.config.idle_after, world.config.poll) = (Duration::from_secs(2), Duration::from_secs(10));
        let first = world.create(GUILD);
        let operations = world.start();
        world.until_state(first, OperationState::Succeeded).await;
        world.chaos.stall_release();
        world.chaos.stalled().await;
        let second = world.create(GUILD);
        let began = Instant::now();
        operations.wake(QUEUE);
        sleep(Duration::from_millis(100)).await;
        assert_eq!(world.state(second), OperationState::Queued, "the guild is stopping");
        world.chaos.go_on();
        world.until_state(second, OperationState::Succeeded).await;
        assert!(began.elapsed() <= Duration::from_millis(200), "{:?}", began.elapsed());
    });
}

#[test]
fn a_guild_that_is_woken_when_it_is_asked_to_leave_stays() {
    paused(async {
        let mut world = TestCluster::new();
        (world.config.idle_after, world.config.poll) = (Duration::from_secs(2), Duration::from_secs(10));
        let first = world.create(GUILD);
        let operations = world.start();
        world.until_state(first, OperationState::Succeeded).await;
        // It is woken at each point of a poll interval, and sometimes the stop was already requested.
        for _ in 0..200 {
            let id = world.create(GUILD);
            operations.wake(QUEUE);
            let began = Instant::now();
            world.until_state(id, OperationState::Succeeded).await;
            assert!(began.elapsed() <= Duration::from_millis(200), "{:?}", began.elapsed());
            sleep(Duration::from_millis(2_331)).await;
        }
    });
}

#[test]
fn where_there_is_no_room_those_who_rest_make_some_and_all_get_their_turn() {
    paused(async {
        let mut world = TestCluster::new();
        world.config.most_active = 3;
        let ids: Vec<_> = (1..=20).map(|guild| world.create(guild)).collect();
        let operations = world.start();
        let began = Instant::now();
        let mut most = 0;
        while world.store.unfinished() > 0 {
            most = most.max(operations.observe().await.unwrap().active);
            sleep(Duration::from_millis(20)).await;
        }
        assert_eq!(most, 3);
        assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
        assert!(ids.iter().all(|id| world.state(*id) == OperationState::Succeeded));
    });
}

#[test]
fn guilds_that_wake_up_wait_for_room_and_are_not_forgotten() {
    paused(async {
        let mut world = TestCluster::new();
        world.config.most_active = 2;
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
        (world.config.most_active, world.config.max_running, world.config.per_second) = (1, 1, 1);
        let busy = world.create(1);
        world.discord.script(busy, [ScriptedResult::Wait]);
        let operations = world.start();
        world.discord.began().await;
        let began = Instant::now();
        let answers: Vec<_> = (100..110)
            .map(|interaction| {
                let id = reply(&world, interaction);
                operations.wake(of_interaction(interaction));
                id
            })
            .collect();
        world
            .until("all are answered", || answers.iter().all(|id| world.state(*id) == OperationState::Succeeded))
            .await;
        assert!(began.elapsed() <= Duration::from_millis(100), "{:?}", began.elapsed());
        world.until("the queue is released", || !world.store.is_owned(of_interaction(105))).await;
        assert_eq!(world.state(busy), OperationState::Running);
        world.discord.go_on();
        world.until_done().await;
    });
}

#[test]
fn no_more_run_at_once_than_may_and_those_who_wait_are_not_kept_waiting_by_one_with_much_to_do() {
    paused(async {
        let mut world = TestCluster::new();
        world.config.max_running = 1;
        let many: Vec<_> = (0..10).map(|_| world.create(1)).collect();
        world.discord.script(many[0], [ScriptedResult::Wait]);
        let _operations = world.start();
        world.discord.began().await;
        let one = world.create(2);
        sleep(Duration::from_secs(3)).await;
        assert_eq!(world.state(one), OperationState::Queued);
        world.discord.go_on();
        world.until_done().await;
        let place = world.discord.sent().iter().position(|id| *id == one).unwrap();
        assert!(place <= 2, "it was executed as number {place}");
    });
}

#[test]
fn no_second_has_more_starts_than_it_may() {
    paused(async {
        let mut world = TestCluster::new();
        world.config.per_second = 10;
        for n in 0..20 {
            world.create(n % 4 + 1);
        }
        let _operations = world.start();
        let began = Instant::now();
        world.until_done().await;
        assert!(began.elapsed() >= Duration::from_millis(1_900), "{:?}", began.elapsed());
    });
}

#[test]
fn a_paused_queue_starts_nothing_and_goes_on_when_it_may() {
    paused(async {
        let world = TestCluster::new();
        let (first, second) = (world.create(GUILD), world.create(GUILD));
        let other = world.create(8);
        world.discord.script(first, [ScriptedResult::Wait]);
        let operations = world.start();
        world.discord.began().await;
        operations.pause(PauseTarget::Queue(QUEUE), true).await.unwrap();
        sleep(Duration::from_millis(10)).await;
        world.discord.go_on();
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
fn a_pause_that_another_process_was_told_of_is_found_out() {
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
fn at_the_end_what_runs_is_finished_nothing_more_is_started_and_every_queue_is_given_back() {
    paused(async {
        let world = TestCluster::new();
        let (first, second) = (world.create(GUILD), world.create(GUILD));
        let held = world.create(8);
        world.discord.script(first, [ScriptedResult::Wait]);
        world
            .discord
            .script(held, [ScriptedResult::Hold { wait: Some(Duration::from_secs(3_000)), hold: HoldScope::All }]);
        let operations = world.start();
        world.discord.began().await;
        world.until_state(held, OperationState::Delayed).await;
        assert!(!operations.drain(Duration::from_secs(1)).await, "one is still running");
        world.discord.go_on();
        assert!(operations.drain(Duration::from_secs(1)).await);
        assert_eq!((world.state(first), world.state(second)), (OperationState::Succeeded, OperationState::Queued));
        assert!(!world.store.is_owned(QUEUE) && !world.store.is_owned(Queue::Guild(8)));
        let _successor = world.start();
        world.until_done().await;
        assert_eq!(world.discord.sent(), [first, second, held]);
    });
}

#[test]
fn what_is_due_later_is_taken_up_then_and_a_store_that_does_not_answer_is_asked_again() {
    paused(async {
        let world = TestCluster::new();
        let mut later = world.operation(GUILD, OperationKind::CreateRole, &json!({ "name": "Mods" }));
        later.eligible_at = later.created_at + Duration::from_millis(7_300);
        let later = world.submit(later);
        world.chaos.plan((0..4).map(|call| (call, Fault::Refuse)));
        let _operations = world.start();
        sleep(Duration::from_millis(7_250)).await;
        assert_eq!(world.state(later), OperationState::Scheduled);
        sleep(Duration::from_millis(100)).await;
        assert_eq!(world.state(later), OperationState::Succeeded);
    });
}
