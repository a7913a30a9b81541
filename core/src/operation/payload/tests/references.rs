//! Tests of the references in payloads.

use super::*;
use crate::operation::{ManagedKind, OperationId, Reference};

/// The references in a sample: every value with the form of one, by its field.
fn expected(value: &Value, field: &str, what: &str, found: &mut Vec<(ManagedKind, String)>) {
    let kind = match field {
        "role_id" | "role_ids" => Some(ManagedKind::Role),
        "channel_id" | "parent_id" => Some(ManagedKind::Channel),
        "message_id" | "reply_to" => Some(ManagedKind::Message),
        "id" if what == "roles" => Some(ManagedKind::Role),
        "id" => Some(ManagedKind::Channel),
        _ => None,
    };
    match (kind, value) {
        (_, Value::Array(items)) if !["embeds", "components"].contains(&field) => {
            items.iter().for_each(|item| expected(item, field, what, found));
        }
        (Some(kind), value) => found.push((kind, value.to_string())),
        (None, Value::Object(map)) if field != "body" && field != "allowed_mentions" => {
            map.iter().for_each(|(name, value)| expected(value, name, what, found));
        }
        (None, _) => {}
    }
}

fn to_json(reference: &Reference) -> String {
    match reference {
        Reference::Id(id) => json!(id.to_string()),
        Reference::Key(key) => json!({"key": key}),
        Reference::Operation(id) => json!({"operation": id.to_string()}),
    }
    .to_string()
}

#[test]
fn every_reference_of_every_kind_is_found() {
    for kind in OperationKind::ALL {
        for sample in samples(kind) {
            let mut expected_references = Vec::new();
            expected(&sample, "", sample["what"].as_str().unwrap_or(""), &mut expected_references);
            let payload = parse_ok(kind, &sample);
            let mut found: Vec<_> = payload.references().into_iter().map(|(kind, it)| (kind, to_json(it))).collect();
            expected_references.sort();
            found.sort();
            assert_eq!(found, expected_references, "{} {sample}", kind.name());
        }
    }
}

#[test]
fn resolved_payload_has_ids_only() {
    for kind in OperationKind::ALL {
        for sample in samples(kind) {
            let payload = parse_ok(kind, &sample);
            let resolved = payload.resolve(|_, _| Some(999)).unwrap();
            assert!(resolved.references().iter().all(|(_, it)| matches!(it, Reference::Id(_))), "{}", kind.name());
            let text = json!({"key": "mods"}).to_string();
            let by_hand = payload
                .to_json()
                .replace(&text, "\"999\"")
                .replace(&json!({"key": "lobby"}).to_string(), "\"999\"")
                .replace(&json!({"key": "rules"}).to_string(), "\"999\"")
                .replace(&json!({"operation": OPERATION}).to_string(), "\"999\"");
            assert_eq!(resolved.to_json(), by_hand);
        }
    }
}

#[test]
fn unresolved_references_are_listed_once() {
    let payload = parse_ok(
        OperationKind::SetMemberRoles,
        &json!({"user_id": "1", "role_ids": ["5", {"key": "a"}, {"key": "b"}, {"operation": OPERATION}]}),
    );
    let operation: OperationId = OPERATION.parse().unwrap();
    assert_eq!(payload.operations(), [operation]);
    let known_a = |kind, reference: &Reference| {
        assert_eq!(kind, ManagedKind::Role);
        match reference {
            Reference::Id(_) => panic!("ids are not looked up"),
            Reference::Key(key) if key == "a" => Some(5),
            Reference::Key(_) | Reference::Operation(_) => None,
        }
    };
    let unknown = payload.resolve(known_a).unwrap_err();
    assert_eq!(unknown, [Reference::Key("b".to_owned()), Reference::Operation(operation)]);

    let channel = json!({"what": "channels", "places": [
        {"id": "1", "position": 1, "parent_id": {"key": "c"}}, {"id": "2", "position": 2, "parent_id": {"key": "c"}},
    ]});
    let unknown = parse_ok(OperationKind::Reorder, &channel).resolve(|_, _| None).unwrap_err();
    assert_eq!(unknown, [Reference::Key("c".to_owned())]);
}

#[test]
fn role_with_two_references_is_assigned_once() {
    let payload =
        parse_ok(OperationKind::SetMemberRoles, &json!({"user_id": "1", "role_ids": ["5", {"key": "a"}, "6"]}));
    let resolved = payload.resolve(|_, _| Some(5)).unwrap();
    assert_eq!(resolved, parse_ok(OperationKind::SetMemberRoles, &json!({"user_id": "1", "role_ids": ["5", "6"]})));
}
