//! Ranks of events for load shedding.

use serde::Serialize;

/// Rank of an event: the lowest is shed first. An event that a user waits for is not shed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum EventClass {
    /// Typing and presence: soon outdated.
    Fleeting,
    /// Messages, reactions, voice.
    Chatter,
    /// Changes of a guild: members, roles, channels.
    Change,
    /// A user is waiting for the response.
    Interaction,
    /// Events of the gateway itself: sessions, gaps.
    Gateway,
}

impl EventClass {
    /// All classes, in the order in which they are shed.
    pub const ALL: [Self; 5] = [Self::Fleeting, Self::Chatter, Self::Change, Self::Interaction, Self::Gateway];

    /// Name in metrics and logs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fleeting => "fleeting",
            Self::Chatter => "chatter",
            Self::Change => "change",
            Self::Interaction => "interaction",
            Self::Gateway => "gateway",
        }
    }

    /// Whether it may be dropped, and counted, under overload.
    #[must_use]
    pub const fn may_be_shed(self) -> bool {
        matches!(self, Self::Fleeting)
    }
}
