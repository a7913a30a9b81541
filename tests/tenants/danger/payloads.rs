//! Payloads and calls that grant permissions themselves, or may do so.

use serde_json::{Value, json};

use super::{ADMINISTRATOR, DangerFixture, MANAGE_MESSAGES, VIEW_CHANNEL, discord};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn path_in_another_form_needs_the_scope_or_is_invalid() {
    let fixture = DangerFixture::new(&[]).await;
    let (guild, user, admin_role) = (fixture.tenants.unowned_guild, fixture.member, &fixture.admin_role.id);
    let digits = admin_role.bytes().map(|digit| format!("%{digit:x}")).collect::<String>();
    for (path, expected) in [
        (format!("/guilds/{guild}/m%65mbers/{user}/r%6fles/{digits}"), None),
        (format!("/guilds/{guild}/m%2565mbers/{user}/roles/{admin_role}"), Some(403)),
        (format!("/guilds/{guild}/MEMBERS/{user}/roles/{admin_role}"), Some(403)),
        (format!("/v9/guilds/{guild}/members/{user}/roles/{admin_role}"), Some(403)),
        (format!("/guilds/{guild}/members/{user}/roles/{admin_role}/x"), Some(403)),
        (format!("/guilds/{guild}//members/{user}/roles/{admin_role}"), Some(422)),
        (format!("/guilds/{guild}/members/{user}/roles/{admin_role}/"), Some(422)),
        (format!("/guilds/{guild}/x/../members/{user}/roles/{admin_role}"), Some(422)),
        (format!("/guilds/{guild}/x/%2e%2E/members/{user}/roles/{admin_role}"), Some(422)),
        (format!("/guilds/{guild}%2Fmembers/{user}/roles/{admin_role}"), Some(422)),
    ] {
        let request = json!({"kind": "request", "payload": {"method": "PUT", "path": path}});
        let response = fixture.submit(&fixture.raw_key_without, &request);
        match expected {
            Some(expected) => assert_eq!(response.status, expected, "{path}: {}", response.body),
            None => fixture.assert_refused(&path, &response, "grants ADMINISTRATOR"),
        }
        assert_eq!(fixture.member_roles(), [""; 0], "{path}");
    }
    // Roles by an invite, and an unknown call.
    let invite = json!({"method": "POST", "path": format!("/channels/{}/invites", fixture.channel), "body": {"role_ids": [admin_role]}});
    let invite = json!({"kind": "request", "payload": invite});
    fixture.assert_refused("invite", &fixture.submit(&fixture.raw_key_without, &invite), "grants ADMINISTRATOR");
    let unknown = json!({"method": "POST", "path": format!("/guilds/{guild}/mfa"), "body": {"level": 0}});
    let unknown = json!({"kind": "request", "payload": unknown});
    fixture.assert_refused(
        "unknown",
        &fixture.submit(&fixture.raw_key_without, &unknown),
        "effect on permissions is unknown",
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_payload_that_grants_needs_the_scope() {
    let fixture = DangerFixture::new(&[]).await;
    let (guild, channel, plain) =
        (fixture.tenants.unowned_guild, fixture.channel.clone(), fixture.plain_role.id.clone());
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
    let roles = || discord(&fixture.tenants, "GET", &format!("/guilds/{guild}/roles"), &Value::Null).body;
    let channels = || discord(&fixture.tenants, "GET", &format!("/guilds/{guild}/channels"), &Value::Null).body;
    let before = (roles(), channels());
    for (operation, is_request) in &rows {
        let key = if *is_request { &fixture.raw_key_without } else { &fixture.key_without };
        let response = fixture.submit(key, operation);
        assert_eq!(response.status, 403, "{operation}: {}", response.body);
        fixture.assert_refused(&operation.to_string(), &response, "grants ");
        let batch = json!({"operations": [{"kind": "create_role", "payload": {"name": "x"}}, operation]});
        assert_eq!(fixture.submit(key, &batch).status, 403, "{operation}");
    }
    assert_eq!((roles(), channels()), before, "nothing has changed");
    for (operation, is_request) in &rows {
        let key = if *is_request { &fixture.raw_key_with } else { &fixture.key_with };
        fixture.assert_done(&operation.to_string(), &fixture.submit(key, operation));
    }
    let owner = json!({"kind": "request", "payload": {"method": "PATCH", "path": format!("/guilds/{guild}"), "body": {"owner_id": fixture.member.to_string()}}});
    fixture.assert_refused("owner", &fixture.submit(&fixture.raw_key_without, &owner), "transfers the ownership");
    let sync = json!([{"id": channel, "lock_permissions": true}]);
    let sync = json!({"kind": "request", "payload": {"method": "PATCH", "path": format!("/guilds/{guild}/channels"), "body": sync}});
    fixture.assert_refused("sync", &fixture.submit(&fixture.raw_key_without, &sync), "permissions of their category");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn removing_a_denial_needs_the_scope() {
    let fixture = DangerFixture::new(&[]).await;
    let (channel, plain) = (fixture.channel.clone(), fixture.plain_role.id.clone());
    let path = format!("/channels/{channel}/permissions/{plain}");
    let denied = json!({"type": 0, "allow": "0", "deny": MANAGE_MESSAGES});
    assert_eq!(discord(&fixture.tenants, "PUT", &path, &denied).status, 204);
    let current_deny = || {
        let channel = discord(&fixture.tenants, "GET", &format!("/channels/{channel}"), &Value::Null).json();
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
            true => (&fixture.raw_key_without, &fixture.raw_key_with),
            false => (&fixture.key_without, &fixture.key_with),
        };
        fixture.assert_refused(&name, &fixture.submit(without, &operation), "removes the denial of MANAGE_MESSAGES");
        assert_eq!(current_deny(), Some(json!(MANAGE_MESSAGES)), "{name}");
        fixture.assert_done(&name, &fixture.submit(with, &operation));
        assert_ne!(current_deny(), Some(json!(MANAGE_MESSAGES)), "{name}");
        assert_eq!(discord(&fixture.tenants, "PUT", &path, &denied).status, 204);
    }
    // The denial may stay, and a managed channel is checked against its current overwrites.
    let unchanged = json!([{"role_id": plain, "allow": VIEW_CHANNEL, "deny": MANAGE_MESSAGES}]);
    let unchanged = json!({"kind": "update_permissions", "payload": {"channel_id": channel, "overwrites": unchanged}});
    fixture.assert_done("keep", &fixture.submit(&fixture.key_without, &unchanged));
    let ensure = |overwrites: Value| json!({"kind": "ensure_channel", "payload": {"key": "room", "name": "room", "overwrites": overwrites}});
    let denying = json!([{"role_id": plain, "deny": MANAGE_MESSAGES}]);
    fixture.assert_done("ensure", &fixture.submit(&fixture.key_without, &ensure(denying)));
    fixture.assert_refused(
        "ensure",
        &fixture.submit(&fixture.key_without, &ensure(json!([]))),
        "removes the denial of MANAGE_MESSAGES",
    );
    fixture.assert_done("ensure", &fixture.submit(&fixture.key_with, &ensure(json!([]))));
}
