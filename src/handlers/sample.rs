//! Reads an event from a file, for a dry run of handlers.

use std::collections::BTreeMap;

use guildhall_core::event::handler::{EventBodyError, from_body};
use guildhall_core::event::{Event, Frame, FrameError, read};
use guildhall_core::time::UnixMs;
use serde_json::{Map, Value};

/// An event, and the stored values that came with it.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// The event.
    pub event: Event,
    /// Stored values by key.
    pub state: BTreeMap<String, Value>,
}

/// A text is not an event.
#[derive(Debug, thiserror::Error)]
pub enum SampleError {
    /// It is neither a gateway frame nor the body of a webhook request.
    #[error(
        "not an event: expected a gateway frame, such as {{\"t\": \"GUILD_MEMBER_ADD\", \"d\": {{…}}}}, or an event as \
         it is sent to a webhook, with `event_type` and `data`{}", reason.as_ref().map_or_else(String::new, |why| format!(" ({why})"))
    )]
    NotAnEvent {
        /// Parse error, if any.
        reason: Option<String>,
    },
    /// It is an invalid frame.
    #[error("invalid frame: {0}")]
    Frame(#[from] FrameError),
    /// It is a frame without an event.
    #[error("a frame with op {op} is not an event: handlers receive only frames with op 0")]
    NotDispatch {
        /// Opcode of the frame.
        op: u8,
    },
    /// It is an invalid body of a webhook request.
    #[error(transparent)]
    Body(#[from] EventBodyError),
}

impl Sample {
    /// Parses a gateway frame, whose `op` and `s` are optional, or an event as it is sent to a webhook.
    ///
    /// # Errors
    ///
    /// If it is neither.
    pub fn parse(text: &str, now: UnixMs) -> Result<Self, SampleError> {
        let value: Value =
            serde_json::from_str(text).map_err(|error| SampleError::NotAnEvent { reason: Some(error.to_string()) })?;
        let Value::Object(fields) = value else { return Err(SampleError::NotAnEvent { reason: None }) };
        if fields.contains_key("event_type") {
            let state = match fields.get("state") {
                Some(Value::Object(state)) => state.clone().into_iter().collect(),
                Some(_) | None => BTreeMap::new(),
            };
            return Ok(Self { event: from_body(text)?, state });
        }
        if !fields.contains_key("t") && !fields.contains_key("op") {
            return Err(SampleError::NotAnEvent { reason: None });
        }
        match read(complete_frame(text, fields), 0, &"sample".into(), now)? {
            Frame::Event(event) => Ok(Self { event, state: BTreeMap::new() }),
            Frame::Control { op } => Err(SampleError::NotDispatch { op }),
        }
    }
}

/// Adds the fields of a frame that users usually omit.
fn complete_frame(text: &str, mut frame: Map<String, Value>) -> String {
    if frame.contains_key("op") && frame.contains_key("s") {
        return text.to_owned();
    }
    frame.entry("op").or_insert_with(|| Value::from(0));
    frame.entry("s").or_insert_with(|| Value::from(1));
    Value::Object(frame).to_string()
}
