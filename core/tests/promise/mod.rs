//! Checks the scan of a frame against a full parse of the same text.

use std::num::NonZeroU64;

use guildhall_core::event::{Envelope, FrameError, JsonString, PayloadIds};
use serde::de::IgnoredAny;
use serde_json::Value;

/// Checks the scan of this text:
///
/// - it ends, and does not panic;
/// - a text that a full parse reads as a frame is accepted, and every field has the value that the parse finds;
/// - a text that is not JSON is refused, and JSON is refused only if it lacks a field of a frame, or for its depth.
///
/// # Panics
///
/// If a check fails.
pub(crate) fn check_scan(text: &str) {
    let scanned = Envelope::scan(text);
    if let Err(FrameError::Syntax { at, .. } | FrameError::TooDeep { at } | FrameError::WrongType { at, .. }) = scanned
    {
        assert!(at <= text.len(), "the position of an error is within the text");
    }
    match serde_json::from_str::<Value>(text) {
        Ok(frame) => assert_agrees(text, &scanned, &frame),
        // A full parse stops there too.
        Err(error) if error.to_string().starts_with("recursion limit exceeded") => {
            assert!(matches!(scanned, Err(FrameError::TooDeep { .. })), "{scanned:?}");
        }
        Err(_) => {
            let json = serde_json::from_str::<IgnoredAny>(text).is_ok();
            match scanned {
                // JSON with a value that a full parse rejects: a number that is too large, or half of a surrogate pair.
                Ok(_) => assert!(json, "accepted text is JSON"),
                Err(FrameError::TooDeep { .. }) => {}
                Err(FrameError::Syntax { expected, .. }) => assert!(!json || expected == "an object", "{expected}"),
                Err(FrameError::WrongType { .. } | FrameError::Missing { .. }) => assert!(json),
            }
        }
    }
}

fn assert_agrees(text: &str, scanned: &Result<Envelope<'_>, FrameError>, frame: &Value) {
    let Some(op) = frame.get("op").and_then(Value::as_u64).and_then(|op| u8::try_from(op).ok()) else {
        assert!(scanned.is_err(), "a frame needs `op`");
        return;
    };
    let (t, s) = (frame.get("t").unwrap_or(&Value::Null), frame.get("s").unwrap_or(&Value::Null));
    if !(t.is_string() || t.is_null()) || !(s.is_u64() || s.is_null()) {
        assert!(matches!(scanned, Err(FrameError::WrongType { .. })), "{scanned:?}");
        return;
    }
    let envelope = scanned.as_ref().expect("a full parse reads it as a frame");
    assert_eq!(envelope.op, op);
    assert_eq!(text_of(envelope.t).as_deref(), t.as_str());
    assert_eq!(envelope.s, s.as_u64());
    let data = envelope.d.clone().map(|d| serde_json::from_str::<Value>(&text[d]).expect("the payload is JSON"));
    assert_eq!(data.as_ref(), frame.get("d"));
    assert_ids_agree(&envelope.ids, frame.get("d").unwrap_or(&Value::Null));
}

fn assert_ids_agree(ids: &PayloadIds<'_>, data: &Value) {
    assert_eq!(ids.id, id(&data["id"]));
    assert_eq!(ids.guild_id, id(&data["guild_id"]));
    assert_eq!(ids.channel_id, id(&data["channel_id"]));
    assert_eq!(ids.user_id, id(&data["user_id"]));
    assert_eq!(ids.user, id(&data["user"]["id"]));
    assert_eq!(ids.author, id(&data["author"]["id"]));
    assert_eq!(ids.member, id(&data["member"]["user"]["id"]));
    assert_eq!(ids.application_id, id(&data["application_id"]));
    assert_eq!(ids.kind, data["type"].as_u64());
    assert_eq!(text_of(ids.token).as_deref(), data["token"].as_str());
    assert_eq!(text_of(ids.name).as_deref(), data["data"]["name"].as_str());
    assert_eq!(text_of(ids.custom_id).as_deref(), data["data"]["custom_id"].as_str());
    assert_eq!(ids.component, data["data"]["component_type"].as_u64());
}

fn text_of(string: Option<JsonString<'_>>) -> Option<String> {
    string.map(|string| string.text().expect("a string that a full parse reads is text").into_owned())
}

/// An id in Discord's form: digits, as a string or as a number; 0 is not an id.
fn id(value: &Value) -> Option<NonZeroU64> {
    let digits = |text: &&str| !text.is_empty() && text.chars().all(|c| c.is_ascii_digit());
    let id = value.as_u64().or_else(|| value.as_str().filter(digits).and_then(|text| text.parse().ok()));
    id.and_then(NonZeroU64::new)
}
