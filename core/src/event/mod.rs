//! Events: what Discord tells, from the text of a frame to what handlers want to hear of.
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
pub use self::read::{Frame, OVER_HTTP, read, read_interaction};
use crate::time::UnixMs;

/// Where an event came from. No two events have the same.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct EventOrigin {
    /// The gateway session; `http` for an interaction that came over HTTP.
    pub session: Arc<str>,
    /// The shard that the session is of.
    pub shard: u32,
    /// Its number in the session; an interaction's id if it came over HTTP.
    pub seq: u64,
}

/// The text of an event: a frame as it came, and where in it the payload is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventText {
    whole: String,
    data: Range<usize>,
}

impl EventText {
    /// The payload is this part of the text.
    ///
    /// # Panics
    ///
    /// When the part is not one.
    #[must_use]
    pub fn new(whole: String, data: Range<usize>) -> Self {
        assert!(whole.get(data.clone()).is_some(), "the payload lies within the text");
        Self { whole, data }
    }

    /// The payload, as JSON.
    #[must_use]
    pub fn data(&self) -> &str {
        &self.whole[self.data.clone()]
    }

    /// How many bytes it keeps.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.whole.len()
    }
}

/// What kind of interaction somebody began.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum InteractionKind {
    /// A command.
    Command,
    /// A button or a menu of a message.
    Component,
    /// A field of a command that is being typed.
    Autocomplete,
    /// A form that was sent.
    Modal,
}

/// What is needed to answer an interaction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Interaction {
    /// Its id.
    pub id: u64,
    /// What lets anybody answer it for 15 minutes: a secret.
    pub token: String,
    /// Of which application.
    pub application: u64,
    /// What somebody did.
    pub kind: InteractionKind,
}

/// Something that Discord told. It is read once and shared from then on: to clone it copies its text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Where it came from.
    pub origin: EventOrigin,
    /// What handlers know it by: `member.join`, `interaction.command.hello`.
    pub name: EventName,
    /// How it ranks if there is no room for all.
    pub class: EventClass,
    /// The guild that it is about.
    pub guild: Option<u64>,
    /// The channel that it is about.
    pub channel: Option<u64>,
    /// Who did it, or whom it is about.
    pub user: Option<u64>,
    /// What is needed to answer, if it is an interaction.
    pub interaction: Option<Arc<Interaction>>,
    /// When it arrived.
    pub received_at: UnixMs,
    /// Its text.
    pub text: EventText,
}
