//! Granting a dangerous permission needs the scope `danger`: every kind that can grant one, and every reference to a
//! role, checked against what Discord then has.

mod payloads;
mod rechecks;
mod roles;

use guildhall_sim::{JoinSpec, Snowflake};
use guildhall_testkit::program::{CANARY, HttpResponse, request};
use serde_json::{Value, json};
use tokio::task::block_in_place;

use crate::fixture::{ADMIN, Engine, Key, MultiTenantFixture};

const ADMINISTRATOR: &str = "8";
const MANAGE_MESSAGES: &str = "8192";
const VIEW_CHANNEL: &str = "1024";
const MISSING_SCOPE: &str = "this needs a key with the scope danger";

/// A role that the operator has created, with its references.
#[derive(Clone)]
struct Role {
    id: String,
    key: &'static str,
    operation: String,
}

impl Role {
    /// Each reference to it in a payload.
    fn references(&self) -> [(&'static str, Value); 3] {
        [("id", json!(self.id)), ("key", json!({"key": self.key})), ("operation", json!({"operation": self.operation}))]
    }
}

/// A guild of the tenant `default` with a member, roles, and keys with and without the scope.
struct DangerFixture {
    tenants: MultiTenantFixture,
    member: Snowflake,
    channel: String,
    /// It grants ADMINISTRATOR.
    admin_role: Role,
    /// It grants MANAGE_MESSAGES in one channel.
    moderator_role: Role,
    /// It grants nothing dangerous.
    plain_role: Role,
    /// For the guild.
    key_without: Key,
    key_with: Key,
    /// For `request`, which needs a key for the whole tenant.
    raw_key_without: Key,
    raw_key_with: Key,
}

impl DangerFixture {
    async fn new(settings: &[(&str, &str)]) -> Self {
        let tenants = MultiTenantFixture::open_with(Engine::Sqlite, settings).await;
        let member = tenants.sim.join(tenants.unowned_guild, JoinSpec::default()).await.unwrap().id.unwrap();
        let channel = tenants.find_channel(tenants.unowned_guild);
        let create_role = |key: &'static str, permissions: &str| {
            let payload = json!({"key": key, "name": key, "permissions": permissions});
            let operation =
                tenants.submit(ADMIN, tenants.unowned_guild, &json!({"kind": "create_role", "payload": payload}));
            let id = wait_until_final(&tenants, &operation)["result"]["role_id"].as_str().unwrap().to_owned();
            Role { id, key, operation }
        };
        let (admin_role, moderator_role) = (create_role("boss", ADMINISTRATOR), create_role("moderator", VIEW_CHANNEL));
        let plain_role = create_role("plain", VIEW_CHANNEL);
        let overwrite = json!({"type": 0, "allow": MANAGE_MESSAGES, "deny": "0"});
        let path = format!("/channels/{channel}/permissions/{}", moderator_role.id);
        let allowed = discord(&tenants, "PUT", &path, &overwrite);
        assert_eq!(allowed.status, 204, "{}", allowed.body);
        let guild = format!("guild:{}", tenants.unowned_guild);
        let key_without = tenants.create_key("default", &["operations:write", &guild]);
        let key_with = tenants.create_key("default", &["operations:write", "danger", &guild]);
        let raw_key_without = tenants.create_key("default", &["operations:write", "application"]);
        let raw_key_with = tenants.create_key("default", &["operations:write", "application", "danger"]);
        Self {
            tenants,
            member,
            channel,
            admin_role,
            moderator_role,
            plain_role,
            key_without,
            key_with,
            raw_key_without,
            raw_key_with,
        }
    }

    /// The roles that the member has in Discord.
    fn member_roles(&self) -> Vec<String> {
        let path = format!("/guilds/{}/members/{}", self.tenants.unowned_guild, self.member);
        let member = discord(&self.tenants, "GET", &path, &Value::Null).json();
        member["roles"].as_array().unwrap().iter().map(|role| role.as_str().unwrap().to_owned()).collect()
    }

    /// Sets the roles of the member in Discord, without the daemon.
    fn set_member_roles(&self, roles: &[&Role]) {
        let path = format!("/guilds/{}/members/{}", self.tenants.unowned_guild, self.member);
        let roles: Vec<_> = roles.iter().map(|role| &role.id).collect();
        assert_eq!(discord(&self.tenants, "PATCH", &path, &json!({"roles": roles})).status, 200);
    }

    fn submit(&self, key: &Key, body: &Value) -> HttpResponse {
        self.tenants.request_with(
            &key.text,
            "POST",
            &format!("/v1/guilds/{}/operations", self.tenants.unowned_guild),
            body,
        )
    }

    /// Asserts that an operation is refused for this permission, at submission or at dispatch.
    fn assert_refused(&self, name: &str, response: &HttpResponse, permission: &str) {
        let message = match response.status {
            403 => response.json()["errors"][0]["message"].as_str().unwrap().to_owned(),
            202 => self.assert_forbidden(name, response.json()["id"].as_str().unwrap()),
            status => panic!("{name}: {status} {}", response.body),
        };
        assert!(message.contains(permission) && message.contains(MISSING_SCOPE), "{name}: {message}");
    }

    /// Asserts that an operation died because it was forbidden. Returns the error message.
    fn assert_forbidden(&self, name: &str, id: &str) -> String {
        let operation = wait_until_final(&self.tenants, id);
        assert_eq!(
            (&operation["state"], &operation["error"]["class"]),
            (&json!("dead"), &json!("forbidden")),
            "{name}: {operation}"
        );
        operation["error"]["message"].as_str().unwrap().to_owned()
    }

    fn assert_done(&self, name: &str, response: &HttpResponse) {
        assert_eq!(response.status, 202, "{name}: {}", response.body);
        let operation = wait_until_final(&self.tenants, response.json()["id"].as_str().unwrap());
        assert_eq!(operation["state"], "succeeded", "{name}: {operation}");
    }

    /// Each operation that gives the member a role, and whether it is a `request`.
    fn role_grants(&self, role: &Role) -> Vec<(String, Value, bool)> {
        let (guild, user) = (self.tenants.unowned_guild, self.member.to_string());
        let mut grants = Vec::new();
        for (name, role) in role.references() {
            let payload = json!({"user_id": user, "role_id": role});
            grants.push((format!("assign_role by {name}"), json!({"kind": "assign_role", "payload": payload}), false));
            let payload = json!({"user_id": user, "role_ids": [role]});
            grants.push((
                format!("set_member_roles by {name}"),
                json!({"kind": "set_member_roles", "payload": payload}),
                false,
            ));
        }
        let request = |method: &str, path: String, body: Value| {
            let mut payload = json!({"method": method, "path": path});
            if !body.is_null() {
                payload["body"] = body;
            }
            (format!("request {method} {path}"), json!({"kind": "request", "payload": payload}), true)
        };
        let (id, number) = (&role.id, role.id.parse::<u64>().unwrap());
        let path = format!("/guilds/{guild}/members/{user}");
        grants.push(request("PUT", format!("{path}/roles/{id}"), Value::Null));
        grants.push(request("PUT", format!("{path}/roles/{id}?reason=/../x"), Value::Null));
        grants.push(request("PATCH", path.clone(), json!({"roles": [id]})));
        grants.push(request("PATCH", path, json!({"nick": "x", "roles": [number]})));
        grants
    }
}

/// Calls the simulated Discord, without the daemon.
fn discord(tenants: &MultiTenantFixture, method: &str, path: &str, body: &Value) -> HttpResponse {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let head = format!(
        "{method} /api/v10{path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\nAuthorization: Bot {CANARY}\r\n\
         User-Agent: DiscordBot (https://example.com, 1)\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    block_in_place(|| request(tenants.sim.address(), &head))
}

/// Waits until an operation is final, and returns it.
fn wait_until_final(tenants: &MultiTenantFixture, id: &str) -> Value {
    let is_final = |state: &Value| ["succeeded", "dead", "needs_review"].iter().any(|final_state| state == final_state);
    tenants.poll_until(&format!("/v1/operations/{id}"), |response| is_final(&response.json()["state"])).json()
}

/// Requests of a route that reached Discord.
fn request_count(tenants: &MultiTenantFixture, route: &str) -> u64 {
    tenants.sim.score().routes.get(route).map_or(0, |route| route.requests)
}
