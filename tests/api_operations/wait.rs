//! Waiting until submitted operations are final.

use std::time::Duration;

use guildhall::api::ControlConfig;
use guildhall_actors::ports::ChangeFeed as _;
use guildhall_actors::submission::CompletionConfig;
use guildhall_core::operation::OperationState;
use serde_json::{Value, json};

use super::{
    Answer, GUILD, GUILD_QUEUE, call,
    real::{Place, Real, carry_out},
    role, run,
};

async fn submit(api: &Real, prefer: &str, body: &Value) -> Answer {
    let path = format!("/v1/guilds/{GUILD}/operations");
    call(api.address(), "POST", &path, &[("Prefer", prefer)], &body.to_string()).await
}

/// Waits until an operation is accepted, and sets its state.
async fn ends_the_next(api: &Real, state: OperationState) {
    let mut ticks = api.store.ticks();
    ticks.changed().await.unwrap();
    let listed = api.ask("GET", "/v1/operations?limit=1", Value::Null).await.json();
    api.becomes(listed["operations"][0]["id"].as_str().unwrap(), state).await;
}

#[test]
fn a_caller_that_wants_to_wait_is_answered_when_it_is_over_with_all_there_is_to_know() {
    run(async {
        let api = Real::open(&Place::file()).await;
        let pilots = role("Pilots");
        let (answer, ()) =
            tokio::join!(submit(&api, "wait=60", &pilots), ends_the_next(&api, OperationState::Succeeded));
        assert_eq!(answer.status, 200, "{answer:?}");
        assert_eq!(answer.header("preference-applied").as_deref(), Some("wait=60"));
        let (shown, id) = (answer.json(), answer.text("id"));
        assert_eq!((&shown["state"], &shown["result"]["role_id"]), (&json!("succeeded"), &json!("77")));
        assert_eq!((&shown["replayed"], &shown["tries"]), (&json!(false), &json!([])));
        let happened: Vec<_> = shown["timeline"].as_array().unwrap().iter().map(|entry| &entry["what"]).collect();
        assert_eq!(happened, ["accepted", "succeeded"]);
        assert_eq!(answer.header("location").unwrap(), format!("/v1/operations/{id}"));
        // A failed operation is final, too.
        let (answer, ()) = tokio::join!(submit(&api, "wait=60", &pilots), ends_the_next(&api, OperationState::Dead));
        assert_eq!((answer.status, answer.text("state").as_str()), (200, "dead"));
        api.store.close().await;
    });
}

#[test]
fn many_are_waited_for_together_and_told_in_their_order() {
    run(async {
        let api = Real::open(&Place::file()).await;
        let carrier = tokio::spawn(carry_out(api.store.clone(), GUILD_QUEUE));
        let batch: Vec<_> = (0..30).map(|n| role(&format!("role {n}"))).collect();
        let answer = submit(&api, "respond-async, wait=60", &json!({"operations": batch})).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        let all = answer.json()["operations"].as_array().unwrap().clone();
        let named: Vec<_> = all.iter().map(|one| one["payload"]["name"].as_str().unwrap().to_owned()).collect();
        assert_eq!(named, (0..30).map(|n| format!("role {n}")).collect::<Vec<_>>());
        assert!(all.iter().all(|one| one["state"] == "succeeded"), "{all:?}");
        carrier.abort();
        api.store.close().await;
    });
}

#[test]
fn what_another_process_carries_out_is_waited_for_as_well() {
    run(async {
        let place = Place::postgres().await;
        let (asked, other) = (Real::open(&place).await, Real::open(&place).await);
        // The process that owns the queue executes it.
        let carriers = [&asked, &other].map(|process| tokio::spawn(carry_out(process.store.clone(), GUILD_QUEUE)));
        let (one, two) = (role("a"), role("b"));
        let answers = tokio::join!(submit(&asked, "wait=60", &one), submit(&other, "wait=60", &two));
        for answer in [answers.0, answers.1] {
            assert_eq!((answer.status, answer.text("state").as_str()), (200, "succeeded"), "{answer:?}");
        }
        carriers.iter().for_each(tokio::task::JoinHandle::abort);
        for process in [asked, other] {
            process.store.close().await;
        }
    });
}

#[test]
fn when_the_time_is_up_the_answer_is_the_usual_one() {
    run(async {
        let api = Real::open(&Place::file()).await;
        let answer = submit(&api, "wait=1", &role("slow")).await;
        assert_eq!((answer.status, answer.text("state").as_str()), (202, "queued"), "{answer:?}");
        assert_eq!(answer.header("preference-applied").as_deref(), Some("wait=1"));
        assert!(answer.json().get("timeline").is_none() && answer.header("location").is_some());
        let ignored = submit(&api, "wait=soon", &role("quick")).await;
        assert_eq!((ignored.status, ignored.header("preference-applied")), (202, None));
        api.store.close().await;
    });
}

#[test]
fn a_key_that_was_used_before_is_waited_for_or_answered_at_once() {
    run(async {
        let api = Real::open(&Place::file()).await;
        let mut keyed = role("once");
        keyed["key"] = "k".into();
        let first = submit(&api, "", &keyed).await;
        let id = first.text("id");
        let path = format!("/v1/operations/{id}");
        let (again, ()) = tokio::join!(submit(&api, "wait=60", &keyed), api.becomes(&id, OperationState::Succeeded));
        assert_eq!((again.status, again.text("id"), again.text("state").as_str()), (200, id, "succeeded"));
        assert_eq!(again.header("idempotency-replayed").as_deref(), Some("true"));
        let shown = api.ask("GET", &path, Value::Null).await.json();
        let over = submit(&api, "wait=60", &keyed).await.json();
        assert_eq!((&over["result"], &over["key"], &over["replayed"]), (&shown["result"], &json!("k"), &json!(true)));
        api.store.close().await;
    });
}

#[test]
fn too_many_that_wait_are_answered_as_if_they_had_not_asked_to() {
    run(async {
        let waits = CompletionConfig { callers_most: 1, operations_most: 2, ..CompletionConfig::default() };
        let api = Real::with(&Place::file(), ControlConfig { waits, ..ControlConfig::default() }).await;
        let three = json!({"operations": [role("a"), role("b"), role("c")]});
        let answer = submit(&api, "wait=60", &three).await;
        assert_eq!((answer.status, answer.header("preference-applied")), (202, None));
        let waits = role("waits");
        let first = submit(&api, "wait=60", &waits);
        let second = async {
            api.store.ticks().changed().await.unwrap();
            let refused = submit(&api, "wait=60", &role("d")).await;
            assert_eq!((refused.status, refused.header("preference-applied")), (202, None));
            let listed = api.ask("GET", "/v1/operations?limit=2", Value::Null).await.json();
            api.becomes(listed["operations"][1]["id"].as_str().unwrap(), OperationState::Succeeded).await;
        };
        let (first, ()) = tokio::join!(first, second);
        assert_eq!((first.status, first.json()["payload"]["name"].as_str()), (200, Some("waits")));
        api.store.close().await;
    });
}

#[test]
fn nobody_is_kept_waiting_by_a_process_that_is_about_to_end() {
    run(async {
        let api = Real::open(&Place::file()).await;
        let slow = role("slow");
        let ends = async {
            api.store.ticks().changed().await.unwrap();
            api.control.drain();
        };
        // Much longer than the test takes.
        let waiting = tokio::time::timeout(Duration::from_secs(50), submit(&api, "wait=60", &slow));
        let (answer, ()) = tokio::join!(waiting, ends);
        assert_eq!(answer.unwrap().status, 202);
        api.store.close().await;
    });
}
