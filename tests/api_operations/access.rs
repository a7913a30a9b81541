//! Authorization on every route of the API, on a SQLite store.

use guildhall::api::WAYS;
use guildhall_core::access::Scope;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::{Answer, GUILD, call, role, run, sqlite::OnSqlite};

/// A guild of another tenant.
const OTHER: &str = "1571715189416398850";

/// The API, with keys of several kinds.
struct Town {
    api: OnSqlite,
    _folder: TempDir,
}

impl Town {
    async fn open() -> Self {
        let folder = tempfile::tempdir().unwrap();
        Self { api: OnSqlite::open(&folder).await, _folder: folder }
    }

    async fn admin(&self, method: &str, path: &str, body: Value) -> Answer {
        self.api.ask(method, path, body).await
    }

    /// Creates a key. Returns the key and its id.
    async fn key(&self, tenant: &str, scopes: &[&str]) -> (String, String) {
        let made = self.admin("POST", "/v1/keys", json!({"name": "a test", "tenant": tenant, "scopes": scopes})).await;
        assert_eq!(made.status, 201, "{made:?}");
        (made.text("key"), made.text("id"))
    }

    async fn with(&self, key: &str, method: &str, path: &str, body: Value) -> Answer {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let shown = format!("Bearer {key}");
        call(self.api.address(), method, path, &[("Authorization", &shown)], &body).await
    }

    async fn submit(&self, key: &str, guild: &str, body: Value) -> Answer {
        self.with(key, "POST", &format!("/v1/guilds/{guild}/operations"), body).await
    }

    async fn audit(&self, query: &str) -> Vec<Value> {
        let answer = self.admin("GET", &format!("/v1/audit?limit=500{query}"), Value::Null).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.json()["audit"].as_array().unwrap().clone()
    }
}

/// The path of a route, with values for its parameters.
fn filled(path: &str, guild: &str, id: &str) -> String {
    let path = path.replace("{guild_id}", guild).replace("{place}", "1").replace("{key:.+}", "a");
    let path = path.replace("{name}", "shop");
    format!("/v1{}", path.replace("{id}", id))
}

/// The same path, with the first letter after `/v1/` and the last one percent-encoded.
fn encoded(path: &str) -> String {
    let (first, last) = ("/v1/".len(), path.len() - 1);
    let letter = |(at, byte): (usize, u8)| match at {
        _ if at == first || at == last => format!("%{byte:02X}"),
        _ => char::from(byte).to_string(),
    };
    path.bytes().enumerate().map(letter).collect()
}

const NO_ID: &str = "01890a5d-ac96-774b-bcce-b302099a8057";

#[test]
fn no_way_in_is_open_without_a_key_that_is_good() {
    run(async {
        let town = Town::open().await;
        let (good, id) = town.key("default", &["admin"]).await;
        let (revoked, gone) = town.key("default", &["admin"]).await;
        assert_eq!(town.admin("DELETE", &format!("/v1/keys/{gone}"), Value::Null).await.status, 204);
        let (head, secret) = good.rsplit_once(&id).unwrap();
        let other_secret = format!("{head}{id}{}", secret.chars().rev().collect::<String>().replacen('_', "", 1));
        let unknown = format!("{head}{}{secret}", "a".repeat(id.len()));
        for way in WAYS {
            let path = filled(way.path, GUILD, NO_ID);
            for wrong in ["", "x", &revoked, &unknown, &other_secret[..good.len().min(other_secret.len())], "gh_test_0"]
            {
                town.with(wrong, way.method, &path, Value::Null).await.is_problem(401, "unauthorized");
            }
        }
    });
}

#[test]
fn every_way_in_asks_for_its_scope_and_no_other_will_do() {
    run(async {
        let town = Town::open().await;
        let mut keys = Vec::new();
        for scope in Scope::ALL {
            keys.push((scope, town.key("default", &[scope.name()]).await.0));
        }
        for way in WAYS {
            for (scope, key) in &keys {
                let path = filled(way.path, GUILD, NO_ID);
                let answer = town.with(key, way.method, &path, Value::Null).await;
                if !scope.covers(way.needs) {
                    // Percent-encoding makes no difference.
                    let written = town.with(key, way.method, &encoded(&path), Value::Null).await;
                    written.is_problem(403, "forbidden");
                }
                if scope.covers(way.needs) {
                    assert!(![401, 403, 405].contains(&answer.status), "{way:?} with {}: {answer:?}", scope.name());
                } else {
                    answer.is_problem(403, "forbidden");
                    assert_eq!(answer.json()["needs"], way.needs.name(), "{way:?}");
                }
            }
        }
    });
}

#[test]
fn who_is_not_for_a_guild_does_not_learn_that_it_is_there() {
    run(async {
        let town = Town::open().await;
        let everything = ["operations:write", "guilds:write", "audit"];
        let guild = |id: &str| format!("guild:{id}");
        let (own, of_other) = (guild(GUILD), guild(OTHER));
        let owner = town.key("acme", &[&everything[..], &[own.as_str()]].concat()).await.0;
        let strangers = [
            town.key("default", &everything).await.0,
            town.key("acme", &[&everything[..], &[of_other.as_str()]].concat()).await.0,
            town.key("rival", &everything).await.0,
        ];
        let made = town.submit(&owner, GUILD, role("Ours")).await;
        assert_eq!(made.status, 202, "{made:?}");
        let dead = town.submit(&owner, GUILD, role("Dead")).await.text("id");
        town.api.give_up(&dead).await;
        let id = made.text("id");
        for stranger in &strangers {
            town.submit(stranger, GUILD, role("Theirs")).await.is_problem(404, "not-found");
            for way in WAYS.iter().filter(|way| way.path.contains("{guild_id}") && !way.path.ends_with("operations")) {
                let path = filled(way.path, GUILD, &id);
                town.with(stranger, way.method, &path, Value::Null).await.is_problem(404, "not-found");
            }
            for of in ["/operations/{id}", "/dead-letters/{id}"] {
                for way in WAYS.iter().filter(|way| way.path.starts_with(of)) {
                    let path = filled(way.path, GUILD, if of.starts_with("/dead") { &dead } else { &id });
                    town.with(stranger, way.method, &path, Value::Null).await.is_problem(404, "not-found");
                }
            }
            for (list, name) in [("operations", "operations"), ("dead-letters", "dead_letters"), ("audit", "audit")] {
                let listed = town.with(stranger, "GET", &format!("/v1/{list}"), Value::Null).await;
                let rows = listed.json()[name].as_array().unwrap_or_else(|| panic!("{listed:?}")).clone();
                assert!(rows.iter().all(|row| row["guild_id"] != GUILD), "{rows:?}");
                let asked = format!("/v1/{list}?guild_id={GUILD}");
                let asked = town.with(stranger, "GET", &asked, Value::Null).await.json()[name].clone();
                assert!(asked.as_array().unwrap().iter().all(|row| row["guild_id"] != GUILD), "{asked:?}");
            }
            let redriven = town.with(stranger, "POST", "/v1/dead-letters/redrive", json!({})).await;
            assert_eq!(redriven.json()["redriven"], 0, "{redriven:?}");
        }
        // The owner sees all of it.
        let mine = async |path: String| town.with(&owner, "GET", &path, Value::Null).await;
        assert_eq!(mine(format!("/v1/operations/{id}")).await.status, 200);
        assert_eq!(mine(format!("/v1/guilds/{GUILD}")).await.status, 200);
        assert_eq!(mine("/v1/operations".to_owned()).await.json()["operations"].as_array().unwrap().len(), 2);
        assert_eq!(mine("/v1/dead-letters".to_owned()).await.json()["dead_letters"].as_array().unwrap().len(), 1);
        assert_eq!(mine("/v1/audit".to_owned()).await.json()["audit"].as_array().unwrap().len(), 2);
        town.submit(&owner, OTHER, role("Elsewhere")).await.is_problem(404, "not-found");
    });
}

#[test]
fn what_a_key_lacks_for_an_operation_is_said_of_each_and_nothing_is_accepted() {
    run(async {
        let town = Town::open().await;
        let plain = town.key("default", &["operations:write"]).await.0;
        let boss = json!({"kind": "create_role", "payload": {"name": "Boss", "permissions": "8"}});
        let words = json!({"kind": "request", "payload": {"method": "GET", "path": "/users/@me"}});
        let refused = town.submit(&plain, GUILD, json!({"operations": [role("ok"), boss, words]})).await;
        refused.is_problem(403, "forbidden");
        assert_eq!(refused.wrong(), ["operations[1]", "operations[2]"]);
        let listed = town.with(&plain, "GET", "/v1/operations", Value::Null).await.json();
        assert_eq!(listed["operations"], json!([]));
        let dm = json!({"kind": "send_dm", "payload": {"user_id": "7", "content": "hi"}});
        town.with(&plain, "POST", "/v1/operations", dm.clone()).await.is_problem(403, "forbidden");
        let strong = town.key("default", &["operations:write", "application", "danger"]).await.0;
        assert_eq!(town.submit(&strong, GUILD, json!({"operations": [boss, words]})).await.status, 202);
        assert_eq!(town.with(&strong, "POST", "/v1/operations", dm).await.status, 202);
    });
}

#[test]
fn every_change_leaves_one_row_that_says_who_and_what_and_holds_no_secret() {
    run(async {
        let town = Town::open().await;
        let (key, key_id) = town.key("default", &["operations:write", "guilds:write", "fleet:write"]).await;
        let expect = async |action: &str, target: &str| {
            let rows = town.audit(&format!("&key={key_id}")).await;
            assert_eq!(
                (rows[0]["action"].as_str(), rows[0]["target"].as_str()),
                (Some(action), Some(target)),
                "{rows:?}"
            );
            rows.len()
        };
        let one = town.submit(&key, GUILD, role("one")).await.text("id");
        assert_eq!(expect("operations.submit", &one).await, 1);
        let cancel = format!("/v1/operations/{one}/cancel");
        for _ in 0..2 {
            assert_eq!(town.with(&key, "POST", &cancel, Value::Null).await.status, 200);
            assert_eq!(expect("operations.cancel", &one).await, 2, "no change, no row");
        }
        let two = town.submit(&key, GUILD, role("two")).await.text("id");
        town.api.give_up(&two).await;
        assert_eq!(town.with(&key, "POST", &format!("/v1/dead-letters/{two}/redrive"), Value::Null).await.status, 202);
        assert_eq!(expect("dead_letters.redrive", &two).await, 4);
        assert_eq!(town.with(&key, "DELETE", &format!("/v1/dead-letters/{two}"), Value::Null).await.status, 204);
        assert_eq!(expect("dead_letters.discard", &two).await, 5);
        let later = json!({"kind": "create_role", "payload": {"name": "later"}, "delay_ms": 60_000});
        let later = town.submit(&key, GUILD, later).await.text("id");
        assert_eq!(town.with(&key, "POST", &format!("/v1/operations/{later}/retry"), Value::Null).await.status, 202);
        assert_eq!(expect("operations.retry", &later).await, 7);
        for (path, action, count) in [
            (format!("/v1/guilds/{GUILD}/pause"), "guilds.pause", 8),
            (format!("/v1/guilds/{GUILD}/resume"), "guilds.resume", 9),
            ("/v1/pause".to_owned(), "fleet.pause", 10),
            ("/v1/resume".to_owned(), "fleet.resume", 11),
        ] {
            assert_eq!(town.with(&key, "POST", &path, Value::Null).await.status, 200);
            assert_eq!(expect(action, "").await, count);
        }
        town.with(&key, "GET", "/v1/keys", Value::Null).await.is_problem(403, "forbidden");
        // The row is written concurrently with the response, not before it.
        while town.audit(&format!("&key={key_id}")).await.len() < 12 {}
        assert_eq!(expect("refused", "").await, 12);
        let rotated = town.admin("POST", &format!("/v1/keys/{key_id}/rotate"), json!({"overlap_s": 0})).await;
        assert_eq!(rotated.status, 201, "{rotated:?}");
        let by_admin = town.audit("&key=admin").await;
        let did: Vec<_> = by_admin.iter().map(|row| row["action"].as_str().unwrap()).collect();
        assert_eq!(did, ["keys.rotate", "keys.create"]);
        assert!(by_admin.iter().all(|row| row["target"] == key_id.as_str()));
        let all = json!(town.audit("").await).to_string();
        for secret in [&key, &rotated.text("key")] {
            let (_, secret) = secret[3..].split_once('_').unwrap();
            assert!(!all.contains(secret), "{all}");
        }
    });
}

#[test]
fn a_key_is_shown_once_and_one_that_was_replaced_ends() {
    run(async {
        let town = Town::open().await;
        let (key, id) = town.key("default", &["operations:read"]).await;
        let shown = town.admin("GET", &format!("/v1/keys/{id}"), Value::Null).await;
        assert_eq!(
            (shown.status, &shown.json()["active"], &shown.json()["scopes"]),
            (200, &json!(true), &json!(["operations:read"]))
        );
        assert!(!shown.body.contains(&key[16..]), "{shown:?}");
        let listed = town.admin("GET", "/v1/keys", Value::Null).await;
        assert!(listed.body.contains(&id) && !listed.body.contains(&key[16..]), "{listed:?}");
        let again = town.admin("POST", &format!("/v1/keys/{id}/rotate"), Value::Null).await;
        assert_eq!(again.status, 201, "{again:?}");
        for key in [&key, &again.text("key")] {
            assert_eq!(
                town.with(key, "GET", "/v1/operations", Value::Null).await.status,
                200,
                "both keys are valid for a while"
            );
        }
        town.admin("POST", &format!("/v1/keys/{id}/rotate"), Value::Null).await.is_problem(409, "conflict");
        assert_eq!(town.admin("DELETE", &format!("/v1/keys/{}", again.text("id")), Value::Null).await.status, 204);
        let until = std::time::Instant::now() + std::time::Duration::from_secs(5);
        while town.with(&again.text("key"), "GET", "/v1/operations", Value::Null).await.status != 401 {
            assert!(std::time::Instant::now() < until, "a revoked key is valid for at most 5 s");
        }
    });
}

#[test]
fn everything_that_is_wrong_with_a_wish_for_a_key_is_said_at_once() {
    run(async {
        let town = Town::open().await;
        let wish = json!({"name": "", "tenant": "A", "scopes": ["x", "guild:0"], "expires_in_s": 0, "colour": "red"});
        let wrong = town.admin("POST", "/v1/keys", wish).await;
        wrong.is_problem(400, "bad-request");
        assert_eq!(wrong.wrong(), ["name", "tenant", "scopes", "scopes", "expires_in_s", "colour"]);
        let wide = json!({"name": "wide", "tenant": "acme", "scopes": ["fleet:read"]});
        assert_eq!(town.admin("POST", "/v1/keys", wide).await.wrong(), ["scopes"]);
        let own = format!("guild:{GUILD}");
        town.key("acme", &["operations:read", &own]).await;
        let taken = json!({"name": "taken", "tenant": "rival", "scopes": ["operations:read", own]});
        town.admin("POST", "/v1/keys", taken).await.is_problem(409, "conflict");
        town.admin("GET", "/v1/keys/none", Value::Null).await.is_problem(400, "bad-request");
        town.admin("DELETE", "/v1/keys/aaaaaaaaaaaa", Value::Null).await.is_problem(404, "not-found");
    });
}

#[test]
fn a_request_has_a_name_that_its_answer_and_the_audit_repeat() {
    run(async {
        let town = Town::open().await;
        let path = format!("/v1/guilds/{GUILD}/operations");
        let named = [("X-Request-Id", "deploy-42.1")];
        let answer = call(town.api.address(), "POST", &path, &named, &role("a").to_string()).await;
        assert_eq!(answer.header("x-request-id").as_deref(), Some("deploy-42.1"));
        assert_eq!(town.audit("").await[0]["request_id"], "deploy-42.1");
        let unnamed = call(town.api.address(), "GET", "/v1/operations", &[("X-Request-Id", "a b")], "").await;
        assert_eq!(unnamed.header("x-request-id").map(|name| name.len()), Some(32));
    });
}
