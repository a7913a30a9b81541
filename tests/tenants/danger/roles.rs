//! Assigning a role.

use guildhall_sim::JoinSpec;
use serde_json::{Value, json};

use super::{ADMINISTRATOR, Role, SCOPE, Stage, ends, requests};
use crate::town::{ADMIN, on_both};

const GIVE: &str = "PUT /guilds/{guild.id}/members/{user.id}/roles/{role.id}";
const ROLES: &str = "GET /guilds/{guild.id}/roles";

on_both! {
    async fn existing_administrator_role_cannot_be_assigned_without_the_scope(town) {
        let member = town.sim.join(town.acme, JoinSpec::default()).await.unwrap().id.unwrap();
        let role = json!({"kind": "create_role", "payload": {"name": "Boss", "permissions": ADMINISTRATOR}});
        let made = ends(&town, &town.submit(ADMIN, town.acme, &role));
        let key = town.key("acme", &["operations:write", &format!("guild:{}", town.acme)]);
        let assign = json!({"kind": "assign_role", "payload": {"user_id": member.to_string(), "role_id": made["result"]["role_id"]}});
        // Its permissions are not cached yet: it is accepted, looked up before it is sent, and refused.
        let shown = ends(&town, &town.submit(&key.text, town.acme, &assign));
        assert_eq!((&shown["state"], &shown["error"]["class"]), (&json!("dead"), &json!("forbidden")), "{shown}");
        let id = made["result"]["role_id"].as_str().unwrap();
        let says = format!("assigns role {id}, which grants ADMINISTRATOR; {SCOPE}");
        assert_eq!(shown["error"]["message"], says);
        // From now on they are cached, and it is rejected at submission, alone or in a batch.
        let guild = format!("/v1/guilds/{}/operations", town.acme);
        let refused = town.with(&key.text, "POST", &guild, &assign);
        assert_eq!((refused.status, &refused.json()["errors"][0]["message"]), (403, &json!(says)), "{}", refused.body);
        let batch = json!({"operations": [{"kind": "create_role", "payload": {"name": "x"}}, assign]});
        let refused = town.with(&key.text, "POST", &guild, &batch);
        assert_eq!(refused.json()["errors"][0]["field"], "operations[1]", "{}", refused.body);
        assert_eq!((requests(&town, GIVE), requests(&town, ROLES)), (0, 1));
        // A redrive by the operator does not help.
        let letter = shown["id"].as_str().unwrap();
        let redriven = town.admin("POST", &format!("/v1/dead-letters/{letter}/redrive"), &Value::Null);
        assert_eq!(redriven.status, 202, "{}", redriven.body);
        let again = ends(&town, redriven.json()["id"].as_str().unwrap());
        assert_eq!((&again["state"], &again["error"]["message"]), (&json!("dead"), &json!(says)), "{again}");
        assert_eq!(requests(&town, GIVE), 0);
        // The operator can assign it, and so can a key with the scope.
        assert_eq!(ends(&town, &town.submit(&town.owner.text, town.acme, &assign))["state"], "succeeded");
        assert_eq!(requests(&town, GIVE), 1);
        let metrics = town.with("", "GET", "/metrics", &Value::Null).body;
        for at in ["submission", "dispatch"] {
            assert!(metrics.contains(&format!("guildhall_operations_danger_refused_total{{at=\"{at}\"}}")), "{metrics}");
        }
        town.until("/v1/audit?action=refused&limit=500", |answer| answer.body.contains("which grants ADMINISTRATOR"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_way_to_give_a_role_is_judged_by_its_permissions() {
    let stage = Stage::new(&[]).await;
    for (role, permission) in [
        (&stage.boss, Some("grants ADMINISTRATOR")),
        (&stage.moderator, Some("grants MANAGE_MESSAGES in at least one channel")),
        (&stage.plain, None),
    ] {
        for (name, operation, is_request) in stage.ways_to_give(role) {
            let (without, with) = match is_request {
                true => (&stage.words_without, &stage.words_with),
                false => (&stage.without, &stage.with),
            };
            stage.hold(&[]);
            let name = format!("{name}, {}", role.key);
            let answer = stage.submit(without, &operation);
            match permission {
                Some(permission) => {
                    stage.is_refused(&name, &answer, permission);
                    assert_eq!(stage.held(), [""; 0], "{name}");
                }
                None => {
                    stage.is_done(&name, &answer);
                    assert_eq!(stage.held(), [role.id.as_str()], "{name}");
                }
            }
            stage.hold(&[]);
            stage.is_done(&name, &stage.submit(with, &operation));
            assert_eq!(stage.held(), [role.id.as_str()], "{name}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn member_may_keep_the_roles_they_have() {
    let stage = Stage::new(&[]).await;
    let user = stage.member.to_string();
    let set = |roles: &[&Role]| {
        let roles: Vec<_> = roles.iter().map(|role| &role.id).collect();
        json!({"kind": "set_member_roles", "payload": {"user_id": user, "role_ids": roles}})
    };
    stage.hold(&[&stage.boss]);
    stage.is_done("keep", &stage.submit(&stage.without, &set(&[&stage.boss, &stage.plain])));
    assert_eq!(stage.held().len(), 2);
    stage.is_refused("add", &stage.submit(&stage.without, &set(&[&stage.boss, &stage.moderator])), "MANAGE_MESSAGES");
    stage.is_done("take", &stage.submit(&stage.without, &set(&[])));
    stage.is_refused("give back", &stage.submit(&stage.without, &set(&[&stage.boss])), "grants ADMINISTRATOR");
    assert_eq!(stage.held(), [""; 0]);
    // A role that does not exist is not found, rather than forbidden.
    let nothing = json!({"kind": "assign_role", "payload": {"user_id": user, "role_id": "5"}});
    let shown = ends(&stage.town, &stage.town.submit(&stage.without.text, stage.town.nobodys, &nothing));
    assert_eq!((&shown["state"], &shown["error"]["class"]), (&json!("dead"), &json!("not_found")), "{shown}");
}
