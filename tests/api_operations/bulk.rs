//! Bulk requests: submissions of a thousand operations, and dead letters by reason and time.

use guildhall::api::ControlConfig;
use guildhall_core::operation::OperationState;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use super::{
    Answer, GUILD, KEY,
    real::{Place, Real},
    role, run,
};

fn path() -> String {
    format!("/v1/guilds/{GUILD}/operations")
}

fn roles(count: usize) -> Vec<Value> {
    (0..count).map(|n| role(&format!("role {n}"))).collect()
}

#[test]
fn a_thousand_are_accepted_in_their_order_or_none_of_them() {
    run(async {
        let api = Real::open(&Place::file()).await;
        let mut batch = roles(1_000);
        batch[0] = json!({"kind": "delete_role", "payload": {"role_id": 5}});
        batch[999] = json!({"kind": "make_role"});
        let wrong = api.ask("POST", &path(), json!({"operations": batch})).await;
        assert_eq!(
            wrong.is_problem(422, "invalid-operation").wrong(),
            ["operations[0].payload.role_id", "operations[999].kind"]
        );
        let too_many = api.ask("POST", &path(), json!({"operations": roles(1_001)})).await;
        assert!(too_many.is_problem(422, "invalid-operation").text("detail").contains("1000"), "{too_many:?}");
        let none = api.ask("GET", "/v1/operations", Value::Null).await.json();
        assert_eq!(none["operations"], json!([]), "all or nothing");

        let accepted = api.ask("POST", &path(), json!({"operations": roles(1_000)})).await;
        assert_eq!(accepted.status, 202, "{accepted:?}");
        let ids: Vec<_> =
            accepted.json()["operations"].as_array().unwrap().iter().map(|one| one["id"].clone()).collect();
        let last = api.ask("GET", &format!("/v1/operations/{}", ids[999].as_str().unwrap()), Value::Null).await.json();
        assert_eq!((&last["seq"], &last["payload"]["name"]), (&json!(1_000), &json!("role 999")));
        let audit = api.ask("GET", "/v1/audit?limit=10", Value::Null).await.json();
        assert_eq!(audit["audit"].as_array().unwrap().len(), 1, "one row for all of them: {audit}");
        assert_eq!(audit["audit"][0]["detail"], "1000 operations: create_role");
        api.store.close().await;
    });
}

#[test]
fn a_submission_may_be_larger_than_other_bodies_and_has_a_bound_of_its_own() {
    run(async {
        let config = ControlConfig { body_most: 10_000, submission_most: 50_000, ..ControlConfig::default() };
        let api = Real::with(&Place::file(), config).await;
        let long = |count: usize| {
            let one = json!({"kind": "send_message", "payload": {"channel_id": "5", "content": "x".repeat(1_800)}});
            json!({"operations": vec![one; count]})
        };
        assert_eq!(api.ask("POST", &path(), long(20)).await.status, 202);
        api.ask("POST", &path(), long(40)).await.is_problem(413, "body-too-large");
        let filter = json!({"reason": "x".repeat(11_000)});
        api.ask("POST", "/v1/dead-letters/discard", filter).await.is_problem(413, "body-too-large");
        // Without a Content-Length.
        for (count, status) in [(20, 202), (40, 413)] {
            let body = long(count).to_string();
            let mut stream = TcpStream::connect(api.address()).await.unwrap();
            let head = format!(
                "POST {} HTTP/1.1\r\nHost: test\r\nConnection: close\r\nAuthorization: Bearer {KEY}\r\n\
                 Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n",
                path()
            );
            let chunk = format!("{head}{:x}\r\n{body}\r\n0\r\n\r\n", body.len());
            drop(stream.write_all(chunk.as_bytes()).await);
            let mut answer = Vec::new();
            drop(stream.read_to_end(&mut answer).await);
            let answer = String::from_utf8_lossy(&answer).into_owned();
            assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
        }
        api.store.close().await;
    });
}

#[test]
fn few_large_submissions_are_held_at_once_and_small_ones_are_none_the_worse() {
    run(async {
        let config =
            ControlConfig { body_most: 10_000, submission_most: 50_000, large_most: 1, ..ControlConfig::default() };
        let api = Real::with(&Place::file(), config).await;
        // A request that announces a large body and sends it slowly.
        let head = format!(
            "POST {} HTTP/1.1\r\nHost: test\r\nConnection: close\r\nAuthorization: Bearer {KEY}\r\n\
             Content-Type: application/json\r\nContent-Length: 20000\r\n\r\n{{",
            path()
        );
        let large = json!({"operations": roles(300)});
        let (slow, refused) = 'held: loop {
            let mut slow = TcpStream::connect(api.address()).await.unwrap();
            slow.write_all(head.as_bytes()).await.unwrap();
            loop {
                let answer = api.ask("POST", &path(), large.clone()).await;
                if answer.status != 202 {
                    break 'held (slow, answer);
                }
                // It arrived while another one was read, and was rejected itself.
                if slow.try_read(&mut [0; 16]).is_ok() {
                    break;
                }
            }
        };
        assert_eq!(refused.is_problem(503, "busy").header("retry-after").as_deref(), Some("1"));
        assert_eq!(api.ask("POST", &path(), role("small")).await.status, 202);
        drop(slow);
        let again = async { while api.ask("POST", &path(), large.clone()).await.status != 202 {} };
        tokio::time::timeout(super::sse::STUCK, again).await.unwrap();
        api.store.close().await;
    });
}

/// An API with `count` dead letters, each with its own name. Returns their ids, oldest first.
async fn with_letters(count: usize) -> (Real, Vec<String>) {
    let api = Real::open(&Place::file()).await;
    let mut ids = Vec::new();
    for n in 0..count {
        let id = api.create_role(GUILD, &format!("role {n}")).await;
        api.becomes(&id, OperationState::Dead).await;
        ids.push(id);
    }
    (api, ids)
}

fn letters(answer: &Answer) -> Vec<String> {
    let list = answer.json()["dead_letters"].as_array().unwrap().clone();
    list.iter().map(|letter| letter["id"].as_str().unwrap().to_owned()).rev().collect()
}

#[test]
fn letters_are_found_by_what_they_say_and_when_they_died() {
    run(async {
        let (api, ids) = with_letters(2).await;
        // The test clock gives all of them the same time of death.
        for (query, count) in [
            ("reason=missing", 2),
            ("reason=PERMISSIONS", 2),
            ("reason=nobody", 0),
            ("reason=%25", 0),
            ("died_after=2023-11-14T22:13:20Z", 2),
            ("died_after=2023-11-14T22:13:20.006Z", 0),
            ("died_before=2023-11-14T22:13:20.005Z", 0),
            ("died_before=2023-11-14T23:13:20.006%2B01:00", 2),
            ("reason=missing&class=forbidden&died_after=2020-01-01T00:00:00Z&died_before=2100-01-01T00:00:00Z", 2),
        ] {
            let found = letters(&api.ask("GET", &format!("/v1/dead-letters?{query}"), Value::Null).await);
            assert_eq!(found.len(), count, "{query}");
            assert!(found.is_empty() || found == ids, "{query}");
        }
        for (query, field) in [("died_after=yesterday", "died_after"), ("reason=", "reason"), ("died=1", "died")] {
            let answer = api.ask("GET", &format!("/v1/dead-letters?{query}"), Value::Null).await;
            assert_eq!(answer.is_problem(400, "bad-request").wrong(), [field]);
        }
        api.store.close().await;
    });
}

#[test]
fn letters_are_done_again_and_thrown_away_by_a_filter_and_each_call_is_one_row() {
    run(async {
        let (api, ids) = with_letters(5).await;
        let none = api.ask("POST", "/v1/dead-letters/redrive", json!({"reason": "nobody"})).await;
        assert_eq!((none.status, &none.json()["redriven"]), (200, &json!(0)));
        let some = json!({"reason": "MISSING", "died_before": "2100-01-01T00:00:00Z", "limit": 2});
        let again = api.ask("POST", "/v1/dead-letters/redrive", some).await.json();
        assert_eq!((&again["redriven"], &again["more"]), (&json!(2), &json!(true)));

        let discard = async |filter: Value| api.ask("POST", "/v1/dead-letters/discard", filter).await;
        let some = discard(json!({"kind": "create_role", "redriven": false, "limit": 2})).await;
        assert_eq!((some.status, some.json()), (200, json!({"discarded": 2, "more": true})));
        let left = letters(&api.ask("GET", "/v1/dead-letters", Value::Null).await);
        assert_eq!(left, [&ids[0], &ids[1], &ids[4]].map(Clone::clone), "the oldest that were not redriven");
        assert_eq!(discard(json!({"reason": "nobody"})).await.json(), json!({"discarded": 0, "more": false}));
        assert_eq!(discard(json!({"guild_id": "7"})).await.json()["discarded"], 0);
        let rest = discard(json!({"guild_id": GUILD, "died_after": "2020-01-01T00:00:00Z"})).await.json();
        assert_eq!(rest, json!({"discarded": 3, "more": false}));
        for wrong in [json!({"limit": 0}), json!({"limit": 1_001}), json!({"reason": 7, "why": "x"}), json!([])] {
            discard(wrong).await.is_problem(400, "bad-request");
        }

        let audit = api.ask("GET", "/v1/audit?action=dead_letters.discard", Value::Null).await.json();
        let rows = audit["audit"].as_array().unwrap();
        assert_eq!(rows.len(), 2, "calls without an effect leave no row: {audit}");
        assert_eq!((&rows[0]["guild_id"], &rows[1]["detail"]), (&json!(GUILD), &json!("kind create_role")));
        let audit = api.ask("GET", "/v1/audit?action=dead_letters.redrive", Value::Null).await.json();
        assert_eq!(audit["audit"].as_array().unwrap().len(), 1, "{audit}");
        api.store.close().await;
    });
}

#[test]
fn a_key_throws_away_only_what_it_sees() {
    run(async {
        let (api, ids) = with_letters(2).await;
        let (reads, _) = api.key("default", &["operations:read"]).await;
        let (other, _) = api.key("acme", &["operations:write"]).await;
        let (bound, _) = api.key("default", &["operations:write", "guild:7"]).await;
        let path = "/v1/dead-letters/discard";
        assert_eq!(
            api.ask_as(&reads, "POST", path, json!({})).await.is_problem(403, "forbidden").text("needs"),
            "operations:write"
        );
        for key in [&other, &bound] {
            for filter in [json!({}), json!({"guild_id": GUILD})] {
                assert_eq!(api.ask_as(key, "POST", path, filter).await.json()["discarded"], 0);
            }
        }
        assert_eq!(letters(&api.ask("GET", "/v1/dead-letters", Value::Null).await), ids);
        api.store.close().await;
    });
}

#[test]
fn operations_are_listed_by_when_they_were_accepted_and_by_deployment() {
    run(async {
        let api = Real::open(&Place::file()).await;
        api.create_role(GUILD, "one").await;
        let shown = api.ask("GET", "/v1/operations", Value::Null).await.json()["operations"][0].clone();
        let at = shown["created_at"].as_str().unwrap();
        for (query, count) in [
            (format!("created_after={at}"), 1),
            (format!("created_before={at}"), 0),
            (format!("created_after={at}&created_before=2100-01-01T00:00:00Z&guild_id={GUILD}"), 1),
            ("created_after=2100-01-01T00:00:00Z".to_owned(), 0),
            ("deployment_id=01890a5d-ac96-774b-bcce-b302099a8057".to_owned(), 0),
        ] {
            let listed = api.ask("GET", &format!("/v1/operations?{query}"), Value::Null).await.json();
            assert_eq!(listed["operations"].as_array().unwrap().len(), count, "{query}");
        }
        for (query, field) in [("created_after=1", "created_after"), ("deployment_id=x", "deployment_id")] {
            let answer = api.ask("GET", &format!("/v1/operations?{query}"), Value::Null).await;
            assert_eq!(answer.is_problem(400, "bad-request").wrong(), [field]);
        }
        api.store.close().await;
    });
}
