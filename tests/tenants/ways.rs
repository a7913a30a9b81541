//! Expectations for every route of the API. A route without a row here fails the tests: a new route needs a row with
//! its access rule and its audit action.

use guildhall::api::{Route, WAYS};
use guildhall_core::access::Scope;
use serde_json::{Value, json};

use super::town::{ADMIN, Key, Town};

/// What a route is about. It decides the response to a key without access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum About {
    /// A guild, an operation or a dead letter: it is not found (404).
    Something,
    /// A list: it has only entries that the key can see (200).
    Several,
    /// Everything at once, or something without a guild: needs a scope that no key of a guild has (403).
    Everything,
}

/// A request for a route, with everything that it needs in place.
pub(crate) struct Ask {
    pub(crate) path: String,
    pub(crate) body: Value,
}

/// Expectations for a route.
pub(crate) struct Row {
    method: &'static str,
    path: &'static str,
    pub(crate) about: About,
    /// A scope that is needed in addition to the scope of the route.
    pub(crate) also: Option<Scope>,
    /// The action in its audit row, if it changes something.
    pub(crate) leaves: Option<&'static str>,
}

const fn row(method: &'static str, path: &'static str, about: About, leaves: Option<&'static str>) -> Row {
    Row { method, path, about, also: None, leaves }
}

use About::{Everything, Several, Something};

const ROWS: &[Row] = &[
    row("POST", "/guilds/{guild_id}/operations", Something, Some("operations.submit")),
    row("POST", "/guilds/{guild_id}/pause", Something, Some("guilds.pause")),
    row("POST", "/guilds/{guild_id}/resume", Something, Some("guilds.resume")),
    row("GET", "/guilds/{guild_id}", Something, None),
    row("GET", "/events/dead", Everything, None),
    row("POST", "/events/dead/{place}/revive", Everything, Some("events.revive")),
    row("GET", "/state/{key:.+}", Everything, None),
    row("PUT", "/state/{key:.+}", Everything, Some("state.put")),
    row("DELETE", "/state/{key:.+}", Everything, Some("state.delete")),
    row("GET", "/instances", Everything, None),
    row("GET", "/usage", Several, None),
    row("POST", "/pause", Everything, Some("fleet.pause")),
    row("POST", "/resume", Everything, Some("fleet.resume")),
    row("GET", "/operations", Several, None),
    Row { also: Some(Scope::Application), ..row("POST", "/operations", Everything, Some("operations.submit")) },
    row("GET", "/operations/stream", Several, None),
    row("GET", "/operations/{id}", Something, None),
    row("POST", "/operations/{id}/cancel", Something, Some("operations.cancel")),
    row("POST", "/operations/{id}/retry", Something, Some("operations.retry")),
    row("GET", "/dead-letters", Several, None),
    row("POST", "/dead-letters/redrive", Several, Some("dead_letters.redrive")),
    row("POST", "/dead-letters/discard", Several, Some("dead_letters.discard")),
    row("GET", "/dead-letters/{id}", Something, None),
    row("DELETE", "/dead-letters/{id}", Something, Some("dead_letters.discard")),
    row("POST", "/dead-letters/{id}/redrive", Something, Some("dead_letters.redrive")),
    row("GET", "/keys", Everything, None),
    row("POST", "/keys", Everything, Some("keys.create")),
    row("GET", "/keys/{id}", Everything, None),
    row("DELETE", "/keys/{id}", Everything, Some("keys.revoke")),
    row("POST", "/keys/{id}/rotate", Everything, Some("keys.rotate")),
    row("GET", "/audit", Several, None),
    row("POST", "/reload", Everything, Some("reload")),
    row("POST", "/erase", Everything, Some("erase")),
    row("GET", "/limits", Everything, None),
    row("GET", "/limits/buckets", Everything, None),
    row("GET", "/limits/top", Everything, None),
    row("GET", "/breakers", Everything, None),
    row("POST", "/breakers/force", Everything, Some("breakers.force")),
    row("POST", "/breakers/reset", Everything, Some("breakers.reset")),
    row("GET", "/shards", Everything, None),
    row("POST", "/shards/{id}/restart", Everything, Some("shards.restart")),
    row("GET", "/budgets", Everything, None),
    row("GET", "/budgets/{name}", Everything, None),
    // What is spent of a budget is counted by the hour. One row for each request would flood the audit.
    row("POST", "/budgets/{name}/acquire", Everything, None),
    row("POST", "/budgets/{name}/observe", Everything, Some("budgets.observe")),
];

/// Routes that change something without an audit row. The row of each says why.
pub(crate) const UNNOTED: [&str; 1] = ["/budgets/{name}/acquire"];

/// The expectations for each route, in the order of the API's own list.
pub(crate) fn rows() -> Vec<(&'static Route, &'static Row)> {
    let row_of = |way: &Route| {
        let found = ROWS.iter().find(|row| (row.method, row.path) == (way.method, way.path));
        found.unwrap_or_else(|| {
            panic!(
                "{} {} has no row in tests/tenants/routes.rs: add one with its subject and its audit action, and its \
                 request in `RouteExpectation::prepare_request`",
                way.method, way.path
            )
        })
    };
    assert!(
        ROWS.iter().all(|row| WAYS.iter().any(|way| (row.method, row.path) == (way.method, way.path))),
        "a row is for a route that no longer exists"
    );
    WAYS.iter().map(|way| (way, row_of(way))).collect()
}

impl Row {
    /// Creates what a request to this route needs in `acme`, and returns a request that succeeds with a key that has
    /// access.
    pub(crate) async fn ask(&self, town: &Town) -> Ask {
        let mut body = Value::Null;
        let mut path = format!("/v1{}", self.path).replace("{guild_id}", &town.acme.to_string());
        match (self.method, self.path) {
            ("POST", "/guilds/{guild_id}/operations") => {
                body = json!({"kind": "create_role", "payload": {"name": "Fresh"}});
            }
            ("POST", "/erase") => body = json!({"user_id": "80351110224678912"}),
            ("POST", "/operations") => {
                body = json!({"kind": "request", "payload": {"method": "GET", "path": "/users/@me"}});
            }
            ("POST", "/events/dead/{place}/revive") => path = path.replace("{place}", &town.dead_event().await),
            (_, "/state/{key:.+}") => {
                path = path.replace("{key:.+}", "a:b");
                body = if self.method == "PUT" { json!({"value": 1}) } else { Value::Null };
                let put = town.admin("PUT", &path, &json!({"value": 0}));
                assert_eq!(put.status, 204, "{}", put.body);
            }
            ("GET", "/operations" | "/operations/stream" | "/audit") => drop(town.waiting()),
            ("GET", "/dead-letters") => drop(town.dead()),
            ("POST", "/dead-letters/redrive" | "/dead-letters/discard") => {
                town.dead();
                body = json!({});
            }
            ("POST", "/keys") => body = json!({"name": "one more", "scopes": ["audit"]}),
            (_, "/keys/{id}" | "/keys/{id}/rotate") => {
                path = path.replace("{id}", &town.key("default", &["audit"]).id);
            }
            ("GET", "/limits/top") => path += "?by=spend",
            ("POST", "/breakers/force" | "/breakers/reset") => {
                body = json!({"key": "target:broken"});
                let reset = town.admin("POST", "/v1/breakers/reset", &body);
                assert_eq!(reset.status, 200, "{}", reset.body);
            }
            ("POST", "/shards/{id}/restart") => {
                path = path.replace("{id}", "0");
                town.until("/v1/shards", |answer| answer.json()["shards"][0]["state"] == "connected");
            }
            (_, named) if named.starts_with("/budgets/{name}") => {
                path = path.replace("{name}", "upstream");
                let seen = json!({"available": 10, "maximum": 10, "restore_per_second": 1});
                let observed = town.admin("POST", "/v1/budgets/upstream/observe", &seen);
                assert_eq!(observed.status, 200, "{}", observed.body);
                body = if named.ends_with("/observe") { seen } else { Value::Null };
            }
            (_, named) if named.starts_with("/operations/{id}") => path = path.replace("{id}", &town.waiting()),
            (_, named) if named.starts_with("/dead-letters/{id}") => path = path.replace("{id}", &town.dead()),
            _ => {}
        }
        assert!(!path.contains('{'), "{path}: `RouteExpectation::prepare_request` does not build this request");
        Ask { path, body }
    }

    /// The fixture's key with the least access that suffices.
    pub(crate) fn key<'a>(&self, way: &Route, town: &'a Town) -> Holder<'a> {
        match self.about {
            _ if way.needs == Scope::Admin => Holder::Admin,
            Something | Several => Holder::Key(&town.owner),
            Everything => Holder::Key(&town.fleet),
        }
    }
}

/// The key of a caller.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Holder<'a> {
    Admin,
    Key(&'a Key),
}

impl<'a> Holder<'a> {
    pub(crate) fn text(self) -> &'a str {
        match self {
            Self::Admin => ADMIN,
            Self::Key(key) => &key.text,
        }
    }

    /// Its id in audit rows.
    pub(crate) fn id(self) -> &'a str {
        match self {
            Self::Admin => "admin",
            Self::Key(key) => &key.id,
        }
    }
}
