//! An operation that is not sent again ends `dead` only if none of its attempts took effect.

use std::time::Duration;

use guildhall_core::operation::{FailureClass, OperationId, OperationKind, OperationState};
use serde_json::json;
use tokio::runtime::{Builder, Runtime};
use tokio::task::LocalSet;

use crate::ports::HoldScope;
use crate::testing::operations::{Fault, ScriptedResult, ScriptedSearch, TestCluster, paused};

const GUILD: u64 = 7;
const LOST: ScriptedResult = ScriptedResult::Fail(FailureClass::Transient);
const HOLD: ScriptedResult = ScriptedResult::Hold { wait: Some(Duration::from_secs(30)), hold: HoldScope::Route };

/// An assignment of a role with a deadline in this many seconds.
fn assign_within(world: &TestCluster, seconds: u64) -> OperationId {
    let mut operation = world.operation(GUILD, OperationKind::AssignRole, &json!({ "user_id": "100", "role_id": "1" }));
    operation.deadline_at = Some(operation.created_at + Duration::from_secs(seconds));
    world.submit(operation)
}

#[test]
fn outcome_of_every_attempt_is_checked_before_the_end() {
    use FailureClass::{Conflict, Forbidden, NotFound, Transient, Validation};
    let cases: [(&[ScriptedResult], ScriptedSearch, OperationState, Option<FailureClass>); 10] = [
        // Any attempt may have taken effect, not only the last one.
        (&[ScriptedResult::DoWithLostResponse, LOST, LOST], ScriptedSearch::Search, OperationState::Succeeded, None),
        (&[LOST, ScriptedResult::DoWithLostResponse, LOST], ScriptedSearch::Search, OperationState::Succeeded, None),
        (&[LOST, LOST, ScriptedResult::DoWithLostResponse], ScriptedSearch::Search, OperationState::Succeeded, None),
        (&[LOST, LOST, LOST], ScriptedSearch::Search, OperationState::Dead, Some(Transient)),
        (
            &[ScriptedResult::DoWithLostResponse, LOST, LOST],
            ScriptedSearch::Unclear,
            OperationState::NeedsReview,
            Some(FailureClass::Ambiguous),
        ),
        // A refusal of a later attempt says nothing about the earlier ones.
        (
            &[ScriptedResult::DoWithLostResponse, ScriptedResult::Fail(Forbidden)],
            ScriptedSearch::Search,
            OperationState::Succeeded,
            None,
        ),
        (&[LOST, ScriptedResult::Fail(Forbidden)], ScriptedSearch::Search, OperationState::Dead, Some(Forbidden)),
        (
            &[ScriptedResult::DoWithLostResponse, HOLD, ScriptedResult::Fail(NotFound)],
            ScriptedSearch::Search,
            OperationState::Succeeded,
            None,
        ),
        (
            &[LOST, ScriptedResult::Fail(Validation)],
            ScriptedSearch::Unclear,
            OperationState::NeedsReview,
            Some(FailureClass::Ambiguous),
        ),
        (&[LOST, LOST, ScriptedResult::Fail(Conflict)], ScriptedSearch::Search, OperationState::Dead, Some(Conflict)),
    ];
    for (scripts, search, state, class) in cases {
        paused(async move {
            let world = TestCluster::new();
            let (id, next) = (world.assign(GUILD, 100, 1), world.assign(GUILD, 200, 2));
            world.discord.script(id, scripts.iter().copied());
            world.discord.script_search(id, [search]);
            let _operations = world.start();
            world.until_done().await;
            let row = world.store.row(id);
            assert_eq!(row.stored.state, state, "{scripts:?}");
            assert_eq!(row.stored.error.map(|error| error.class), class, "{scripts:?}");
            assert_eq!(world.discord.verified(), [id], "{scripts:?}");
            let sent = scripts.iter().filter(|script| **script != HOLD).count();
            assert_eq!(row.attempts.iter().filter(|attempt| attempt.class != "rate_limited").count(), sent);
            assert_eq!(row.stored.attempts as usize, sent, "a check uses no attempt");
            assert_eq!(world.state(next), OperationState::Succeeded);
        });
    }
}

#[test]
fn refusal_ends_an_operation_unchecked_if_every_outcome_is_known() {
    paused(async {
        let world = TestCluster::new();
        let id = world.assign(GUILD, 100, 1);
        world.discord.script(id, [HOLD, ScriptedResult::Fail(FailureClass::Forbidden)]);
        let _operations = world.start();
        world.until_done().await;
        assert_eq!(world.state(id), OperationState::Dead);
        assert!(world.discord.verified().is_empty());
    });
}

#[test]
fn deadline_that_passes_with_an_unknown_outcome_leads_to_a_check() {
    let cases = [
        (ScriptedResult::DoWithLostResponse, ScriptedSearch::Search, OperationState::Succeeded, None),
        (LOST, ScriptedSearch::Search, OperationState::Dead, Some(FailureClass::Expired)),
        (LOST, ScriptedSearch::Unclear, OperationState::NeedsReview, Some(FailureClass::Ambiguous)),
    ];
    for kind in [OperationKind::AssignRole, OperationKind::CreateRole] {
        for (script, search, state, class) in cases.clone() {
            paused(async move {
                let world = TestCluster::new();
                let payload = match kind {
                    OperationKind::CreateRole => json!({ "name": "Mods" }),
                    _ => json!({ "user_id": "100", "role_id": "1" }),
                };
                let mut operation = world.operation(GUILD, kind, &payload);
                operation.deadline_at = Some(operation.created_at + Duration::from_secs(5));
                let id = world.submit(operation);
                world.discord.script(id, [script]);
                world.discord.script_search(id, [search]);
                let _operations = world.start();
                world.until_done().await;
                let row = world.store.row(id).stored;
                assert_eq!((row.state, row.error.map(|error| error.class)), (state, class), "{kind:?} {script:?}");
            });
        }
    }
}

#[test]
fn delayed_check_leaves_the_operation_reconciling_for_a_limited_time() {
    paused(async {
        let mut world = TestCluster::new();
        world.config.check_timeout = Duration::from_secs(600);
        let (found, lost) = (world.assign(GUILD, 100, 1), world.assign(GUILD, 200, 1));
        for id in [found, lost] {
            world.discord.script(id, [ScriptedResult::DoWithLostResponse, LOST, LOST]);
        }
        world.discord.script_search(found, vec![ScriptedSearch::Hold(Duration::from_secs(20)); 25]);
        world.discord.script_search(lost, vec![ScriptedSearch::Hold(Duration::from_secs(20)); 40]);
        let _operations = world.start();
        world.until_state(found, OperationState::Reconciling).await;
        tokio::time::sleep(Duration::from_secs(300)).await;
        let waiting = world.store.row(found).stored;
        assert_eq!(waiting.state, OperationState::Reconciling, "it waits for the breaker");
        assert!(waiting.error.unwrap().message.contains("breaker"));
        world.until_state(found, OperationState::Succeeded).await;
        world.until_done().await;
        let error = world.store.row(lost).stored.error.unwrap();
        assert_eq!((world.state(lost), error.class), (OperationState::NeedsReview, FailureClass::Ambiguous));
        assert!(error.message.contains("could not be queried"), "{error}");
        assert_eq!(world.store.row(lost).stored.attempts, 3);
    });
}

#[test]
fn repeatedly_failing_check_ends_in_a_review() {
    paused(async {
        let world = TestCluster::new();
        let (found, lost) = (world.assign(GUILD, 100, 1), world.create(GUILD));
        for id in [found, lost] {
            world.discord.script(id, [ScriptedResult::DoWithLostResponse, LOST, LOST]);
        }
        world.discord.script_search(found, vec![ScriptedSearch::Fail; 9]);
        world.discord.script_search(lost, vec![ScriptedSearch::Fail; 10]);
        let _operations = world.start();
        world.until_done().await;
        assert_eq!((world.state(found), world.state(lost)), (OperationState::Succeeded, OperationState::NeedsReview));
        assert!(world.store.row(lost).stored.error.unwrap().message.contains("10 times"));
    });
}

#[test]
fn operation_under_check_is_not_passed() {
    paused(async {
        let world = TestCluster::new();
        let (id, next) = (world.assign(GUILD, 100, 1), world.assign(GUILD, 200, 2));
        world.discord.script(id, [LOST; 3]);
        let _operations = world.start();
        world.until_state(id, OperationState::Reconciling).await;
        assert_eq!(world.state(next), OperationState::Queued, "the last call may still be in flight");
        world.until_done().await;
        assert_eq!(world.discord.sent(), [id, id, id, next]);
    });
}

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_time().start_paused(true).build().unwrap()
}

/// Runs processes one after the other until everything is finished.
fn run_to_end(runtime: &Runtime, world: &TestCluster) {
    for _ in 0..20 {
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
fn unknown_outcome_survives_a_restart_before_the_deadline() {
    for (script, state) in
        [(ScriptedResult::DoWithLostResponse, OperationState::Succeeded), (LOST, OperationState::Dead)]
    {
        let runtime = runtime();
        let _guard = runtime.enter();
        let world = TestCluster::new();
        let id = assign_within(&world, 10);
        world.discord.script(id, [script]);
        let local = LocalSet::new();
        local.block_on(&runtime, async {
            let _operations = world.start();
            world.until_state(id, OperationState::Retrying).await;
        });
        drop(local);
        assert!(world.store.row(id).stored.unknown_outcome.is_some());
        world.store.orphan();
        runtime.block_on(tokio::time::sleep(Duration::from_secs(60)));
        run_to_end(&runtime, &world);
        assert_eq!(world.state(id), state);
        assert_eq!(world.discord.verified(), [id]);
    }
}

/// Number of external calls, including the check.
fn calls(scripts: &[ScriptedResult]) -> usize {
    let runtime = runtime();
    let _guard = runtime.enter();
    let world = TestCluster::new();
    let id = world.assign(GUILD, 100, 1);
    world.discord.script(id, scripts.iter().copied());
    run_to_end(&runtime, &world);
    world.faults.calls()
}

#[test]
fn fault_at_any_step_never_leaves_a_done_operation_dead() {
    for (scripts, done) in [([ScriptedResult::DoWithLostResponse, LOST, LOST], true), ([LOST, LOST, LOST], false)] {
        let calls = calls(&scripts);
        assert!(calls > 8, "{calls}");
        for fault in [Fault::KillBefore, Fault::KillAfter, Fault::Refuse, Fault::LoseResponse] {
            for step in 0..calls {
                let runtime = runtime();
                let _guard = runtime.enter();
                let world = TestCluster::new();
                let id = world.assign(GUILD, 100, 1);
                // More than it has attempts: an interrupted one uses none.
                world.discord.script(id, scripts.into_iter().chain([LOST; 3]));
                world.faults.plan([(step, fault)]);
                run_to_end(&runtime, &world);
                let expected = if done { OperationState::Succeeded } else { OperationState::Dead };
                assert_eq!(world.state(id), expected, "{fault:?} at {step}");
                assert_eq!(world.discord.happened(id) > 0, done);
            }
        }
    }
}
