//! An operation that was accepted without the scope `danger` is checked right before it is sent.

use guildhall_actors::ports::{Execution, ExecutionResult};
use guildhall_core::access::{Grant, ScopeSet};
use guildhall_core::operation::{FailureClass, OperationKind, Payload};
use guildhall_sim::FaultAction;
use guildhall_testkit::gate::run;
use http::Method;
use serde_json::{Value, json};

use super::fixture::ExecutorFixture;

const ROLES_ROUTE: &str = "GET /guilds/{guild.id}/roles";
const CHANNELS_ROUTE: &str = "GET /guilds/{guild.id}/channels";
const ROLES_PATTERN: &str = "GET /guilds/*/roles";
const ASSIGN_ROUTE: &str = "PUT /guilds/{guild.id}/members/{user.id}/roles/{role.id}";

fn payload(kind: OperationKind, payload: &Value) -> Payload {
    Payload::parse(kind, payload, Some(1)).unwrap()
}

/// An operation of a key without the scope.
fn without_scope(fixture: &ExecutorFixture, payload: Payload) -> Execution {
    let scopes = ScopeSet::of(&Grant::read(["operations:write"]).unwrap());
    Execution { scopes, ..fixture.execution(payload) }
}

fn assign(fixture: &ExecutorFixture, role: &str) -> Payload {
    payload(
        OperationKind::AssignRole,
        &json!({"user_id": fixture.create_guild_fixture.member.to_string(), "role_id": role}),
    )
}

async fn create_role(fixture: &ExecutorFixture, permissions: &str) -> String {
    let path = format!("/guilds/{}/roles", fixture.create_guild_fixture.guild);
    let created = fixture.call_discord(Method::POST, &path, &json!({"name": "made", "permissions": permissions})).await;
    created["id"].as_str().unwrap().to_owned()
}

#[test]
fn roles_are_read_once_and_never_with_the_scope() {
    run(async {
        let fixture = ExecutorFixture::new().await;
        let (harmless, admin_role) = (create_role(&fixture, "1024").await, create_role(&fixture, "8").await);
        let before = fixture.world.arrived_at(ROLES_ROUTE);
        fixture.execute(&fixture.execution(assign(&fixture, &admin_role))).await;
        assert_eq!(fixture.world.arrived_at(ROLES_ROUTE), before, "the scope needs no check");
        for _ in 0..3 {
            fixture.execute(&without_scope(&fixture, assign(&fixture, &harmless))).await;
        }
        assert_eq!(fixture.world.arrived_at(ROLES_ROUTE), before + 1);
        let failure = fixture.execute_failing(&without_scope(&fixture, assign(&fixture, &admin_role))).await;
        assert_eq!(failure.class, FailureClass::Forbidden, "{failure:?}");
        assert_eq!(fixture.world.arrived_at(ROLES_ROUTE), before + 1);
        // A role that is newer than the cached ones is looked up.
        let newer = create_role(&fixture, "8").await;
        let failure = fixture.execute_failing(&without_scope(&fixture, assign(&fixture, &newer))).await;
        assert_eq!(failure.class, FailureClass::Forbidden, "{failure:?}");
        assert_eq!(fixture.world.arrived_at(ROLES_ROUTE), before + 2);
    });
}

#[test]
fn own_changes_of_roles_and_channels_take_effect_at_once() {
    run(async {
        let fixture = ExecutorFixture::new().await;
        let role = create_role(&fixture, "1024").await;
        let (guild, channel) = (fixture.create_guild_fixture.guild, fixture.create_guild_fixture.channel);
        fixture.execute(&without_scope(&fixture, assign(&fixture, &role))).await;
        let permissions = |permissions: &str| {
            let request = json!({"method": "PATCH", "path": format!("/guilds/{guild}/roles/{role}"), "body": {"permissions": permissions}});
            payload(OperationKind::Request, &request)
        };
        let allow = |allow: &str| {
            let overwrites = json!([{"role_id": role, "allow": allow}]);
            payload(
                OperationKind::UpdatePermissions,
                &json!({"channel_id": channel.to_string(), "overwrites": overwrites}),
            )
        };
        for (change, back) in [(permissions("8"), permissions("0")), (allow("8192"), allow("0"))] {
            fixture.execute(&fixture.execution(change)).await;
            let failure = fixture.execute_failing(&without_scope(&fixture, assign(&fixture, &role))).await;
            assert_eq!(failure.class, FailureClass::Forbidden, "{failure:?}");
            fixture.execute(&fixture.execution(back)).await;
            fixture.execute(&without_scope(&fixture, assign(&fixture, &role))).await;
        }
    });
}

#[test]
fn operation_waits_if_the_roles_cannot_be_read() {
    run(async {
        let fixture = ExecutorFixture::new().await;
        let role = create_role(&fixture, "8").await;
        let execution = without_scope(&fixture, assign(&fixture, &role));
        let before = fixture.world.arrived_at(ASSIGN_ROUTE);
        fixture.world.fault_once(
            ROLES_PATTERN,
            FaultAction::RateLimit { scope: guildhall_sim::Scope::User, retry_after_ms: 10 },
        );
        let held = fixture.perform(&execution).await;
        assert!(matches!(held, ExecutionResult::Held { .. }), "{held:?}");
        for fault in [FaultAction::Status { status: 503, code: 0 }, FaultAction::DropAfter] {
            fixture.world.fault_once(ROLES_PATTERN, fault);
            // Nothing was sent: it is retried, and there is nothing to reconcile.
            assert_eq!(fixture.execute_failing(&execution).await.class, FailureClass::Transient);
        }
        fixture.world.fault_once("GET /guilds/*/channels", FaultAction::Status { status: 500, code: 0 });
        assert_eq!(fixture.execute_failing(&execution).await.class, FailureClass::Transient);
        assert!(fixture.world.arrived_at(CHANNELS_ROUTE) > 0);
        assert_eq!(fixture.execute_failing(&execution).await.class, FailureClass::Forbidden);
        assert_eq!(fixture.world.arrived_at(ASSIGN_ROUTE), before, "nothing of it was sent");
    });
}

#[test]
fn operation_is_checked_again_after_an_unknown_outcome() {
    run(async {
        let fixture = ExecutorFixture::new().await;
        let overwrites = json!([{"user_id": fixture.create_guild_fixture.member.to_string(), "allow": "1024"}]);
        let channel = payload(OperationKind::CreateChannel, &json!({"name": "room", "overwrites": overwrites}));
        let execution = without_scope(&fixture, channel);
        fixture.execute_lost(&execution, "POST /guilds/*/channels", FaultAction::DropBefore).await;
        assert_eq!(fixture.reconcile(&execution).await, guildhall_actors::ports::ReconcileResult::Absent);
        fixture.execute(&execution).await;
        // The same with a forbidden permission: refused the first time, and after reconciliation.
        let admin_role =
            without_scope(&fixture, payload(OperationKind::CreateRole, &json!({"name": "boss", "permissions": "8"})));
        assert_eq!(fixture.execute_failing(&admin_role).await.class, FailureClass::Forbidden);
        assert_eq!(fixture.reconcile(&admin_role).await, guildhall_actors::ports::ReconcileResult::Absent);
        assert_eq!(fixture.execute_failing(&admin_role).await.class, FailureClass::Forbidden);
        assert_eq!(fixture.roles_named("boss").await, [Value::Null; 0]);
    });
}
