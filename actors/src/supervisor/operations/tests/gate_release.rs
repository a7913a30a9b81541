//! Operations that the gate delayed are due as soon as it changes.

use std::time::Duration;

use guildhall_core::operation::{GateCondition, OperationId, OperationState, Queue};
use guildhall_core::time::UnixMs;
use tokio::runtime::Builder;
use tokio::task::LocalSet;
use tokio::time::sleep;

use crate::ports::{HoldScope, PauseTarget};
use crate::supervisor::OperationsHandle;
use crate::testing::operations::{ScriptedResult, ScriptedSearch, TestCluster, paused};

const GUILD: u64 = 7;
const QUEUE: Queue = Queue::Guild(GUILD);
const HOUR: Duration = Duration::from_secs(3_600);
const BREAKER_OPEN: &str = "discord:42: breaker_open";

fn breaker() -> GateCondition {
    GateCondition::Breaker("discord:42".to_owned())
}

/// Each reason of the gate, its text, and the condition that releases it.
fn gate_refusals() -> [(&'static str, &'static str, GateCondition); 9] {
    [
        ("breaker_open", BREAKER_OPEN, breaker()),
        ("breaker_forced_open", "discord:42: breaker_forced_open", breaker()),
        ("breaker_half_open", "discord:42: breaker_half_open", breaker()),
        ("blocked", "discord: blocked", GateCondition::Breaker("discord".to_owned())),
        ("unauthorized", "Discord responded with 401", GateCondition::Token),
        ("invalid_requests", "invalid requests: invalid_requests", GateCondition::InvalidRequests),
        ("invalid_requests_key_share", "key k1 has used 9 of the 9", GateCondition::InvalidRequests),
        ("global_limit", "no permit: global_limit", GateCondition::GlobalLimit),
        ("rate_limited_global", "Discord responded with 429", GateCondition::GlobalLimit),
    ]
}

fn gate_script(reason: &'static str, text: &'static str, hold: HoldScope) -> ScriptedResult {
    ScriptedResult::Gate { wait: HOUR, hold, reason, text }
}

/// The gate delays the first for an hour, and all behind it wait.
async fn create_delayed(world: &TestCluster, operations: &OperationsHandle, script: ScriptedResult) -> OperationId {
    let id = world.create(GUILD);
    world.discord.script(id, [script]);
    operations.wake(QUEUE);
    world.until_state(id, OperationState::Delayed).await;
    id
}

fn is_soon(world: &TestCluster, since: UnixMs) -> bool {
    world.clock.now().since(since) < Duration::from_secs(5)
}

#[test]
fn each_gate_condition_releases_what_it_delayed() {
    for (reason, text, condition) in gate_refusals() {
        paused(async {
            let world = TestCluster::new();
            let operations = world.start();
            let first = create_delayed(&world, &operations, gate_script(reason, text, HoldScope::All)).await;
            let second = world.create(GUILD);
            let released = world.clock.now();
            operations.release(condition.clone());
            world.until_done().await;
            assert!(is_soon(&world, released), "{reason}");
            assert_eq!(world.discord.sent(), [first, second], "{reason}");
            let row = world.store.row(first);
            assert_eq!((row.stored.attempts, row.stored.delays), (1, 1), "{reason}");
        });
    }
}

#[test]
fn unrelated_conditions_release_nothing() {
    let own = [("route_limit", "no permit: route_limit"), ("rate_limited", "Discord responded with 429")];
    let of_gate = [("breaker_open", BREAKER_OPEN)];
    for (reason, text) in own.into_iter().chain(of_gate) {
        paused(async {
            let world = TestCluster::new();
            let operations = world.start();
            let id = create_delayed(&world, &operations, gate_script(reason, text, HoldScope::All)).await;
            let due = world.store.row(id).stored.operation.eligible_at;
            for other in [GateCondition::GlobalLimit, GateCondition::Token, GateCondition::InvalidRequests] {
                operations.release(other);
            }
            operations.release(GateCondition::Breaker("discord:43".to_owned()));
            sleep(Duration::from_secs(60)).await;
            let stored = world.store.row(id).stored;
            assert_eq!((stored.state, stored.operation.eligible_at), (OperationState::Delayed, due), "{reason}");
        });
    }
}

#[test]
fn parked_operations_are_released_in_their_order() {
    paused(async {
        let world = TestCluster::new();
        let operations = world.start();
        let route = "discord:42/PUT /guilds/{id}: breaker_open";
        let released_by = GateCondition::Breaker("discord:42/PUT /guilds/{id}".to_owned());
        let mut ids = Vec::new();
        for user in 1..=4 {
            let id = world.assign(GUILD, user, 10 + user);
            world.discord.script(id, [gate_script("breaker_open", route, HoldScope::Route)]);
            ids.push(id);
        }
        operations.wake(QUEUE);
        world.until("all are parked", || ids.iter().all(|id| world.store.row(*id).stored.parked)).await;
        assert!(ids.iter().all(|id| world.store.row(*id).stored.error.is_some()), "the reason of the delay is shown");
        let released = world.clock.now();
        operations.release(released_by);
        world.until_done().await;
        assert!(is_soon(&world, released));
        assert_eq!(world.discord.sent(), ids);
    });
}

#[test]
fn released_operation_that_the_gate_still_refuses_waits_again() {
    paused(async {
        let world = TestCluster::new();
        let operations = world.start();
        let id = create_delayed(&world, &operations, gate_script("breaker_open", BREAKER_OPEN, HoldScope::All)).await;
        world.discord.script(
            id,
            [ScriptedResult::Gate {
                wait: Duration::from_secs(7_200),
                hold: HoldScope::All,
                reason: "blocked",
                text: "discord: blocked",
            }],
        );
        operations.release(breaker());
        world.until("the gate was checked again", || world.store.row(id).stored.delays == 2).await;
        let stored = world.store.row(id).stored;
        assert_eq!((stored.state, stored.attempts), (OperationState::Delayed, 0));
        assert!(stored.operation.eligible_at.since(world.clock.now()) > HOUR);
        // The condition is that of its last refusal.
        operations.release(breaker());
        sleep(Duration::from_secs(60)).await;
        assert_eq!(world.store.row(id).stored.delays, 2);
        operations.release(GateCondition::Breaker("discord".to_owned()));
        world.until_state(id, OperationState::Succeeded).await;
    });
}

#[test]
fn release_that_overtakes_a_refusal_is_not_missed() {
    for (condition, delays) in [(breaker(), 2), (GateCondition::GlobalLimit, 1)] {
        paused(async {
            let world = TestCluster::new();
            let operations = world.start();
            let id = world.create(GUILD);
            let (hold, reason, text) = (HoldScope::All, "breaker_open", BREAKER_OPEN);
            world.discord.script(
                id,
                [ScriptedResult::GateLate { wait: HOUR, hold, reason, text }, gate_script(reason, text, hold)],
            );
            operations.wake(QUEUE);
            world.discord.started().await;
            operations.release(condition.clone());
            // The guild receives the release before the refusal.
            sleep(Duration::from_millis(100)).await;
            world.discord.resume();
            sleep(Duration::from_secs(60)).await;
            // A release counts once: if refused again, the operation waits.
            let stored = world.store.row(id).stored;
            assert_eq!(
                (stored.state, stored.attempts, stored.delays),
                (OperationState::Delayed, 0, delays),
                "{condition}"
            );
            assert!(stored.operation.eligible_at.since(world.clock.now()) > HOUR / 2);
        });
    }
}

#[test]
fn release_resumes_a_delayed_search_but_not_its_own_wait() {
    paused(async {
        let world = TestCluster::new();
        let operations = world.start();
        let id = world.create(GUILD);
        world.discord.script(id, [ScriptedResult::DoWithLostResponse]);
        world.discord.script_search(id, [ScriptedSearch::Gate(HOUR, BREAKER_OPEN)]);
        operations.wake(QUEUE);
        world.until_state(id, OperationState::Reconciling).await;
        let waits = || world.store.row(id).stored.operation.eligible_at.since(world.clock.now());
        // The call may still arrive: this wait belongs to the operation.
        operations.release(breaker());
        sleep(Duration::from_millis(100)).await;
        assert!(waits() > Duration::from_secs(10));
        world.until("the search is delayed", || waits() > HOUR / 2).await;
        let released = world.clock.now();
        operations.release(breaker());
        world.until_state(id, OperationState::Succeeded).await;
        assert!(is_soon(&world, released));
        assert_eq!(world.discord.happened(id), 1);
    });
}

#[test]
fn queue_without_an_owner_is_claimed_when_released() {
    paused(async {
        let world = TestCluster::new();
        let operations = world.start();
        let id = create_delayed(&world, &operations, gate_script("blocked", "discord: blocked", HoldScope::All)).await;
        world.until("its guild stops", || !world.store.is_owned(QUEUE)).await;
        assert_eq!(world.state(id), OperationState::Delayed);
        let released = world.clock.now();
        operations.release(GateCondition::Breaker("discord".to_owned()));
        world.until_state(id, OperationState::Succeeded).await;
        assert!(is_soon(&world, released));
    });
}

#[test]
fn resumed_guild_checks_the_gate_again() {
    paused(async {
        let world = TestCluster::new();
        let operations = world.start();
        let id = create_delayed(&world, &operations, gate_script("breaker_open", BREAKER_OPEN, HoldScope::All)).await;
        operations.pause(PauseTarget::Queue(QUEUE), true).await.unwrap();
        world.until("it is paused", || world.store.row(id).stored.delays == 1).await;
        sleep(Duration::from_secs(10)).await;
        let resumed = world.clock.now();
        operations.pause(PauseTarget::Queue(QUEUE), false).await.unwrap();
        world.until_state(id, OperationState::Succeeded).await;
        assert!(is_soon(&world, resumed));
    });
}

/// A process ends right after it received a release, or without having received it; the next one checks the gate again.
#[test]
fn crash_after_a_release_does_not_lose_it() {
    for is_released in [true, false] {
        let runtime = Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        let _guard = runtime.enter();
        let world = TestCluster::new();
        let local = LocalSet::new();
        let id = local.block_on(&runtime, async {
            let operations = world.start();
            let id =
                create_delayed(&world, &operations, gate_script("breaker_open", BREAKER_OPEN, HoldScope::All)).await;
            if is_released {
                operations.release(breaker());
            }
            id
        });
        drop(local);
        world.store.orphan();
        assert_eq!(world.state(id), OperationState::Delayed);
        LocalSet::new().block_on(&runtime, async {
            let restarted = world.clock.now();
            let _operations = world.start();
            world.until_state(id, OperationState::Succeeded).await;
            assert!(is_soon(&world, restarted));
        });
    }
}
