//! Single rules: limits, exclusions and error messages.

use super::*;

fn error_text(kind: OperationKind, value: &Value) -> String {
    parse(kind, value).unwrap_err().to_string()
}

#[test]
fn an_error_says_what_to_do() {
    let error_of = |field: &str, value: Value| {
        error_text(OperationKind::AssignRole, &with(&json!({"user_id": "1", "role_id": "2"}), json!({field: value})))
    };
    assert!(error_of("user_id", json!(81_384_788_765_712_384_u64)).contains("in quotes"));
    assert!(error_of("role_id", json!(2)).contains("in quotes"));
    assert!(error_of("role", json!("2")).contains("did you mean `role_id`?"));
    assert!(error_of("userId", json!("2")).contains("did you mean `user_id`?"));
    assert!(error_of("weather", json!("2")).contains("known fields: `user_id`, `role_id`"));
    assert!(error_text(OperationKind::CreateRole, &json!({"name": "a", "permissions": 8})).contains("in quotes"));
    let channel = error_text(OperationKind::CreateChannel, &json!({"name": "a", "type": "Text"}));
    assert!(channel.contains("did you mean `text`?"), "{channel}");
    let both = error_text(OperationKind::AssignRole, &json!({"user_id": true}));
    assert_eq!(both, "`user_id` must be an id, as a string of digits; `role_id` is missing");
    let outside = Payload::parse(OperationKind::CreateRole, &json!({"name": ""}), None).unwrap_err();
    assert_eq!(outside.errors.iter().map(|error| error.field.as_str()).collect::<Vec<_>>(), ["", "name"]);
    assert!(outside.to_string().starts_with("the payload of `create_role` needs a guild"), "{outside}");
}

#[test]
fn only_some_kinds_parse_without_a_guild() {
    let outside: Vec<&str> = OperationKind::ALL
        .into_iter()
        .filter(|kind| samples(*kind).iter().all(|sample| Payload::parse(*kind, sample, None).is_ok()))
        .map(OperationKind::name)
        .collect();
    assert_eq!(outside, ["send_dm", "defer_reply", "send_followup", "edit_original", "read", "request"]);
}

#[test]
fn values_are_limited_to_their_bounds() {
    let long = |length| "ü".repeat(length);
    let channel = |more| with(&json!({"name": "a"}), more);
    let message = |more| with(&json!({"channel_id": "1"}), more);
    let ids = |count: u64| (1..=count).map(|id| id.to_string()).collect::<Vec<_>>();
    let places = |count: u64| (1..=count).map(|id| json!({"id": id.to_string(), "position": 1})).collect::<Vec<_>>();
    let overwrites = |count: u64| (1..=count).map(|id| json!({"user_id": id.to_string()})).collect::<Vec<_>>();
    let empty = |count| vec![json!({}); count];
    for (kind, good, bad, field) in [
        (OperationKind::CreateRole, json!({"name": long(100)}), json!({"name": long(101)}), "name"),
        (OperationKind::CreateRole, json!({"name": "a"}), json!({"name": ""}), "name"),
        (OperationKind::CreateRole, json!({"name": "a b"}), json!({"name": " a"}), "name"),
        (
            OperationKind::CreateRole,
            json!({"name": "a", "color": 0xFF_FF_FF}),
            json!({"name": "a", "color": 0x100_0000}),
            "color",
        ),
        (OperationKind::CreateRole, json!({"name": "a", "color": 0}), json!({"name": "a", "color": -1}), "color"),
        (OperationKind::CreateRole, json!({"name": "a", "color": 1}), json!({"name": "a", "color": 1.0}), "color"),
        (
            OperationKind::CreateRole,
            json!({"name": "a", "permissions": u64::MAX.to_string()}),
            json!({"name": "a", "permissions": "18446744073709551616"}),
            "permissions",
        ),
        (
            OperationKind::CreateRole,
            json!({"name": "a", "key": "a.b:c/d_e-1"}),
            json!({"name": "a", "key": "a b"}),
            "key",
        ),
        (
            OperationKind::CreateRole,
            json!({"name": "a", "key": "k".repeat(100)}),
            json!({"name": "a", "key": "k".repeat(101)}),
            "key",
        ),
        (OperationKind::DeleteRole, json!({"role_id": "1"}), json!({"role_id": "0"}), "role_id"),
        (OperationKind::DeleteRole, json!({"role_id": "10"}), json!({"role_id": "010"}), "role_id"),
        (
            OperationKind::DeleteRole,
            json!({"role_id": "4611686018427387903"}),
            json!({"role_id": "4611686018427387904"}),
            "role_id",
        ),
        (OperationKind::DeleteRole, json!({"role_id": "1"}), json!({"role_id": "+1"}), "role_id"),
        (OperationKind::DeleteRole, json!({"role_id": {"key": "a"}}), json!({"role_id": {}}), "role_id"),
        (
            OperationKind::DeleteRole,
            json!({"role_id": {"operation": OPERATION}}),
            json!({"role_id": {"operation": OPERATION, "key": "a"}}),
            "role_id",
        ),
        (
            OperationKind::CreateChannel,
            channel(json!({"topic": long(1024)})),
            channel(json!({"topic": long(1025)})),
            "topic",
        ),
        (
            OperationKind::CreateChannel,
            channel(json!({"type": "forum", "topic": long(4096)})),
            channel(json!({"type": "forum", "topic": long(4097)})),
            "topic",
        ),
        (
            OperationKind::CreateChannel,
            channel(json!({"rate_limit_per_user": 21600})),
            channel(json!({"rate_limit_per_user": 21601})),
            "rate_limit_per_user",
        ),
        (
            OperationKind::CreateChannel,
            channel(json!({"type": "voice", "bitrate": 8000})),
            channel(json!({"type": "voice", "bitrate": 7999})),
            "bitrate",
        ),
        (
            OperationKind::CreateChannel,
            channel(json!({"type": "stage", "bitrate": 384_000})),
            channel(json!({"type": "text", "bitrate": 384_000})),
            "bitrate",
        ),
        (
            OperationKind::CreateChannel,
            channel(json!({"type": "voice", "user_limit": 99})),
            channel(json!({"type": "voice", "user_limit": 100})),
            "user_limit",
        ),
        (
            OperationKind::CreateChannel,
            channel(json!({"type": "stage", "user_limit": 10_000})),
            channel(json!({"type": "stage", "user_limit": 10_001})),
            "user_limit",
        ),
        (
            OperationKind::CreateChannel,
            channel(json!({"parent_id": "1"})),
            channel(json!({"parent_id": "1", "type": "category"})),
            "parent_id",
        ),
        (
            OperationKind::CreateChannel,
            channel(json!({"position": 65535})),
            channel(json!({"position": 65536})),
            "position",
        ),
        (
            OperationKind::CreateChannel,
            channel(json!({"overwrites": overwrites(100)})),
            channel(json!({"overwrites": overwrites(101)})),
            "overwrites",
        ),
        (
            OperationKind::ReplaceOverwrites,
            json!({"channel_id": "1", "overwrites": []}),
            json!({"channel_id": "1", "overwrites": [{"role_id": "1", "user_id": "1"}]}),
            "overwrites[0]",
        ),
        (
            OperationKind::ReplaceOverwrites,
            json!({"channel_id": "1", "overwrites": [{"role_id": "1"}, {"user_id": "1"}]}),
            json!({"channel_id": "1", "overwrites": [{"role_id": "1"}, {"role_id": "1", "allow": "1"}]}),
            "overwrites[1]",
        ),
        (
            OperationKind::UpdatePermissions,
            json!({"channel_id": "1", "overwrites": [{"role_id": "1", "allow": "1", "deny": "2"}]}),
            json!({"channel_id": "1", "overwrites": [{"role_id": "1", "allow": "3", "deny": "2"}]}),
            "overwrites[0].deny",
        ),
        (
            OperationKind::UpdatePermissions,
            json!({"channel_id": "1", "overwrites": overwrites(1)}),
            json!({"channel_id": "1", "overwrites": []}),
            "overwrites",
        ),
        (
            OperationKind::SetMemberRoles,
            json!({"user_id": "1", "role_ids": ids(250)}),
            json!({"user_id": "1", "role_ids": ids(251)}),
            "role_ids",
        ),
        (
            OperationKind::SetMemberRoles,
            json!({"user_id": "1", "role_ids": []}),
            json!({"user_id": "1", "role_ids": ["5", "6", "5"]}),
            "role_ids[2]",
        ),
        (
            OperationKind::Reorder,
            json!({"what": "roles", "places": places(500)}),
            json!({"what": "roles", "places": places(501)}),
            "places",
        ),
        (
            OperationKind::Reorder,
            json!({"what": "channels", "places": [{"id": "1", "position": 1, "parent_id": "2"}]}),
            json!({"what": "roles", "places": [{"id": "1", "position": 1, "parent_id": "2"}]}),
            "places[0].parent_id",
        ),
        (
            OperationKind::Reorder,
            json!({"what": "roles", "places": places(1)}),
            json!({"what": "roles", "places": ([places(1), places(1)].concat())}),
            "places[1]",
        ),
        (
            OperationKind::SendMessage,
            message(json!({"content": long(2000)})),
            message(json!({"content": long(2001)})),
            "content",
        ),
        (OperationKind::SendMessage, message(json!({"content": "a"})), message(json!({"content": " \n"})), ""),
        (
            OperationKind::SendMessage,
            message(json!({"embeds": empty(10)})),
            message(json!({"embeds": empty(11)})),
            "embeds",
        ),
        (
            OperationKind::SendMessage,
            message(json!({"components": empty(40)})),
            message(json!({"components": empty(41)})),
            "components",
        ),
        (
            OperationKind::SendMessage,
            message(json!({"embeds": [{"description": long(4096)}, {"description": long(1904)}]})),
            message(json!({"embeds": [{"description": long(4096)}, {"description": long(1904), "title": "a"}]})),
            "embeds",
        ),
        (
            OperationKind::SendMessage,
            message(json!({"embeds": [{"footer": {"text": long(2048)}}]})),
            message(json!({"embeds": [{"footer": {"text": long(2049)}}]})),
            "embeds[0].footer.text",
        ),
        (
            OperationKind::SendMessage,
            message(json!({"embeds": [{"fields": [{"value": long(1024)}]}]})),
            message(json!({"embeds": [{"fields": [{"value": long(1025)}]}]})),
            "embeds[0].fields[0].value",
        ),
        (
            OperationKind::SendMessage,
            message(json!({"content": "a", "allowed_mentions": {"parse": ["users"], "users": []}})),
            message(json!({"content": "a", "allowed_mentions": {"parse": ["users"], "users": ["1"]}})),
            "allowed_mentions.users",
        ),
        (
            OperationKind::EditMessage,
            json!({"channel_id": "1", "message_id": "1", "content": ""}),
            json!({"channel_id": "1", "message_id": "1"}),
            "",
        ),
        (
            OperationKind::DeferReply,
            json!({"interaction_id": "1", "interaction_token": "a"}),
            json!({"interaction_id": "1", "interaction_token": "a/../b"}),
            "interaction_token",
        ),
        (
            OperationKind::DeferReply,
            json!({"interaction_id": "1", "interaction_token": "a", "update": true}),
            json!({"interaction_id": "1", "interaction_token": "a", "update": true, "ephemeral": true}),
            "ephemeral",
        ),
        (OperationKind::Read, json!({"path": "/a"}), json!({"path": "/a/../b"}), "path"),
        (
            OperationKind::Request,
            json!({"method": "DELETE", "path": "/a", "body": 1}),
            json!({"method": "GET", "path": "/a", "body": 1}),
            "body",
        ),
        (
            OperationKind::Request,
            json!({"method": "GET", "path": "/a"}),
            json!({"method": "get", "path": "/a"}),
            "method",
        ),
    ] {
        parse_ok(kind, &good);
        assert_eq!(invalid_fields(kind, &bad), [field], "{} {bad}", kind.name());
    }
    let users = json!({"method": "GET", "path": "/a", "user_id": "1"});
    assert!(Payload::parse(OperationKind::Request, &users, None).is_ok());
    assert_eq!(Payload::parse(OperationKind::Request, &users, GUILD).unwrap_err().errors[0].field, "user_id");
}

#[test]
fn huge_payload_gives_a_short_error() {
    let endless: serde_json::Map<String, Value> =
        (0..10_000).map(|n| (format!("{n}{}", "x".repeat(200)), json!("y".repeat(100)))).collect();
    let invalid = parse(OperationKind::CreateRole, &Value::Object(endless)).unwrap_err();
    assert_eq!(invalid.errors.len(), 50);
    assert!(invalid.to_string().len() < 20_000, "{}", invalid.to_string().len());

    let many = json!({"user_id": "1", "role_ids": vec![json!(1); 100_000]});
    assert_eq!(parse(OperationKind::SetMemberRoles, &many).unwrap_err().errors.len(), 50);

    let long = "x".repeat(1_000_000);
    let invalid =
        parse(OperationKind::CreateChannel, &json!({"name": &long, "type": &long, "key": &long, &*long: &long}));
    assert!(invalid.unwrap_err().to_string().len() < 2_000);

    let request = |size| json!({"method": "POST", "path": "/a", "body": "x".repeat(size)});
    let around = parse_ok(OperationKind::Request, &request(0)).to_json().len();
    parse_ok(OperationKind::Request, &request(64 * 1024 - around));
    assert_eq!(invalid_fields(OperationKind::Request, &request(64 * 1024 - around + 1)), [""]);
}

#[test]
fn deep_nesting_is_rejected_without_recursion() {
    // `json!` would recurse into its argument.
    let request = |depth: usize| {
        let mut request = json!({"method": "POST", "path": "/a", "body": 1});
        let body = (0..depth).fold(Value::from(1), |inner, _| Value::Array(vec![inner]));
        request["body"] = body;
        request
    };
    parse_ok(OperationKind::Request, &request(31));
    assert_eq!(invalid_fields(OperationKind::Request, &request(32)), [""]);
    let abyss = request(100_000);
    assert_eq!(invalid_fields(OperationKind::Request, &abyss), [""]);
    // Dropping it would recurse.
    std::mem::forget(abyss);
}

#[test]
fn only_post_requests_are_not_idempotent() {
    let sends =
        |method: &str| parse_ok(OperationKind::Request, &json!({"method": method, "path": "/a"})).repeatability();
    for method in ["GET", "PUT", "PATCH", "DELETE"] {
        assert_eq!(sends(method), Repeatability::Idempotent, "{method}");
    }
    assert_eq!(sends("POST"), Repeatability::Once);
    for kind in OperationKind::ALL.into_iter().filter(|kind| *kind != OperationKind::Request) {
        assert_eq!(parse_ok(kind, &samples(kind)[0]).repeatability(), kind.repeatability());
    }
}

#[test]
fn operation_joins_the_queue_of_its_subject() {
    let guild = GUILD.map(QueueKey::Guild).unwrap();
    for kind in OperationKind::ALL {
        let payload = parse_ok(kind, &samples(kind)[0]);
        let expected = if kind.is_interaction() {
            (QueueKey::interaction(31), QueueKey::interaction(31))
        } else if kind == OperationKind::SendDm {
            (QueueKey::user(12), QueueKey::user(12))
        } else if kind == OperationKind::Request {
            (guild.clone(), QueueKey::user(12))
        } else {
            (guild.clone(), QueueKey::application())
        };
        assert_eq!((payload.queue(GUILD), payload.queue(None)), expected, "{}", kind.name());
    }
    let call = parse_ok(OperationKind::Request, &json!({"method": "GET", "path": "/users/@me"}));
    assert_eq!(call.queue(None), QueueKey::application());
}

#[test]
fn interaction_token_is_redacted() {
    for kind in OperationKind::ALL.into_iter().filter(|kind| kind.is_interaction()) {
        let payload = parse_ok(kind, &samples(kind)[0]);
        assert!(payload.to_json().contains("aW50ZXJhY3Rpb24"));
        assert!(!format!("{payload:?}").contains("aW50ZXJhY3Rpb24"), "{payload:?}");
        let refused = parse(kind, &with(&samples(kind)[0], json!({"interaction_token": "aW50/"}))).unwrap_err();
        assert!(!refused.to_string().contains("aW50"), "{refused}");
    }
}
