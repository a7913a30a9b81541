//! Granting a dangerous permission needs the scope `danger`: every kind that can grant one, and every reference to a
//! role, checked against what Discord then has.

mod again;
mod payloads;
mod roles;

use guildhall_sim::{JoinSpec, Snowflake};
use serde_json::{Value, json};
use tokio::task::block_in_place;

use crate::support::{Answer, CANARY, request};
use crate::town::{ADMIN, Engine, Key, Town};

const ADMINISTRATOR: &str = "8";
const MANAGE_MESSAGES: &str = "8192";
const VIEW_CHANNEL: &str = "1024";
const SCOPE: &str = "this needs a key with the scope danger";

/// A role that the operator has created, with its references.
#[derive(Clone)]
struct Role {
    id: String,
    key: &'static str,
    operation: String,
}

impl Role {
    /// Each reference to it in a payload.
    fn names(&self) -> [(&'static str, Value); 3] {
        [("id", json!(self.id)), ("key", json!({"key": self.key})), ("operation", json!({"operation": self.operation}))]
    }
}

/// A guild of the tenant `default` with a member, roles, and keys with and without the scope.
struct Stage {
    town: Town,
    member: Snowflake,
    channel: String,
    /// It grants ADMINISTRATOR.
    boss: Role,
    /// It grants MANAGE_MESSAGES in one channel.
    moderator: Role,
    /// It grants nothing dangerous.
    plain: Role,
    /// For the guild.
    without: Key,
    with: Key,
    /// For `request`, which needs a key for the whole tenant.
    words_without: Key,
    words_with: Key,
}

impl Stage {
    async fn new(settings: &[(&str, &str)]) -> Self {
        let town = Town::open_with(Engine::Sqlite, settings).await;
        let member = town.sim.join(town.nobodys, JoinSpec::default()).await.unwrap().id.unwrap();
        let channel = town.channel(town.nobodys);
        let make = |key: &'static str, permissions: &str| {
            let payload = json!({"key": key, "name": key, "permissions": permissions});
            let operation = town.submit(ADMIN, town.nobodys, &json!({"kind": "create_role", "payload": payload}));
            let id = ends(&town, &operation)["result"]["role_id"].as_str().unwrap().to_owned();
            Role { id, key, operation }
        };
        let (boss, moderator) = (make("boss", ADMINISTRATOR), make("moderator", VIEW_CHANNEL));
        let plain = make("plain", VIEW_CHANNEL);
        let overwrite = json!({"type": 0, "allow": MANAGE_MESSAGES, "deny": "0"});
        let path = format!("/channels/{channel}/permissions/{}", moderator.id);
        let allowed = discord(&town, "PUT", &path, &overwrite);
        assert_eq!(allowed.status, 204, "{}", allowed.body);
        let guild = format!("guild:{}", town.nobodys);
        let without = town.key("default", &["operations:write", &guild]);
        let with = town.key("default", &["operations:write", "danger", &guild]);
        let words_without = town.key("default", &["operations:write", "application"]);
        let words_with = town.key("default", &["operations:write", "application", "danger"]);
        Self { town, member, channel, boss, moderator, plain, without, with, words_without, words_with }
    }

    /// The roles that the member has in Discord.
    fn held(&self) -> Vec<String> {
        let path = format!("/guilds/{}/members/{}", self.town.nobodys, self.member);
        let member = discord(&self.town, "GET", &path, &Value::Null).json();
        member["roles"].as_array().unwrap().iter().map(|role| role.as_str().unwrap().to_owned()).collect()
    }

    /// Sets the roles of the member in Discord, without the daemon.
    fn hold(&self, roles: &[&Role]) {
        let path = format!("/guilds/{}/members/{}", self.town.nobodys, self.member);
        let roles: Vec<_> = roles.iter().map(|role| &role.id).collect();
        assert_eq!(discord(&self.town, "PATCH", &path, &json!({"roles": roles})).status, 200);
    }

    fn submit(&self, key: &Key, body: &Value) -> Answer {
        self.town.with(&key.text, "POST", &format!("/v1/guilds/{}/operations", self.town.nobodys), body)
    }

    /// Asserts that an operation is refused for this permission, at submission or at dispatch.
    fn is_refused(&self, name: &str, answer: &Answer, permission: &str) {
        let message = match answer.status {
            403 => answer.json()["errors"][0]["message"].as_str().unwrap().to_owned(),
            202 => self.is_dead(name, answer.json()["id"].as_str().unwrap()),
            status => panic!("{name}: {status} {}", answer.body),
        };
        assert!(message.contains(permission) && message.contains(SCOPE), "{name}: {message}");
    }

    /// Asserts that an operation died because it was forbidden. Returns the error message.
    fn is_dead(&self, name: &str, id: &str) -> String {
        let shown = ends(&self.town, id);
        assert_eq!(
            (&shown["state"], &shown["error"]["class"]),
            (&json!("dead"), &json!("forbidden")),
            "{name}: {shown}"
        );
        shown["error"]["message"].as_str().unwrap().to_owned()
    }

    fn is_done(&self, name: &str, answer: &Answer) {
        assert_eq!(answer.status, 202, "{name}: {}", answer.body);
        let shown = ends(&self.town, answer.json()["id"].as_str().unwrap());
        assert_eq!(shown["state"], "succeeded", "{name}: {shown}");
    }

    /// Each operation that gives the member a role, and whether it is a `request`.
    fn ways_to_give(&self, role: &Role) -> Vec<(String, Value, bool)> {
        let (guild, user) = (self.town.nobodys, self.member.to_string());
        let mut ways = Vec::new();
        for (name, role) in role.names() {
            let payload = json!({"user_id": user, "role_id": role});
            ways.push((format!("assign_role by {name}"), json!({"kind": "assign_role", "payload": payload}), false));
            let payload = json!({"user_id": user, "role_ids": [role]});
            ways.push((
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
        ways.push(request("PUT", format!("{path}/roles/{id}"), Value::Null));
        ways.push(request("PUT", format!("{path}/roles/{id}?reason=/../x"), Value::Null));
        ways.push(request("PATCH", path.clone(), json!({"roles": [id]})));
        ways.push(request("PATCH", path, json!({"nick": "x", "roles": [number]})));
        ways
    }
}

/// Calls the simulated Discord, without the daemon.
fn discord(town: &Town, method: &str, path: &str, body: &Value) -> Answer {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let head = format!(
        "{method} /api/v10{path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\nAuthorization: Bot {CANARY}\r\n\
         User-Agent: DiscordBot (https://example.com, 1)\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    block_in_place(|| request(town.sim.address(), &head))
}

/// Waits until an operation is final, and returns it.
fn ends(town: &Town, id: &str) -> Value {
    let is_final = |state: &Value| ["succeeded", "dead", "needs_review"].iter().any(|last| state == last);
    town.until(&format!("/v1/operations/{id}"), |answer| is_final(&answer.json()["state"])).json()
}

/// Requests of a route that reached Discord.
fn requests(town: &Town, route: &str) -> u64 {
    town.sim.score().routes.get(route).map_or(0, |route| route.requests)
}
