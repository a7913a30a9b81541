//! Ranks of events for load shedding.

use serde::Serialize;

crate::named_enum! {
    /// Rank of an event, in the order in which events are shed. One that a user waits for is not shed.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
    #[serde(rename_all = "snake_case")]
    pub enum EventClass {
        /// Typing and presence: soon outdated.
        Fleeting = "fleeting",
        /// Messages, reactions, voice.
        Chatter = "chatter",
        /// Changes of a guild: members, roles, channels.
        Change = "change",
        /// A user is waiting for the response.
        Interaction = "interaction",
        /// Events of the gateway itself: sessions, gaps.
        Gateway = "gateway",
    }
}

impl EventClass {
    /// Whether it may be dropped, and counted, under overload.
    #[must_use]
    pub const fn may_be_shed(self) -> bool {
        matches!(self, Self::Fleeting)
    }
}
