//! Whatever gives a dangerous permission needs the scope `danger`: every kind that can give one, by every way to name a role,
//! judged by what Discord then holds.

use guildhall_sim::{JoinSpec, Snowflake};
use serde_json::{Value, json};
use tokio::task::block_in_place;

use super::support::{Answer, CANARY, request};
use super::town::{ADMIN, Engine, Key, Town, on_both};

const ADMINISTRATOR: &str = "8";
const MANAGE_MESSAGES: &str = "8192";
const VIEW_CHANNEL: &str = "1024";
const SCOPE: &str = "this needs a key with the scope danger";

/// A role that an operator has made, by all its names.
#[derive(Clone)]
struct Role {
    id: String,
    key: &'static str,
    operation: String,
}

impl Role {
    /// Each way to name it in a payload.
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

    /// Gives the member exactly these roles, past the daemon.
    fn hold(&self, roles: &[&Role]) {
        let path = format!("/guilds/{}/members/{}", self.town.nobodys, self.member);
        let roles: Vec<_> = roles.iter().map(|role| &role.id).collect();
        assert_eq!(discord(&self.town, "PATCH", &path, &json!({"roles": roles})).status, 200);
    }

    fn submit(&self, key: &Key, body: &Value) -> Answer {
        self.town.with(&key.text, "POST", &format!("/v1/guilds/{}/operations", self.town.nobodys), body)
    }

    /// An operation is refused for this permission, at once or at dispatch.
    fn is_refused(&self, name: &str, answer: &Answer, permission: &str) {
        let message = match answer.status {
            403 => answer.json()["errors"][0]["message"].as_str().unwrap().to_owned(),
            202 => self.is_dead(name, answer.json()["id"].as_str().unwrap()),
            status => panic!("{name}: {status} {}", answer.body),
        };
        assert!(message.contains(permission) && message.contains(SCOPE), "{name}: {message}");
    }

    /// Why an operation died, which was forbidden.
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

/// Calls the simulated Discord, past the daemon.
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

/// What becomes of an operation.
fn ends(town: &Town, id: &str) -> Value {
    let is_final = |state: &Value| ["succeeded", "dead", "needs_review"].iter().any(|last| state == last);
    town.until(&format!("/v1/operations/{id}"), |answer| is_final(&answer.json()["state"])).json()
}

/// Requests of a route that reached Discord.
fn requests(town: &Town, route: &str) -> u64 {
    town.sim.score().routes.get(route).map_or(0, |route| route.requests)
}

const GIVE: &str = "PUT /guilds/{guild.id}/members/{user.id}/roles/{role.id}";
const ROLES: &str = "GET /guilds/{guild.id}/roles";

on_both! {
    async fn existing_administrator_role_cannot_be_assigned_without_the_scope(town) {
        let member = town.sim.join(town.acme, JoinSpec::default()).await.unwrap().id.unwrap();
        let role = json!({"kind": "create_role", "payload": {"name": "Boss", "permissions": ADMINISTRATOR}});
        let made = ends(&town, &town.submit(ADMIN, town.acme, &role));
        let key = town.key("acme", &["operations:write", &format!("guild:{}", town.acme)]);
        let assign = json!({"kind": "assign_role", "payload": {"user_id": member.to_string(), "role_id": made["result"]["role_id"]}});
        // Its permissions are not known yet: it is accepted, looked up before it is sent, and refused.
        let shown = ends(&town, &town.submit(&key.text, town.acme, &assign));
        assert_eq!((&shown["state"], &shown["error"]["class"]), (&json!("dead"), &json!("forbidden")), "{shown}");
        let id = made["result"]["role_id"].as_str().unwrap();
        let says = format!("assigns role {id}, which grants ADMINISTRATOR; {SCOPE}");
        assert_eq!(shown["error"]["message"], says);
        // From now on they are known, and it is not accepted, alone or among others.
        let guild = format!("/v1/guilds/{}/operations", town.acme);
        let refused = town.with(&key.text, "POST", &guild, &assign);
        assert_eq!((refused.status, &refused.json()["errors"][0]["message"]), (403, &json!(says)), "{}", refused.body);
        let batch = json!({"operations": [{"kind": "create_role", "payload": {"name": "x"}}, assign]});
        let refused = town.with(&key.text, "POST", &guild, &batch);
        assert_eq!(refused.json()["errors"][0]["field"], "operations[1]", "{}", refused.body);
        assert_eq!((requests(&town, GIVE), requests(&town, ROLES)), (0, 1));
        // Neither does it help to have the operator redrive it.
        let letter = shown["id"].as_str().unwrap();
        let redriven = town.admin("POST", &format!("/v1/dead-letters/{letter}/redrive"), &Value::Null);
        assert_eq!(redriven.status, 202, "{}", redriven.body);
        let again = ends(&town, redriven.json()["id"].as_str().unwrap());
        assert_eq!((&again["state"], &again["error"]["message"]), (&json!("dead"), &json!(says)), "{again}");
        assert_eq!(requests(&town, GIVE), 0);
        // The operator can, and so can a key with the scope.
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
    // Roles by an invite, and a call that nobody knows.
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
    // The denial may stay, and a channel of one's own key is judged by what it has.
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

/// A role gets ADMINISTRATOR after an operation that assigns it was accepted.
async fn changes_after_acceptance(settings: &[(&str, &str)], is_seen: impl Fn(&Town)) {
    let stage = Stage::new(settings).await;
    let (town, guild) = (&stage.town, stage.town.nobodys);
    let assign =
        json!({"kind": "assign_role", "payload": {"user_id": stage.member.to_string(), "role_id": stage.plain.id}});
    stage.is_done("before", &stage.submit(&stage.without, &assign));
    stage.hold(&[]);
    assert_eq!(town.admin("POST", &format!("/v1/guilds/{guild}/pause"), &Value::Null).status, 200);
    let accepted = stage.submit(&stage.without, &assign);
    assert_eq!(accepted.status, 202, "{}", accepted.body);
    let path = format!("/guilds/{guild}/roles/{}", stage.plain.id);
    assert_eq!(discord(town, "PATCH", &path, &json!({"permissions": ADMINISTRATOR})).status, 200);
    is_seen(town);
    assert_eq!(town.admin("POST", &format!("/v1/guilds/{guild}/resume"), &Value::Null).status, 200);
    stage.is_refused("after", &accepted, "grants ADMINISTRATOR");
    assert_eq!(stage.held(), [""; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn role_changed_after_acceptance_is_seen_by_its_event() {
    // Nothing is read again because of its age.
    changes_after_acceptance(&[("GUILDHALL__OPERATIONS__ROLE_MAX_AGE_MS", "600000")], |town| {
        town.until_metrics(|metrics| metrics.contains("guildhall_gateway_events_total{type=\"role.update\"} 1"));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn role_changed_after_acceptance_is_seen_by_age_without_events() {
    let settings =
        [("GUILDHALL__OPERATIONS__ROLE_MAX_AGE_MS", "0"), ("GUILDHALL__GATEWAY__INTENTS", "direct_messages")];
    changes_after_acceptance(&settings, |_| {}).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redrive_and_retry_need_the_scopes_of_a_submission() {
    let stage = Stage::new(&[]).await;
    let (town, guild) = (&stage.town, stage.town.nobodys);
    let grants = json!([{"role_id": stage.plain.id, "allow": MANAGE_MESSAGES}]);
    // Each is the operator's, and dead because what it names does not exist.
    let dangerous = json!({"kind": "update_permissions", "payload": {"channel_id": "5", "overwrites": grants}});
    let in_words = json!({"kind": "request", "payload": {"method": "GET", "path": format!("/guilds/{guild}/nothing")}});
    let by_role = json!({"kind": "assign_role", "payload": {"user_id": "5", "role_id": stage.boss.id}});
    let harmless = json!({"kind": "assign_role", "payload": {"user_id": "5", "role_id": stage.plain.id}});
    let dead = |operation: &Value| {
        let id = town.submit(ADMIN, guild, operation);
        town.until(&format!("/v1/dead-letters/{id}"), |answer| answer.status == 200);
        id
    };
    for (name, operation, lacks, may) in [
        ("danger", &dangerous, &stage.without, &stage.with),
        ("application", &in_words, &stage.with, &stage.words_without),
        ("harmless", &harmless, &stage.without, &stage.without),
    ] {
        for way in ["/v1/dead-letters/{id}/redrive", "/v1/operations/{id}/retry"] {
            let id = dead(operation);
            let path = way.replace("{id}", &id);
            if name != "harmless" {
                let refused = town.with(&lacks.text, "POST", &path, &Value::Null);
                assert_eq!(refused.status, 403, "{name} {way}: {}", refused.body);
                let detail = refused.json()["detail"].as_str().unwrap().to_owned();
                assert!(detail.contains("needs a key with the scope") && detail.contains(name), "{detail}");
            }
            let allowed = town.with(&may.text, "POST", &path, &Value::Null);
            assert_eq!(allowed.status, 202, "{name} {way}: {}", allowed.body);
        }
    }
    // A role whose permissions nobody has read is judged when the operation is dispatched.
    let id = dead(&by_role);
    let redriven = town.with(&stage.without.text, "POST", &format!("/v1/dead-letters/{id}/redrive"), &Value::Null);
    match redriven.status {
        403 => assert!(redriven.body.contains("grants ADMINISTRATOR"), "{}", redriven.body),
        _ => stage.is_refused("by role", &redriven, "grants ADMINISTRATOR"),
    }
    // In bulk, what may not be done again is skipped with the reason.
    let (forbidden, fine) = (dead(&dangerous), dead(&harmless));
    let filter = json!({"guild_id": guild.to_string(), "kind": "update_permissions"});
    let bulk = town.with(&stage.without.text, "POST", "/v1/dead-letters/redrive", &filter);
    assert_eq!(bulk.status, 200, "{}", bulk.body);
    let skipped = bulk.json()["skipped"].as_array().unwrap().clone();
    let why = skipped.iter().find(|one| one["letter"] == json!(forbidden)).unwrap()["why"].as_str().unwrap().to_owned();
    assert!(why.contains("grants MANAGE_MESSAGES") && why.contains(SCOPE), "{why}");
    let filter = json!({"guild_id": guild.to_string(), "kind": "assign_role"});
    let bulk = town.with(&stage.without.text, "POST", "/v1/dead-letters/redrive", &filter);
    assert!(bulk.body.contains(&fine), "{}", bulk.body);
    // Expediting one that waits needs the scope, cancelling it does not.
    let mut waiting = dangerous.clone();
    waiting["delay_ms"] = json!(3_600_000);
    let id = town.submit(ADMIN, guild, &waiting);
    let retry = format!("/v1/operations/{id}/retry");
    assert_eq!(town.with(&stage.without.text, "POST", &retry, &Value::Null).status, 403);
    let cancelled = town.with(&stage.without.text, "POST", &format!("/v1/operations/{id}/cancel"), &Value::Null);
    assert_eq!(cancelled.status, 200, "{}", cancelled.body);
    // Throwing it away needs no more than before.
    let gone = town.with(&stage.without.text, "DELETE", &format!("/v1/dead-letters/{forbidden}"), &Value::Null);
    assert!(gone.status < 300, "{}", gone.body);
}
