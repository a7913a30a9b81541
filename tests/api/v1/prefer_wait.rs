//! Waiting until submitted operations are final.

use std::time::Duration;

use guildhall::api::ControlConfig;
use guildhall_actors::ports::ChangeFeed as _;
use guildhall_actors::submission::CompletionConfig;
use guildhall_core::operation::OperationState;
use serde_json::{Value, json};

use super::{
    GUILD, GUILD_QUEUE, Response, call,
    process_fixture::{ApiProcess, StoreLocation, execute_queue},
    role, run,
};

async fn submit(api: &ApiProcess, prefer: &str, body: &Value) -> Response {
    let path = format!("/v1/guilds/{GUILD}/operations");
    call(api.address(), "POST", &path, &[("Prefer", prefer)], &body.to_string()).await
}

/// Waits until an operation is accepted, and sets its state.
async fn finish_next_operation(api: &ApiProcess, state: OperationState) {
    let mut ticks = api.store.ticks();
    ticks.changed().await.unwrap();
    let listed = api.request("GET", "/v1/operations?limit=1", Value::Null).await.json();
    api.set_state(listed["operations"][0]["id"].as_str().unwrap(), state).await;
}

#[test]
fn waiting_caller_gets_the_final_operation() {
    run(async {
        let api = ApiProcess::open(&StoreLocation::file()).await;
        let pilots = role("Pilots");
        let (response, ()) =
            tokio::join!(submit(&api, "wait=60", &pilots), finish_next_operation(&api, OperationState::Succeeded));
        assert_eq!(response.status, 200, "{response:?}");
        assert_eq!(response.header("preference-applied").as_deref(), Some("wait=60"));
        let (operation, id) = (response.json(), response.text("id"));
        assert_eq!((&operation["state"], &operation["result"]["role_id"]), (&json!("succeeded"), &json!("77")));
        assert_eq!((&operation["replayed"], &operation["tries"]), (&json!(false), &json!([])));
        let timeline: Vec<_> = operation["timeline"].as_array().unwrap().iter().map(|entry| &entry["what"]).collect();
        assert_eq!(timeline, ["accepted", "succeeded"]);
        assert_eq!(response.header("location").unwrap(), format!("/v1/operations/{id}"));
        // A failed operation is final, too.
        let (response, ()) =
            tokio::join!(submit(&api, "wait=60", &pilots), finish_next_operation(&api, OperationState::Dead));
        assert_eq!((response.status, response.text("state").as_str()), (200, "dead"));
        api.store.close().await;
    });
}

#[test]
fn waiting_for_a_batch_keeps_its_order() {
    run(async {
        let api = ApiProcess::open(&StoreLocation::file()).await;
        let executor = tokio::spawn(execute_queue(api.store.clone(), GUILD_QUEUE));
        let batch: Vec<_> = (0..30).map(|n| role(&format!("role {n}"))).collect();
        let response = submit(&api, "respond-async, wait=60", &json!({"operations": batch})).await;
        assert_eq!(response.status, 200, "{response:?}");
        let all = response.json()["operations"].as_array().unwrap().clone();
        let names: Vec<_> = all.iter().map(|one| one["payload"]["name"].as_str().unwrap().to_owned()).collect();
        assert_eq!(names, (0..30).map(|n| format!("role {n}")).collect::<Vec<_>>());
        assert!(all.iter().all(|one| one["state"] == "succeeded"), "{all:?}");
        executor.abort();
        api.store.close().await;
    });
}

#[test]
fn waiting_covers_operations_of_other_processes() {
    run(async {
        let location = StoreLocation::postgres().await;
        let (first, other) = (ApiProcess::open(&location).await, ApiProcess::open(&location).await);
        // The process that owns the queue executes it.
        let executors = [&first, &other].map(|process| tokio::spawn(execute_queue(process.store.clone(), GUILD_QUEUE)));
        let (one, two) = (role("a"), role("b"));
        let responses = tokio::join!(submit(&first, "wait=60", &one), submit(&other, "wait=60", &two));
        for response in [responses.0, responses.1] {
            assert_eq!((response.status, response.text("state").as_str()), (200, "succeeded"), "{response:?}");
        }
        executors.iter().for_each(tokio::task::JoinHandle::abort);
        for process in [first, other] {
            process.store.close().await;
        }
    });
}

#[test]
fn wait_timeout_returns_the_usual_response() {
    run(async {
        let api = ApiProcess::open(&StoreLocation::file()).await;
        let response = submit(&api, "wait=1", &role("slow")).await;
        assert_eq!((response.status, response.text("state").as_str()), (202, "queued"), "{response:?}");
        assert_eq!(response.header("preference-applied").as_deref(), Some("wait=1"));
        assert!(response.json().get("timeline").is_none() && response.header("location").is_some());
        let ignored = submit(&api, "wait=soon", &role("quick")).await;
        assert_eq!((ignored.status, ignored.header("preference-applied")), (202, None));
        api.store.close().await;
    });
}

#[test]
fn repeated_key_is_waited_for_or_answered_at_once() {
    run(async {
        let api = ApiProcess::open(&StoreLocation::file()).await;
        let mut keyed = role("once");
        keyed["key"] = "k".into();
        let first = submit(&api, "", &keyed).await;
        let id = first.text("id");
        let path = format!("/v1/operations/{id}");
        let (repeated, ()) =
            tokio::join!(submit(&api, "wait=60", &keyed), api.set_state(&id, OperationState::Succeeded));
        assert_eq!((repeated.status, repeated.text("id"), repeated.text("state").as_str()), (200, id, "succeeded"));
        assert_eq!(repeated.header("idempotency-replayed").as_deref(), Some("true"));
        let operation = api.request("GET", &path, Value::Null).await.json();
        let finished = submit(&api, "wait=60", &keyed).await.json();
        assert_eq!(
            (&finished["result"], &finished["key"], &finished["replayed"]),
            (&operation["result"], &json!("k"), &json!(true))
        );
        api.store.close().await;
    });
}

#[test]
fn waiting_callers_are_limited() {
    run(async {
        let waits = CompletionConfig { max_callers: 1, max_operations: 2, ..CompletionConfig::default() };
        let api =
            ApiProcess::with(&StoreLocation::file(), ControlConfig { completion: waits, ..ControlConfig::default() })
                .await;
        let three = json!({"operations": [role("a"), role("b"), role("c")]});
        let response = submit(&api, "wait=60", &three).await;
        assert_eq!((response.status, response.header("preference-applied")), (202, None));
        let waits = role("waits");
        let first = submit(&api, "wait=60", &waits);
        let second = async {
            api.store.ticks().changed().await.unwrap();
            let refused = submit(&api, "wait=60", &role("d")).await;
            assert_eq!((refused.status, refused.header("preference-applied")), (202, None));
            let listed = api.request("GET", "/v1/operations?limit=2", Value::Null).await.json();
            api.set_state(listed["operations"][1]["id"].as_str().unwrap(), OperationState::Succeeded).await;
        };
        let (first, ()) = tokio::join!(first, second);
        assert_eq!((first.status, first.json()["payload"]["name"].as_str()), (200, Some("waits")));
        api.store.close().await;
    });
}

#[test]
fn draining_ends_all_waits() {
    run(async {
        let api = ApiProcess::open(&StoreLocation::file()).await;
        let slow = role("slow");
        let drain = async {
            api.store.ticks().changed().await.unwrap();
            api.control.drain();
        };
        // Much longer than the test takes.
        let waiting = tokio::time::timeout(Duration::from_secs(50), submit(&api, "wait=60", &slow));
        let (response, ()) = tokio::join!(waiting, drain);
        assert_eq!(response.unwrap().status, 202);
        api.store.close().await;
    });
}
