//! Events: from the text of a gateway frame to what handlers receive.
//!
//! ```text
//!  frame ─▶ envelope (op, t, s, ids; the rest stays text) ─▶ Event ─▶ handlers that match its name ─▶ confirmed
//! ```

mod class;
mod envelope;
mod event_type;
pub mod handler;
mod name;
mod read;

use std::ops::Range;
use std::sync::Arc;

use serde::Serialize;

pub use self::class::EventClass;
pub use self::envelope::{Envelope, FrameError, JsonString, PayloadIds};
pub use self::name::EventName;
pub use self::read::{Frame, HTTP_SESSION, read, read_interaction};
use crate::time::UnixMs;

/// Origin of an event. It is unique.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct EventOrigin {
    /// The gateway session; `http` for an interaction that came over HTTP.
    pub session: Arc<str>,
    /// The shard of the session.
    pub shard: u32,
    /// Its sequence number in the session; the interaction's id if it came over HTTP.
    pub seq: u64,
}

/// Text of an event: the frame as received, and the range of the payload in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventText {
    whole: String,
    data: Range<usize>,
}

impl EventText {
    /// Creates it from a text and the range of the payload.
    ///
    /// # Panics
    ///
    /// When the range is not valid for the text.
    #[must_use]
    pub fn new(whole: String, data: Range<usize>) -> Self {
        assert!(whole.get(data.clone()).is_some(), "the payload is a range of the text");
        Self { whole, data }
    }

    /// The payload, as JSON.
    #[must_use]
    pub fn data(&self) -> &str {
        &self.whole[self.data.clone()]
    }

    /// Size in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.whole.len()
    }
}

/// Kind of an interaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum InteractionKind {
    /// A command.
    Command,
    /// A button or a menu of a message.
    Component,
    /// A command option that is being typed.
    Autocomplete,
    /// A submitted form.
    Modal,
}

/// What is needed to respond to an interaction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Interaction {
    /// Its id.
    pub id: u64,
    /// The token, valid for 15 minutes. A secret: everyone who has it can respond.
    pub token: String,
    /// The application.
    pub application: u64,
    /// Its kind.
    pub kind: InteractionKind,
}

/// An event from Discord. It is read once and shared from then on: cloning it copies its text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Its origin.
    pub origin: EventOrigin,
    /// Name for handlers: `member.join`, `interaction.command.hello`.
    pub name: EventName,
    /// Rank for load shedding.
    pub class: EventClass,
    /// The guild that it concerns.
    pub guild: Option<u64>,
    /// The channel that it concerns.
    pub channel: Option<u64>,
    /// The user who caused it, or whom it concerns.
    pub user: Option<u64>,
    /// What is needed to respond, if it is an interaction.
    pub interaction: Option<Arc<Interaction>>,
    /// When it was received.
    pub received_at: UnixMs,
    /// Its text.
    pub text: EventText,
}
