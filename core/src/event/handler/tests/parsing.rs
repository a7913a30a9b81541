//! Tests of handler parsing and error messages.

use std::time::Duration;

use serde_json::{Value, json};

use super::super::{DeferMode, EventHandlers, EventPattern, HandlerAction, ResponsePolicy};
use super::{errors_of, handlers};

const SECRET: &str = "whsec_c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0";

#[test]
fn handler_is_parsed_with_all_fields() {
    let read = EventHandlers::parse(&json!({"handlers": [
        {"name": "greet", "on": ["interaction.command.hello", "interaction.button.*"], "do": [], "reply": "Hi!",
         "defer": "never", "ephemeral": true, "needs": ["sess:{user_id}"], "shadow": true},
        {"name": "brain", "on": "member.#", "webhook":
            {"url": "https://brain.example/x", "secrets": [SECRET], "timeout_ms": 5, "allow_private": true}},
    ]}))
    .unwrap();
    let [greet, brain] = read.iter().collect::<Vec<_>>()[..] else { panic!("two") };
    assert_eq!(
        (&*greet.name, greet.defer, greet.ephemeral, greet.shadow),
        ("greet", Some(DeferMode::Never), Some(true), true)
    );
    assert_eq!(
        greet.on.iter().map(EventPattern::as_str).collect::<Vec<_>>(),
        ["interaction.command.hello", "interaction.button.*"]
    );
    assert_eq!(greet.needs[0].as_str(), "sess:{user_id}");
    let HandlerAction::Webhook(spec) = &brain.action else { panic!("a webhook") };
    assert_eq!((spec.url.as_str(), spec.secrets[0].expose()), ("https://brain.example/x", SECRET));
    assert_eq!((spec.timeout, spec.allow_private), (Some(Duration::from_millis(5)), true));
    assert!(!format!("{read:?}").contains(SECRET));
    assert_eq!((read.matching("member.join"), read.matching("interaction.button.a")), (vec![1], vec![0]));
    assert_eq!(read.matching("role.create"), Vec::<usize>::new());
    assert!(!brain.shadow && read.in_shadow().iter().all(|handler| handler.shadow));
    assert_eq!(read.find("brain").map(|handler| &*handler.name), Some("brain"));
    assert!(EventHandlers::parse(&json!({})).unwrap().is_empty());
}

#[test]
fn all_errors_are_reported_with_their_fields() {
    let found = EventHandlers::parse(&json!({"handlers": [
        {"name": "A b", "on": "members.join", "do": [{"kind": "asign_role", "payload": {}}]},
        {"name": "x", "on": [], "when": {"guild": 7, "bots": false, "fields": {"a..b": 1}}, "do": [], "shadow": "no"},
        {"name": "x", "on": "member.join", "do": [
            {"kind": "assign_role", "payload": {"user_id": "{user_id}", "role": "8"}, "delay_ms": -1, "max_atempts": 2},
        ], "cooldown": {"key": "{usr_id}"}, "reply": "hi"},
        7,
    ], "handler": []}))
    .unwrap_err();
    let mut fields: Vec<&str> = found.iter().map(|error| error.field.as_str()).collect();
    fields.sort_unstable();
    assert_eq!(
        fields,
        [
            "handler",
            "handlers[0].do[0].kind",
            "handlers[0].name",
            "handlers[0].on",
            "handlers[1].on",
            "handlers[1].shadow",
            "handlers[1].when.bots",
            "handlers[1].when.fields.a..b",
            "handlers[1].when.guild",
            "handlers[2].cooldown.for_ms",
            "handlers[2].cooldown.key",
            "handlers[2].do[0].delay_ms",
            "handlers[2].do[0].max_atempts",
            "handlers[2].do[0].payload.role",
            "handlers[2].do[0].payload.role_id",
            "handlers[2].name",
            "handlers[2].reply",
            "handlers[3]",
        ]
    );
    let text = found.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
    for hint in
        ["`assign_role`?", "`member.join`?", "`role_id`?", "`max_attempts`?", "`bot`?", "`{user_id}`?", "`handlers`?"]
    {
        assert!(text.contains(&format!("did you mean {hint}")), "{hint}\n{text}");
    }
}

#[test]
fn handler_has_either_a_rule_or_a_webhook() {
    let webhook = json!({"url": "https://a.example", "secrets": [SECRET]});
    assert!(errors_of(&json!({"webhook": webhook}))[0].1.contains("must not be combined with `do`"));
    assert!(errors_of(&json!({"do": null}))[0].1.contains("must have an action"));
    for alone in [json!({"do": []}), json!({"reply": "x"}), json!({"set": []}), json!({"webhook": webhook})] {
        handlers(&alone);
    }
}

#[test]
fn webhook_errors_do_not_contain_the_secret() {
    let found = errors_of(&json!({"do": null, "webhook": {
        "url": "ftp://a", "secrets": ["whsec_short", "mysecretvalue"], "timeout_ms": 0, "redirects": true,
    }}));
    let fields: Vec<&str> = found.iter().map(|(field, _)| field.as_str()).collect();
    assert_eq!(
        fields,
        ["webhook.url", "webhook.secrets[0]", "webhook.secrets[1]", "webhook.timeout_ms", "webhook.redirects",]
    );
    assert!(!format!("{found:?}").contains("mysecretvalue"));
    assert_eq!(
        errors_of(&json!({"do": null, "webhook": {"url": "https://a.example", "secrets": []}}))[0].0,
        "webhook.secrets"
    );
}

#[test]
fn operations_are_checked_as_far_as_possible() {
    let with = |kind: &str, payload: Value| json!({"do": [{"kind": kind, "payload": payload}]});
    for fine in [
        with("assign_role", json!({"user_id": "{user_id}", "role_id": "8"})),
        with("assign_role", json!({"user_id": "{data.user.id}", "role_id": {"key": "role-{data.tier}"}})),
        with("set_member_roles", json!({"user_id": "{user_id}", "role_ids": ["{data.a}", "{data.b}"]})),
        with("create_role", json!({"name": "{data.name}", "color": "{data.color}", "hoist": "{data.hoist?}"})),
        with("send_message", json!({"channel_id": "{channel_id}", "embeds": "{data.embeds}"})),
        with("create_channel", json!({"name": "room", "type": "{data.type}"})),
        with("request", json!({"method": "PUT", "path": "/guilds/{guild_id}/bans/{user_id}"})),
        json!({"do": [{"kind": "delete_role", "payload": {"role_id": "1"}, "delay_ms": "{data.delay}", "key": "k:{event_id}",
            "reason": "by {user_id}", "deadline_ms": 50_000, "max_attempts": 2}]}),
    ] {
        handlers(&fine);
    }
    for (wrong_one, field) in [
        (with("assign_role", json!({"user_id": "{user_id}x", "role_id": "8"})), "do[0].payload.user_id"),
        (with("assign_role", json!({"user_id": "{event_type}", "role_id": "8"})), "do[0].payload.user_id"),
        (with("assign_role", json!({"user_id": "1", "role_id": "8", "why": "{data.x}"})), "do[0].payload.why"),
        (with("create_role", json!({"name": "a", "color": "{user_id}"})), "do[0].payload.color"),
        (with("create_role", json!({"name": "{nme}"})), "do[0].payload.name"),
        (with("send_message", json!({"channel_id": "{channel_id}"})), "do[0].payload"),
        (json!({"do": [{"kind": "delete_role"}]}), "do[0].payload"),
        (
            json!({"do": [{"kind": "delete_role", "payload": {"role_id": "1"}, "delay_ms": 9, "deadline_ms": 9}]}),
            "do[0].deadline_ms",
        ),
        (json!({"do": [{"kind": "delete_role", "payload": {"role_id": "1"}, "trace": "x"}]}), "do[0].trace"),
        (json!({"reply": {"contnt": "x"}}), "reply.contnt"),
        (json!({"reply": {"content": "x", "interaction_id": "1"}}), "reply.interaction_id"),
        (json!({"reply": 7}), "reply"),
    ] {
        let found = errors_of(&wrong_one);
        assert!(found.iter().any(|(name, _)| name == field), "{field}: {found:?}");
    }
    // Responses of the synchronous path are Discord's own objects.
    handlers(&json!({"reply": {"choices": [{"name": "a", "value": "b"}]}}));
}

#[test]
fn invalid_placeholders_get_a_hint() {
    for (text, hint) in [
        ("{user}", "did you mean `{user_id}`?"),
        ("{zzz}", "`data.…`"),
        ("{data}", "`{data.}`"),
        ("{data.a..b}", "not a valid path"),
        ("{state.x}", "needs = [\"x\"]"),
        ("{user_id", "`{{`"),
        ("user_id}", "`}}`"),
        ("{}", "unknown placeholder"),
    ] {
        let found = errors_of(&json!({"reply": text}));
        assert!(found[0].1.contains(hint), "{text}: {found:?}");
    }
    let found = errors_of(&json!({"needs": ["a", "{state.a}"], "cooldown": {"key": "{state.a}", "for_ms": 1}}));
    assert_eq!(found.iter().map(|(field, _)| field.as_str()).collect::<Vec<_>>(), ["needs[1]", "cooldown.key"]);
}

#[test]
fn reserved_state_key_prefixes_are_rejected() {
    for key in ["gate:1", "gate:{user_id}", " Gate:1", "cooldown:welcome:{user_id}", "guildhall:x"] {
        let found = errors_of(&json!({"needs": ["a", key], "set": [{"key": key, "value": 1}]}));
        let fields: Vec<&str> = found.iter().map(|(field, _)| field.as_str()).collect();
        assert_eq!(fields, ["needs[1]", "set[0].key"], "{key}");
        assert!(found.iter().all(|(_, message)| message.contains("must not start with `")), "{found:?}");
    }
    // Cooldowns are stored under a separate prefix.
    handlers(&json!({"do": [], "cooldown": {"key": "gate:1", "for_ms": 1}}));
}

#[test]
fn only_a_webhook_may_leave_out_the_duration_of_its_cooldown() {
    let secret = "whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIz";
    let webhook = json!({"url": "https://brain.example/", "secrets": [secret]});
    handlers(&json!({"webhook": webhook, "cooldown": {"key": "{user_id}"}}));
    let found = errors_of(&json!({"do": [], "cooldown": {"key": "{user_id}"}}));
    assert_eq!(found.iter().map(|(field, _)| field.as_str()).collect::<Vec<_>>(), ["cooldown.for_ms"]);
}

#[test]
fn webhook_sets_which_responses_are_accepted() {
    let policy = |answers: Value| {
        let webhook = json!({"url": "http://a.example", "secrets": [SECRET], "answers": answers});
        match &handlers(&json!({"webhook": webhook})).get(0).unwrap().action {
            HandlerAction::Webhook(spec) => spec.answers,
            HandlerAction::Rule(_) | HandlerAction::Broker => unreachable!("it is a webhook"),
        }
    };
    for (value, expected) in [
        (Value::Null, ResponsePolicy::Secure),
        (json!("secure"), ResponsePolicy::Secure),
        (json!("signed"), ResponsePolicy::Signed),
        (json!("any"), ResponsePolicy::Any),
    ] {
        assert_eq!(policy(value.clone()), expected, "{value}");
    }
    let found = errors_of(&json!({"do": null, "webhook":
        {"url": "http://a.example", "secrets": [SECRET], "answers": "all"}}));
    assert_eq!(found[0].0, "webhook.answers");
}

#[test]
fn interaction_fields_need_a_matching_pattern() {
    let on = |on: &str, field: &str, value: Value| json!({"on": on, field: value});
    for (field, value) in [("reply", json!("x")), ("defer", json!("auto")), ("ephemeral", json!(true))] {
        assert_eq!(errors_of(&on("member.join", field, value.clone()))[0].0, field);
        handlers(&json!({"on": ["member.join", "#.hello"], "do": [], field: value}));
    }
    let found = errors_of(&on("member.join", "when", json!({"fields": {"data.user.id": "1"}})));
    assert!(found[0].1.contains("write `user.id`"), "{found:?}");
    handlers(&json!({"on": "interaction.command.a", "do": [], "when": {"fields": {"data.options.0.value": "1"}}}));
}

#[test]
fn broker_is_an_action_of_its_own() {
    let parse = |fields: Value| {
        let mut handler = json!({"name": "bus", "on": ["member.#"]});
        handler.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        EventHandlers::parse(&json!({ "handlers": [handler] }))
    };
    let handlers = parse(json!({"broker": true, "cooldown": {"key": "{user_id}", "for_ms": 5}})).unwrap();
    assert!(matches!(handlers.iter().next().unwrap().action, HandlerAction::Broker));
    let webhook = json!({"url": "https://brain.example/x", "secrets": [SECRET]});
    for (fields, message) in [
        (json!({"broker": true, "do": []}), "must not be combined with `do`"),
        (json!({"broker": true, "webhook": webhook}), "must not be combined with `webhook`"),
        (json!({"broker": false}), "must be true, or be absent"),
        (json!({"broker": "amqp://x"}), "true or false"),
        (json!({}), "`webhook`, or `broker`"),
        (json!({"broker": true, "cooldown": {"key": "{user_id}"}}), "for_ms"),
    ] {
        let errors = parse(fields.clone()).unwrap_err();
        assert!(errors.iter().any(|error| error.to_string().contains(message)), "{fields}: {errors:?}");
    }
}
