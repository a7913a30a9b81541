//! Reading operations and guilds.

use std::collections::BTreeSet;

use guildhall_core::operation::OperationState;
use serde_json::{Value, json};

use super::{Api, GUILD, Heard, role, run};

fn ids(answer: &Value) -> Vec<String> {
    let list = answer["operations"].as_array().unwrap();
    list.iter().map(|operation| operation["id"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn an_operation_is_shown_with_what_was_asked_and_what_became_of_it() {
    run(async {
        let api = Api::start();
        let mut asked = role("Pilots");
        asked["key"] = "once".into();
        let id = api.post(&format!("/v1/guilds/{GUILD}/operations"), asked).await.text("id");
        let shown = api.get(&format!("/v1/operations/{id}")).await.json();
        assert_eq!((&shown["id"], &shown["state"]), (&json!(id), &json!("queued")));
        assert_eq!((&shown["guild_id"], &shown["payload"]["name"]), (&json!(GUILD), &json!("Pilots")));
        assert_eq!((&shown["key"], &shown["tries"], &shown["max_attempts"]), (&json!("once"), &json!([]), &json!(3)));
        assert!(shown["created_at"].as_str().unwrap().starts_with("2023-11-14T22:13:20."), "{shown}");
        assert_eq!((&shown["result"], &shown["finished_at"]), (&json!(null), &json!(null)));
        api.store.become_state(&id, OperationState::Succeeded);
        let shown = api.get(&format!("/v1/operations/{id}")).await.json();
        assert_eq!((&shown["state"], &shown["result"]), (&json!("succeeded"), &json!({"role_id": "77"})));
    });
}

#[test]
fn an_operation_that_is_not_there_is_not_found_and_what_is_no_id_is_told() {
    run(async {
        let api = Api::start();
        let gone = "01890a5d-ac96-774b-bcce-b302099a8057";
        for (method, path) in [
            ("GET", format!("/v1/operations/{gone}")),
            ("POST", format!("/v1/operations/{gone}/cancel")),
            ("POST", format!("/v1/operations/{gone}/retry")),
            ("GET", format!("/v1/dead-letters/{gone}")),
            ("DELETE", format!("/v1/dead-letters/{gone}")),
            ("POST", format!("/v1/dead-letters/{gone}/redrive")),
        ] {
            let answer = super::call(api.address(), method, &path, &[], "").await;
            assert!(answer.is_problem(404, "not-found").text("detail").contains(gone), "{path}: {answer:?}");
            let answer = super::call(api.address(), method, &path.replace(gone, "7"), &[], "").await;
            assert_eq!(answer.is_problem(400, "bad-request").wrong(), ["id"], "{path}");
        }
        for path in ["/v1/guilds/0", "/v1/guilds/4611686018427387904", "/v1/guilds/me"] {
            assert_eq!(api.get(path).await.is_problem(400, "bad-request").wrong(), ["guild_id"], "{path}");
        }
    });
}

#[test]
fn a_list_is_paged_from_the_newest_to_the_oldest_without_a_gap_or_a_repeat() {
    run(async {
        let api = Api::start();
        let mut made = Vec::new();
        for n in 0..25 {
            made.push(api.create_role(&n.to_string()).await);
        }
        made.reverse();
        let (mut seen, mut path) = (Vec::new(), "/v1/operations?limit=10".to_owned());
        let mut pages = 0;
        loop {
            let page = api.get(&path).await.json();
            seen.extend(ids(&page));
            pages += 1;
            match page["next"].as_str() {
                Some(next) => path = format!("/v1/operations?limit=10&cursor={next}"),
                None => break,
            }
            // New operations do not shift the pages.
            api.create_role("late").await;
        }
        assert_eq!((seen, pages), (made, 3));
        let whole = api.get("/v1/operations?limit=27").await.json();
        assert_eq!((ids(&whole).len(), &whole["next"]), (27, &json!(null)), "a full last page has no next");
        assert_eq!(ids(&api.get("/v1/operations").await.json()).len(), 27, "the default limit is fifty");
    });
}

#[test]
fn a_list_is_filtered_by_guild_state_kind_and_parking() {
    run(async {
        let api = Api::start();
        let here = api.create_role("a").await;
        let elsewhere = api.post("/v1/guilds/2/operations", role("b")).await.text("id");
        let deletion = json!({"kind": "delete_role", "payload": {"role_id": "5"}});
        let deleted = api.post(&format!("/v1/guilds/{GUILD}/operations"), deletion).await.text("id");
        api.store.become_state(&elsewhere, OperationState::Delayed);
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
fn a_wrong_or_unknown_parameter_is_named() {
    run(async {
        let api = Api::start();
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
            let answer = api.get(&format!("/v1/operations?{query}")).await;
            assert_eq!(answer.is_problem(400, "bad-request").wrong(), [field], "{query}");
        }
        let answer = api.get("/v1/dead-letters?class=bad&limit=x&what=1").await;
        let wrong: BTreeSet<_> = answer.is_problem(400, "bad-request").wrong().into_iter().collect();
        assert_eq!(wrong, BTreeSet::from(["class", "limit", "what"].map(str::to_owned)));
    });
}

#[test]
fn a_guild_is_shown_with_how_deep_its_queue_is_and_whether_it_is_paused() {
    run(async {
        let mut setup = super::Setup::default();
        setup.desk.depth_most = 3;
        let api = setup.start();
        let path = format!("/v1/guilds/{GUILD}");
        let empty = api.get(&path).await.json();
        let standing =
            |value: &Value| (value["depth"].clone(), value["depth_is_more"].clone(), value["paused"].clone());
        assert_eq!(standing(&empty), (json!(0), json!(false), json!(false)));
        let first = api.create_role("a").await;
        for n in 0..3 {
            api.create_role(&n.to_string()).await;
        }
        api.store.become_state(&first, OperationState::Delayed);
        let full = api.get(&path).await.json();
        assert_eq!(standing(&full), (json!(3), json!(true), json!(false)));
        assert_eq!(full["pending"], json!({"delayed": 1, "queued": 2}));
        api.store.become_state(&first, OperationState::Dead);
        assert_eq!(standing(&api.get(&path).await.json()), (json!(3), json!(false), json!(false)));
        assert!(api.heard().iter().all(|heard| matches!(heard, Heard::Wake(_))));
    });
}
