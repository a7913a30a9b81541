//! Events as JSON, and back.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::super::names;
use super::super::{body, event_id, from_body, trace};
use super::{command, join};
use crate::event::{Event, EventOrigin, EventText, Interaction, InteractionKind};
use crate::time::UnixMs;

fn parsed(event: &Event, state: &BTreeMap<String, Value>) -> Value {
    serde_json::from_str(&body(event, state)).unwrap()
}

#[test]
fn body_has_string_ids_and_the_original_payload() {
    let state = BTreeMap::from([("sess:3".to_owned(), json!({"a": 1}))]);
    let sent = parsed(&command(), &state);
    let data: Value = serde_json::from_str(command().text.data()).unwrap();
    assert_eq!(
        sent,
        json!({
            "event_id": "abc-7", "event_type": "interaction.command.hello", "timestamp": "2026-01-01T00:00:00.123Z",
            "shard_id": 4, "guild_id": "1", "channel_id": "2", "user_id": "3", "interaction_id": "9",
            "interaction_token": "tkn", "trace": trace(&command().origin), "session": "abc", "seq": 7, "data": data,
            "state": {"sess:3": {"a": 1}},
        })
    );
    let none = parsed(&join(), &BTreeMap::new());
    for left_out in ["channel_id", "interaction_id", "interaction_token", "state"] {
        assert_eq!(none.get(left_out), None, "{left_out}");
    }
    let odd = "{ \"b\":1.50, \"a\":12345678901234567890123 }";
    let event = Event { text: EventText::new(odd.to_owned(), 0..odd.len()), ..join() };
    assert!(body(&event, &BTreeMap::new()).contains(odd));
}

#[test]
fn event_ids_and_traces_are_stable_and_unique() {
    let origins = [("a", 1), ("a", 11), ("a-1", 1), ("a.2d1", 1), ("a/1", 1), ("a 1", 1), ("ä", 1), ("", 1)];
    let origin = |(session, seq): (&str, u64)| EventOrigin { session: session.into(), shard: 0, seq };
    let ids: HashSet<String> = origins.into_iter().map(|of| event_id(&origin(of))).collect();
    let traces: HashSet<_> = origins.into_iter().map(|of| trace(&origin(of))).collect();
    assert_eq!((ids.len(), traces.len()), (origins.len(), origins.len()));
    for id in ids {
        assert!(id.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte)), "{id}");
    }
    // Other systems store it, so it must not change between versions.
    assert_eq!(trace(&origin(("abc", 7))).to_string(), "00-ed74166130fd8b089c402e7ee5083f59-5fbc8b23eb081514-01");
}

#[test]
fn invalid_body_names_the_field() {
    let event = parsed(&command(), &BTreeMap::new());
    let with = |field: &str, value: Value| {
        let mut event = event.clone();
        event[field] = value;
        from_body(&event.to_string()).unwrap_err().to_string()
    };
    assert!(with("timestamp", json!("yesterday")).contains("`timestamp`"));
    assert!(with("guild_id", json!("x")).contains("`guild_id`"));
    assert!(with("guild_id", json!(7)).contains("expected a string"));
    assert!(with("interaction_token", Value::Null).contains("`interaction_token`"));
    assert!(with("interaction_id", Value::Null).contains("`interaction_id`"));
    assert!(with("data", json!({"type": 2})).contains("`data.application_id`"));
    assert!(with("data", json!({"application_id": "1", "type": 9})).contains("`data.type`"));
    assert!(with("seq", json!(-1)).contains("invalid value"));
    assert!(from_body("{}").unwrap_err().to_string().contains("missing field"));
    assert!(from_body("").is_err());
}

fn a_name() -> impl Strategy<Value = String> {
    prop_oneof![prop::sample::select(names::KNOWN_EVENTS).prop_map(str::to_owned), "[a-zä]{1,5}(\\.[a-z_-]{1,5}){0,3}"]
}

prop_compose! {
    fn an_event()(
        session in ".{0,20}",
        (shard, seq) in any::<(u32, u64)>(),
        name in a_name(),
        (guild, channel, user) in any::<(Option<u64>, Option<u64>, Option<u64>)>(),
        interaction in prop::option::of((any::<u64>(), ".*", any::<u64>(), 2_u8..=5)),
        at in 0..=253_402_300_799_999_u64,
        text in ".*",
        space in "[ \n]{0,3}",
    ) -> Event {
        let (mut data, mut known) = (json!({"text": text}), None);
        if let Some((id, token, application, kind)) = interaction {
            data["application_id"] = json!(application.to_string());
            data["type"] = json!(kind);
            let kinds = [
                InteractionKind::Command, InteractionKind::Component, InteractionKind::Autocomplete, InteractionKind::Modal,
            ];
            known = Some(Arc::new(Interaction { id, token, application, kind: kinds[usize::from(kind) - 2] }));
        }
        let data = data.to_string().replacen('{', &format!("{{{space}"), 1);
        // As in a frame, the payload is a part of the text.
        let whole = format!("{{\"d\":{data}}}");
        Event {
            origin: EventOrigin { session: session.into(), shard, seq },
            class: names::class(&name),
            name: names::event_name(&name),
            guild, channel, user,
            interaction: known,
            received_at: UnixMs::new(at),
            text: EventText::new(whole, 5..5 + data.len()),
        }
    }
}

proptest! {
    #[test]
    fn event_round_trips(event in an_event(), stored in ".*") {
        let state = BTreeMap::from([("k".to_owned(), json!(stored))]);
        let back = from_body(&body(&event, &state)).unwrap();
        prop_assert_eq!(back.text.data(), event.text.data());
        prop_assert_eq!(Event { text: event.text.clone(), ..back }, event);
    }
}
