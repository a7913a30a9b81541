//! Payloads and calls that grant permissions themselves, or may do so.

use serde_json::{Value, json};

use super::{ADMINISTRATOR, MANAGE_MESSAGES, Stage, VIEW_CHANNEL, discord};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn path_in_another_form_needs_the_scope_or_is_no_path() {
    let stage = Stage::new(&[]).await;
    let (guild, user, boss) = (stage.town.nobodys, stage.member, &stage.boss.id);
    let digits = boss.bytes().map(|digit| format!("%{digit:x}")).collect::<String>();
    for (path, expected) in [
        (format!("/guilds/{guild}/m%65mbers/{user}/r%6fles/{digits}"), None),
        (format!("/guilds/{guild}/m%2565mbers/{user}/roles/{boss}"), Some(403)),
        (format!("/guilds/{guild}/MEMBERS/{user}/roles/{boss}"), Some(403)),
        (format!("/v9/guilds/{guild}/members/{user}/roles/{boss}"), Some(403)),
        (format!("/guilds/{guild}/members/{user}/roles/{boss}/x"), Some(403)),
        (format!("/guilds/{guild}//members/{user}/roles/{boss}"), Some(422)),
        (format!("/guilds/{guild}/members/{user}/roles/{boss}/"), Some(422)),
        (format!("/guilds/{guild}/x/../members/{user}/roles/{boss}"), Some(422)),
        (format!("/guilds/{guild}/x/%2e%2E/members/{user}/roles/{boss}"), Some(422)),
        (format!("/guilds/{guild}%2Fmembers/{user}/roles/{boss}"), Some(422)),
    ] {
        let request = json!({"kind": "request", "payload": {"method": "PUT", "path": path}});
        let answer = stage.submit(&stage.words_without, &request);
        match expected {
            Some(expected) => assert_eq!(answer.status, expected, "{path}: {}", answer.body),
            None => stage.is_refused(&path, &answer, "grants ADMINISTRATOR"),
        }
        assert_eq!(stage.held(), [""; 0], "{path}");
    }
    // Roles by an invite, and an unknown call.
    let invite =
        json!({"method": "POST", "path": format!("/channels/{}/invites", stage.channel), "body": {"role_ids": [boss]}});
    let invite = json!({"kind": "request", "payload": invite});
    stage.is_refused("invite", &stage.submit(&stage.words_without, &invite), "grants ADMINISTRATOR");
    let unknown = json!({"method": "POST", "path": format!("/guilds/{guild}/mfa"), "body": {"level": 0}});
    let unknown = json!({"kind": "request", "payload": unknown});
    stage.is_refused("unknown", &stage.submit(&stage.words_without, &unknown), "effect on permissions is unknown");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_payload_that_grants_needs_the_scope() {
    let stage = Stage::new(&[]).await;
    let (guild, channel, plain) = (stage.town.nobodys, stage.channel.clone(), stage.plain.id.clone());
    let overwrites = json!([{"role_id": plain, "allow": MANAGE_MESSAGES}]);
    let wire = json!([{"id": plain, "type": 0, "allow": MANAGE_MESSAGES, "deny": "0"}]);
    let kind = |kind: &str, payload: Value| (json!({"kind": kind, "payload": payload}), false);
    let request = |method: &str, path: String, body: Value| {
        (json!({"kind": "request", "payload": {"method": method, "path": path, "body": body}}), true)
    };
    let rows = [
        kind("create_role", json!({"name": "a", "permissions": "2"})),
        kind("create_role", json!({"name": "a", "permissions": "1099511627776"})),
        kind("ensure_role", json!({"key": "new", "name": "a", "permissions": "4"})),
        kind("ensure_role", json!({"key": "plain", "name": "plain", "permissions": ADMINISTRATOR})),
        kind("create_channel", json!({"name": "a", "overwrites": overwrites})),
        kind("ensure_channel", json!({"key": "c", "name": "a", "overwrites": overwrites})),
        kind("update_permissions", json!({"channel_id": channel, "overwrites": overwrites})),
        kind("update_permissions", json!({"channel_id": channel, "overwrites": overwrites, "mode": "merge"})),
        kind("replace_overwrites", json!({"channel_id": channel, "overwrites": overwrites})),
        request("POST", format!("/guilds/{guild}/roles"), json!({"name": "a", "permissions": ADMINISTRATOR})),
        request("PATCH", format!("/guilds/{guild}/roles/{plain}"), json!({"permissions": 8})),
        request("POST", format!("/guilds/{guild}/channels"), json!({"name": "a", "permission_overwrites": wire})),
        request("PATCH", format!("/channels/{channel}"), json!({"permission_overwrites": wire})),
        request(
            "PUT",
            format!("/channels/{channel}/permissions/{plain}"),
            json!({"type": 0, "allow": MANAGE_MESSAGES}),
        ),
    ];
    let roles = || discord(&stage.town, "GET", &format!("/guilds/{guild}/roles"), &Value::Null).body;
    let channels = || discord(&stage.town, "GET", &format!("/guilds/{guild}/channels"), &Value::Null).body;
    let before = (roles(), channels());
    for (operation, is_request) in &rows {
        let key = if *is_request { &stage.words_without } else { &stage.without };
        let answer = stage.submit(key, operation);
        assert_eq!(answer.status, 403, "{operation}: {}", answer.body);
        stage.is_refused(&operation.to_string(), &answer, "grants ");
        let batch = json!({"operations": [{"kind": "create_role", "payload": {"name": "x"}}, operation]});
        assert_eq!(stage.submit(key, &batch).status, 403, "{operation}");
    }
    assert_eq!((roles(), channels()), before, "nothing has changed");
    for (operation, is_request) in &rows {
        let key = if *is_request { &stage.words_with } else { &stage.with };
        stage.is_done(&operation.to_string(), &stage.submit(key, operation));
    }
    let owner = json!({"kind": "request", "payload": {"method": "PATCH", "path": format!("/guilds/{guild}"), "body": {"owner_id": stage.member.to_string()}}});
    stage.is_refused("owner", &stage.submit(&stage.words_without, &owner), "transfers the ownership");
    let sync = json!([{"id": channel, "lock_permissions": true}]);
    let sync = json!({"kind": "request", "payload": {"method": "PATCH", "path": format!("/guilds/{guild}/channels"), "body": sync}});
    stage.is_refused("sync", &stage.submit(&stage.words_without, &sync), "permissions of their category");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn denial_of_a_dangerous_permission_is_not_removed_without_the_scope() {
    let stage = Stage::new(&[]).await;
    let (channel, plain) = (stage.channel.clone(), stage.plain.id.clone());
    let path = format!("/channels/{channel}/permissions/{plain}");
    let denied = json!({"type": 0, "allow": "0", "deny": MANAGE_MESSAGES});
    assert_eq!(discord(&stage.town, "PUT", &path, &denied).status, 204);
    let now = || {
        let channel = discord(&stage.town, "GET", &format!("/channels/{channel}"), &Value::Null).json();
        let overwrites = channel["permission_overwrites"].as_array().unwrap().clone();
        overwrites
            .into_iter()
            .find(|overwrite| overwrite["id"] == json!(plain))
            .map(|overwrite| overwrite["deny"].clone())
    };
    let harmless = json!([{"role_id": plain, "allow": VIEW_CHANNEL}]);
    let wire = json!([{"id": plain, "type": 0, "allow": VIEW_CHANNEL, "deny": "0"}]);
    let request = |method: &str, path: &str, body: Value| {
        let mut payload = json!({"method": method, "path": path});
        if !body.is_null() {
            payload["body"] = body;
        }
        (json!({"kind": "request", "payload": payload}), true)
    };
    for (operation, is_request) in [
        (json!({"kind": "update_permissions", "payload": {"channel_id": channel, "overwrites": harmless}}), false),
        (json!({"kind": "replace_overwrites", "payload": {"channel_id": channel, "overwrites": []}}), false),
        request("DELETE", &path, Value::Null),
        request("PUT", &path, json!({"type": 0, "allow": VIEW_CHANNEL, "deny": "0"})),
        request("PATCH", &format!("/channels/{channel}"), json!({"permission_overwrites": wire})),
    ] {
        let name = operation.to_string();
        let (without, with) = match is_request {
            true => (&stage.words_without, &stage.words_with),
            false => (&stage.without, &stage.with),
        };
        stage.is_refused(&name, &stage.submit(without, &operation), "removes the denial of MANAGE_MESSAGES");
        assert_eq!(now(), Some(json!(MANAGE_MESSAGES)), "{name}");
        stage.is_done(&name, &stage.submit(with, &operation));
        assert_ne!(now(), Some(json!(MANAGE_MESSAGES)), "{name}");
        assert_eq!(discord(&stage.town, "PUT", &path, &denied).status, 204);
    }
    // The denial may stay, and a managed channel is checked against its current overwrites.
    let keep = json!([{"role_id": plain, "allow": VIEW_CHANNEL, "deny": MANAGE_MESSAGES}]);
    let keep = json!({"kind": "update_permissions", "payload": {"channel_id": channel, "overwrites": keep}});
    stage.is_done("keep", &stage.submit(&stage.without, &keep));
    let ensure = |overwrites: Value| json!({"kind": "ensure_channel", "payload": {"key": "room", "name": "room", "overwrites": overwrites}});
    let denying = json!([{"role_id": plain, "deny": MANAGE_MESSAGES}]);
    stage.is_done("ensure", &stage.submit(&stage.without, &ensure(denying)));
    stage.is_refused(
        "ensure",
        &stage.submit(&stage.without, &ensure(json!([]))),
        "removes the denial of MANAGE_MESSAGES",
    );
    stage.is_done("ensure", &stage.submit(&stage.with, &ensure(json!([]))));
}
