//! Every field of every kind, and the fields within them.

use super::*;

/// Positions of values: the path to each, and its name in errors.
type ValuePaths = Vec<(Vec<Step>, String)>;

#[derive(Clone, Debug)]
enum Step {
    Field(String),
    Item(usize),
}

/// The positions of all values, except within Discord's own objects.
fn value_paths(value: &Value) -> ValuePaths {
    fn collect(value: &Value, path: &[Step], name: &str, found: &mut ValuePaths) {
        let opaque = name.ends_with("embeds") || name.ends_with("components") || name.ends_with("body");
        match value {
            _ if opaque => {}
            Value::Object(map) => {
                for (field, value) in map {
                    let mut path = path.to_vec();
                    path.push(Step::Field(field.clone()));
                    let name = if name.is_empty() { field.clone() } else { format!("{name}.{field}") };
                    found.push((path.clone(), name.clone()));
                    collect(value, &path, &name, found);
                }
            }
            Value::Array(items) => {
                for (index, value) in items.iter().enumerate() {
                    let mut path = path.to_vec();
                    path.push(Step::Item(index));
                    let name = format!("{name}[{index}]");
                    found.push((path.clone(), name.clone()));
                    collect(value, &path, &name, found);
                }
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }
    let mut found = ValuePaths::new();
    collect(value, &[], "", &mut found);
    found
}

fn at<'v>(value: &'v mut Value, path: &[Step]) -> &'v mut Value {
    path.iter().fold(value, |value, step| match step {
        Step::Field(name) => value.get_mut(name).unwrap(),
        Step::Item(index) => value.get_mut(index).unwrap(),
    })
}

/// A value that is invalid in place of the given one, since it has another type.
fn invalid_value(good: &Value) -> Value {
    match good {
        Value::Bool(_) | Value::Number(_) => json!("no"),
        Value::String(_) => json!(7),
        Value::Null | Value::Array(_) | Value::Object(_) => json!(true),
    }
}

/// The known fields of a kind, taken from its errors.
fn known_fields(kind: OperationKind) -> Vec<String> {
    let error = parse(kind, &json!({"0": 0})).unwrap_err();
    let unknown = error.errors.iter().find(|error| error.field == "0").unwrap();
    let names = unknown.message.split_once("known fields: ").unwrap().1;
    names.split(", ").map(|name| name.trim_matches('`').to_owned()).collect()
}

#[test]
fn samples_parse_and_cover_every_field() {
    for kind in OperationKind::ALL {
        let samples = samples(kind);
        for sample in &samples {
            let payload = parse_ok(kind, sample);
            assert_eq!(payload.kind(), kind);
        }
        for field in known_fields(kind) {
            assert!(samples.iter().any(|sample| sample.get(&field).is_some()), "{}: no sample of {field}", kind.name());
        }
    }
}

#[test]
fn invalid_value_is_reported_at_any_depth() {
    for kind in OperationKind::ALL {
        for sample in samples(kind) {
            for (path, name) in value_paths(&sample) {
                if name == "body" {
                    continue; // Any JSON is valid.
                }
                let mut spoilt_sample = sample.clone();
                let place = at(&mut spoilt_sample, &path);
                *place = invalid_value(place);
                let fields = invalid_fields(kind, &spoilt_sample);
                assert!(fields.contains(&name), "{}: {name} is invalid, reported were {fields:?}", kind.name());
            }
        }
    }
}

#[test]
fn all_invalid_fields_are_reported_at_once() {
    for kind in OperationKind::ALL {
        for sample in samples(kind) {
            let mut all_wrong = sample.clone();
            for value in all_wrong.as_object_mut().unwrap().values_mut() {
                *value = invalid_value(value);
            }
            let fields = invalid_fields(kind, &all_wrong);
            for name in sample.as_object().unwrap().keys().filter(|name| *name != "body") {
                assert!(fields.contains(name), "{}: {name} is not among {fields:?}", kind.name());
            }
        }
    }
}

#[test]
fn unknown_field_is_reported_at_any_depth() {
    for kind in OperationKind::ALL {
        for sample in samples(kind) {
            let mut objects: Vec<_> = value_paths(&sample);
            objects.push((Vec::new(), String::new()));
            for (path, name) in objects {
                let mut more = sample.clone();
                let place = at(&mut more, &path);
                let opaque = name == "body";
                if let (Some(object), false) =
                    (place.as_object_mut(), opaque || name.contains("embeds[") || name.contains("components["))
                {
                    object.insert("surplus".to_owned(), json!(1));
                    let expected = if name.is_empty() { "surplus".to_owned() } else { format!("{name}.surplus") };
                    assert!(invalid_fields(kind, &more).contains(&expected), "{} {more}", kind.name());
                }
            }
        }
    }
}

#[test]
fn missing_required_field_is_reported() {
    for (kind, required) in [
        (OperationKind::CreateRole, &["name"][..]),
        (OperationKind::DeleteRole, &["role_id"]),
        (OperationKind::AssignRole, &["user_id", "role_id"]),
        (OperationKind::RemoveRole, &["user_id", "role_id"]),
        (OperationKind::CreateChannel, &["name"]),
        (OperationKind::DeleteChannel, &["channel_id"]),
        (OperationKind::UpdatePermissions, &["channel_id", "overwrites"]),
        (OperationKind::SetMemberRoles, &["user_id", "role_ids"]),
        (OperationKind::EnsureRole, &["key", "name"]),
        (OperationKind::EnsureChannel, &["key", "name"]),
        (OperationKind::ReplaceOverwrites, &["channel_id", "overwrites"]),
        (OperationKind::Reorder, &["what", "places"]),
        (OperationKind::EnsureMessage, &["key", "channel_id", ""]),
        (OperationKind::SendMessage, &["channel_id", ""]),
        (OperationKind::EditMessage, &["channel_id", "message_id", ""]),
        (OperationKind::DeleteMessage, &["channel_id", "message_id"]),
        (OperationKind::SendDm, &["user_id", ""]),
        (OperationKind::DeferReply, &["interaction_id", "interaction_token"]),
        (OperationKind::SendFollowup, &["interaction_id", "interaction_token", ""]),
        (OperationKind::EditOriginal, &["interaction_id", "interaction_token", ""]),
        (OperationKind::Read, &["path"]),
        (OperationKind::Request, &["method", "path"]),
    ] {
        assert_eq!(invalid_fields(kind, &json!({})), required, "{}", kind.name());
        assert_eq!(invalid_fields(kind, &json!([1])), [""], "{}", kind.name());
    }
}

#[test]
fn null_is_omitted_or_rejected_by_kind() {
    let role = parse_ok(OperationKind::CreateRole, &json!({"name": "a", "color": null, "key": null}));
    assert_eq!(role, parse_ok(OperationKind::CreateRole, &json!({"name": "a"})));
    let ensured = json!({"key": "a", "name": "a", "color": null});
    assert_eq!(invalid_fields(OperationKind::EnsureRole, &ensured), ["color"]);
    let edit = json!({"channel_id": "1", "message_id": "2", "content": null, "embeds": []});
    assert_eq!(invalid_fields(OperationKind::EditMessage, &edit), ["content"]);
}
