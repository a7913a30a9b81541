//! An event out of a file, to see what handlers would do with it.

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
    /// Stored values by their keys.
    pub state: BTreeMap<String, Value>,
}

/// Why a text is no event.
#[derive(Debug, thiserror::Error)]
pub enum SampleError {
    /// It is neither of the two things that it may be.
    #[error(
        "this is no event: it must be a frame of the gateway, such as {{\"t\": \"GUILD_MEMBER_ADD\", \"d\": {{…}}}}, or an \
         event as a webhook is sent it, with `event_type` and `data`{}", because.as_ref().map_or_else(String::new, |why| format!(" ({why})"))
    )]
    Neither {
        /// Why not, if there is more to say.
        because: Option<String>,
    },
    /// It is a frame that cannot be read.
    #[error("this frame cannot be read: {0}")]
    Frame(#[from] FrameError),
    /// It is a frame that tells of no event.
    #[error("this frame (op {op}) tells of no event: handlers see those with op 0")]
    Control {
        /// What it is instead.
        op: u8,
    },
    /// It is an event as a webhook is sent it that cannot be read.
    #[error(transparent)]
    Body(#[from] EventBodyError),
}

impl Sample {
    /// Reads a frame of the gateway, whose `op` and `s` may be left out, or an event as a webhook is sent it.
    ///
    /// # Errors
    ///
    /// When it is neither.
    pub fn read(text: &str, now: UnixMs) -> Result<Self, SampleError> {
        let value: Value =
            serde_json::from_str(text).map_err(|error| SampleError::Neither { because: Some(error.to_string()) })?;
        let Value::Object(fields) = value else { return Err(SampleError::Neither { because: None }) };
        if fields.contains_key("event_type") {
            let state = match fields.get("state") {
                Some(Value::Object(state)) => state.clone().into_iter().collect(),
                Some(_) | None => BTreeMap::new(),
            };
            return Ok(Self { event: from_body(text)?, state });
        }
        if !fields.contains_key("t") && !fields.contains_key("op") {
            return Err(SampleError::Neither { because: None });
        }
        match read(whole(text, fields), 0, &"sample".into(), now)? {
            Frame::Event(event) => Ok(Self { event, state: BTreeMap::new() }),
            Frame::Control { op } => Err(SampleError::Control { op }),
        }
    }
}

/// The frame with what people leave out when they write one.
fn whole(text: &str, mut frame: Map<String, Value>) -> String {
    if frame.contains_key("op") && frame.contains_key("s") {
        return text.to_owned();
    }
    frame.entry("op").or_insert_with(|| Value::from(0));
    frame.entry("s").or_insert_with(|| Value::from(1));
    Value::Object(frame).to_string()
}
