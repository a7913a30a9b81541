//! Events as JSON: the request body of a webhook and the content of the inbox, in both directions.

use std::fmt::Write as _;
use std::sync::Arc;

use chrono::DateTime;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;
use sha2::{Digest as _, Sha256};

use super::names;
use super::template::StateValues;
use crate::event::{Event, EventOrigin, EventText, Interaction, InteractionKind};
use crate::time::UnixMs;
use crate::trace::TraceContext;

/// The event as JSON, with these stored values. The payload is included as Discord wrote it.
#[must_use]
pub fn body(event: &Event, state: &StateValues) -> String {
    let mut out = String::with_capacity(512 + event.text.data().len());
    let origin = &event.origin;
    out.push_str("{\"event_id\":");
    quoted(&mut out, &event_id(origin));
    out.push_str(",\"event_type\":");
    quoted(&mut out, event.name.as_str());
    out.push_str(",\"timestamp\":");
    quoted(&mut out, &event.received_at.to_string());
    push(&mut out, format_args!(",\"shard_id\":{}", origin.shard));
    for (name, id) in [("guild_id", event.guild), ("channel_id", event.channel), ("user_id", event.user)] {
        if let Some(id) = id {
            push(&mut out, format_args!(",\"{name}\":\"{id}\""));
        }
    }
    if let Some(interaction) = &event.interaction {
        push(&mut out, format_args!(",\"interaction_id\":\"{}\",\"interaction_token\":", interaction.id));
        quoted(&mut out, &interaction.token);
    }
    out.push_str(",\"trace\":");
    push(&mut out, format_args!("\"{}\"", trace(origin)));
    out.push_str(",\"session\":");
    quoted(&mut out, &origin.session);
    push(&mut out, format_args!(",\"seq\":{},\"data\":{}", origin.seq, event.text.data()));
    if !state.is_empty() {
        push(&mut out, format_args!(",\"state\":{}", serde_json::json!(state)));
    }
    out.push('}');
    out
}

fn push(out: &mut String, text: std::fmt::Arguments<'_>) {
    out.write_fmt(text).expect("invariant: writing to a String cannot fail");
}

fn quoted(out: &mut String, text: &str) {
    push(out, format_args!("{}", Value::from(text)));
}

/// Id of an event: the same for every delivery, and safe in URLs.
#[must_use]
pub fn event_id(origin: &EventOrigin) -> String {
    let mut out = String::with_capacity(origin.session.len() + 21);
    for byte in origin.session.bytes() {
        if byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-' {
            out.push(char::from(byte));
        } else {
            push(&mut out, format_args!(".{byte:02x}"));
        }
    }
    push(&mut out, format_args!("-{}", origin.seq));
    out
}

/// The trace that an event starts: the same for every delivery.
#[must_use]
pub fn trace(origin: &EventOrigin) -> TraceContext {
    let mut hash = Sha256::new();
    hash.update(origin.session.as_bytes());
    hash.update([0]);
    hash.update(origin.seq.to_be_bytes());
    let hash = hash.finalize();
    let (mut id, mut span) = ([0; 16], [0; 8]);
    id.copy_from_slice(&hash[..16]);
    span.copy_from_slice(&hash[16..24]);
    // Neither part may be all zero.
    (id[0], span[0]) = (id[0] | 1, span[0] | 1);
    TraceContext::start(u128::from_be_bytes(id), u64::from_be_bytes(span))
}

/// Why a text is not an event body.
#[derive(Debug, thiserror::Error)]
pub enum EventBodyError {
    /// It is not JSON, or a field is missing or has the wrong type.
    #[error("not an event body: {0}")]
    Json(#[from] serde_json::Error),
    /// A field is invalid.
    #[error("not an event body: `{field}` must be {must}")]
    Field {
        /// The field.
        field: &'static str,
        /// What it must be.
        must: &'static str,
    },
}

#[derive(Deserialize)]
struct EventBody<'t> {
    event_type: String,
    timestamp: String,
    #[serde(default)]
    shard_id: u32,
    guild_id: Option<String>,
    channel_id: Option<String>,
    user_id: Option<String>,
    interaction_id: Option<String>,
    interaction_token: Option<String>,
    session: String,
    seq: u64,
    #[serde(borrow)]
    data: &'t RawValue,
}

/// Fields of an interaction's payload.
#[derive(Deserialize)]
struct InteractionData {
    application_id: Option<Value>,
    #[serde(rename = "type")]
    kind: Option<u8>,
}

/// Parses an event body. Unknown fields are ignored.
///
/// # Errors
///
/// When it is not an event body.
pub fn from_body(text: &str) -> Result<Event, EventBodyError> {
    let body: EventBody<'_> = serde_json::from_str(text)?;
    let at = DateTime::parse_from_rfc3339(&body.timestamp).ok();
    let at = at.and_then(|at| u64::try_from(at.timestamp_millis()).ok());
    let at = at.ok_or(EventBodyError::Field { field: "timestamp", must: "a time such as 2026-01-31T12:00:00.000Z" })?;
    let name = names::event_name(&body.event_type);
    let interaction = match (&body.interaction_id, body.interaction_token) {
        (Some(id), Some(token)) => Some(Arc::new(interaction(parse_id("interaction_id", id)?, token, body.data)?)),
        (None, None) => None,
        (Some(_), None) => return Err(EventBodyError::Field { field: "interaction_token", must: "present too" }),
        (None, Some(_)) => return Err(EventBodyError::Field { field: "interaction_id", must: "present too" }),
    };
    let id = |field, id: Option<String>| id.map(|id| parse_id(field, &id)).transpose();
    let data = body.data.get().to_owned();
    let range = 0..data.len();
    Ok(Event {
        origin: EventOrigin { session: body.session.into(), shard: body.shard_id, seq: body.seq },
        class: names::class(name.as_str()),
        name,
        guild: id("guild_id", body.guild_id)?,
        channel: id("channel_id", body.channel_id)?,
        user: id("user_id", body.user_id)?,
        interaction,
        received_at: UnixMs::new(at),
        text: EventText::new(data, range),
    })
}

fn interaction(id: u64, token: String, data: &RawValue) -> Result<Interaction, EventBodyError> {
    let data: InteractionData = serde_json::from_str(data.get())?;
    let application = data.application_id.as_ref().and_then(|id| id.as_u64().or_else(|| id.as_str()?.parse().ok()));
    let application =
        application.ok_or(EventBodyError::Field { field: "data.application_id", must: "the application's id" })?;
    let kind = match data.kind {
        Some(2) => InteractionKind::Command,
        Some(3) => InteractionKind::Component,
        Some(4) => InteractionKind::Autocomplete,
        Some(5) => InteractionKind::Modal,
        Some(_) | None => return Err(EventBodyError::Field { field: "data.type", must: "2, 3, 4 or 5" }),
    };
    Ok(Interaction { id, token, application, kind })
}

fn parse_id(field: &'static str, text: &str) -> Result<u64, EventBodyError> {
    text.parse().map_err(|_| EventBodyError::Field { field, must: "an id, as a string of digits" })
}
