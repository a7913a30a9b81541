//! Expectations for every route of the API. A route without a row here fails the tests: a new route needs a row with
//! its access rule and its audit action.

use guildhall::api::{ROUTES, Route};
use guildhall_core::access::Scope;
use serde_json::{Value, json};

use super::fixture::{ADMIN, Key, MultiTenantFixture};

/// What a route is about. It decides the response to a key without access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Subject {
    /// A guild, an operation or a dead letter: it is not found (404).
    Object,
    /// A list: it has only entries that the key can see (200).
    List,
    /// Everything at once, or something without a guild: needs a scope that no key of a guild has (403).
    Global,
}

/// A request for a route, with everything that it needs in place.
pub(crate) struct PreparedRequest {
    pub(crate) path: String,
    pub(crate) body: Value,
}

/// Expectations for a route.
pub(crate) struct RouteExpectation {
    method: &'static str,
    path: &'static str,
    pub(crate) subject: Subject,
    /// A scope that is needed in addition to the scope of the route.
    pub(crate) extra_scope: Option<Scope>,
    /// The action in its audit row, if it changes something.
    pub(crate) audit_action: Option<&'static str>,
}

const fn expectation(
    method: &'static str,
    path: &'static str,
    subject: Subject,
    audit_action: Option<&'static str>,
) -> RouteExpectation {
    RouteExpectation { method, path, subject, extra_scope: None, audit_action }
}

use Subject::{Global, List, Object};

const EXPECTATIONS: &[RouteExpectation] = &[
    expectation("POST", "/guilds/{guild_id}/operations", Object, Some("operations.submit")),
    expectation("POST", "/guilds/{guild_id}/pause", Object, Some("guilds.pause")),
    expectation("POST", "/guilds/{guild_id}/resume", Object, Some("guilds.resume")),
    expectation("GET", "/guilds", List, None),
    expectation("GET", "/guilds/{guild_id}", Object, None),
    expectation("GET", "/events/dead", Global, None),
    expectation("GET", "/events/dead/{id}", Global, None),
    expectation("DELETE", "/events/dead/{id}", Global, Some("events.discard")),
    expectation("POST", "/events/dead/{id}/revive", Global, Some("events.revive")),
    expectation("GET", "/state/{key:.+}", Global, None),
    expectation("PUT", "/state/{key:.+}", Global, Some("state.put")),
    expectation("DELETE", "/state/{key:.+}", Global, Some("state.delete")),
    expectation("GET", "/instances", Global, None),
    expectation("GET", "/queues", Global, None),
    expectation("GET", "/usage", List, None),
    expectation("POST", "/pause", Global, Some("fleet.pause")),
    expectation("POST", "/resume", Global, Some("fleet.resume")),
    expectation("GET", "/operations", List, None),
    RouteExpectation {
        extra_scope: Some(Scope::Application),
        ..expectation("POST", "/operations", Global, Some("operations.submit"))
    },
    expectation("GET", "/operations/stream", List, None),
    expectation("GET", "/operations/{id}", Object, None),
    expectation("POST", "/operations/{id}/cancel", Object, Some("operations.cancel")),
    expectation("POST", "/operations/{id}/retry", Object, Some("operations.retry")),
    expectation("GET", "/dead-letters", List, None),
    expectation("POST", "/dead-letters/redrive", List, Some("dead_letters.redrive")),
    expectation("POST", "/dead-letters/discard", List, Some("dead_letters.discard")),
    expectation("GET", "/dead-letters/{id}", Object, None),
    expectation("DELETE", "/dead-letters/{id}", Object, Some("dead_letters.discard")),
    expectation("POST", "/dead-letters/{id}/redrive", Object, Some("dead_letters.redrive")),
    expectation("GET", "/keys", Global, None),
    expectation("POST", "/keys", Global, Some("keys.create")),
    expectation("GET", "/keys/{id}", Global, None),
    expectation("DELETE", "/keys/{id}", Global, Some("keys.revoke")),
    expectation("POST", "/keys/{id}/rotate", Global, Some("keys.rotate")),
    expectation("GET", "/audit", List, None),
    expectation("POST", "/reload", Global, Some("reload")),
    expectation("POST", "/erase", Global, Some("erase")),
    expectation("GET", "/limits", Global, None),
    expectation("GET", "/limits/buckets", Global, None),
    expectation("GET", "/limits/top", Global, None),
    expectation("GET", "/breakers", Global, None),
    expectation("POST", "/breakers/force", Global, Some("breakers.force")),
    expectation("POST", "/breakers/reset", Global, Some("breakers.reset")),
    expectation("GET", "/egress/top", Global, None),
    expectation("POST", "/egress/webhooks/clear", Global, Some("webhooks.clear")),
    expectation("GET", "/shards", Global, None),
    expectation("POST", "/shards/{id}/restart", Global, Some("shards.restart")),
    expectation("GET", "/budgets", Global, None),
    expectation("GET", "/budgets/{name}", Global, None),
    // What is spent of a budget is counted by the hour. One row for each request would flood the audit.
    expectation("POST", "/budgets/{name}/acquire", Global, None),
    expectation("POST", "/budgets/{name}/observe", Global, Some("budgets.observe")),
];

/// Routes that change something without an audit row. The row of each says why.
pub(crate) const UNAUDITED: [&str; 1] = ["/budgets/{name}/acquire"];

/// The expectations for each route, in the order of the API's own list.
pub(crate) fn expectations() -> Vec<(&'static Route, &'static RouteExpectation)> {
    let find_expectation = |route: &Route| {
        let found = EXPECTATIONS
            .iter()
            .find(|expectation| (expectation.method, expectation.path) == (route.method, route.path));
        found.unwrap_or_else(|| {
            panic!(
                "{} {} has no row in tests/tenants/routes.rs: add one with its subject and its audit action, and its \
                 request in `RouteExpectation::prepare_request`",
                route.method, route.path
            )
        })
    };
    assert!(
        EXPECTATIONS.iter().all(|expectation| ROUTES
            .iter()
            .any(|route| (expectation.method, expectation.path) == (route.method, route.path))),
        "a row is for a route that no longer exists"
    );
    ROUTES.iter().map(|route| (route, find_expectation(route))).collect()
}

impl RouteExpectation {
    /// Creates what a request to this route needs in `acme`, and returns a request that succeeds with a key that has
    /// access.
    pub(crate) async fn prepare_request(&self, fixture: &MultiTenantFixture) -> PreparedRequest {
        let mut body = Value::Null;
        let mut path = format!("/v1{}", self.path).replace("{guild_id}", &fixture.acme_guild.to_string());
        match (self.method, self.path) {
            ("POST", "/guilds/{guild_id}/operations") => {
                body = json!({"kind": "create_role", "payload": {"name": "Fresh"}});
            }
            ("POST", "/erase") => body = json!({"user_id": "80351110224678912"}),
            ("POST", "/operations") => {
                body = json!({"kind": "request", "payload": {"method": "GET", "path": "/users/@me"}});
            }
            (_, template) if template.starts_with("/events/dead/{id}") => {
                path = path.replace("{id}", &fixture.create_dead_event().await);
            }
            (_, "/state/{key:.+}") => {
                path = path.replace("{key:.+}", "a:b");
                body = if self.method == "PUT" { json!({"value": 1}) } else { Value::Null };
                let put = fixture.request_as_admin("PUT", &path, &json!({"value": 0}));
                assert_eq!(put.status, 204, "{}", put.body);
            }
            ("GET", "/operations" | "/operations/stream" | "/audit") => drop(fixture.submit_delayed()),
            ("GET", "/dead-letters") => drop(fixture.submit_dead()),
            ("POST", "/dead-letters/redrive" | "/dead-letters/discard") => {
                fixture.submit_dead();
                body = json!({});
            }
            ("POST", "/keys") => body = json!({"name": "one more", "scopes": ["audit"]}),
            (_, "/keys/{id}" | "/keys/{id}/rotate") => {
                path = path.replace("{id}", &fixture.create_key("default", &["audit"]).id);
            }
            ("POST", "/egress/webhooks/clear") => body = json!({"webhook_id": "80351110224678912"}),
            ("GET", "/limits/top") => path += "?by=spend",
            ("POST", "/breakers/force" | "/breakers/reset") => {
                body = json!({"key": "target:broken"});
                let reset = fixture.request_as_admin("POST", "/v1/breakers/reset", &body);
                assert_eq!(reset.status, 200, "{}", reset.body);
            }
            ("POST", "/shards/{id}/restart") => {
                path = path.replace("{id}", "0");
                fixture.poll_until("/v1/shards", |response| response.json()["shards"][0]["state"] == "connected");
            }
            (_, template) if template.starts_with("/budgets/{name}") => {
                path = path.replace("{name}", "upstream");
                let observation = json!({"available": 10, "maximum": 10, "restore_per_second": 1});
                let observed = fixture.request_as_admin("POST", "/v1/budgets/upstream/observe", &observation);
                assert_eq!(observed.status, 200, "{}", observed.body);
                body = if template.ends_with("/observe") { observation } else { Value::Null };
            }
            (_, template) if template.starts_with("/operations/{id}") => {
                path = path.replace("{id}", &fixture.submit_delayed());
            }
            (_, template) if template.starts_with("/dead-letters/{id}") => {
                path = path.replace("{id}", &fixture.submit_dead());
            }
            _ => {}
        }
        assert!(!path.contains('{'), "{path}: `RouteExpectation::prepare_request` does not build this request");
        PreparedRequest { path, body }
    }

    /// The fixture's key with the least access that suffices.
    pub(crate) fn allowed_key<'a>(&self, route: &Route, fixture: &'a MultiTenantFixture) -> CallerKey<'a> {
        match self.subject {
            _ if route.needs == Scope::Admin => CallerKey::Admin,
            Object | List => CallerKey::Key(&fixture.owner_key),
            Global => CallerKey::Key(&fixture.fleet_key),
        }
    }
}

/// The key of a caller.
#[derive(Clone, Copy, Debug)]
pub(crate) enum CallerKey<'a> {
    Admin,
    Key(&'a Key),
}

impl<'a> CallerKey<'a> {
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
