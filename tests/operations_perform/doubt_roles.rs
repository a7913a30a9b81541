//! Role creations with an unknown outcome.

use std::time::Duration;

use guildhall_actors::ports::{Execution, ReconcileResult};
use guildhall_core::operation::payload::{EnsureRole, NewRole};
use guildhall_core::operation::{ManagedKind, Payload};
use guildhall_sim::FaultAction;
use http::Method;
use serde_json::{Value, json};

use crate::gate::run;
use crate::stage::{PLAIN, Stage, VIEW_AUDIT_LOG, create_role, number, role_named, skewed};

const CREATE: &str = "POST /guilds/*/roles";

#[test]
fn a_role_that_was_made_is_found_and_one_that_was_not_is_absent_whatever_the_clock_says() {
    run(async {
        for (bits, origin) in [(PLAIN | VIEW_AUDIT_LOG, "created"), (PLAIN, "adopted")] {
            let stage = Stage::with_permissions(bits).await;
            for seconds in [-30, 0, 30] {
                let name = format!("made {seconds}");
                let work = skewed(stage.work(create_role(&name)), seconds);
                stage.lost(&work, CREATE, FaultAction::DropAfter).await;
                let found = stage.found(&work).await;
                let held = stage.roles_named(&name).await;
                assert_eq!((held.len(), found.made), (1, Some(number(&held[0]["id"]))), "{bits} {seconds}");
                assert_eq!((found.bind[0].key.as_str(), found.bind[0].origin), ("a-role", origin));

                let name = format!("never {seconds}");
                let work = skewed(stage.work(create_role(&name)), seconds);
                stage.lost(&work, CREATE, FaultAction::DropBefore).await;
                assert_eq!(stage.reconcile(&work).await, ReconcileResult::Absent, "{bits} {seconds}");
                stage.done(&work).await;
                assert_eq!(stage.roles_named(&name).await.len(), 1);
            }
        }
    });
}

#[test]
fn a_server_error_after_the_effect_is_a_doubt_like_any_other() {
    run(async {
        let stage = Stage::new().await;
        let work = stage.work(create_role("x"));
        stage.lost(&work, CREATE, FaultAction::Status { status: 502, code: 0 }).await;
        assert_eq!(stage.reconcile(&work).await, ReconcileResult::Absent);
    });
}

#[test]
fn among_roles_of_one_name_the_marker_tells_the_right_one() {
    run(async {
        let stage = Stage::with_permissions(PLAIN | VIEW_AUDIT_LOG).await;
        let roles = format!("/guilds/{}/roles", stage.place.guild);
        stage.aside(Method::POST, &roles, &json!({ "name": "twin" })).await;
        let work = stage.work(create_role("twin"));
        stage.lost(&work, CREATE, FaultAction::DropAfter).await;
        let right = stage.world.score().effects[&stage.place.guild.to_string()].last().unwrap().object.get();
        stage.aside(Method::POST, &roles, &json!({ "name": "twin" })).await;
        assert_eq!(stage.found(&work).await.made, Some(right));
        let other = stage.work(create_role("twin"));
        assert_eq!(
            stage.reconcile(&other).await,
            ReconcileResult::Absent,
            "the log is complete, so the others are not its own"
        );
    });
}

#[test]
fn without_the_log_several_of_one_name_are_unclear_unless_all_but_one_belong_to_somebody() {
    run(async {
        let stage = Stage::with_permissions(PLAIN).await;
        let roles = format!("/guilds/{}/roles", stage.place.guild);
        let strange = number(&stage.aside(Method::POST, &roles, &json!({ "name": "twin" })).await["id"]);
        let work = stage.work(create_role("twin"));
        stage.lost(&work, CREATE, FaultAction::DropAfter).await;
        let why = stage.unclear(&work).await;
        assert!(
            why.contains("2 roles") && why.contains(&strange.to_string()) && why.contains("VIEW_AUDIT_LOG"),
            "{why}"
        );
        stage.known.insert(ManagedKind::Role, strange);
        let right = stage.world.score().effects[&stage.place.guild.to_string()].last().unwrap().object.get();
        assert_eq!(stage.found(&work).await.made, Some(right));
        // A role that was created long before the intent does not match.
        let late = Execution { intent_at: work.intent_at + Duration::from_secs(200), ..work };
        assert_eq!(stage.reconcile(&late).await, ReconcileResult::Absent);
    });
}

#[test]
fn a_role_that_was_made_and_deleted_since_was_made_and_is_not_made_again() {
    run(async {
        let stage = Stage::with_permissions(PLAIN | VIEW_AUDIT_LOG).await;
        let work = stage.work(create_role("brief"));
        stage.lost(&work, CREATE, FaultAction::DropAfter).await;
        let role = number(&stage.roles_named("brief").await[0]["id"]);
        let path = format!("/guilds/{}/roles/{role}", stage.place.guild);
        stage.aside(Method::DELETE, &path, &Value::Null).await;
        assert_eq!(stage.found(&work).await.made, Some(role));
    });
}

#[test]
fn the_marker_is_found_behind_a_hundred_others() {
    run(async {
        let stage = Stage::with_permissions(PLAIN | VIEW_AUDIT_LOG).await;
        let work = stage.work(create_role("first"));
        stage.lost(&work, CREATE, FaultAction::DropAfter).await;
        let roles = format!("/guilds/{}/roles", stage.place.guild);
        for _ in 0..120 {
            stage.aside(Method::POST, &roles, &json!({ "name": "noise" })).await;
        }
        let role = number(&stage.roles_named("first").await[0]["id"]);
        assert_eq!(stage.found(&work).await.made, Some(role));
    });
}

#[test]
fn an_ensured_role_is_found_and_one_whose_key_stands_for_something_was_not_made() {
    run(async {
        let stage = Stage::with_permissions(PLAIN).await;
        let payload = || Payload::EnsureRole(EnsureRole { key: "k".into(), role: role_named("kept"), adopt: false });
        let work = stage.work(payload());
        stage.lost(&work, CREATE, FaultAction::DropAfter).await;
        let role = stage.found(&work).await.made.unwrap();
        stage.known.insert(ManagedKind::Role, role);
        // An unmanaged role of the same name next to the bound one: nothing was sent, so nothing is adopted.
        let roles = format!("/guilds/{}/roles", stage.place.guild);
        stage.aside(Method::POST, &roles, &json!({ "name": "kept" })).await;
        let again = Execution { bound: Some((role, None)), ..stage.work(payload()) };
        assert_eq!(stage.reconcile(&again).await, ReconcileResult::Absent);
    });
}

#[test]
fn what_fits_is_left_to_an_operation_that_adopts_and_is_never_made_twice() {
    run(async {
        let stage = Stage::with_permissions(PLAIN).await;
        let role = NewRole { color: Some(5), ..role_named("kept") };
        let work = stage.work(Payload::EnsureRole(EnsureRole { key: "k".into(), role, adopt: true }));
        stage.lost(&work, CREATE, FaultAction::DropAfter).await;
        assert_eq!(stage.reconcile(&work).await, ReconcileResult::Absent);
        let done = stage.done(&work).await;
        let held = stage.roles_named("kept").await;
        assert_eq!((held.len(), done.made), (1, Some(number(&held[0]["id"]))));
        assert_eq!(done.result["outcome"], "adopted");
    });
}

#[test]
fn a_log_that_no_longer_reaches_back_is_no_proof() {
    run(async {
        let stage = Stage::with_permissions(PLAIN | VIEW_AUDIT_LOG).await;
        let work = stage.work(create_role("old"));
        let long_ago = work.intent_at.before(Duration::from_secs(50 * 24 * 60 * 60));
        let work = Execution { intent_at: long_ago, ..work };
        stage.lost(&work, CREATE, FaultAction::DropAfter).await;
        let found = stage.found(&work).await;
        assert_eq!(found.bind[0].origin, "adopted", "from the list");
        assert_eq!(stage.world.arrived_at("GET /guilds/{guild.id}/audit-logs"), 0);
    });
}

#[test]
fn a_question_that_cannot_be_asked_now_is_asked_later() {
    run(async {
        let stage = Stage::new().await;
        let work = stage.work(create_role("x"));
        stage.lost(&work, CREATE, FaultAction::DropAfter).await;
        stage.world.fault_once("GET /guilds/*/audit-logs", FaultAction::Status { status: 503, code: 0 });
        assert!(matches!(stage.reconcile(&work).await, ReconcileResult::Failed(_)));
        let limit = FaultAction::RateLimit { scope: guildhall_sim::Scope::User, retry_after_ms: 40_000 };
        stage.world.fault_once("GET /guilds/*/audit-logs", limit);
        match stage.reconcile(&work).await {
            ReconcileResult::Held { retry_after, .. } => assert!(retry_after >= Duration::from_secs(40)),
            other => panic!("{other:?}"),
        }
        assert_eq!(stage.roles_named("x").await.len(), 1);
    });
}

/// Leaves the newest object out of the audit log, as if the log lagged behind.
fn hide_newest_entry(stage: &Stage) -> u64 {
    let made = stage.world.score().effects[&stage.place.guild.to_string()].last().unwrap().object;
    stage.world.fault("GET /guilds/*/audit-logs", FaultAction::HideEntries { targets: vec![made] });
    made.get()
}

#[test]
fn role_that_the_audit_log_does_not_show_yet_is_found_in_the_list() {
    run(async {
        let stage = Stage::with_permissions(PLAIN | VIEW_AUDIT_LOG).await;
        let work = stage.work(create_role("lagging"));
        stage.lost(&work, CREATE, FaultAction::DropAfter).await;
        let made = hide_newest_entry(&stage);
        assert_eq!(stage.found(&work).await.made, Some(made));
        assert_eq!(stage.roles_named("lagging").await.len(), 1);
    });
}

#[test]
fn role_that_others_made_by_the_log_is_not_taken_for_a_lagging_one() {
    run(async {
        let stage = Stage::with_permissions(PLAIN | VIEW_AUDIT_LOG).await;
        let roles = format!("/guilds/{}/roles", stage.place.guild);
        stage.aside(Method::POST, &roles, &json!({ "name": "twin" })).await;
        let work = stage.work(create_role("twin"));
        stage.lost(&work, CREATE, FaultAction::DropAfter).await;
        let made = hide_newest_entry(&stage);
        assert_eq!(stage.found(&work).await.made, Some(made), "the other twin has an entry without the marker");
        let never = stage.work(create_role("twin"));
        stage.known.insert(ManagedKind::Role, made);
        stage.lost(&never, CREATE, FaultAction::DropBefore).await;
        assert_eq!(stage.reconcile(&never).await, ReconcileResult::Absent);
    });
}
