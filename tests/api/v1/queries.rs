//! Reading operations and guilds.

use std::collections::BTreeSet;

use guildhall_core::operation::OperationState;
use serde_json::{Value, json};

use super::{GUILD, Notification, TestApi, role, run};

fn ids(response: &Value) -> Vec<String> {
    let list = response["operations"].as_array().unwrap();
    list.iter().map(|operation| operation["id"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn operation_is_shown_with_its_payload_and_result() {
    run(async {
        let api = TestApi::start();
        let mut body = role("Pilots");
        body["key"] = "once".into();
        let id = api.post(&format!("/v1/guilds/{GUILD}/operations"), body).await.text("id");
        let operation = api.get(&format!("/v1/operations/{id}")).await.json();
        assert_eq!((&operation["id"], &operation["state"]), (&json!(id), &json!("queued")));
        assert_eq!((&operation["guild_id"], &operation["payload"]["name"]), (&json!(GUILD), &json!("Pilots")));
        assert_eq!(
            (&operation["key"], &operation["tries"], &operation["max_attempts"]),
            (&json!("once"), &json!([]), &json!(3))
        );
        assert!(operation["created_at"].as_str().unwrap().starts_with("2023-11-14T22:13:20."), "{operation}");
        assert_eq!((&operation["result"], &operation["finished_at"]), (&json!(null), &json!(null)));
        api.store.set_state(&id, OperationState::Succeeded);
        let operation = api.get(&format!("/v1/operations/{id}")).await.json();
        assert_eq!((&operation["state"], &operation["result"]), (&json!("succeeded"), &json!({"role_id": "77"})));
    });
}

#[test]
fn unknown_and_invalid_ids_are_rejected() {
    run(async {
        let api = TestApi::start();
        let unknown = "01890a5d-ac96-774b-bcce-b302099a8057";
        for (method, path) in [
            ("GET", format!("/v1/operations/{unknown}")),
            ("POST", format!("/v1/operations/{unknown}/cancel")),
            ("POST", format!("/v1/operations/{unknown}/retry")),
            ("GET", format!("/v1/dead-letters/{unknown}")),
            ("DELETE", format!("/v1/dead-letters/{unknown}")),
            ("POST", format!("/v1/dead-letters/{unknown}/redrive")),
        ] {
            let response = super::call(api.address(), method, &path, &[], "").await;
            assert!(response.assert_problem(404, "not-found").text("detail").contains(unknown), "{path}: {response:?}");
            let response = super::call(api.address(), method, &path.replace(unknown, "7"), &[], "").await;
            assert_eq!(response.assert_problem(400, "bad-request").invalid_fields(), ["id"], "{path}");
        }
        for path in ["/v1/guilds/0", "/v1/guilds/4611686018427387904", "/v1/guilds/me"] {
            assert_eq!(api.get(path).await.assert_problem(400, "bad-request").invalid_fields(), ["guild_id"], "{path}");
        }
    });
}

#[test]
fn list_is_paged_newest_first_without_gaps_or_repeats() {
    run(async {
        let api = TestApi::start();
        let mut created = Vec::new();
        for n in 0..25 {
            created.push(api.create_role(&n.to_string()).await);
        }
        created.reverse();
        let (mut listed, mut path) = (Vec::new(), "/v1/operations?limit=10".to_owned());
        let mut pages = 0;
        loop {
            let page = api.get(&path).await.json();
            listed.extend(ids(&page));
            pages += 1;
            match page["next"].as_str() {
                Some(next) => path = format!("/v1/operations?limit=10&cursor={next}"),
                None => break,
            }
            // New operations do not shift the pages.
            api.create_role("late").await;
        }
        assert_eq!((listed, pages), (created, 3));
        let whole = api.get("/v1/operations?limit=27").await.json();
        assert_eq!((ids(&whole).len(), &whole["next"]), (27, &json!(null)), "a full last page has no next");
        assert_eq!(ids(&api.get("/v1/operations").await.json()).len(), 27, "the default limit is fifty");
    });
}

#[test]
fn list_is_filtered_by_guild_state_kind_and_parked() {
    run(async {
        let api = TestApi::start();
        let here = api.create_role("a").await;
        let elsewhere = api.post("/v1/guilds/2/operations", role("b")).await.text("id");
        let deletion = json!({"kind": "delete_role", "payload": {"role_id": "5"}});
        let deleted = api.post(&format!("/v1/guilds/{GUILD}/operations"), deletion).await.text("id");
        api.store.set_state(&elsewhere, OperationState::Delayed);
        for (query, expected) in [
            (format!("guild_id={GUILD}"), vec![&deleted, &here]),
            ("guild_id=2".to_owned(), vec![&elsewhere]),
            ("state=delayed".to_owned(), vec![&elsewhere]),
            ("state=dead".to_owned(), vec![]),
            ("kind=delete_role".to_owned(), vec![&deleted]),
            ("parked=true".to_owned(), vec![]),
            ("parked=false&kind=create_role".to_owned(), vec![&elsewhere, &here]),
        ] {
            let listed = ids(&api.get(&format!("/v1/operations?{query}")).await.json());
            assert_eq!(listed.iter().collect::<Vec<_>>(), expected, "{query}");
        }
    });
}

#[test]
fn invalid_and_unknown_parameters_are_reported() {
    run(async {
        let api = TestApi::start();
        for (query, field) in [
            ("state=done", "state"),
            ("kind=x", "kind"),
            ("guild_id=-1", "guild_id"),
            ("parked=1", "parked"),
            ("limit=0", "limit"),
            ("limit=501", "limit"),
            ("cursor=abc", "cursor"),
            ("state=dead&state=queued", "state"),
            ("gulid_id=1", "gulid_id"),
        ] {
            let response = api.get(&format!("/v1/operations?{query}")).await;
            assert_eq!(response.assert_problem(400, "bad-request").invalid_fields(), [field], "{query}");
        }
        let response = api.get("/v1/dead-letters?class=bad&limit=x&what=1").await;
        let fields: BTreeSet<_> = response.assert_problem(400, "bad-request").invalid_fields().into_iter().collect();
        assert_eq!(fields, BTreeSet::from(["class", "limit", "what"].map(str::to_owned)));
    });
}

#[test]
fn guild_is_shown_with_queue_depth_and_pause() {
    run(async {
        let mut setup = super::ApiSetup::default();
        setup.submission.max_depth = 3;
        let api = setup.start();
        let path = format!("/v1/guilds/{GUILD}");
        api.get(&path).await.assert_problem(404, "not-found");
        let status = |value: &Value| (value["depth"].clone(), value["depth_is_more"].clone(), value["paused"].clone());
        let first = api.create_role("a").await;
        for n in 0..3 {
            api.create_role(&n.to_string()).await;
        }
        api.store.set_state(&first, OperationState::Delayed);
        let full = api.get(&path).await.json();
        assert_eq!(status(&full), (json!(3), json!(true), json!(false)));
        assert_eq!(full["pending"], json!({"delayed": 1, "queued": 2}));
        api.store.set_state(&first, OperationState::Dead);
        assert_eq!(status(&api.get(&path).await.json()), (json!(3), json!(false), json!(false)));
        assert!(api.take_notifications().iter().all(|notification| matches!(notification, Notification::Wake(_))));
    });
}
