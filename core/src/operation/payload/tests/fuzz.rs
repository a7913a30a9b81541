//! Property tests with arbitrary payloads.

use std::cell::Cell;

use proptest::{collection, option, prelude::*, sample, test_runner::TestRunner};

use super::*;

/// Checks that a written payload parses to the same payload.
fn reads_back(kind: OperationKind, payload: &Payload, guild: Option<u64>) -> Result<(), TestCaseError> {
    let text = payload.to_json();
    let value: Value = serde_json::from_str(&text).map_err(|error| TestCaseError::fail(format!("{error}: {text}")))?;
    let again = Payload::parse(kind, &value, guild);
    prop_assert_eq!(again.as_ref(), Ok(payload));
    prop_assert_eq!(again.unwrap().to_json(), text);
    Ok(())
}

/// Checks that a value either parses and reads back, or has errors.
fn check_parse(kind: OperationKind, value: &Value, guild: Option<u64>) -> Result<(), TestCaseError> {
    match Payload::parse(kind, value, guild) {
        Ok(payload) => reads_back(kind, &payload, guild),
        Err(invalid) => {
            prop_assert!((1..=50).contains(&invalid.errors.len()));
            prop_assert!(invalid.errors.iter().all(|error| error.field.len() < 1_000 && error.message.len() < 1_000));
            Ok(())
        }
    }
}

/// Any JSON value. Its fractions are exactly representable.
fn json_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<i32>().prop_map(|quarters| Value::from(f64::from(quarters) / 4.0)),
        any_text().prop_map(Value::from),
        "[0-9]{1,20}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            collection::vec((field_name(), inner), 0..4).prop_map(|fields| Value::Object(fields.into_iter().collect())),
        ]
    })
}

/// Short text with all sorts of characters.
fn any_text() -> impl Strategy<Value = String> {
    let letters = vec!['a', 'Z', '0', ' ', '"', '\\', '/', '.', '\n', '\0', 'ü', '\u{2028}', '界', '🦀'];
    collection::vec(sample::select(letters), 0..10).prop_map(|letters| letters.into_iter().collect())
}

/// A field name that some kind knows, or any other text.
fn field_name() -> impl Strategy<Value = String> {
    let names: Vec<String> = OperationKind::ALL
        .into_iter()
        .flat_map(samples)
        .flat_map(|sample| sample.as_object().unwrap().keys().cloned().collect::<Vec<_>>())
        .chain(["id", "allow", "deny", "position", "operation", "fields", "title", "parse"].map(str::to_owned))
        .collect();
    prop_oneof![4 => sample::select(names), 1 => any_text()]
}

fn any_kind() -> impl Strategy<Value = OperationKind> {
    sample::select(OperationKind::ALL.to_vec())
}

fn any_sample() -> impl Strategy<Value = (OperationKind, Value)> {
    any_kind().prop_flat_map(|kind| sample::select(samples(kind)).prop_map(move |sample| (kind, sample)))
}

/// Replaces a value inside another one; `turns` select the position.
fn replace_at(into: &mut Value, turns: &[sample::Index], value: Value) {
    let Some((turn, rest)) = turns.split_first() else {
        *into = value;
        return;
    };
    match into {
        Value::Array(items) if !items.is_empty() => {
            let index = turn.index(items.len());
            replace_at(&mut items[index], rest, value);
        }
        Value::Object(map) if !map.is_empty() => {
            let index = turn.index(map.len());
            replace_at(map.values_mut().nth(index).unwrap(), rest, value);
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) | Value::Object(_) => {
            *into = value;
        }
    }
}

fn an_id() -> impl Strategy<Value = Value> {
    (1..1_u64 << 62).prop_map(|id| Value::from(id.to_string()))
}

fn a_reference() -> impl Strategy<Value = Value> {
    prop_oneof![
        an_id(),
        "[a-zA-Z0-9_.:/-]{1,100}".prop_map(|key| json!({"key": key})),
        any::<u128>().prop_map(|bits| json!({"operation": uuid::Uuid::from_u128(bits).to_string()})),
    ]
}

fn a_text() -> impl Strategy<Value = Value> {
    any_text().prop_map(|text| Value::from(format!("a{text}z")))
}

fn overwrites() -> impl Strategy<Value = Value> {
    let one = (prop_oneof![Just("role_id"), Just("user_id")], an_id(), a_reference(), any::<(u64, u64)>()).prop_map(
        |(target, id, reference, (allow, deny))| {
            let subject = if target == "role_id" { reference } else { id };
            json!({target: subject, "allow": allow.to_string(), "deny": (deny & !allow).to_string()})
        },
    );
    collection::vec(one, 1..6).prop_map(Value::from)
}

/// A valid value for a field. In combination with other fields it may still be invalid.
fn good_value(kind: OperationKind, field: &str) -> BoxedStrategy<Value> {
    match field {
        "key" => "[a-zA-Z0-9_.:/-]{1,100}".prop_map(Value::from).boxed(),
        "name" | "topic" | "content" | "if_rejected" => a_text().boxed(),
        "permissions" => any::<u64>().prop_map(|bits| Value::from(bits.to_string())).boxed(),
        "color" => (0_u32..=0xFF_FF_FF).prop_map(Value::from).boxed(),
        "hoist" | "mentionable" | "nsfw" | "adopt" | "pin" | "ephemeral" | "update" | "only_if_deferred" => {
            any::<bool>().prop_map(Value::from).boxed()
        }
        "type" => sample::select(ChannelType::ALL.to_vec()).prop_map(|kind| Value::from(kind.name())).boxed(),
        "mode" => sample::select(OverwriteMode::ALL.to_vec()).prop_map(|mode| Value::from(mode.name())).boxed(),
        "method" => sample::select(Method::ALL.to_vec()).prop_map(|method| Value::from(method.name())).boxed(),
        "what" => sample::select(ReorderTarget::ALL.to_vec()).prop_map(|what| Value::from(what.name())).boxed(),
        "user_id" | "interaction_id" => an_id().boxed(),
        "role_id" | "channel_id" | "message_id" | "parent_id" | "reply_to" => a_reference().boxed(),
        "role_ids" => collection::vec(a_reference(), 0..6).prop_map(Value::from).boxed(),
        "position" => any::<u16>().prop_map(Value::from).boxed(),
        "rate_limit_per_user" => (0_u16..=21_600).prop_map(Value::from).boxed(),
        "bitrate" => (8_000_u32..=384_000).prop_map(Value::from).boxed(),
        "user_limit" => (0_u16..=99).prop_map(Value::from).boxed(),
        "overwrites" => overwrites().boxed(),
        "places" => collection::vec((a_reference(), any::<u16>(), option::of(a_reference())), 1..5)
            .prop_map(|places| {
                let places = places
                    .into_iter()
                    .map(|(id, position, parent)| json!({"id": id, "position": position, "parent_id": parent}));
                Value::Array(places.collect())
            })
            .boxed(),
        "embeds" => collection::vec(a_text().prop_map(|title| json!({"title": title, "color": 5.25})), 0..3)
            .prop_map(Value::from)
            .boxed(),
        "components" => collection::vec(json_value().prop_map(|value| json!({"z": value, "a": 1})), 0..3)
            .prop_map(Value::from)
            .boxed(),
        "allowed_mentions" => any::<bool>().prop_map(|all| json!({"replied_user": all, "parse": ["everyone"]})).boxed(),
        "interaction_token" => "[A-Za-z0-9_-]{1,300}".prop_map(Value::from).boxed(),
        "path" => "(/[a-z0-9@]{1,12}){1,5}(\\?[a-z]=[0-9])?".prop_map(Value::from).boxed(),
        "body" => json_value().boxed(),
        other => panic!("{}: no values for {other}", kind.name()),
    }
}

/// A payload of a kind whose fields are all valid by themselves, some of them omitted.
fn good_payload(kind: OperationKind) -> impl Strategy<Value = (OperationKind, Value)> {
    let fields: Vec<String> = {
        let samples = samples(kind);
        let mut fields: Vec<String> =
            samples.iter().flat_map(|sample| sample.as_object().unwrap().keys().cloned().collect::<Vec<_>>()).collect();
        fields.sort();
        fields.dedup();
        fields
    };
    let required: Vec<String> = invalid_fields(kind, &json!({}));
    let values: Vec<BoxedStrategy<Option<(String, Value)>>> = fields
        .into_iter()
        .map(|field| {
            let value = good_value(kind, &field);
            // Visible content of a message must not be omitted too often.
            let probability = if required.contains(&field) || field == "content" { 0.98 } else { 0.3 };
            option::weighted(probability, value.prop_map(move |value| (field.clone(), value))).boxed()
        })
        .collect();
    values.prop_map(move |fields| (kind, Value::Object(fields.into_iter().flatten().collect())))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    #[test]
    fn any_json_parses_or_has_errors(kind in any_kind(), value in json_value(), inside: bool) {
        check_parse(kind, &value, if inside { GUILD } else { None })?;
    }

    #[test]
    fn payload_with_a_replaced_value_parses_or_has_errors(
        (kind, mut value) in any_sample(),
        turns in collection::vec(any::<sample::Index>(), 0..5),
        other in json_value(),
    ) {
        replace_at(&mut value, &turns, other);
        check_parse(kind, &value, guild_of(kind, &value))?;
    }

    #[test]
    fn payload_with_another_field_parses_or_has_errors(
        (kind, mut value) in any_sample(),
        name in field_name(),
        other in json_value(),
    ) {
        value.as_object_mut().unwrap().insert(name, other);
        check_parse(kind, &value, guild_of(kind, &value))?;
    }
}

#[test]
fn every_kind_round_trips() {
    for kind in OperationKind::ALL {
        let taken = Cell::new(0);
        let mut runner = TestRunner::new(ProptestConfig { cases: 60, ..ProptestConfig::default() });
        let run = runner.run(&good_payload(kind), |(kind, value)| {
            let guild = guild_of(kind, &value);
            taken.set(taken.get() + usize::from(Payload::parse(kind, &value, guild).is_ok()));
            check_parse(kind, &value, guild)
        });
        run.unwrap_or_else(|error| panic!("{}: {error}", kind.name()));
        // Fields that are valid by themselves may be invalid together, but enough combinations are valid for this
        // check.
        assert!(taken.get() >= 5, "{}: {} of 60", kind.name(), taken.get());
    }
}
