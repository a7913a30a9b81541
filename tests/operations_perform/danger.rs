//! An operation that was accepted without the scope `danger` is checked right before it is sent.

use guildhall_actors::ports::{Execution, ExecutionResult};
use guildhall_core::access::{Grant, ScopeSet};
use guildhall_core::operation::{FailureClass, OperationKind, Payload};
use guildhall_sim::FaultAction;
use http::Method;
use serde_json::{Value, json};

use crate::gate::run;
use crate::stage::Stage;

const ROLES: &str = "GET /guilds/{guild.id}/roles";
const CHANNELS: &str = "GET /guilds/{guild.id}/channels";
const ANY_ROLES: &str = "GET /guilds/*/roles";
const GIVE: &str = "PUT /guilds/{guild.id}/members/{user.id}/roles/{role.id}";

fn payload(kind: OperationKind, payload: &Value) -> Payload {
    Payload::parse(kind, payload, Some(1)).unwrap()
}

/// An operation of a key without the scope.
fn plain(stage: &Stage, payload: Payload) -> Execution {
    let scopes = ScopeSet::of(&Grant::read(["operations:write"]).unwrap());
    Execution { scopes, ..stage.work(payload) }
}

fn assign(stage: &Stage, role: &str) -> Payload {
    payload(OperationKind::AssignRole, &json!({"user_id": stage.place.member.to_string(), "role_id": role}))
}

async fn make_role(stage: &Stage, permissions: &str) -> String {
    let path = format!("/guilds/{}/roles", stage.place.guild);
    let made = stage.aside(Method::POST, &path, &json!({"name": "made", "permissions": permissions})).await;
    made["id"].as_str().unwrap().to_owned()
}

#[test]
fn roles_are_read_once_for_several_operations_and_never_with_the_scope() {
    run(async {
        let stage = Stage::new().await;
        let (harmless, boss) = (make_role(&stage, "1024").await, make_role(&stage, "8").await);
        let before = stage.world.arrived_at(ROLES);
        stage.done(&stage.work(assign(&stage, &boss))).await;
        assert_eq!(stage.world.arrived_at(ROLES), before, "the scope needs no check");
        for _ in 0..3 {
            stage.done(&plain(&stage, assign(&stage, &harmless))).await;
        }
        assert_eq!(stage.world.arrived_at(ROLES), before + 1);
        let failure = stage.failed(&plain(&stage, assign(&stage, &boss))).await;
        assert_eq!(failure.class, FailureClass::Forbidden, "{failure:?}");
        assert_eq!(stage.world.arrived_at(ROLES), before + 1);
        // A role that is newer than the cached ones is looked up.
        let newer = make_role(&stage, "8").await;
        let failure = stage.failed(&plain(&stage, assign(&stage, &newer))).await;
        assert_eq!(failure.class, FailureClass::Forbidden, "{failure:?}");
        assert_eq!(stage.world.arrived_at(ROLES), before + 2);
    });
}

#[test]
fn own_changes_of_roles_and_channels_are_seen_at_once() {
    run(async {
        let stage = Stage::new().await;
        let role = make_role(&stage, "1024").await;
        let (guild, channel) = (stage.place.guild, stage.place.channel);
        stage.done(&plain(&stage, assign(&stage, &role))).await;
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
            stage.done(&stage.work(change)).await;
            let failure = stage.failed(&plain(&stage, assign(&stage, &role))).await;
            assert_eq!(failure.class, FailureClass::Forbidden, "{failure:?}");
            stage.done(&stage.work(back)).await;
            stage.done(&plain(&stage, assign(&stage, &role))).await;
        }
    });
}

#[test]
fn operation_waits_if_the_roles_cannot_be_read() {
    run(async {
        let stage = Stage::new().await;
        let role = make_role(&stage, "8").await;
        let work = plain(&stage, assign(&stage, &role));
        let before = stage.world.arrived_at(GIVE);
        stage
            .world
            .fault_once(ANY_ROLES, FaultAction::RateLimit { scope: guildhall_sim::Scope::User, retry_after_ms: 10 });
        let held = stage.perform(&work).await;
        assert!(matches!(held, ExecutionResult::Held { .. }), "{held:?}");
        for fault in [FaultAction::Status { status: 503, code: 0 }, FaultAction::DropAfter] {
            stage.world.fault_once(ANY_ROLES, fault);
            // Nothing was sent: it is retried, and there is nothing to reconcile.
            assert_eq!(stage.failed(&work).await.class, FailureClass::Transient);
        }
        stage.world.fault_once("GET /guilds/*/channels", FaultAction::Status { status: 500, code: 0 });
        assert_eq!(stage.failed(&work).await.class, FailureClass::Transient);
        assert!(stage.world.arrived_at(CHANNELS) > 0);
        assert_eq!(stage.failed(&work).await.class, FailureClass::Forbidden);
        assert_eq!(stage.world.arrived_at(GIVE), before, "nothing of it was sent");
    });
}

#[test]
fn operation_that_is_sent_again_after_a_doubt_is_judged_again() {
    run(async {
        let stage = Stage::new().await;
        let overwrites = json!([{"user_id": stage.place.member.to_string(), "allow": "1024"}]);
        let channel = payload(OperationKind::CreateChannel, &json!({"name": "room", "overwrites": overwrites}));
        let work = plain(&stage, channel);
        stage.lost(&work, "POST /guilds/*/channels", FaultAction::DropBefore).await;
        assert_eq!(stage.reconcile(&work).await, guildhall_actors::ports::ReconcileResult::Absent);
        stage.done(&work).await;
        // The same with a forbidden permission: refused the first time, and after reconciliation.
        let boss = plain(&stage, payload(OperationKind::CreateRole, &json!({"name": "boss", "permissions": "8"})));
        assert_eq!(stage.failed(&boss).await.class, FailureClass::Forbidden);
        assert_eq!(stage.reconcile(&boss).await, guildhall_actors::ports::ReconcileResult::Absent);
        assert_eq!(stage.failed(&boss).await.class, FailureClass::Forbidden);
        assert_eq!(stage.roles_named("boss").await, [Value::Null; 0]);
    });
}
