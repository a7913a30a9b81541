//! Role creations with an unknown outcome.

use std::time::Duration;

use guildhall_actors::ports::{Execution, ReconcileResult};
use guildhall_core::operation::payload::{EnsureRole, NewRole};
use guildhall_core::operation::{ManagedKind, Payload};
use guildhall_sim::FaultAction;
use guildhall_testkit::gate::run;
use http::Method;
use serde_json::{Value, json};

use super::fixture::{
    BASIC_PERMISSIONS, ExecutorFixture, VIEW_AUDIT_LOG, create_role, parse_id, role_named, with_clock_skew,
};

const CREATE_ROUTE: &str = "POST /guilds/*/roles";

#[test]
fn created_role_is_found_with_any_clock_skew() {
    run(async {
        for (bits, origin) in [(BASIC_PERMISSIONS | VIEW_AUDIT_LOG, "created"), (BASIC_PERMISSIONS, "adopted")] {
            let fixture = ExecutorFixture::with_permissions(bits).await;
            for seconds in [-30, 0, 30] {
                let name = format!("made {seconds}");
                let execution = with_clock_skew(fixture.execution(create_role(&name)), seconds);
                fixture.execute_lost(&execution, CREATE_ROUTE, FaultAction::DropAfter).await;
                let found = fixture.reconcile_found(&execution).await;
                let stored = fixture.roles_named(&name).await;
                assert_eq!((stored.len(), found.created), (1, Some(parse_id(&stored[0]["id"]))), "{bits} {seconds}");
                assert_eq!((found.bind[0].key.as_str(), found.bind[0].origin), ("a-role", origin));

                let name = format!("never {seconds}");
                let execution = with_clock_skew(fixture.execution(create_role(&name)), seconds);
                fixture.execute_lost(&execution, CREATE_ROUTE, FaultAction::DropBefore).await;
                assert_eq!(fixture.reconcile(&execution).await, ReconcileResult::Absent, "{bits} {seconds}");
                fixture.execute(&execution).await;
                assert_eq!(fixture.roles_named(&name).await.len(), 1);
            }
        }
    });
}

#[test]
fn server_error_is_an_unknown_outcome() {
    run(async {
        let fixture = ExecutorFixture::new().await;
        let execution = fixture.execution(create_role("x"));
        fixture.execute_lost(&execution, CREATE_ROUTE, FaultAction::Status { status: 502, code: 0 }).await;
        assert_eq!(fixture.reconcile(&execution).await, ReconcileResult::Absent);
    });
}

#[test]
fn marker_finds_the_role_among_equal_names() {
    run(async {
        let fixture = ExecutorFixture::with_permissions(BASIC_PERMISSIONS | VIEW_AUDIT_LOG).await;
        let roles = format!("/guilds/{}/roles", fixture.create_guild_fixture.guild);
        fixture.call_discord(Method::POST, &roles, &json!({ "name": "twin" })).await;
        let execution = fixture.execution(create_role("twin"));
        fixture.execute_lost(&execution, CREATE_ROUTE, FaultAction::DropAfter).await;
        let expected =
            fixture.world.score().effects[&fixture.create_guild_fixture.guild.to_string()].last().unwrap().object.get();
        fixture.call_discord(Method::POST, &roles, &json!({ "name": "twin" })).await;
        assert_eq!(fixture.reconcile_found(&execution).await.created, Some(expected));
        let other = fixture.execution(create_role("twin"));
        assert_eq!(
            fixture.reconcile(&other).await,
            ReconcileResult::Absent,
            "the log is complete, so the others are not its own"
        );
    });
}

#[test]
fn equal_names_are_unclear_without_the_log_unless_one_is_free() {
    run(async {
        let fixture = ExecutorFixture::with_permissions(BASIC_PERMISSIONS).await;
        let roles = format!("/guilds/{}/roles", fixture.create_guild_fixture.guild);
        let unmanaged = parse_id(&fixture.call_discord(Method::POST, &roles, &json!({ "name": "twin" })).await["id"]);
        let execution = fixture.execution(create_role("twin"));
        fixture.execute_lost(&execution, CREATE_ROUTE, FaultAction::DropAfter).await;
        let reason = fixture.reconcile_unclear(&execution).await;
        assert!(
            reason.contains("2 roles") && reason.contains(&unmanaged.to_string()) && reason.contains("VIEW_AUDIT_LOG"),
            "{reason}"
        );
        fixture.ownership.insert(ManagedKind::Role, unmanaged);
        let expected =
            fixture.world.score().effects[&fixture.create_guild_fixture.guild.to_string()].last().unwrap().object.get();
        assert_eq!(fixture.reconcile_found(&execution).await.created, Some(expected));
        // A role that was created long before the intent does not match.
        let late = Execution { intent_at: execution.intent_at + Duration::from_secs(200), ..execution };
        assert_eq!(fixture.reconcile(&late).await, ReconcileResult::Absent);
    });
}

#[test]
fn created_and_deleted_role_is_not_created_again() {
    run(async {
        let fixture = ExecutorFixture::with_permissions(BASIC_PERMISSIONS | VIEW_AUDIT_LOG).await;
        let execution = fixture.execution(create_role("brief"));
        fixture.execute_lost(&execution, CREATE_ROUTE, FaultAction::DropAfter).await;
        let role = parse_id(&fixture.roles_named("brief").await[0]["id"]);
        let path = format!("/guilds/{}/roles/{role}", fixture.create_guild_fixture.guild);
        fixture.call_discord(Method::DELETE, &path, &Value::Null).await;
        assert_eq!(fixture.reconcile_found(&execution).await.created, Some(role));
    });
}

#[test]
fn marker_is_found_behind_a_hundred_others() {
    run(async {
        let fixture = ExecutorFixture::with_permissions(BASIC_PERMISSIONS | VIEW_AUDIT_LOG).await;
        let execution = fixture.execution(create_role("first"));
        fixture.execute_lost(&execution, CREATE_ROUTE, FaultAction::DropAfter).await;
        let roles = format!("/guilds/{}/roles", fixture.create_guild_fixture.guild);
        for _ in 0..120 {
            fixture.call_discord(Method::POST, &roles, &json!({ "name": "noise" })).await;
        }
        let role = parse_id(&fixture.roles_named("first").await[0]["id"]);
        assert_eq!(fixture.reconcile_found(&execution).await.created, Some(role));
    });
}

#[test]
fn ensured_role_is_found_unless_its_key_is_bound() {
    run(async {
        let fixture = ExecutorFixture::with_permissions(BASIC_PERMISSIONS).await;
        let payload = || Payload::EnsureRole(EnsureRole { key: "k".into(), role: role_named("kept"), adopt: false });
        let execution = fixture.execution(payload());
        fixture.execute_lost(&execution, CREATE_ROUTE, FaultAction::DropAfter).await;
        let role = fixture.reconcile_found(&execution).await.created.unwrap();
        fixture.ownership.insert(ManagedKind::Role, role);
        // An unmanaged role of the same name next to the bound one: nothing was sent, so nothing is adopted.
        let roles = format!("/guilds/{}/roles", fixture.create_guild_fixture.guild);
        fixture.call_discord(Method::POST, &roles, &json!({ "name": "kept" })).await;
        let again = Execution { existing: Some((role, None)), ..fixture.execution(payload()) };
        assert_eq!(fixture.reconcile(&again).await, ReconcileResult::Absent);
    });
}

#[test]
fn matching_role_is_adopted_and_not_created_twice() {
    run(async {
        let fixture = ExecutorFixture::with_permissions(BASIC_PERMISSIONS).await;
        let role = NewRole { color: Some(5), ..role_named("kept") };
        let execution = fixture.execution(Payload::EnsureRole(EnsureRole { key: "k".into(), role, adopt: true }));
        fixture.execute_lost(&execution, CREATE_ROUTE, FaultAction::DropAfter).await;
        assert_eq!(fixture.reconcile(&execution).await, ReconcileResult::Absent);
        let done = fixture.execute(&execution).await;
        let stored = fixture.roles_named("kept").await;
        assert_eq!((stored.len(), done.created), (1, Some(parse_id(&stored[0]["id"]))));
        assert_eq!(done.result["outcome"], "adopted");
    });
}

#[test]
fn audit_log_that_is_too_short_is_not_proof() {
    run(async {
        let fixture = ExecutorFixture::with_permissions(BASIC_PERMISSIONS | VIEW_AUDIT_LOG).await;
        let execution = fixture.execution(create_role("old"));
        let long_ago = execution.intent_at.before(Duration::from_secs(50 * 24 * 60 * 60));
        let execution = Execution { intent_at: long_ago, ..execution };
        fixture.execute_lost(&execution, CREATE_ROUTE, FaultAction::DropAfter).await;
        let found = fixture.reconcile_found(&execution).await;
        assert_eq!(found.bind[0].origin, "adopted", "from the list");
        assert_eq!(fixture.world.arrived_at("GET /guilds/{guild.id}/audit-logs"), 0);
    });
}

#[test]
fn failed_search_is_repeated_later() {
    run(async {
        let fixture = ExecutorFixture::new().await;
        let execution = fixture.execution(create_role("x"));
        fixture.execute_lost(&execution, CREATE_ROUTE, FaultAction::DropAfter).await;
        fixture.world.fault_once("GET /guilds/*/audit-logs", FaultAction::Status { status: 503, code: 0 });
        assert!(matches!(fixture.reconcile(&execution).await, ReconcileResult::Failed(_)));
        let limit = FaultAction::RateLimit { scope: guildhall_sim::Scope::User, retry_after_ms: 40_000 };
        fixture.world.fault_once("GET /guilds/*/audit-logs", limit);
        match fixture.reconcile(&execution).await {
            ReconcileResult::Held { retry_after, .. } => assert!(retry_after >= Duration::from_secs(40)),
            other => panic!("{other:?}"),
        }
        assert_eq!(fixture.roles_named("x").await.len(), 1);
    });
}

/// Leaves the newest object out of the audit log, as if the log lagged behind.
fn hide_newest_entry(fixture: &ExecutorFixture) -> u64 {
    let created = fixture.world.score().effects[&fixture.create_guild_fixture.guild.to_string()].last().unwrap().object;
    fixture.world.fault("GET /guilds/*/audit-logs", FaultAction::HideEntries { targets: vec![created] });
    created.get()
}

#[test]
fn role_missing_from_the_audit_log_is_found_in_the_list() {
    run(async {
        let fixture = ExecutorFixture::with_permissions(BASIC_PERMISSIONS | VIEW_AUDIT_LOG).await;
        let execution = fixture.execution(create_role("lagging"));
        fixture.execute_lost(&execution, CREATE_ROUTE, FaultAction::DropAfter).await;
        let created = hide_newest_entry(&fixture);
        assert_eq!(fixture.reconcile_found(&execution).await.created, Some(created));
        assert_eq!(fixture.roles_named("lagging").await.len(), 1);
    });
}

#[test]
fn role_of_another_log_entry_does_not_match() {
    run(async {
        let fixture = ExecutorFixture::with_permissions(BASIC_PERMISSIONS | VIEW_AUDIT_LOG).await;
        let roles = format!("/guilds/{}/roles", fixture.create_guild_fixture.guild);
        fixture.call_discord(Method::POST, &roles, &json!({ "name": "twin" })).await;
        let execution = fixture.execution(create_role("twin"));
        fixture.execute_lost(&execution, CREATE_ROUTE, FaultAction::DropAfter).await;
        let created = hide_newest_entry(&fixture);
        assert_eq!(
            fixture.reconcile_found(&execution).await.created,
            Some(created),
            "the other twin has an entry without the marker"
        );
        let never = fixture.execution(create_role("twin"));
        fixture.ownership.insert(ManagedKind::Role, created);
        fixture.execute_lost(&never, CREATE_ROUTE, FaultAction::DropBefore).await;
        assert_eq!(fixture.reconcile(&never).await, ReconcileResult::Absent);
    });
}
