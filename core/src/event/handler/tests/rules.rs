//! Tests of the output of rules.

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::super::{EventView, RuleOutput, TemplateError};
use super::{command, event, handlers, join, rule};
use crate::event::Event;

fn apply(fields: &Value, event: &Event) -> Result<RuleOutput, TemplateError> {
    rule(fields).apply(&EventView::new(event), &BTreeMap::new())
}

/// The value of a template string.
fn value_of(text: &str, event: &Event) -> Result<Value, TemplateError> {
    let rule = json!({"set": [{"key": "k", "value": text}]});
    apply(&rule, event).map(|mut given| given.set.remove(0).1)
}

#[test]
fn placeholder_alone_keeps_its_json_type() {
    for (text, value) in [
        ("{user_id}", json!("3")),
        ("{guild_id}", json!("1")),
        ("{shard_id}", json!(4)),
        ("{event_id}", json!("abc-7")),
        ("{event_type}", json!("member.join")),
        ("{data.user.flags}", json!(5)),
        ("{data.roles}", json!(["8"])),
        ("{data.roles.0}", json!("8")),
        ("<@{user_id}> has {data.user.flags}, {data.roles}", json!("<@3> has 5, [\"8\"]")),
        ("{data.nick?}", Value::Null),
        ("[{data.nick?}{data.nothing.at.all?}]", json!("[]")),
        ("{channel_id?}", Value::Null),
        ("{{user_id}} {{{user_id}}}", json!("{user_id} {3}")),
        ("", json!("")),
    ] {
        assert_eq!(value_of(text, &join()), Ok(value), "{text}");
    }
    assert_eq!(value_of("{interaction_id} {interaction_token}", &command()), Ok(json!("9 tkn")));
    assert_eq!(value_of("{data.data.options.0.value}", &command()), Ok(json!("bob")));
}

#[test]
fn missing_placeholder_is_an_error_with_a_hint() {
    for text in ["{data.nick}", "{channel_id}", "x {data.user.nothing}", "{interaction_id}"] {
        let problem = value_of(text, &join()).unwrap_err();
        assert!(matches!(problem, TemplateError::Missing { .. }), "{text}");
        assert!(problem.to_string().contains("?}"), "{problem}");
    }
    let broken = Event { text: crate::event::EventText::new("{\"a\":".to_owned(), 0..5), ..join() };
    assert!(matches!(value_of("{data.a?}", &broken), Err(TemplateError::NotJson { .. })));
}

#[test]
fn rule_fills_in_its_templates() {
    let fields = json!({
        "do": [{"kind": "assign_role", "payload": {"user_id": "{user_id}", "role_id": {"key": "new"}},
            "reason": "{data.user.username} joined", "delay_ms": 5}],
        "set": [{"key": "sess:{user_id}", "value": {"name": "{data.user.username}"}}, {"key": "cache:x", "value": 1},
            {"key": "seen:{user_id}", "value": true, "for_ms": 9}, {"key": "gone"}],
        "cooldown": {"key": "hi:{user_id}", "for_ms": 30_000},
        "reply": "for interactions only",
    });
    let given = apply(&fields, &join()).unwrap();
    assert_eq!(
        given,
        RuleOutput {
            operations: vec![json!({"kind": "assign_role", "payload": {"user_id": "3", "role_id": {"key": "new"}},
            "reason": "ann joined", "delay_ms": 5})],
            reply: None,
            set: vec![
                ("sess:3".to_owned(), json!({"name": "ann"}), Some(Duration::from_secs(900))),
                ("cache:x".to_owned(), json!(1), Some(Duration::from_secs(300))),
                ("seen:3".to_owned(), json!(true), Some(Duration::from_millis(9))),
                ("gone".to_owned(), Value::Null, None),
            ],
            cooldown: Some(("hi:3".to_owned(), Duration::from_secs(30))),
        }
    );
}

#[test]
fn interaction_gets_a_message() {
    let reply = |reply: Value| apply(&json!({"reply": reply}), &command()).unwrap().reply;
    assert_eq!(reply(json!("Hello, {data.data.options.0.value}!")), Some(json!({"content": "Hello, bob!"})));
    assert_eq!(reply(json!({"content": "<@{user_id}>"})), Some(json!({"content": "<@3>"})));
}

#[test]
fn stored_values_are_found_by_needed_keys() {
    let fields = json!({
        "needs": ["sess:{user_id}", "sess:{user_id}.x", "flag"],
        "do": [],
        "set": [{"key": "k", "value": ["{state.sess:{user_id}.name}", "{state.sess:{user_id}.x}", "{state.flag?}"]}],
    });
    let (event, handlers) = (join(), handlers(&fields));
    let view = EventView::new(&event);
    assert_eq!(handlers.get(0).unwrap().needed_keys(&view).unwrap(), ["sess:3", "sess:3.x", "flag"]);
    let mut state = BTreeMap::from([("sess:3".to_owned(), json!({"name": "ann"})), ("sess:3.x".to_owned(), json!(7))]);
    assert_eq!(rule(&fields).apply(&view, &state).unwrap().set[0].1, json!(["ann", 7, null]));
    state.remove("sess:3");
    let problem = rule(&fields).apply(&view, &state).unwrap_err();
    assert_eq!(problem, TemplateError::Missing { placeholder: "state.sess:{user_id}.name".to_owned() });
}

#[test]
fn key_length_is_limited() {
    let long = event("message.create", &json!({"content": "x".repeat(300)}));
    for key in ["k:{data.content}", "{data.nothing?}"] {
        let problem = apply(&json!({"set": [{"key": key, "value": 1}]}), &long).unwrap_err();
        assert!(matches!(problem, TemplateError::Key { .. }), "{problem}");
        let handlers = handlers(&json!({"do": [], "needs": [key], "cooldown": {"key": key, "for_ms": 1}}));
        let (handler, view) = (handlers.get(0).unwrap(), EventView::new(&long));
        assert!(handler.needed_keys(&view).is_err() && handler.cooldown_key(&view).is_err());
    }
}

#[test]
fn rule_without_output_is_idle() {
    assert!(rule(&json!({"do": []})).is_idle());
    for fields in [
        json!({"do": [{"kind": "delete_role", "payload": {"role_id": "1"}}]}),
        json!({"reply": "x"}),
        json!({"set": [{"key": "k"}]}),
        json!({"do": [], "cooldown": {"key": "k", "for_ms": 1}}),
    ] {
        assert!(!rule(&fields).is_idle(), "{fields}");
    }
}

#[test]
fn key_that_becomes_reserved_is_rejected() {
    for text in ["gate:1", "GATE:1", "  gate:1", "cooldown:other:3", "guildhall:"] {
        let event = event("message.create", &json!({"content": text}));
        let reserved = |problem: &TemplateError| matches!(problem, TemplateError::Reserved { .. });
        for key in ["{data.content}", "{data.nothing?}{data.content}"] {
            let set = apply(&json!({"set": [{"key": key, "value": 1}]}), &event).unwrap_err();
            let needs = handlers(&json!({"do": [], "needs": [key]}));
            let needs = needs.get(0).unwrap().needed_keys(&EventView::new(&event)).unwrap_err();
            assert!(reserved(&set) && reserved(&needs), "{text}: {set}; {needs}");
        }
    }
    let split = event("message.create", &json!({"content": "te:1"}));
    assert!(apply(&json!({"set": [{"key": "ga{data.content}", "value": 1}]}), &split).is_err());
    let prefixed = apply(&json!({"set": [{"key": "seen:{data.content}", "value": 1}]}), &split).unwrap();
    assert_eq!(prefixed.set[0].0, "seen:te:1");
}

#[test]
fn rule_without_data_placeholders_does_not_parse() {
    let event = join();
    let view = EventView::new(&event);
    let fields = json!({"do": [{"kind": "assign_role", "payload": {"user_id": "{user_id}", "role_id": "8"}}]});
    rule(&fields).apply(&view, &BTreeMap::new()).unwrap();
    assert!(!view.is_parsed());
}

proptest! {
    #[test]
    fn event_text_stays_within_its_string(text in ".*", more in r#"[{}"\\,:\[\]a-z_]{0,20}"#) {
        let text = text + &more;
        let message = event("message.create", &json!({"content": text}));
        let fields = json!({"do": [{"kind": "send_message", "payload":
            {"channel_id": "{channel_id}", "content": "you wrote {data.content}"}, "reason": "{data.content}"}]});
        let given = apply(&fields, &message).unwrap();
        let expected = json!({"kind": "send_message", "payload":
            {"channel_id": "2", "content": format!("you wrote {text}")}, "reason": text});
        prop_assert_eq!(given.operations, vec![expected]);
    }

    #[test]
    fn text_without_placeholders_is_unchanged(text in "[^{}]*") {
        prop_assert_eq!(value_of(&text, &join()), Ok(json!(text)));
        let escaped = format!("{{{{{text}}}}}");
        prop_assert_eq!(value_of(&escaped, &join()), Ok(json!(format!("{{{text}}}"))));
    }
}
