//! Erasing what is stored about a user or a guild, over HTTP.

use serde_json::{Value, json};

use super::{GUILD, run, sqlite_fixture::SqliteApi};

const USER: &str = "80351110224678912";

fn assign(user: &str) -> Value {
    json!({"kind": "assign_role", "payload": {"user_id": user, "role_id": "7"}})
}

#[test]
fn erased_user_is_removed_and_retained_rows_are_explained() {
    run(async {
        let folder = tempfile::tempdir().unwrap();
        let api = SqliteApi::open(&folder).await;
        let path = format!("/v1/guilds/{GUILD}/operations");
        let dead = api.request("POST", &path, assign(USER)).await.text("id");
        api.mark_dead(&dead).await;
        let pending = api.request("POST", &path, assign(USER)).await.text("id");
        let other = api.request("POST", &path, assign("99")).await.text("id");

        let erased = api.request("POST", "/v1/erase", json!({"user_id": USER})).await;
        assert_eq!(erased.status, 200, "{erased:?}");
        let erased = erased.json();
        assert_eq!(erased["removed"], json!({"operations": 1, "dead_letters": 1}));
        assert_eq!((&erased["done"], &erased["next"]), (&json!(true), &Value::Null));
        let retained = erased["kept"].as_array().unwrap();
        let find_retained = |what: &str| {
            retained.iter().find(|retained| retained["what"] == what).unwrap_or_else(|| panic!("{what}: {retained:?}"))
        };
        assert_eq!(find_retained("operations")["count"], 1);
        assert!(find_retained("operations")["why"].as_str().unwrap().contains("cancel"));
        assert!(find_retained("audit")["why"].as_str().unwrap().contains("retention.audit_ms"));

        api.request("GET", &format!("/v1/operations/{dead}"), Value::Null).await.assert_problem(404, "not-found");
        api.request("GET", &format!("/v1/dead-letters/{dead}"), Value::Null).await.assert_problem(404, "not-found");
        for id in [&pending, &other] {
            assert_eq!(api.request("GET", &format!("/v1/operations/{id}"), Value::Null).await.status, 200);
        }
        let audit = api.request("GET", "/v1/audit?action=erase", Value::Null).await.json();
        assert_eq!(audit["audit"][0]["target"], "user");
        assert!(!audit.to_string().contains(USER), "the record outlives the data and does not name the user: {audit}");
        api.close().await;
    });
}

#[test]
fn erase_needs_one_subject_and_a_valid_cursor() {
    run(async {
        let folder = tempfile::tempdir().unwrap();
        let api = SqliteApi::open(&folder).await;
        for invalid in [
            json!({}),
            json!({"user_id": "1", "guild_id": "2"}),
            json!({"user_id": "everybody"}),
            json!({"user_id": "1", "next": "!"}),
            json!({"user_id": "1", "reason": "x"}),
        ] {
            api.request("POST", "/v1/erase", invalid).await.assert_problem(400, "bad-request");
        }
        let erased = api.request("POST", "/v1/erase", json!({"guild_id": GUILD})).await.json();
        assert!(erased["kept"].as_array().unwrap().iter().any(|entry| entry["what"] == "tenant"), "{erased}");
        api.close().await;
    });
}
