//! Dead letters.

use guildhall_actors::access::Caller;
use guildhall_actors::ports::DeadLetterFilter;
use guildhall_core::operation::OperationState;
use serde_json::{Value, json};

use super::{Api, GUILD, GUILD_QUEUE, Heard, Setup, role, run, store::Fault};

/// An API with `count` dead letters. Returns their ids, oldest first.
async fn with_letters(setup: Setup, count: usize) -> (Api, Vec<String>) {
    let api = setup.start();
    let mut ids = Vec::new();
    for n in 0..count {
        let id = api.create_role(&format!("role {n}")).await;
        api.store.become_state(&id, OperationState::Dead);
        ids.push(id);
    }
    api.heard();
    (api, ids)
}

fn ids(value: &Value) -> Vec<String> {
    let list = value["dead_letters"].as_array().unwrap();
    list.iter().map(|letter| letter["id"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn letters_are_listed_shown_and_filtered() {
    run(async {
        let (api, mut made) = with_letters(Setup::default(), 3).await;
        made.reverse();
        let page = api.get("/v1/dead-letters?limit=2").await.json();
        assert_eq!(ids(&page), made[..2]);
        let next = page["next"].as_str().unwrap();
        let page = api.get(&format!("/v1/dead-letters?limit=2&cursor={next}")).await.json();
        assert_eq!((ids(&page).as_slice(), &page["next"]), (&made[2..], &json!(null)));

        let shown = api.get(&format!("/v1/dead-letters/{}", made[2])).await.json();
        assert_eq!((&shown["payload"]["name"], &shown["kind"]), (&json!("role 0"), &json!("create_role")));
        assert_eq!((&shown["error"]["class"], &shown["guild_id"]), (&json!("forbidden"), &json!(GUILD)));
        for (query, count) in [
            ("class=forbidden", 3),
            ("class=not_found", 0),
            ("kind=delete_role", 0),
            ("guild_id=2", 0),
            ("redriven=true", 0),
            ("redriven=false", 3),
        ] {
            assert_eq!(ids(&api.get(&format!("/v1/dead-letters?{query}")).await.json()).len(), count, "{query}");
        }
    });
}

#[test]
fn a_letter_is_done_again_once_and_says_by_what() {
    run(async {
        let (api, made) = with_letters(Setup::default(), 1).await;
        let path = format!("/v1/dead-letters/{}", made[0]);
        let answer = api.post(&format!("{path}/redrive"), json!({})).await;
        assert_eq!((answer.status, answer.text("redrive_of")), (202, made[0].clone()));
        assert_eq!(api.heard(), [Heard::Wake(GUILD_QUEUE)]);
        assert_eq!(api.get(&path).await.text("redriven_as"), answer.text("id"));
        let second = api.post(&format!("{path}/redrive"), json!({})).await;
        assert_eq!(second.is_problem(409, "already-redriven").text("operation_id"), answer.text("id"));
    });
}

#[test]
fn a_letter_is_thrown_away_once() {
    run(async {
        let (api, made) = with_letters(Setup::default(), 2).await;
        let path = format!("/v1/dead-letters/{}", made[0]);
        assert_eq!(api.delete(&path).await.status, 204);
        api.delete(&path).await.is_problem(404, "not-found");
        assert_eq!(ids(&api.get("/v1/dead-letters").await.json()), made[1..]);
    });
}

#[test]
fn many_letters_are_done_again_the_oldest_first_in_bounded_portions() {
    run(async {
        let mut setup = Setup { most: 10_000, ..Setup::default() };
        setup.desk.redrive_most = 30;
        setup.desk.redrive_chunk = 7;
        let (api, made) = with_letters(setup, 50).await;
        let first = api.post("/v1/dead-letters/redrive", json!({"class": "forbidden"})).await;
        let summary = first.json();
        assert_eq!((first.status, &summary["redriven"], &summary["more"]), (202, &json!(30), &json!(true)));
        let pairs = summary["operations"].as_array().unwrap();
        let letters: Vec<_> = pairs.iter().map(|pair| pair["letter"].as_str().unwrap().to_owned()).collect();
        let again: Vec<_> = pairs.iter().map(|pair| pair["operation"].as_str().unwrap().to_owned()).collect();
        assert_eq!(letters, made[..30]);
        assert!(again.is_sorted(), "their ids follow the order of the queue");

        let rest = api.post("/v1/dead-letters/redrive", json!({})).await.json();
        assert_eq!((&rest["redriven"], &rest["more"]), (&json!(20), &json!(false)));
        let none = api.post("/v1/dead-letters/redrive", json!({})).await;
        assert_eq!((none.status, &none.json()["redriven"]), (200, &json!(0)));
    });
}

#[test]
fn only_letters_that_the_filter_names_are_done_again() {
    run(async {
        let (api, made) = with_letters(Setup::default(), 3).await;
        let elsewhere = api.post("/v1/guilds/2/operations", role("b")).await.text("id");
        api.store.become_state(&elsewhere, OperationState::Dead);
        for (filter, count) in [
            (json!({"class": "not_found"}), 0),
            (json!({"kind": "delete_role"}), 0),
            (json!({"guild_id": "2"}), 1),
            (json!({"guild_id": GUILD, "limit": 2}), 2),
        ] {
            let summary = api.post("/v1/dead-letters/redrive", filter.clone()).await.json();
            assert_eq!(summary["redriven"], count, "{filter}");
        }
        let left = ids(&api.get("/v1/dead-letters?redriven=false").await.json());
        assert_eq!(left, made[2..]);
        for wrong in [json!({"gild": 1}), json!({"limit": 1_001}), json!({"kind": ["create_role"]})] {
            api.post("/v1/dead-letters/redrive", wrong).await.is_problem(400, "bad-request");
        }
        api.post("/v1/dead-letters/redrive", json!([])).await.is_problem(400, "bad-request");
    });
}

#[test]
fn a_letter_that_cannot_be_done_again_does_not_keep_the_others_from_it() {
    run(async {
        let (api, made) = with_letters(Setup::default(), 2).await;
        let first = api.create_role("base").await;
        let assign =
            json!({"kind": "assign_role", "payload": {"user_id": "7", "role_id": {"operation": first.as_str()}}});
        let refers = api.post(&format!("/v1/guilds/{GUILD}/operations"), assign).await.text("id");
        api.store.become_state(&refers, OperationState::Dead);
        api.store.forget(&first);
        let summary = api.post("/v1/dead-letters/redrive", json!({})).await.json();
        assert_eq!((&summary["redriven"], &summary["more"]), (&json!(made.len()), &json!(false)));
        let skipped = summary["skipped"].as_array().unwrap();
        assert_eq!((skipped.len(), &skipped[0]["letter"]), (1, &json!(refers)));
        assert!(skipped[0]["why"].as_str().unwrap().contains(&first), "{skipped:?}");
    });
}

#[test]
fn a_store_that_fails_half_way_is_told_with_what_was_done() {
    run(async {
        let (api, made) = with_letters(Setup::default(), 2).await;
        api.store.fail(Some(Fault::Unavailable));
        let answer = api.post("/v1/dead-letters/redrive", json!({})).await;
        answer.is_problem(503, "store-unavailable");
        api.store.fail(None);
        let done = api.desk.redrive_all(&Caller::operator(), None, DeadLetterFilter::default()).await.unwrap();
        assert_eq!((done.redriven.len(), done.stopped), (made.len(), None));
    });
}
