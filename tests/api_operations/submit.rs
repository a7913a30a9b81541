//! Submission of operations.

use std::collections::BTreeSet;

use guildhall_core::operation::{OperationId, QueueKey};
use guildhall_core::trace::TraceContext;
use serde_json::json;

use super::{Api, BEGIN, GUILD, GUILD_QUEUE, Heard, Setup, role, run};

fn path() -> String {
    format!("/v1/guilds/{GUILD}/operations")
}

#[test]
fn an_operation_is_accepted_kept_and_told_to_whoever_does_it() {
    run(async {
        let api = Api::start();
        let trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let asked = json!({
            "kind": "create_role", "payload": {"name": "Pilots"}, "reason": "a new crew", "max_attempts": 7,
            "delay_ms": 1_000, "deadline_ms": 60_000,
        });
        let answer = api.post_with(&path(), &[("traceparent", trace)], asked).await;
        let trace = TraceContext::read(trace).unwrap();
        assert_eq!(answer.status, 202, "{answer:?}");
        let id = answer.text("id");
        assert_eq!(answer.header("location").unwrap(), format!("/v1/operations/{id}"));
        assert_eq!((answer.text("state"), answer.text("kind")), ("scheduled".to_owned(), "create_role".to_owned()));
        assert_eq!((answer.text("guild_id"), answer.json()["replayed"].as_bool()), (GUILD.to_owned(), Some(false)));
        assert_eq!(api.heard(), [Heard::Wake(GUILD_QUEUE)]);

        let kept = api.store.kept(&id);
        assert_eq!((&*kept.tenant, kept.queue.queue(&kept.tenant), kept.max_attempts), ("default", GUILD_QUEUE, 7));
        let now = kept.created_at.millis();
        assert!(now >= BEGIN && kept.eligible_at.millis() == now + 1_000);
        assert_eq!(kept.deadline_at.unwrap().millis(), now + 60_000);
        assert_eq!((kept.reason.as_deref(), kept.trace.map(|kept| kept.id)), (Some("a new crew"), Some(trace.id)));
        assert_ne!(kept.trace, Some(trace), "the parent is the request, not its caller");
        assert_eq!(id.parse::<OperationId>().unwrap().uuid().as_u128() >> 80, u128::from(now));
    });
}

#[test]
fn a_batch_is_accepted_in_its_order_and_each_queue_is_woken_once() {
    run(async {
        let api = Api::start();
        let dm = json!({"kind": "send_dm", "payload": {"user_id": "42", "content": "hello"}});
        let batch: Vec<_> = (0..98).map(|n| role(&format!("role {n}"))).chain([dm.clone(), dm]).collect();
        let answer = api.post(&path(), json!({"operations": batch})).await;
        assert_eq!(answer.status, 202, "{answer:?}");
        let ids: Vec<String> = answer.json()["operations"]
            .as_array()
            .unwrap()
            .iter()
            .map(|operation| operation["id"].as_str().unwrap().to_owned())
            .collect();
        assert!(ids.len() == 100 && ids.is_sorted(), "ids sort in the order of the batch");
        assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), 100);
        assert!(api.store.kept(&ids[97]).payload.contains("role 97"));
        assert_eq!(api.heard(), [Heard::Wake(GUILD_QUEUE), Heard::Wake(QueueKey::user(42).queue("default"))]);
    });
}

#[test]
fn operations_without_a_guild_go_to_their_own_queues() {
    run(async {
        let api = Api::start();
        let dm = json!({"kind": "send_dm", "payload": {"user_id": "42", "content": "hello"}});
        assert_eq!(api.post("/v1/operations", dm).await.status, 202);
        let request = json!({"kind": "request", "payload": {"method": "GET", "path": "/users/@me"}});
        let answer = api.post("/v1/operations", request).await;
        assert_eq!((answer.status, &answer.json()["guild_id"]), (202, &json!(null)));
        assert_eq!(
            api.heard(),
            [Heard::Wake(QueueKey::user(42).queue("default")), Heard::Wake(QueueKey::application().queue("default"))]
        );

        let answer = api.post("/v1/operations", role("Pilots")).await;
        assert_eq!(answer.is_problem(422, "invalid-operation").wrong(), ["payload"]);
    });
}

#[test]
fn everything_that_is_wrong_in_any_operation_is_told_at_once_and_nothing_is_kept() {
    run(async {
        let api = Api::start();
        let batch = json!({"operations": [
            role("fine"),
            {"kind": "assign_role", "payload": {"user_id": 7, "role_id": "x"}},
            {"kind": "make_role", "payload": {}},
            {"kind": "create_role", "payload": {"name": "x", "colour": 1}, "max_attempts": 0},
            "delete it",
        ]});
        let answer = api.post(&path(), batch).await;
        let wrong = answer.is_problem(422, "invalid-operation").wrong();
        for field in [
            "operations[1].payload.user_id",
            "operations[1].payload.role_id",
            "operations[2].kind",
            "operations[3].max_attempts",
            "operations[4]",
        ] {
            assert!(wrong.iter().any(|wrong| wrong == field), "{field} is not among {wrong:?}");
        }
        assert!(!wrong.iter().any(|field| field.starts_with("operations[0]")), "{wrong:?}");
        assert_eq!((api.store.count(), api.heard().len()), (0, 0));

        let answer = api.post(&path(), json!({"kind": "create_role", "payload": {"colour": 1}})).await;
        let wrong = answer.is_problem(422, "invalid-operation").wrong();
        assert!(
            wrong.contains(&"payload.colour".to_owned()) && wrong.contains(&"payload.name".to_owned()),
            "{wrong:?}"
        );
    });
}

#[test]
fn a_batch_has_at_least_one_operation_at_most_a_thousand_and_nothing_beside_them() {
    run(async {
        let api = Api::start();
        let too_many: Vec<_> = (0..1_001).map(|n| role(&n.to_string())).collect();
        for (body, field) in [
            (json!({"operations": []}), "operations"),
            (json!({"operations": too_many}), "operations"),
            (json!({"operations": {}}), "operations"),
            (json!({"operations": [role("x")], "kind": "create_role"}), "kind"),
        ] {
            let answer = api.post(&path(), body).await;
            assert_eq!(answer.is_problem(422, "invalid-operation").wrong(), [field]);
        }
        assert_eq!(api.store.count(), 0);
    });
}

#[test]
fn the_same_key_and_payload_is_the_same_operation() {
    run(async {
        let api = Api::start();
        let first = api.post_with(&path(), &[("Idempotency-Key", "once")], role("Pilots")).await;
        assert_eq!((first.status, first.header("idempotency-replayed")), (202, None));
        // The key may also be in the body. Omitted fields of a payload have their defaults.
        let mut again = role("Pilots");
        again["key"] = "once".into();
        for (headers, body) in [
            (vec![("Idempotency-Key", "once")], role("Pilots")),
            (vec![], again.clone()),
            (vec![("idempotency-key", "once")], again),
        ] {
            let second = api.post_with(&path(), &headers, body).await;
            assert_eq!((second.status, second.text("id")), (200, first.text("id")), "{second:?}");
            assert_eq!(second.header("idempotency-replayed").as_deref(), Some("true"));
            assert_eq!(second.header("location"), first.header("location"));
        }
        assert_eq!(api.store.count(), 1);

        let id = first.text("id");
        api.store.become_state(&id, guildhall_core::operation::OperationState::Succeeded);
        let done = api.post_with(&path(), &[("Idempotency-Key", "once")], role("Pilots")).await;
        assert_eq!((done.text("state"), &done.json()["result"]["role_id"]), ("succeeded".to_owned(), &json!("77")));
    });
}

#[test]
fn a_key_is_not_for_another_payload_kind_or_guild() {
    run(async {
        let api = Api::start();
        let key = [("Idempotency-Key", "once")];
        let first = api.post_with(&path(), &key, role("Pilots")).await.text("id");
        let elsewhere = "/v1/guilds/2/operations".to_owned();
        for (path, body) in [
            (path(), role("Gunners")),
            (path(), json!({"kind": "delete_role", "payload": {"role_id": "5"}})),
            (elsewhere, role("Pilots")),
        ] {
            let answer = api.post_with(&path, &key, body).await;
            assert_eq!(answer.is_problem(422, "idempotency-key-reused").text("operation_id"), first);
            assert_eq!(answer.wrong(), ["key"]);
        }
        let mut second = role("Gunners");
        second["key"] = "once".into();
        let answer = api.post(&path(), json!({"operations": [role("a"), second]})).await;
        assert_eq!(answer.is_problem(422, "idempotency-key-reused").wrong(), ["operations[1].key"]);
        assert_eq!(api.store.count(), 1, "nothing of a refused batch is stored");
    });
}

#[test]
fn a_batch_that_was_accepted_before_is_what_it_was() {
    run(async {
        let api = Api::start();
        let keyed = |name: &str| {
            let mut role = role(name);
            role["key"] = name.into();
            role
        };
        let first = api.post(&path(), json!({"operations": [keyed("a"), keyed("b")]})).await;
        let again = api.post(&path(), json!({"operations": [keyed("a"), keyed("b")]})).await;
        assert_eq!((again.status, again.header("idempotency-replayed").as_deref()), (200, Some("true")));
        let id = |answer: &super::Answer, n: usize| answer.json()["operations"][n]["id"].clone();
        assert_eq!((id(&first, 0), id(&first, 1)), (id(&again, 0), id(&again, 1)));

        let mixed = api.post(&path(), json!({"operations": [keyed("a"), keyed("c")]})).await;
        assert_eq!((mixed.status, mixed.header("idempotency-replayed")), (202, None));
        let replayed: Vec<_> = [0, 1].map(|n| mixed.json()["operations"][n]["replayed"].clone()).into();
        assert_eq!(replayed, [json!(true), json!(false)]);
        assert_eq!(api.store.count(), 3);
    });
}

#[test]
fn a_key_in_the_header_is_for_one_operation_and_printable() {
    run(async {
        let api = Api::start();
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
            let answer = api.post_with(&path(), &headers, body).await;
            assert_eq!(answer.is_problem(422, "invalid-operation").wrong(), ["Idempotency-Key"]);
        }
        assert_eq!(api.store.count(), 0);
        let longest = "k".repeat(255);
        assert_eq!(api.post_with(&path(), &[("Idempotency-Key", &longest)], role("a")).await.status, 202);
    });
}

#[test]
fn a_request_without_a_trace_begins_one_and_what_is_none_counts_as_none() {
    const FIRST: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    const SECOND: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    run(async {
        let api = Api::start();
        let none: [&[(&str, &str)]; 4] = [
            &[],
            &[("traceparent", "00-nonsense")],
            &[("traceparent", "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")],
            // With two headers, neither is used.
            &[("traceparent", FIRST), ("traceparent", SECOND)],
        ];
        let mut begun = BTreeSet::new();
        for headers in none {
            let many = json!({"operations": [role("a"), role("b")]});
            let answer = api.post_with(&path(), headers, many).await;
            let ids = answer.json()["operations"].as_array().unwrap().clone();
            let kept = ids.iter().map(|one| api.store.kept(one["id"].as_str().unwrap()).trace.unwrap());
            let kept: BTreeSet<String> = kept.map(|trace| trace.to_string()).collect();
            assert_eq!(kept.len(), 1, "operations of one request have one trace");
            begun.extend(kept);
        }
        assert_eq!(begun.len(), none.len(), "each request starts its own trace");
        let begun: String = begun.into_iter().collect();
        assert!([FIRST, SECOND].iter().all(|given| !begun.contains(&given[3..35])), "{begun}");
    });
}

#[test]
fn an_operation_may_say_which_trace_it_belongs_to_and_one_that_is_none_is_wrong() {
    run(async {
        let api = Api::start();
        let given = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00";
        let mut own = role("a");
        own["trace"] = given.into();
        let answer = api.post(&path(), own).await;
        assert_eq!(api.store.kept(&answer.text("id")).trace, TraceContext::read(given));
        let mut wrong = role("a");
        wrong["trace"] = "00-nonsense".into();
        assert_eq!(api.post(&path(), wrong).await.is_problem(422, "invalid-operation").wrong(), ["trace"]);
    });
}

#[test]
fn what_refers_to_an_operation_that_is_not_there_is_refused() {
    run(async {
        let api = Api::start();
        let gone = "01890a5d-ac96-774b-bcce-b302099a8057";
        let assign =
            |id: &str| json!({"kind": "assign_role", "payload": {"user_id": "7", "role_id": {"operation": id}}});
        let answer = api.post(&path(), json!({"operations": [role("a"), assign(gone)]})).await;
        assert_eq!(answer.is_problem(422, "invalid-operation").wrong(), ["operations[1].payload"]);
        let first = api.create_role("Pilots").await;
        let answer = api.post(&path(), assign(&first)).await;
        assert_eq!(answer.status, 202, "{answer:?}");
        assert_eq!(api.store.kept(&answer.text("id")).refers_to, [first.parse::<OperationId>().unwrap()]);
    });
}

#[test]
fn a_full_queue_is_told_with_when_to_come_again() {
    run(async {
        let api = Setup { most: 2, ..Setup::default() }.start();
        api.create_role("a").await;
        let answer = api.post(&path(), json!({"operations": [role("b"), role("c")]})).await;
        answer.is_problem(429, "queue-full");
        assert_eq!(answer.header("retry-after").as_deref(), Some("10"));
        assert_eq!((answer.json()["pending"].as_u64(), answer.json()["most"].as_u64()), (Some(1), Some(2)));
        assert_eq!(api.store.count(), 1);
        api.create_role("b").await;
    });
}
