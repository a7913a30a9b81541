//! An operation that is not sent again ends `dead` only if none of its attempts took effect.

use std::time::Duration;

use guildhall_core::operation::{FailureClass, Kind, OperationId, State};
use serde_json::json;
use tokio::runtime::{Builder, Runtime};
use tokio::task::LocalSet;

use crate::operations::Hold;
use crate::operations::testing::{Fault, Script, Search, World, paused};

const GUILD: u64 = 7;
const LOST: Script = Script::Fail(FailureClass::Transient);
const HOLD: Script = Script::Hold { wait: Some(Duration::from_secs(30)), hold: Hold::Route };

/// An assignment of a role that has to be done within so many seconds.
fn assign_within(world: &World, seconds: u64) -> OperationId {
    let mut operation = world.operation(GUILD, Kind::AssignRole, &json!({ "user_id": "100", "role_id": "1" }));
    operation.deadline_at = Some(operation.created_at + Duration::from_secs(seconds));
    world.submit(operation)
}

#[test]
fn outcome_of_every_attempt_is_checked_before_the_verdict() {
    use FailureClass::{Conflict, Forbidden, NotFound, Transient, Validation};
    let cases: [(&[Script], Search, State, Option<FailureClass>); 10] = [
        // Any attempt may have taken effect, not only the last one.
        (&[Script::DoUnheard, LOST, LOST], Search::Look, State::Succeeded, None),
        (&[LOST, Script::DoUnheard, LOST], Search::Look, State::Succeeded, None),
        (&[LOST, LOST, Script::DoUnheard], Search::Look, State::Succeeded, None),
        (&[LOST, LOST, LOST], Search::Look, State::Dead, Some(Transient)),
        (&[Script::DoUnheard, LOST, LOST], Search::Unclear, State::NeedsReview, Some(FailureClass::Ambiguous)),
        // A refusal of a later attempt says nothing of the earlier ones.
        (&[Script::DoUnheard, Script::Fail(Forbidden)], Search::Look, State::Succeeded, None),
        (&[LOST, Script::Fail(Forbidden)], Search::Look, State::Dead, Some(Forbidden)),
        (&[Script::DoUnheard, HOLD, Script::Fail(NotFound)], Search::Look, State::Succeeded, None),
        (&[LOST, Script::Fail(Validation)], Search::Unclear, State::NeedsReview, Some(FailureClass::Ambiguous)),
        (&[LOST, LOST, Script::Fail(Conflict)], Search::Look, State::Dead, Some(Conflict)),
    ];
    for (scripts, search, state, class) in cases {
        paused(async move {
            let world = World::new();
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
            assert_eq!(world.state(next), State::Succeeded);
        });
    }
}

#[test]
fn refusal_ends_an_operation_unchecked_if_every_outcome_is_known() {
    paused(async {
        let world = World::new();
        let id = world.assign(GUILD, 100, 1);
        world.discord.script(id, [HOLD, Script::Fail(FailureClass::Forbidden)]);
        let _operations = world.start();
        world.until_done().await;
        assert_eq!(world.state(id), State::Dead);
        assert!(world.discord.verified().is_empty());
    });
}

#[test]
fn deadline_that_passes_with_an_unknown_outcome_leads_to_a_check() {
    let cases = [
        (Script::DoUnheard, Search::Look, State::Succeeded, None),
        (LOST, Search::Look, State::Dead, Some(FailureClass::Expired)),
        (LOST, Search::Unclear, State::NeedsReview, Some(FailureClass::Ambiguous)),
    ];
    for kind in [Kind::AssignRole, Kind::CreateRole] {
        for (script, search, state, class) in cases.clone() {
            paused(async move {
                let world = World::new();
                let payload = match kind {
                    Kind::CreateRole => json!({ "name": "Mods" }),
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
fn check_that_is_held_leaves_the_operation_reconciling_up_to_a_bound() {
    paused(async {
        let mut world = World::new();
        world.config.check_timeout = Duration::from_secs(600);
        let (found, lost) = (world.assign(GUILD, 100, 1), world.assign(GUILD, 200, 1));
        for id in [found, lost] {
            world.discord.script(id, [Script::DoUnheard, LOST, LOST]);
        }
        world.discord.script_search(found, vec![Search::Hold(Duration::from_secs(20)); 25]);
        world.discord.script_search(lost, vec![Search::Hold(Duration::from_secs(20)); 40]);
        let _operations = world.start();
        world.until_state(found, State::Reconciling).await;
        tokio::time::sleep(Duration::from_secs(300)).await;
        let waiting = world.store.row(found).stored;
        assert_eq!(waiting.state, State::Reconciling, "it waits for the breaker");
        assert!(waiting.error.unwrap().message.contains("breaker"));
        world.until_state(found, State::Succeeded).await;
        world.until_done().await;
        let error = world.store.row(lost).stored.error.unwrap();
        assert_eq!((world.state(lost), error.class), (State::NeedsReview, FailureClass::Ambiguous));
        assert!(error.message.contains("could not be asked"), "{error}");
        assert_eq!(world.store.row(lost).stored.attempts, 3);
    });
}

#[test]
fn check_that_fails_again_and_again_ends_in_a_review() {
    paused(async {
        let world = World::new();
        let (found, lost) = (world.assign(GUILD, 100, 1), world.create(GUILD));
        for id in [found, lost] {
            world.discord.script(id, [Script::DoUnheard, LOST, LOST]);
        }
        world.discord.script_search(found, vec![Search::Fail; 9]);
        world.discord.script_search(lost, vec![Search::Fail; 10]);
        let _operations = world.start();
        world.until_done().await;
        assert_eq!((world.state(found), world.state(lost)), (State::Succeeded, State::NeedsReview));
        assert!(world.store.row(lost).stored.error.unwrap().message.contains("10 times"));
    });
}

#[test]
fn nothing_of_the_queue_passes_an_operation_that_is_checked() {
    paused(async {
        let world = World::new();
        let (id, next) = (world.assign(GUILD, 100, 1), world.assign(GUILD, 200, 2));
        world.discord.script(id, [LOST; 3]);
        let _operations = world.start();
        world.until_state(id, State::Reconciling).await;
        assert_eq!(world.state(next), State::Queued, "the last call may still be under way");
        world.until_done().await;
        assert_eq!(world.discord.sent(), [id, id, id, next]);
    });
}

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_time().start_paused(true).build().unwrap()
}

/// Runs processes one after the other until everything is done.
fn run_to_end(runtime: &Runtime, world: &World) {
    for _ in 0..20 {
        let local = LocalSet::new();
        let killed = local.block_on(runtime, async {
            let _operations = world.start();
            tokio::select! {
                () = world.until_done() => false,
                () = world.chaos.killed() => true,
            }
        });
        drop(local);
        if !killed {
            return;
        }
        world.store.orphan();
    }
    panic!("it does not come to an end");
}

#[test]
fn unknown_outcome_survives_a_restart_before_the_deadline() {
    for (script, state) in [(Script::DoUnheard, State::Succeeded), (LOST, State::Dead)] {
        let runtime = runtime();
        let _guard = runtime.enter();
        let world = World::new();
        let id = assign_within(&world, 10);
        world.discord.script(id, [script]);
        let local = LocalSet::new();
        local.block_on(&runtime, async {
            let _operations = world.start();
            world.until_state(id, State::Retrying).await;
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

/// How often the outside is called, and the check with it.
fn calls(scripts: &[Script]) -> usize {
    let runtime = runtime();
    let _guard = runtime.enter();
    let world = World::new();
    let id = world.assign(GUILD, 100, 1);
    world.discord.script(id, scripts.iter().copied());
    run_to_end(&runtime, &world);
    world.chaos.calls()
}

#[test]
fn fails_at_each_step_and_never_ends_dead_although_done() {
    for (scripts, done) in [([Script::DoUnheard, LOST, LOST], true), ([LOST, LOST, LOST], false)] {
        let calls = calls(&scripts);
        assert!(calls > 8, "{calls}");
        for fault in [Fault::KillBefore, Fault::KillAfter, Fault::Refuse, Fault::LoseAnswer] {
            for step in 0..calls {
                let runtime = runtime();
                let _guard = runtime.enter();
                let world = World::new();
                let id = world.assign(GUILD, 100, 1);
                // More than it has attempts: one that is cut short uses none.
                world.discord.script(id, scripts.into_iter().chain([LOST; 3]));
                world.chaos.plan([(step, fault)]);
                run_to_end(&runtime, &world);
                let expected = if done { State::Succeeded } else { State::Dead };
                assert_eq!(world.state(id), expected, "{fault:?} at {step}");
                assert_eq!(world.discord.happened(id) > 0, done);
            }
        }
    }
}
