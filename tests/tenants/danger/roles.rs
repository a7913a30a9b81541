//! Assigning a role.

use guildhall_sim::JoinSpec;
use serde_json::{Value, json};

use super::{ADMINISTRATOR, DangerFixture, MISSING_SCOPE, Role, request_count, wait_until_final};
use crate::fixture::{ADMIN, on_both};

const ASSIGN_ROUTE: &str = "PUT /guilds/{guild.id}/members/{user.id}/roles/{role.id}";
const ROLES_ROUTE: &str = "GET /guilds/{guild.id}/roles";

on_both! {
    async fn assigning_an_administrator_role_needs_the_scope(fixture) {
        let member = fixture.sim.join(fixture.acme_guild, JoinSpec::default()).await.unwrap().id.unwrap();
        let role = json!({"kind": "create_role", "payload": {"name": "Boss", "permissions": ADMINISTRATOR}});
        let made = wait_until_final(&fixture, &fixture.submit(ADMIN, fixture.acme_guild, &role));
        let key = fixture.create_key("acme", &["operations:write", &format!("guild:{}", fixture.acme_guild)]);
        let assign = json!({"kind": "assign_role", "payload": {"user_id": member.to_string(), "role_id": made["result"]["role_id"]}});
        // Its permissions are not cached yet: it is accepted, looked up before it is sent, and refused.
        let shown = wait_until_final(&fixture, &fixture.submit(&key.text, fixture.acme_guild, &assign));
        assert_eq!((&shown["state"], &shown["error"]["class"]), (&json!("dead"), &json!("forbidden")), "{shown}");
        let id = made["result"]["role_id"].as_str().unwrap();
        let message = format!("assigns role {id}, which grants ADMINISTRATOR; {MISSING_SCOPE}");
        assert_eq!(shown["error"]["message"], message);
        // From now on they are cached, and it is rejected at submission, alone or in a batch.
        let guild = format!("/v1/guilds/{}/operations", fixture.acme_guild);
        let refused = fixture.request_with(&key.text, "POST", &guild, &assign);
        assert_eq!((refused.status, &refused.json()["errors"][0]["message"]), (403, &json!(message)), "{}", refused.body);
        let batch = json!({"operations": [{"kind": "create_role", "payload": {"name": "x"}}, assign]});
        let refused = fixture.request_with(&key.text, "POST", &guild, &batch);
        assert_eq!(refused.json()["errors"][0]["field"], "operations[1]", "{}", refused.body);
        assert_eq!((request_count(&fixture, ASSIGN_ROUTE), request_count(&fixture, ROLES_ROUTE)), (0, 1));
        // A redrive by the operator does not help.
        let letter = shown["id"].as_str().unwrap();
        let redriven = fixture.request_as_admin("POST", &format!("/v1/dead-letters/{letter}/redrive"), &Value::Null);
        assert_eq!(redriven.status, 202, "{}", redriven.body);
        let again = wait_until_final(&fixture, redriven.json()["id"].as_str().unwrap());
        assert_eq!((&again["state"], &again["error"]["message"]), (&json!("dead"), &json!(message)), "{again}");
        assert_eq!(request_count(&fixture, ASSIGN_ROUTE), 0);
        // The operator can assign it, and so can a key with the scope.
        assert_eq!(wait_until_final(&fixture, &fixture.submit(&fixture.owner_key.text, fixture.acme_guild, &assign))["state"], "succeeded");
        assert_eq!(request_count(&fixture, ASSIGN_ROUTE), 1);
        let metrics = fixture.request_with("", "GET", "/metrics", &Value::Null).body;
        for at in ["submission", "dispatch"] {
            assert!(metrics.contains(&format!("guildhall_operations_danger_refused_total{{at=\"{at}\"}}")), "{metrics}");
        }
        fixture.poll_until("/v1/audit?action=refused&limit=500", |answer| answer.body.contains("which grants ADMINISTRATOR"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_role_grant_is_checked_by_its_permissions() {
    let fixture = DangerFixture::new(&[]).await;
    for (role, permission) in [
        (&fixture.admin_role, Some("grants ADMINISTRATOR")),
        (&fixture.moderator_role, Some("grants MANAGE_MESSAGES in at least one channel")),
        (&fixture.plain_role, None),
    ] {
        for (name, operation, is_request) in fixture.role_grants(role) {
            let (without, with) = match is_request {
                true => (&fixture.raw_key_without, &fixture.raw_key_with),
                false => (&fixture.key_without, &fixture.key_with),
            };
            fixture.set_member_roles(&[]);
            let name = format!("{name}, {}", role.key);
            let response = fixture.submit(without, &operation);
            match permission {
                Some(permission) => {
                    fixture.assert_refused(&name, &response, permission);
                    assert_eq!(fixture.member_roles(), [""; 0], "{name}");
                }
                None => {
                    fixture.assert_done(&name, &response);
                    assert_eq!(fixture.member_roles(), [role.id.as_str()], "{name}");
                }
            }
            fixture.set_member_roles(&[]);
            fixture.assert_done(&name, &fixture.submit(with, &operation));
            assert_eq!(fixture.member_roles(), [role.id.as_str()], "{name}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn member_may_keep_the_roles_they_have() {
    let fixture = DangerFixture::new(&[]).await;
    let user = fixture.member.to_string();
    let set = |roles: &[&Role]| {
        let roles: Vec<_> = roles.iter().map(|role| &role.id).collect();
        json!({"kind": "set_member_roles", "payload": {"user_id": user, "role_ids": roles}})
    };
    fixture.set_member_roles(&[&fixture.admin_role]);
    fixture
        .assert_done("keep", &fixture.submit(&fixture.key_without, &set(&[&fixture.admin_role, &fixture.plain_role])));
    assert_eq!(fixture.member_roles().len(), 2);
    fixture.assert_refused(
        "add",
        &fixture.submit(&fixture.key_without, &set(&[&fixture.admin_role, &fixture.moderator_role])),
        "MANAGE_MESSAGES",
    );
    fixture.assert_done("take", &fixture.submit(&fixture.key_without, &set(&[])));
    fixture.assert_refused(
        "give back",
        &fixture.submit(&fixture.key_without, &set(&[&fixture.admin_role])),
        "grants ADMINISTRATOR",
    );
    assert_eq!(fixture.member_roles(), [""; 0]);
    // A role that does not exist is not found, rather than forbidden.
    let unknown_role = json!({"kind": "assign_role", "payload": {"user_id": user, "role_id": "5"}});
    let operation = wait_until_final(
        &fixture.tenants,
        &fixture.tenants.submit(&fixture.key_without.text, fixture.tenants.unowned_guild, &unknown_role),
    );
    assert_eq!(
        (&operation["state"], &operation["error"]["class"]),
        (&json!("dead"), &json!("not_found")),
        "{operation}"
    );
}
