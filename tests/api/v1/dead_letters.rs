//! Dead letters.

use guildhall_actors::access::Caller;
use guildhall_actors::ports::DeadLetterFilter;
use guildhall_core::operation::OperationState;
use serde_json::{Value, json};

use super::{ApiSetup, GUILD, GUILD_QUEUE, Notification, TestApi, memory_store::Fault, role, run};

/// An API with `count` dead letters. Returns their ids, oldest first.
async fn api_with_dead_letters(setup: ApiSetup, count: usize) -> (TestApi, Vec<String>) {
    let api = setup.start();
    let mut ids = Vec::new();
    for n in 0..count {
        let id = api.create_role(&format!("role {n}")).await;
        api.store.set_state(&id, OperationState::Dead);
        ids.push(id);
    }
    api.take_notifications();
    (api, ids)
}

fn ids(value: &Value) -> Vec<String> {
    let list = value["dead_letters"].as_array().unwrap();
    list.iter().map(|dead_letter| dead_letter["id"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn dead_letters_are_listed_shown_and_filtered() {
    run(async {
        let (api, mut created) = api_with_dead_letters(ApiSetup::default(), 3).await;
        created.reverse();
        let page = api.get("/v1/dead-letters?limit=2").await.json();
        assert_eq!(ids(&page), created[..2]);
        let next = page["next"].as_str().unwrap();
        let page = api.get(&format!("/v1/dead-letters?limit=2&cursor={next}")).await.json();
        assert_eq!((ids(&page).as_slice(), &page["next"]), (&created[2..], &json!(null)));

        let dead_letter = api.get(&format!("/v1/dead-letters/{}", created[2])).await.json();
        assert_eq!((&dead_letter["payload"]["name"], &dead_letter["kind"]), (&json!("role 0"), &json!("create_role")));
        assert_eq!((&dead_letter["error"]["class"], &dead_letter["guild_id"]), (&json!("forbidden"), &json!(GUILD)));
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
fn dead_letter_is_redriven_once() {
    run(async {
        let (api, created) = api_with_dead_letters(ApiSetup::default(), 1).await;
        let path = format!("/v1/dead-letters/{}", created[0]);
        let response = api.post(&format!("{path}/redrive"), json!({})).await;
        assert_eq!((response.status, response.text("redrive_of")), (202, created[0].clone()));
        assert_eq!(api.take_notifications(), [Notification::Wake(GUILD_QUEUE)]);
        assert_eq!(api.get(&path).await.text("redriven_as"), response.text("id"));
        let second = api.post(&format!("{path}/redrive"), json!({})).await;
        assert_eq!(second.assert_problem(409, "already-redriven").text("operation_id"), response.text("id"));
    });
}

#[test]
fn dead_letter_is_discarded_once() {
    run(async {
        let (api, created) = api_with_dead_letters(ApiSetup::default(), 2).await;
        let path = format!("/v1/dead-letters/{}", created[0]);
        assert_eq!(api.delete(&path).await.status, 204);
        api.delete(&path).await.assert_problem(404, "not-found");
        assert_eq!(ids(&api.get("/v1/dead-letters").await.json()), created[1..]);
    });
}

#[test]
fn bulk_redrive_is_limited_and_starts_with_the_oldest() {
    run(async {
        let mut setup = ApiSetup { max_operations: 10_000, ..ApiSetup::default() };
        setup.submission.max_redrive = 30;
        setup.submission.redrive_chunk = 7;
        let (api, created) = api_with_dead_letters(setup, 50).await;
        let first = api.post("/v1/dead-letters/redrive", json!({"class": "forbidden"})).await;
        let summary = first.json();
        assert_eq!((first.status, &summary["redriven"], &summary["more"]), (202, &json!(30), &json!(true)));
        let pairs = summary["operations"].as_array().unwrap();
        let dead_letters: Vec<_> = pairs.iter().map(|pair| pair["letter"].as_str().unwrap().to_owned()).collect();
        let redriven: Vec<_> = pairs.iter().map(|pair| pair["operation"].as_str().unwrap().to_owned()).collect();
        assert_eq!(dead_letters, created[..30]);
        assert!(redriven.is_sorted(), "their ids follow the order of the queue");

        let rest = api.post("/v1/dead-letters/redrive", json!({})).await.json();
        assert_eq!((&rest["redriven"], &rest["more"]), (&json!(20), &json!(false)));
        let none = api.post("/v1/dead-letters/redrive", json!({})).await;
        assert_eq!((none.status, &none.json()["redriven"]), (200, &json!(0)));
    });
}

#[test]
fn bulk_redrive_respects_its_filter() {
    run(async {
        let (api, created) = api_with_dead_letters(ApiSetup::default(), 3).await;
        let elsewhere = api.post("/v1/guilds/2/operations", role("b")).await.text("id");
        api.store.set_state(&elsewhere, OperationState::Dead);
        for (filter, count) in [
            (json!({"class": "not_found"}), 0),
            (json!({"kind": "delete_role"}), 0),
            (json!({"guild_id": "2"}), 1),
            (json!({"guild_id": GUILD, "limit": 2}), 2),
        ] {
            let summary = api.post("/v1/dead-letters/redrive", filter.clone()).await.json();
            assert_eq!(summary["redriven"], count, "{filter}");
        }
        let remaining = ids(&api.get("/v1/dead-letters?redriven=false").await.json());
        assert_eq!(remaining, created[2..]);
        for invalid in [json!({"gild": 1}), json!({"limit": 1_001}), json!({"kind": ["create_role"]})] {
            api.post("/v1/dead-letters/redrive", invalid).await.assert_problem(400, "bad-request");
        }
        api.post("/v1/dead-letters/redrive", json!([])).await.assert_problem(400, "bad-request");
    });
}

#[test]
fn bulk_redrive_skips_what_it_cannot_redrive() {
    run(async {
        let (api, created) = api_with_dead_letters(ApiSetup::default(), 2).await;
        let first = api.create_role("base").await;
        let assign =
            json!({"kind": "assign_role", "payload": {"user_id": "7", "role_id": {"operation": first.as_str()}}});
        let referring = api.post(&format!("/v1/guilds/{GUILD}/operations"), assign).await.text("id");
        api.store.set_state(&referring, OperationState::Dead);
        api.store.delete_row(&first);
        let summary = api.post("/v1/dead-letters/redrive", json!({})).await.json();
        assert_eq!((&summary["redriven"], &summary["more"]), (&json!(created.len()), &json!(false)));
        let skipped = summary["skipped"].as_array().unwrap();
        assert_eq!((skipped.len(), &skipped[0]["letter"]), (1, &json!(referring)));
        assert!(skipped[0]["why"].as_str().unwrap().contains(&first), "{skipped:?}");
    });
}

#[test]
fn redrive_reports_an_unavailable_store() {
    run(async {
        let (api, created) = api_with_dead_letters(ApiSetup::default(), 2).await;
        api.store.fail(Some(Fault::Unavailable));
        let response = api.post("/v1/dead-letters/redrive", json!({})).await;
        response.assert_problem(503, "store-unavailable");
        api.store.fail(None);
        let summary = api.service.redrive_all(&Caller::operator(), None, DeadLetterFilter::default()).await.unwrap();
        assert_eq!((summary.redriven.len(), summary.stopped), (created.len(), None));
    });
}
