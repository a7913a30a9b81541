//! Authorization on every route of the API, on a SQLite store.

use guildhall::api::ROUTES;
use guildhall_core::access::Scope;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::{GUILD, Response, call, role, run, sqlite_fixture::SqliteApi};

/// A guild of another tenant.
const OTHER_GUILD: &str = "1571715189416398850";

/// The API, with keys of several kinds.
struct AccessFixture {
    api: SqliteApi,
    _folder: TempDir,
}

impl AccessFixture {
    async fn open() -> Self {
        let folder = tempfile::tempdir().unwrap();
        Self { api: SqliteApi::open(&folder).await, _folder: folder }
    }

    async fn admin(&self, method: &str, path: &str, body: Value) -> Response {
        self.api.request(method, path, body).await
    }

    /// Creates a key. Returns the key and its id.
    async fn key(&self, tenant: &str, scopes: &[&str]) -> (String, String) {
        let created =
            self.admin("POST", "/v1/keys", json!({"name": "a test", "tenant": tenant, "scopes": scopes})).await;
        assert_eq!(created.status, 201, "{created:?}");
        (created.text("key"), created.text("id"))
    }

    async fn request_with(&self, key: &str, method: &str, path: &str, body: Value) -> Response {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let authorization = format!("Bearer {key}");
        call(self.api.address(), method, path, &[("Authorization", &authorization)], &body).await
    }

    async fn submit(&self, key: &str, guild: &str, body: Value) -> Response {
        self.request_with(key, "POST", &format!("/v1/guilds/{guild}/operations"), body).await
    }

    async fn audit(&self, query: &str) -> Vec<Value> {
        let response = self.admin("GET", &format!("/v1/audit?limit=500{query}"), Value::Null).await;
        assert_eq!(response.status, 200, "{response:?}");
        response.json()["audit"].as_array().unwrap().clone()
    }
}

/// The path of a route, with values for its parameters.
fn fill_path(path: &str, guild: &str, id: &str) -> String {
    let id = if path.starts_with("/events/dead/") { "1" } else { id };
    let path = path.replace("{guild_id}", guild).replace("{key:.+}", "a").replace("{name}", "shop");
    format!("/v1{}", path.replace("{id}", id))
}

/// The same path, with the first letter after `/v1/` and the last one percent-encoded.
fn percent_encode(path: &str) -> String {
    let (first, last) = ("/v1/".len(), path.len() - 1);
    let encode = |(at, byte): (usize, u8)| match at {
        _ if at == first || at == last => format!("%{byte:02X}"),
        _ => char::from(byte).to_string(),
    };
    path.bytes().enumerate().map(encode).collect()
}

const UNKNOWN_ID: &str = "01890a5d-ac96-774b-bcce-b302099a8057";

#[test]
fn every_route_rejects_missing_and_invalid_keys() {
    run(async {
        let fixture = AccessFixture::open().await;
        let (valid_key, id) = fixture.key("default", &["admin"]).await;
        let (revoked, revoked_id) = fixture.key("default", &["admin"]).await;
        assert_eq!(fixture.admin("DELETE", &format!("/v1/keys/{revoked_id}"), Value::Null).await.status, 204);
        let (head, secret) = valid_key.rsplit_once(&id).unwrap();
        let other_secret = format!("{head}{id}{}", secret.chars().rev().collect::<String>().replacen('_', "", 1));
        let unknown = format!("{head}{}{secret}", "a".repeat(id.len()));
        for route in ROUTES {
            let path = fill_path(route.path, GUILD, UNKNOWN_ID);
            let other_secret = &other_secret[..valid_key.len().min(other_secret.len())];
            for (key, problem) in [
                ("", "unauthorized"),
                ("x", "key-invalid"),
                (&unknown, "key-invalid"),
                (other_secret, "key-invalid"),
                ("gh_test_0", "key-invalid"),
            ] {
                fixture.request_with(key, route.method, &path, Value::Null).await.assert_problem(401, problem);
            }
            fixture.request_with(&revoked, route.method, &path, Value::Null).await.assert_problem(401, "key-revoked");
        }
    });
}

#[test]
fn only_the_holder_of_a_key_learns_that_it_is_no_longer_valid() {
    run(async {
        let fixture = AccessFixture::open().await;
        let detail = async |key: &str, name: &str| {
            let response = fixture.request_with(key, "GET", "/v1/operations", Value::Null).await;
            response.assert_problem(401, name).text("detail")
        };
        let (revoked, id) = fixture.key("default", &["operations:read"]).await;
        assert_eq!(fixture.admin("DELETE", &format!("/v1/keys/{id}"), Value::Null).await.status, 204);
        assert!(detail(&revoked, "key-revoked").await.contains("was revoked at 20"));
        let (rotated, id) = fixture.key("default", &["operations:read"]).await;
        let new = fixture.admin("POST", &format!("/v1/keys/{id}/rotate"), json!({"overlap_s": 0})).await.text("id");
        assert!(detail(&rotated, "key-revoked").await.contains(&format!("Use the key {new} that replaces it")));
        let (valid, valid_id) = fixture.key("default", &["operations:read"]).await;
        let expired = fixture.api.add_expired_copy(&valid, &valid_id).await;
        assert!(detail(&expired, "key-expired").await.starts_with("The key has expired at 2023-11-14T22:13:20"));
        // Without the right secret, a key that is no longer valid is like one that never existed.
        let wrong_secret = |key: &str| {
            let other = if key.ends_with('A') { "B" } else { "A" };
            format!("{}{other}", &key[..key.len() - 1])
        };
        let unknown = rotated.replace(&id, &"a".repeat(id.len()));
        let of_unknown = detail(&unknown, "key-invalid").await;
        for key in [&revoked, &rotated, &expired] {
            assert_eq!(detail(&wrong_secret(key), "key-invalid").await, of_unknown);
        }
        let missing = detail("", "unauthorized").await;
        assert!(missing.starts_with("The request has no key.") && missing != of_unknown, "{missing}");
    });
}

#[test]
fn every_route_requires_its_scope() {
    run(async {
        let fixture = AccessFixture::open().await;
        let mut keys = Vec::new();
        for scope in Scope::ALL {
            keys.push((scope, fixture.key("default", &[scope.name()]).await.0));
        }
        for route in ROUTES {
            for (scope, key) in &keys {
                let path = fill_path(route.path, GUILD, UNKNOWN_ID);
                let response = fixture.request_with(key, route.method, &path, Value::Null).await;
                if !scope.covers(route.needs) {
                    // Percent-encoding makes no difference.
                    let encoded_response =
                        fixture.request_with(key, route.method, &percent_encode(&path), Value::Null).await;
                    encoded_response.assert_problem(403, "forbidden");
                }
                if scope.covers(route.needs) {
                    assert!(
                        ![401, 403, 405].contains(&response.status),
                        "{route:?} with {}: {response:?}",
                        scope.name()
                    );
                } else {
                    response.assert_problem(403, "forbidden");
                    assert_eq!(response.json()["needs"], route.needs.name(), "{route:?}");
                }
            }
        }
    });
}

#[test]
fn guild_is_hidden_from_keys_without_access() {
    run(async {
        let fixture = AccessFixture::open().await;
        let everything = ["operations:write", "guilds:write", "audit"];
        let guild = |id: &str| format!("guild:{id}");
        let (own_scope, other_scope) = (guild(GUILD), guild(OTHER_GUILD));
        let owner = fixture.key("acme", &[&everything[..], &[own_scope.as_str()]].concat()).await.0;
        let other_keys = [
            fixture.key("default", &everything).await.0,
            fixture.key("acme", &[&everything[..], &[other_scope.as_str()]].concat()).await.0,
            fixture.key("rival", &everything).await.0,
        ];
        let created = fixture.submit(&owner, GUILD, role("Ours")).await;
        assert_eq!(created.status, 202, "{created:?}");
        let dead = fixture.submit(&owner, GUILD, role("Dead")).await.text("id");
        fixture.api.mark_dead(&dead).await;
        let id = created.text("id");
        for other_key in &other_keys {
            fixture.submit(other_key, GUILD, role("Theirs")).await.assert_problem(404, "not-found");
            for route in
                ROUTES.iter().filter(|route| route.path.contains("{guild_id}") && !route.path.ends_with("operations"))
            {
                let path = fill_path(route.path, GUILD, &id);
                fixture
                    .request_with(other_key, route.method, &path, Value::Null)
                    .await
                    .assert_problem(404, "not-found");
            }
            for prefix in ["/operations/{id}", "/dead-letters/{id}"] {
                for route in ROUTES.iter().filter(|route| route.path.starts_with(prefix)) {
                    let path = fill_path(route.path, GUILD, if prefix.starts_with("/dead") { &dead } else { &id });
                    fixture
                        .request_with(other_key, route.method, &path, Value::Null)
                        .await
                        .assert_problem(404, "not-found");
                }
            }
            for (list, name) in [("operations", "operations"), ("dead-letters", "dead_letters"), ("audit", "audit")] {
                let listed = fixture.request_with(other_key, "GET", &format!("/v1/{list}"), Value::Null).await;
                let rows = listed.json()[name].as_array().unwrap_or_else(|| panic!("{listed:?}")).clone();
                assert!(rows.iter().all(|row| row["guild_id"] != GUILD), "{rows:?}");
                let filtered = format!("/v1/{list}?guild_id={GUILD}");
                let filtered =
                    fixture.request_with(other_key, "GET", &filtered, Value::Null).await.json()[name].clone();
                assert!(filtered.as_array().unwrap().iter().all(|row| row["guild_id"] != GUILD), "{filtered:?}");
            }
            let redriven = fixture.request_with(other_key, "POST", "/v1/dead-letters/redrive", json!({})).await;
            assert_eq!(redriven.json()["redriven"], 0, "{redriven:?}");
        }
        // The owner sees all of it.
        let get_as_owner = async |path: String| fixture.request_with(&owner, "GET", &path, Value::Null).await;
        assert_eq!(get_as_owner(format!("/v1/operations/{id}")).await.status, 200);
        assert_eq!(get_as_owner(format!("/v1/guilds/{GUILD}")).await.status, 200);
        assert_eq!(get_as_owner("/v1/operations".to_owned()).await.json()["operations"].as_array().unwrap().len(), 2);
        assert_eq!(
            get_as_owner("/v1/dead-letters".to_owned()).await.json()["dead_letters"].as_array().unwrap().len(),
            1
        );
        assert_eq!(get_as_owner("/v1/audit".to_owned()).await.json()["audit"].as_array().unwrap().len(), 2);
        fixture.submit(&owner, OTHER_GUILD, role("Elsewhere")).await.assert_problem(404, "not-found");
    });
}

#[test]
fn missing_scopes_are_reported_for_each_operation() {
    run(async {
        let fixture = AccessFixture::open().await;
        let plain_key = fixture.key("default", &["operations:write"]).await.0;
        let admin_role = json!({"kind": "create_role", "payload": {"name": "Boss", "permissions": "8"}});
        let raw_request = json!({"kind": "request", "payload": {"method": "GET", "path": "/users/@me"}});
        let refused =
            fixture.submit(&plain_key, GUILD, json!({"operations": [role("ok"), admin_role, raw_request]})).await;
        refused.assert_problem(403, "forbidden");
        assert_eq!(refused.invalid_fields(), ["operations[1]", "operations[2]"]);
        let listed = fixture.request_with(&plain_key, "GET", "/v1/operations", Value::Null).await.json();
        assert_eq!(listed["operations"], json!([]));
        let dm = json!({"kind": "send_dm", "payload": {"user_id": "7", "content": "hi"}});
        fixture.request_with(&plain_key, "POST", "/v1/operations", dm.clone()).await.assert_problem(403, "forbidden");
        let danger_key = fixture.key("default", &["operations:write", "application", "danger"]).await.0;
        assert_eq!(
            fixture.submit(&danger_key, GUILD, json!({"operations": [admin_role, raw_request]})).await.status,
            202
        );
        assert_eq!(fixture.request_with(&danger_key, "POST", "/v1/operations", dm).await.status, 202);
    });
}

#[test]
fn every_change_leaves_one_audit_row_without_secrets() {
    run(async {
        let fixture = AccessFixture::open().await;
        let (key, key_id) = fixture.key("default", &["operations:write", "guilds:write", "fleet:write"]).await;
        let last_row_is = async |action: &str, target: &str| {
            let rows = fixture.audit(&format!("&key={key_id}")).await;
            assert_eq!(
                (rows[0]["action"].as_str(), rows[0]["target"].as_str()),
                (Some(action), Some(target)),
                "{rows:?}"
            );
            rows.len()
        };
        let one = fixture.submit(&key, GUILD, role("one")).await.text("id");
        assert_eq!(last_row_is("operations.submit", &one).await, 1);
        let cancel = format!("/v1/operations/{one}/cancel");
        for _ in 0..2 {
            assert_eq!(fixture.request_with(&key, "POST", &cancel, Value::Null).await.status, 200);
            assert_eq!(last_row_is("operations.cancel", &one).await, 2, "no change, no row");
        }
        let two = fixture.submit(&key, GUILD, role("two")).await.text("id");
        fixture.api.mark_dead(&two).await;
        assert_eq!(
            fixture.request_with(&key, "POST", &format!("/v1/dead-letters/{two}/redrive"), Value::Null).await.status,
            202
        );
        assert_eq!(last_row_is("dead_letters.redrive", &two).await, 4);
        assert_eq!(
            fixture.request_with(&key, "DELETE", &format!("/v1/dead-letters/{two}"), Value::Null).await.status,
            204
        );
        assert_eq!(last_row_is("dead_letters.discard", &two).await, 5);
        let later = json!({"kind": "create_role", "payload": {"name": "later"}, "delay_ms": 60_000});
        let later = fixture.submit(&key, GUILD, later).await.text("id");
        assert_eq!(
            fixture.request_with(&key, "POST", &format!("/v1/operations/{later}/retry"), Value::Null).await.status,
            202
        );
        assert_eq!(last_row_is("operations.retry", &later).await, 7);
        for (path, action, count) in [
            (format!("/v1/guilds/{GUILD}/pause"), "guilds.pause", 8),
            (format!("/v1/guilds/{GUILD}/resume"), "guilds.resume", 9),
            ("/v1/pause".to_owned(), "fleet.pause", 10),
            ("/v1/resume".to_owned(), "fleet.resume", 11),
        ] {
            assert_eq!(fixture.request_with(&key, "POST", &path, Value::Null).await.status, 200);
            assert_eq!(last_row_is(action, "").await, count);
        }
        fixture.request_with(&key, "GET", "/v1/keys", Value::Null).await.assert_problem(403, "forbidden");
        // The row is written concurrently with the response, not before it.
        while fixture.audit(&format!("&key={key_id}")).await.len() < 12 {}
        assert_eq!(last_row_is("refused", "").await, 12);
        let rotated = fixture.admin("POST", &format!("/v1/keys/{key_id}/rotate"), json!({"overlap_s": 0})).await;
        assert_eq!(rotated.status, 201, "{rotated:?}");
        let by_admin = fixture.audit("&key=admin").await;
        let actions: Vec<_> = by_admin.iter().map(|row| row["action"].as_str().unwrap()).collect();
        assert_eq!(actions, ["keys.rotate", "keys.create"]);
        assert!(by_admin.iter().all(|row| row["target"] == key_id.as_str()));
        let all = json!(fixture.audit("").await).to_string();
        for secret in [&key, &rotated.text("key")] {
            let (_, secret) = secret[3..].split_once('_').unwrap();
            assert!(!all.contains(secret), "{all}");
        }
    });
}

#[test]
fn key_is_shown_once_and_ends_after_rotation() {
    run(async {
        let fixture = AccessFixture::open().await;
        let (key, id) = fixture.key("default", &["operations:read"]).await;
        let response = fixture.admin("GET", &format!("/v1/keys/{id}"), Value::Null).await;
        assert_eq!(
            (response.status, &response.json()["active"], &response.json()["scopes"]),
            (200, &json!(true), &json!(["operations:read"]))
        );
        assert!(!response.body.contains(&key[16..]), "{response:?}");
        let listed = fixture.admin("GET", "/v1/keys", Value::Null).await;
        assert!(listed.body.contains(&id) && !listed.body.contains(&key[16..]), "{listed:?}");
        let rotated = fixture.admin("POST", &format!("/v1/keys/{id}/rotate"), Value::Null).await;
        assert_eq!(rotated.status, 201, "{rotated:?}");
        for key in [&key, &rotated.text("key")] {
            assert_eq!(
                fixture.request_with(key, "GET", "/v1/operations", Value::Null).await.status,
                200,
                "both keys are valid for a while"
            );
        }
        fixture.admin("POST", &format!("/v1/keys/{id}/rotate"), Value::Null).await.assert_problem(409, "conflict");
        assert_eq!(fixture.admin("DELETE", &format!("/v1/keys/{}", rotated.text("id")), Value::Null).await.status, 204);
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(5);
        while fixture.request_with(&rotated.text("key"), "GET", "/v1/operations", Value::Null).await.status != 401 {
            assert!(std::time::Instant::now() < deadline, "a revoked key is valid for at most 5 s");
        }
    });
}

#[test]
fn all_errors_in_a_key_request_are_reported() {
    run(async {
        let fixture = AccessFixture::open().await;
        let key_request =
            json!({"name": "", "tenant": "A", "scopes": ["x", "guild:0"], "expires_in_s": 0, "colour": "red"});
        let rejected = fixture.admin("POST", "/v1/keys", key_request).await;
        rejected.assert_problem(400, "bad-request");
        assert_eq!(rejected.invalid_fields(), ["name", "tenant", "scopes", "scopes", "expires_in_s", "colour"]);
        let wide = json!({"name": "wide", "tenant": "acme", "scopes": ["fleet:read"]});
        assert_eq!(fixture.admin("POST", "/v1/keys", wide).await.invalid_fields(), ["scopes"]);
        let own_scope = format!("guild:{GUILD}");
        fixture.key("acme", &["operations:read", &own_scope]).await;
        let taken = json!({"name": "taken", "tenant": "rival", "scopes": ["operations:read", own_scope]});
        fixture.admin("POST", "/v1/keys", taken).await.assert_problem(409, "conflict");
        fixture.admin("GET", "/v1/keys/none", Value::Null).await.assert_problem(400, "bad-request");
        fixture.admin("DELETE", "/v1/keys/aaaaaaaaaaaa", Value::Null).await.assert_problem(404, "not-found");
    });
}

#[test]
fn request_id_is_in_the_response_and_the_audit() {
    run(async {
        let fixture = AccessFixture::open().await;
        let path = format!("/v1/guilds/{GUILD}/operations");
        let named = [("X-Request-Id", "deploy-42.1")];
        let response = call(fixture.api.address(), "POST", &path, &named, &role("a").to_string()).await;
        assert_eq!(response.header("x-request-id").as_deref(), Some("deploy-42.1"));
        assert_eq!(fixture.audit("").await[0]["request_id"], "deploy-42.1");
        let unnamed = call(fixture.api.address(), "GET", "/v1/operations", &[("X-Request-Id", "a b")], "").await;
        assert_eq!(unnamed.header("x-request-id").map(|name| name.len()), Some(32));
    });
}
