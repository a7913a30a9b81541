//! Processes end at any moment, stores fail, guilds crash: nothing is lost, nothing is done twice.

use std::time::Duration;

use guildhall_core::operation::{FailureClass, OperationId, OperationKind, OperationState, Queue};
use proptest::prelude::*;
use serde_json::json;
use tokio::runtime::{Builder, Runtime};
use tokio::task::LocalSet;

use crate::ports::{HoldScope, NewOperation, OperationStore, PauseTarget};
use crate::supervisor::OperationsHandle;
use crate::testing::operations::{Fault, ScriptedResult, ScriptedSearch, TestCluster, paused};

const GUILD: u64 = 7;

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_time().start_paused(true).build().unwrap()
}

/// Runs processes one after the other, each until it is killed, until everything is finished. Returns their number.
fn run_to_end(runtime: &Runtime, world: &TestCluster) -> usize {
    for process in 1.. {
        assert!(process < 100, "operations do not finish");
        let local = LocalSet::new();
        let killed = local.block_on(runtime, async {
            let _operations = world.start();
            tokio::select! {
                () = world.until_done() => false,
                () = world.faults.killed() => true,
            }
        });
        // Everything that it had in flight ends with it.
        drop(local);
        if !killed {
            return process;
        }
        world.store.orphan();
    }
    unreachable!("the loop ends by itself");
}

/// A cluster in which all cases occur: found, lost, delayed, retried.
fn all_cases() -> (TestCluster, Vec<OperationId>) {
    let world = TestCluster::new();
    let hold = ScriptedResult::Hold { wait: Some(Duration::from_secs(2)), hold: HoldScope::Route };
    let ensured = json!({ "key": "rules", "channel_id": "1", "content": "be kind", "pin": true });
    let ids = vec![
        world.create(GUILD),
        world.assign(GUILD, 100, 1),
        world.create(GUILD),
        world.create(GUILD),
        world.create(GUILD),
        world.create(GUILD),
        world.submit(world.operation(GUILD, OperationKind::EnsureMessage, &ensured)),
    ];
    world.discord.script(ids[6], [ScriptedResult::SendThenHold(Duration::from_secs(2))]);
    world.discord.script(ids[0], [hold]);
    world.discord.script(ids[2], [ScriptedResult::DoWithLostResponse]);
    world.discord.script(ids[3], [ScriptedResult::Fail(FailureClass::Ambiguous)]);
    world.discord.script(ids[4], [ScriptedResult::Fail(FailureClass::Transient)]);
    (world, ids)
}

/// Checks that everything succeeded, nothing was created twice, and the order was kept.
fn check(world: &TestCluster, ids: &[OperationId]) {
    for id in ids {
        let row = world.store.row(*id);
        assert_eq!(row.stored.state, OperationState::Succeeded, "{id}: {:?}", row.stored.error);
        let happened = world.discord.happened(*id);
        assert!(happened == 1 || (happened > 1 && row.stored.operation.kind.name() == "assign_role"), "{happened}");
        assert_eq!(row.stored.intent, None);
    }
    let mut sent = world.discord.sent();
    sent.dedup();
    assert_eq!(sent, ids);
}

/// Number of external calls of such a run.
fn calls() -> usize {
    let runtime = runtime();
    let _guard = runtime.enter();
    let (world, ids) = all_cases();
    assert_eq!(run_to_end(&runtime, &world), 1);
    check(&world, &ids);
    world.faults.calls()
}

#[test]
fn fault_at_any_step_loses_and_doubles_nothing() {
    let calls = calls();
    assert!(calls > 20, "{calls}");
    for fault in [Fault::KillBefore, Fault::KillAfter, Fault::Refuse, Fault::LoseResponse] {
        for step in 0..calls {
            let runtime = runtime();
            let _guard = runtime.enter();
            let (world, ids) = all_cases();
            world.faults.plan([(step, fault)]);
            run_to_end(&runtime, &world);
            check(&world, &ids);
        }
    }
}

#[test]
fn repeated_crashes_at_any_step_lose_and_double_nothing() {
    let calls = calls();
    for step in 0..calls {
        let runtime = runtime();
        let _guard = runtime.enter();
        let (world, ids) = all_cases();
        // The process ends there, and its successors soon after each other.
        world.faults.plan([(step, Fault::KillAfter), (step + 4, Fault::KillBefore), (step + 8, Fault::KillAfter)]);
        run_to_end(&runtime, &world);
        check(&world, &ids);
    }
}

#[test]
fn unavailable_store_stops_sends_and_keeps_outcomes() {
    paused(async {
        let world = TestCluster::new();
        let (first, second) = (world.create(GUILD), world.create(GUILD));
        world.discord.script(first, [ScriptedResult::Wait]);
        let operations = world.start();
        world.discord.started().await;
        let next = world.faults.calls();
        world.faults.plan((next..next + 20).map(|call| (call, Fault::Refuse)));
        world.discord.resume();
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert_eq!((world.discord.sent(), world.state(first)), (vec![first], OperationState::Running));
        assert_eq!(operations.observe().await.unwrap().busy, 1);
        world.until_done().await;
        assert_eq!(world.discord.sent(), [first, second]);
        assert!(world.discord.happened(first) == 1 && world.discord.happened(second) == 1);
    });
}

#[test]
fn call_of_a_crashed_process_is_waited_for_before_a_check_or_resend() {
    for sends_again in [false, true] {
        let runtime = runtime();
        let _guard = runtime.enter();
        let world = TestCluster::new();
        let id = if sends_again { world.assign(GUILD, 100, 1) } else { world.create(GUILD) };
        // Claim, page, start; then the process ends, and it is unknown whether the call was sent.
        world.faults.plan([(3, Fault::KillAfter)]);
        let killed_at = world.clock.now();
        run_to_end(&runtime, &world);
        assert_eq!((world.state(id), world.discord.happened(id)), (OperationState::Succeeded, 1));
        assert!(world.clock.now().since(killed_at) >= world.config.request_timeout);
    }
}

#[test]
fn interrupted_operation_cannot_be_cancelled_while_delayed() {
    let runtime = runtime();
    let _guard = runtime.enter();
    let world = TestCluster::new();
    let id = world.assign(GUILD, 100, 1);
    // Claim, page, start; then the process ends, and it is unknown whether the call was sent.
    world.faults.plan([(2, Fault::KillAfter)]);
    let local = LocalSet::new();
    local.block_on(&runtime, async {
        let _operations = world.start();
        world.faults.killed().await;
    });
    drop(local);
    world.store.orphan();
    world.discord.script(id, [ScriptedResult::Hold { wait: Some(Duration::from_secs(10)), hold: HoldScope::Route }]);
    LocalSet::new().block_on(&runtime, async {
        let _operations = world.start();
        world.until_state(id, OperationState::Delayed).await;
        assert_eq!(world.store.row(id).stored.attempts, 0);
        let refused = world.store.cancel(id, world.clock.now()).await.unwrap();
        assert_eq!(refused, Some((OperationState::Delayed, Queue::Guild(GUILD))));
        world.until_state(id, OperationState::Succeeded).await;
        assert_eq!(world.store.row(id).stored.intent, None);
    });
}

/// A guild has finished one operation, and the store fails for a few seconds to store the intent of the second.
async fn start_during_store_outage(world: &TestCluster, second: NewOperation) -> (OperationsHandle, OperationId) {
    let (first, second) = (world.create(GUILD), world.submit(second));
    world.discord.script(first, [ScriptedResult::Wait]);
    let operations = world.start();
    world.discord.started().await;
    let next = world.faults.calls();
    world.faults.plan((next..next + 8).map(|call| (call, Fault::Refuse)));
    world.discord.resume();
    tokio::time::sleep(Duration::from_millis(10)).await;
    assert_eq!(world.state(first), OperationState::Running);
    (operations, second)
}

#[test]
fn operation_that_expires_during_a_store_outage_is_not_sent() {
    paused(async {
        let world = TestCluster::new();
        let mut dated = world.operation(GUILD, OperationKind::CreateRole, &json!({ "name": "Mods" }));
        dated.deadline_at = Some(dated.created_at + Duration::from_secs(2));
        let (_operations, dated) = start_during_store_outage(&world, dated).await;
        world.until_done().await;
        let row = world.store.row(dated).stored;
        assert_eq!((row.state, row.attempts, row.intent), (OperationState::Dead, 0, None));
        assert_eq!(world.discord.happened(dated), 0);
    });
}

#[test]
fn operation_paused_during_a_store_outage_waits_for_the_resume() {
    paused(async {
        let world = TestCluster::new();
        let second = world.operation(GUILD, OperationKind::CreateRole, &json!({ "name": "Mods" }));
        let (operations, second) = start_during_store_outage(&world, second).await;
        operations.pause(PauseTarget::Queue(Queue::Guild(GUILD)), true).await.unwrap();
        tokio::time::sleep(Duration::from_secs(60)).await;
        let row = world.store.row(second).stored;
        assert_eq!((row.state, row.attempts, row.intent), (OperationState::Queued, 0, None));
        assert_eq!(world.discord.happened(second), 0);
        operations.pause(PauseTarget::Queue(Queue::Guild(GUILD)), false).await.unwrap();
        world.until_state(second, OperationState::Succeeded).await;
    });
}

#[test]
fn guild_that_lost_its_queue_sends_nothing_more() {
    paused(async {
        let world = TestCluster::new();
        let (first, second) = (world.create(GUILD), world.create(GUILD));
        world.discord.script(first, [ScriptedResult::Wait]);
        let operations = world.start();
        world.discord.started().await;
        world.store.steal(Queue::Guild(GUILD));
        world.discord.resume();
        for _ in 0..100 {
            if operations.observe().await.unwrap().active == 0 {
                break;
            }
            tokio::task::yield_now().await;
        }
        assert_eq!(operations.observe().await.unwrap().active, 0);
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(world.discord.sent(), [first]);
        assert_eq!((world.state(first), world.state(second)), (OperationState::Running, OperationState::Queued));
    });
}

#[test]
fn operation_that_crashes_its_guild_is_set_aside() {
    paused(async {
        let world = TestCluster::new();
        let (before, poison, after) = (world.create(GUILD), world.create(GUILD), world.create(GUILD));
        let harmless = world.assign(GUILD, 100, 1);
        let last = world.create(GUILD);
        world.discord.script(poison, [ScriptedResult::Panic]);
        world.discord.script(harmless, [ScriptedResult::Panic]);
        let _operations = world.start();
        world.until_done().await;
        for id in [poison, harmless] {
            let row = world.store.row(id).stored;
            assert_eq!((row.state, row.error.unwrap().class), (OperationState::Dead, FailureClass::Poison));
        }
        assert_eq!(world.discord.sent(), [before, after, last]);
    });
}

#[test]
fn unreadable_rows_are_set_aside_and_the_rest_runs_in_order() {
    paused(async {
        let world = TestCluster::new();
        let page = world.config.page_size;
        let first = world.create(GUILD);
        // More than a page of them in a row.
        let damaged: Vec<_> = (0..page + 3).map(|_| world.create(GUILD)).collect();
        let last = world.create(GUILD);
        for id in &damaged {
            world.store.damage(*id, "the kind \"juggle\"");
        }
        let _operations = world.start();
        world.until_done().await;
        for id in damaged {
            let row = world.store.row(id).stored;
            let error = row.error.unwrap();
            assert_eq!((row.state, error.class), (OperationState::Dead, FailureClass::Poison));
            assert!(error.message.contains("the kind \"juggle\"") && error.message.contains("redrive"), "{error:?}");
        }
        assert_eq!(world.discord.sent(), [first, last]);
    });
}

#[test]
fn effect_of_an_operation_that_crashed_its_guild_is_found() {
    paused(async {
        let world = TestCluster::new();
        let poison = world.create(GUILD);
        // It takes effect, and the search for it crashes the guild.
        world.discord.script(poison, [ScriptedResult::DoWithLostResponse]);
        world.discord.script_search(poison, [ScriptedSearch::Panic]);
        let next = world.create(GUILD);
        let _operations = world.start();
        world.until_done().await;
        assert_eq!((world.state(poison), world.discord.happened(poison)), (OperationState::Succeeded, 1));
        assert_eq!(world.state(next), OperationState::Succeeded);
    });
}

#[test]
fn operation_whose_search_crashes_its_guild_needs_review() {
    paused(async {
        let world = TestCluster::new();
        let (poison, next) = (world.create(GUILD), world.create(GUILD));
        world.discord.script(poison, [ScriptedResult::Panic]);
        world.discord.script_search(poison, [ScriptedSearch::Panic]);
        let _operations = world.start();
        world.until_done().await;
        assert_eq!((world.state(poison), world.state(next)), (OperationState::NeedsReview, OperationState::Succeeded));
    });
}

#[test]
fn repeatedly_crashing_guild_is_paused() {
    paused(async {
        let mut world = TestCluster::new();
        // Each is checked before it ends; five crashes within a minute are needed.
        world.config.request_timeout = Duration::from_secs(1);
        let ids: Vec<_> = (0..8).map(|_| world.assign(GUILD, 100, 1)).collect();
        ids.iter().for_each(|id| world.discord.script(*id, [ScriptedResult::Panic]));
        let operations = world.start();
        world.until("five are dead", || ids[..5].iter().all(|id| world.state(*id) == OperationState::Dead)).await;
        tokio::time::sleep(Duration::from_secs(30)).await;
        assert_eq!(operations.observe().await.unwrap().broken, 1);
        assert_eq!(world.store.unfinished(), 3);
        world.until_done().await;
    });
}

fn scripts() -> impl Strategy<Value = Vec<ScriptedResult>> {
    let one = prop_oneof![
        2 => Just(ScriptedResult::Hold { wait: Some(Duration::from_secs(3)), hold: HoldScope::Route }),
        1 => Just(ScriptedResult::Hold { wait: None, hold: HoldScope::All }),
        2 => Just(ScriptedResult::Fail(FailureClass::Transient)),
        2 => Just(ScriptedResult::Fail(FailureClass::Ambiguous)),
        2 => Just(ScriptedResult::DoWithLostResponse),
        1 => Just(ScriptedResult::Fail(FailureClass::Forbidden)),
        1 => Just(ScriptedResult::Panic),
    ];
    prop::collection::vec(one, 0..3)
}

fn faults() -> impl Strategy<Value = Vec<(usize, Fault)>> {
    let fault =
        prop_oneof![Just(Fault::Refuse), Just(Fault::LoseResponse), Just(Fault::KillBefore), Just(Fault::KillAfter),];
    prop::collection::vec((0_usize..120, fault), 0..12)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    #[test]
    fn random_faults_lose_and_double_nothing_and_keep_the_order(
        makes in prop::collection::vec((1_u64..4, any::<bool>(), scripts()), 1..20),
        faults in faults(),
        page in 1_usize..6,
    ) {
        let runtime = runtime();
        let _guard = runtime.enter();
        let mut world = TestCluster::new();
        world.config.page_size = page;
        world.config.max_payload_bytes = 60;
        let mut ids = Vec::new();
        for (guild, creates, script) in makes {
            let id = if creates { world.create(guild) } else { world.assign(guild, ids.len() as u64 + 1, 1) };
            world.discord.script(id, script);
            ids.push((guild, creates, id));
        }
        world.faults.plan(faults);
        run_to_end(&runtime, &world);
        for &(_, creates, id) in &ids {
            let (state, happened) = (world.state(id), world.discord.happened(id));
            prop_assert!(state.is_final());
            prop_assert!(!creates || happened <= 1, "{id} was created {happened} times");
            match state {
                OperationState::Succeeded => prop_assert!(happened >= 1),
                OperationState::Dead => prop_assert_eq!(happened, 0),
                _ => prop_assert!(false, "{state:?}"),
            }
        }
        for guild in 1..4 {
            let order: Vec<_> = ids.iter().filter(|(of, _, _)| *of == guild).map(|(_, _, id)| *id).collect();
            let places: Vec<_> = world.discord.sent_in(guild).iter()
                .map(|sent| order.iter().position(|id| id == sent).unwrap()).collect();
            prop_assert!(places.is_sorted(), "{places:?}");
        }
    }
}
