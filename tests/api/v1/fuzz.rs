//! No input leads to a server error.

use proptest::{
    collection::vec,
    prelude::*,
    strategy::ValueTree as _,
    test_runner::{Config, TestRunner},
};
use serde_json::{Map, Value, json};

use super::{GUILD, TestApi, call, run, sqlite_fixture::SqliteApi};

/// Any JSON, with field names that have a meaning among the others.
fn any_json() -> impl Strategy<Value = Value> {
    let name = prop_oneof![
        Just("operations"),
        Just("kind"),
        Just("payload"),
        Just("key"),
        Just("max_attempts"),
        Just("delay_ms"),
        Just("deadline_ms"),
        Just("reason"),
        Just("trace"),
        Just("role_id"),
        Just("user_id"),
        Just("name"),
        Just("x"),
    ];
    let text = prop_oneof![
        Just("create_role".to_owned()),
        Just("send_dm".to_owned()),
        Just("request".to_owned()),
        Just(String::new()),
        Just("1571715189416398849".to_owned()),
        ".{0,20}",
    ];
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::Bool),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        text.prop_map(Value::String),
    ];
    leaf.prop_recursive(4, 40, 6, move |inner| {
        prop_oneof![
            vec(inner.clone(), 0..6).prop_map(Value::Array),
            vec((name.clone(), inner), 0..8).prop_map(|fields| Value::Object(
                fields.into_iter().map(|(k, v)| (k.to_owned(), v)).collect::<Map<_, _>>()
            )),
        ]
    })
}

/// A valid request in which one value was replaced.
fn almost_valid() -> impl Strategy<Value = Value> {
    let valid = prop_oneof![
        Just(json!({"kind": "create_role", "payload": {"name": "a", "color": 5}, "key": "k", "delay_ms": 5})),
        Just(json!({"operations": [{"kind": "delete_role", "payload": {"role_id": "5"}}]})),
        Just(json!({"kind": "send_message", "payload": {"channel_id": {"key": "main"}, "content": "hello"}})),
    ];
    (valid, any_json(), any::<prop::sample::Index>()).prop_map(|(mut value, other, position)| {
        let pointers = pointers(&value, "");
        if let Some(field) = value.pointer_mut(&pointers[position.index(pointers.len())]) {
            *field = other;
        }
        value
    })
}

fn pointers(value: &Value, prefix: &str) -> Vec<String> {
    let mut all = vec![prefix.to_owned()];
    match value {
        Value::Object(fields) => fields.iter().for_each(|(k, v)| all.extend(pointers(v, &format!("{prefix}/{k}")))),
        Value::Array(list) => {
            list.iter().enumerate().for_each(|(n, v)| all.extend(pointers(v, &format!("{prefix}/{n}"))));
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
    all
}

/// A JSON text with a few bytes removed or added.
fn malformed_json() -> impl Strategy<Value = String> {
    (almost_valid(), any::<prop::sample::Index>(), "\\PC{0,3}").prop_map(|(value, position, inserted)| {
        let text: Vec<char> = value.to_string().chars().collect();
        let cut = position.index(text.len());
        text[..cut].iter().collect::<String>() + &inserted + &text[cut..].iter().skip(1).collect::<String>()
    })
}

#[test]
fn no_body_makes_the_server_fail() {
    run(async {
        let api = super::ApiSetup { max_operations: u64::MAX, ..super::ApiSetup::default() }.start();
        let mut runner = TestRunner::new(Config::default());
        let bodies = prop_oneof![
            any_json().prop_map(|value| value.to_string()),
            almost_valid().prop_map(|value| value.to_string()),
            malformed_json(),
        ];
        let guild = format!("/v1/guilds/{GUILD}/operations");
        for _ in 0..300 {
            let body = bodies.new_tree(&mut runner).unwrap().current();
            for path in [guild.as_str(), "/v1/operations", "/v1/dead-letters/redrive"] {
                let response = call(api.address(), "POST", path, &[], &body).await;
                assert!((200..500).contains(&response.status), "{path} {body}: {response:?}");
                response.json();
            }
        }
    });
}

/// Bodies of administrative requests, with arbitrary values in their fields.
fn admin_body() -> impl Strategy<Value = Value> {
    let name = prop_oneof![
        Just("key"),
        Just("for_ms"),
        Just("cost"),
        Just("max_wait_ms"),
        Just("available"),
        Just("maximum"),
        Just("restore_per_second"),
        Just("retry_after_ms"),
        Just("age_ms"),
    ];
    let key = "(discord|target)(:(42|43|anonymous|crm)?(/(GET|BREW)? ?/?[a-z]{0,4}(#[0-9x]{0,2})?)?)?";
    let value = prop_oneof![
        any_json(),
        (0..5_000_u64).prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        key.prop_map(Value::String),
    ];
    vec((name, value), 0..4)
        .prop_map(|fields| Value::Object(fields.into_iter().map(|(k, v)| (k.to_owned(), v)).collect::<Map<_, _>>()))
}

#[test]
fn no_admin_request_makes_the_server_fail() {
    run(async {
        let folder = tempfile::tempdir().unwrap();
        let api = SqliteApi::open(&folder).await;
        let mut runner = TestRunner::new(Config::default());
        let bodies = admin_body();
        for _ in 0..150 {
            let body = bodies.new_tree(&mut runner).unwrap().current().to_string();
            for path in [
                "breakers/force",
                "breakers/reset",
                "egress/webhooks/clear",
                "shards/1/restart",
                "budgets/shop/acquire",
                "budgets/shop/observe",
            ] {
                let response = call(api.address(), "POST", &format!("/v1/{path}"), &[], &body).await;
                assert!((200..500).contains(&response.status), "{path} {body}: {response:?}");
                response.json();
            }
        }
    });
}

#[test]
fn no_path_or_query_makes_the_server_fail() {
    run(async {
        let api = TestApi::start();
        let mut runner = TestRunner::new(Config::default());
        let part = prop_oneof![
            Just("operations".to_owned()),
            Just("guilds".to_owned()),
            "[!-~&&[^#? ]]{0,30}",
            "(%[0-9a-fA-F]{2}){1,4}"
        ];
        let query = prop_oneof![Just(String::new()), "\\?(limit|state|cursor|guild_id)=[!-~&&[^# ]]{0,30}"];
        let paths = (vec(part, 1..4), query).prop_map(|(parts, query)| format!("/v1/{}{query}", parts.join("/")));
        for _ in 0..300 {
            let path = paths.new_tree(&mut runner).unwrap().current();
            let response = call(api.address(), "GET", &path, &[], "").await;
            assert!((200..500).contains(&response.status), "{path}: {response:?}");
        }
    });
}
