//! Submission of operations.

use std::collections::BTreeSet;

use guildhall_core::operation::{OperationId, QueueKey};
use guildhall_core::trace::TraceContext;
use serde_json::json;

use super::{ApiSetup, GUILD, GUILD_QUEUE, Notification, START_MS, TestApi, role, run};

fn operations_path() -> String {
    format!("/v1/guilds/{GUILD}/operations")
}

#[test]
fn operation_is_accepted_stored_and_announced() {
    run(async {
        let api = TestApi::start();
        let trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let body = json!({
            "kind": "create_role", "payload": {"name": "Pilots"}, "reason": "a new crew", "max_attempts": 7,
            "delay_ms": 1_000, "deadline_ms": 60_000,
        });
        let response = api.post_with(&operations_path(), &[("traceparent", trace)], body).await;
        let trace = TraceContext::read(trace).unwrap();
        assert_eq!(response.status, 202, "{response:?}");
        let id = response.text("id");
        assert_eq!(response.header("location").unwrap(), format!("/v1/operations/{id}"));
        assert_eq!((response.text("state"), response.text("kind")), ("scheduled".to_owned(), "create_role".to_owned()));
        assert_eq!((response.text("guild_id"), response.json()["replayed"].as_bool()), (GUILD.to_owned(), Some(false)));
        assert_eq!(api.take_notifications(), [Notification::Wake(GUILD_QUEUE)]);

        let stored = api.store.stored(&id);
        assert_eq!(
            (&*stored.tenant, stored.queue.queue(&stored.tenant), stored.max_attempts),
            ("default", GUILD_QUEUE, 7)
        );
        let now = stored.created_at.millis();
        assert!(now >= START_MS && stored.eligible_at.millis() == now + 1_000);
        assert_eq!(stored.deadline_at.unwrap().millis(), now + 60_000);
        assert_eq!(
            (stored.reason.as_deref(), stored.trace.map(|stored| stored.id)),
            (Some("a new crew"), Some(trace.id))
        );
        assert_ne!(stored.trace, Some(trace), "the parent is the request, not its caller");
        assert_eq!(id.parse::<OperationId>().unwrap().uuid().as_u128() >> 80, u128::from(now));
    });
}

#[test]
fn error_of_the_whole_body_names_no_field() {
    run(async {
        let api = TestApi::start();
        let response = api.post(&operations_path(), json!([])).await;
        let errors = response.assert_problem(422, "invalid-operation").json()["errors"].clone();
        assert_eq!(errors, json!([{"message": "must be an object with `kind` and `payload`"}]));
        let many = api.post(&operations_path(), json!({"operations": [7]})).await;
        assert_eq!(many.assert_problem(422, "invalid-operation").invalid_fields(), ["operations[0]"]);
    });
}

#[test]
fn batch_is_accepted_in_order_and_wakes_each_queue_once() {
    run(async {
        let api = TestApi::start();
        let dm = json!({"kind": "send_dm", "payload": {"user_id": "42", "content": "hello"}});
        let batch: Vec<_> = (0..98).map(|n| role(&format!("role {n}"))).chain([dm.clone(), dm]).collect();
        let response = api.post(&operations_path(), json!({"operations": batch})).await;
        assert_eq!(response.status, 202, "{response:?}");
        let ids: Vec<String> = response.json()["operations"]
            .as_array()
            .unwrap()
            .iter()
            .map(|operation| operation["id"].as_str().unwrap().to_owned())
            .collect();
        assert!(ids.len() == 100 && ids.is_sorted(), "ids sort in the order of the batch");
        assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), 100);
        assert!(api.store.stored(&ids[97]).payload.contains("role 97"));
        assert_eq!(
            api.take_notifications(),
            [Notification::Wake(GUILD_QUEUE), Notification::Wake(QueueKey::user(42).queue("default"))]
        );
    });
}

#[test]
fn operations_without_a_guild_have_their_own_queues() {
    run(async {
        let api = TestApi::start();
        let dm = json!({"kind": "send_dm", "payload": {"user_id": "42", "content": "hello"}});
        assert_eq!(api.post("/v1/operations", dm).await.status, 202);
        let request = json!({"kind": "request", "payload": {"method": "GET", "path": "/users/@me"}});
        let response = api.post("/v1/operations", request).await;
        assert_eq!((response.status, &response.json()["guild_id"]), (202, &json!(null)));
        assert_eq!(
            api.take_notifications(),
            [
                Notification::Wake(QueueKey::user(42).queue("default")),
                Notification::Wake(QueueKey::application().queue("default"))
            ]
        );

        let response = api.post("/v1/operations", role("Pilots")).await;
        assert_eq!(response.assert_problem(422, "invalid-operation").invalid_fields(), ["payload"]);
    });
}

#[test]
fn all_errors_of_a_batch_are_reported_and_nothing_is_stored() {
    run(async {
        let api = TestApi::start();
        let batch = json!({"operations": [
            role("fine"),
            {"kind": "assign_role", "payload": {"user_id": 7, "role_id": "x"}},
            {"kind": "make_role", "payload": {}},
            {"kind": "create_role", "payload": {"name": "x", "colour": 1}, "max_attempts": 0},
            "delete it",
        ]});
        let response = api.post(&operations_path(), batch).await;
        let fields = response.assert_problem(422, "invalid-operation").invalid_fields();
        for field in [
            "operations[1].payload.user_id",
            "operations[1].payload.role_id",
            "operations[2].kind",
            "operations[3].max_attempts",
            "operations[4]",
        ] {
            assert!(fields.iter().any(|fields| fields == field), "{field} is not among {fields:?}");
        }
        assert!(!fields.iter().any(|field| field.starts_with("operations[0]")), "{fields:?}");
        assert_eq!((api.store.count(), api.take_notifications().len()), (0, 0));

        let response = api.post(&operations_path(), json!({"kind": "create_role", "payload": {"colour": 1}})).await;
        let fields = response.assert_problem(422, "invalid-operation").invalid_fields();
        assert!(
            fields.contains(&"payload.colour".to_owned()) && fields.contains(&"payload.name".to_owned()),
            "{fields:?}"
        );
    });
}

#[test]
fn batch_has_one_to_a_thousand_operations() {
    run(async {
        let api = TestApi::start();
        let too_many: Vec<_> = (0..1_001).map(|n| role(&n.to_string())).collect();
        for (body, field) in [
            (json!({"operations": []}), "operations"),
            (json!({"operations": too_many}), "operations"),
            (json!({"operations": {}}), "operations"),
            (json!({"operations": [role("x")], "kind": "create_role"}), "kind"),
        ] {
            let response = api.post(&operations_path(), body).await;
            assert_eq!(response.assert_problem(422, "invalid-operation").invalid_fields(), [field]);
        }
        assert_eq!(api.store.count(), 0);
    });
}

#[test]
fn same_key_and_payload_give_the_same_operation() {
    run(async {
        let api = TestApi::start();
        let first = api.post_with(&operations_path(), &[("Idempotency-Key", "once")], role("Pilots")).await;
        assert_eq!((first.status, first.header("idempotency-replayed")), (202, None));
        // The key may also be in the body. Omitted fields of a payload have their defaults.
        let mut body_with_key = role("Pilots");
        body_with_key["key"] = "once".into();
        for (headers, body) in [
            (vec![("Idempotency-Key", "once")], role("Pilots")),
            (vec![], body_with_key.clone()),
            (vec![("idempotency-key", "once")], body_with_key),
        ] {
            let second = api.post_with(&operations_path(), &headers, body).await;
            assert_eq!((second.status, second.text("id")), (200, first.text("id")), "{second:?}");
            assert_eq!(second.header("idempotency-replayed").as_deref(), Some("true"));
            assert_eq!(second.header("location"), first.header("location"));
        }
        assert_eq!(api.store.count(), 1);

        let id = first.text("id");
        api.store.set_state(&id, guildhall_core::operation::OperationState::Succeeded);
        let done = api.post_with(&operations_path(), &[("Idempotency-Key", "once")], role("Pilots")).await;
        assert_eq!((done.text("state"), &done.json()["result"]["role_id"]), ("succeeded".to_owned(), &json!("77")));
    });
}

#[test]
fn key_cannot_be_reused_for_another_operation() {
    run(async {
        let api = TestApi::start();
        let key = [("Idempotency-Key", "once")];
        let first = api.post_with(&operations_path(), &key, role("Pilots")).await.text("id");
        let elsewhere = "/v1/guilds/2/operations".to_owned();
        for (path, body) in [
            (operations_path(), role("Gunners")),
            (operations_path(), json!({"kind": "delete_role", "payload": {"role_id": "5"}})),
            (elsewhere, role("Pilots")),
        ] {
            let response = api.post_with(&path, &key, body).await;
            assert_eq!(response.assert_problem(422, "idempotency-key-reused").text("operation_id"), first);
            assert_eq!(response.invalid_fields(), ["key"]);
        }
        let mut second = role("Gunners");
        second["key"] = "once".into();
        let response = api.post(&operations_path(), json!({"operations": [role("a"), second]})).await;
        assert_eq!(response.assert_problem(422, "idempotency-key-reused").invalid_fields(), ["operations[1].key"]);
        assert_eq!(api.store.count(), 1, "nothing of a refused batch is stored");
    });
}

#[test]
fn repeated_batch_returns_the_first_operations() {
    run(async {
        let api = TestApi::start();
        let keyed = |name: &str| {
            let mut role = role(name);
            role["key"] = name.into();
            role
        };
        let first = api.post(&operations_path(), json!({"operations": [keyed("a"), keyed("b")]})).await;
        let repeated = api.post(&operations_path(), json!({"operations": [keyed("a"), keyed("b")]})).await;
        assert_eq!((repeated.status, repeated.header("idempotency-replayed").as_deref()), (200, Some("true")));
        let id = |response: &super::Response, n: usize| response.json()["operations"][n]["id"].clone();
        assert_eq!((id(&first, 0), id(&first, 1)), (id(&repeated, 0), id(&repeated, 1)));

        let mixed = api.post(&operations_path(), json!({"operations": [keyed("a"), keyed("c")]})).await;
        assert_eq!((mixed.status, mixed.header("idempotency-replayed")), (202, None));
        let replayed: Vec<_> = [0, 1].map(|n| mixed.json()["operations"][n]["replayed"].clone()).into();
        assert_eq!(replayed, [json!(true), json!(false)]);
        assert_eq!(api.store.count(), 3);
    });
}

#[test]
fn key_header_is_printable_and_for_one_operation() {
    run(async {
        let api = TestApi::start();
        let long = "k".repeat(256);
        let batch = json!({"operations": [role("a"), role("b")]});
        let mut other = role("a");
        other["key"] = "other".into();
        for (headers, body) in [
            (vec![("Idempotency-Key", long.as_str())], role("a")),
            (vec![("Idempotency-Key", "")], role("a")),
            (vec![("Idempotency-Key", "caf\u{e9}")], role("a")),
            (vec![("Idempotency-Key", "a"), ("Idempotency-Key", "b")], role("a")),
            (vec![("Idempotency-Key", "a")], batch),
            (vec![("Idempotency-Key", "a")], other),
        ] {
            let response = api.post_with(&operations_path(), &headers, body).await;
            assert_eq!(response.assert_problem(422, "invalid-operation").invalid_fields(), ["Idempotency-Key"]);
        }
        assert_eq!(api.store.count(), 0);
        let longest_key = "k".repeat(255);
        assert_eq!(
            api.post_with(&operations_path(), &[("Idempotency-Key", &longest_key)], role("a")).await.status,
            202
        );
    });
}

#[test]
fn invalid_traceparent_starts_a_new_trace() {
    const FIRST: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    const SECOND: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    run(async {
        let api = TestApi::start();
        let invalid_headers: [&[(&str, &str)]; 4] = [
            &[],
            &[("traceparent", "00-nonsense")],
            &[("traceparent", "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")],
            // With two headers, neither is used.
            &[("traceparent", FIRST), ("traceparent", SECOND)],
        ];
        let mut traces = BTreeSet::new();
        for headers in invalid_headers {
            let batch = json!({"operations": [role("a"), role("b")]});
            let response = api.post_with(&operations_path(), headers, batch).await;
            let ids = response.json()["operations"].as_array().unwrap().clone();
            let stored = ids.iter().map(|one| api.store.stored(one["id"].as_str().unwrap()).trace.unwrap());
            let stored: BTreeSet<String> = stored.map(|trace| trace.to_string()).collect();
            assert_eq!(stored.len(), 1, "operations of one request have one trace");
            traces.extend(stored);
        }
        assert_eq!(traces.len(), invalid_headers.len(), "each request starts its own trace");
        let traces: String = traces.into_iter().collect();
        assert!([FIRST, SECOND].iter().all(|given| !traces.contains(&given[3..35])), "{traces}");
    });
}

#[test]
fn operation_may_set_its_trace() {
    run(async {
        let api = TestApi::start();
        let given = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00";
        let mut operation = role("a");
        operation["trace"] = given.into();
        let response = api.post(&operations_path(), operation).await;
        assert_eq!(api.store.stored(&response.text("id")).trace, TraceContext::read(given));
        let mut invalid = role("a");
        invalid["trace"] = "00-nonsense".into();
        assert_eq!(
            api.post(&operations_path(), invalid).await.assert_problem(422, "invalid-operation").invalid_fields(),
            ["trace"]
        );
    });
}

#[test]
fn reference_to_an_unknown_operation_is_refused() {
    run(async {
        let api = TestApi::start();
        let unknown = "01890a5d-ac96-774b-bcce-b302099a8057";
        let assign =
            |id: &str| json!({"kind": "assign_role", "payload": {"user_id": "7", "role_id": {"operation": id}}});
        let response = api.post(&operations_path(), json!({"operations": [role("a"), assign(unknown)]})).await;
        assert_eq!(response.assert_problem(422, "invalid-operation").invalid_fields(), ["operations[1].payload"]);
        let first = api.create_role("Pilots").await;
        let response = api.post(&operations_path(), assign(&first)).await;
        assert_eq!(response.status, 202, "{response:?}");
        assert_eq!(api.store.stored(&response.text("id")).refers_to, [first.parse::<OperationId>().unwrap()]);
    });
}

#[test]
fn full_queue_returns_429_with_retry_after() {
    run(async {
        let api = ApiSetup { max_operations: 2, ..ApiSetup::default() }.start();
        api.create_role("a").await;
        let response = api.post(&operations_path(), json!({"operations": [role("b"), role("c")]})).await;
        response.assert_problem(429, "queue-full");
        assert_eq!(response.header("retry-after").as_deref(), Some("10"));
        assert_eq!((response.json()["pending"].as_u64(), response.json()["most"].as_u64()), (Some(1), Some(2)));
        assert_eq!(api.store.count(), 1);
        api.create_role("b").await;
    });
}
