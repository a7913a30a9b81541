//! How events rank if there is no room for all of them.

use serde::Serialize;

/// How an event ranks: the lowest is shed first. What somebody waits for is never shed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum EventClass {
    /// Typing and presence: true for a moment only.
    Fleeting,
    /// Messages, reactions, voice.
    Chatter,
    /// What changes a guild: members, roles, channels.
    Change,
    /// Somebody looks at a screen and waits.
    Interaction,
    /// What the gateway itself says: sessions, gaps.
    Gateway,
}

impl EventClass {
    /// All of them, the first to be shed first.
    pub const ALL: [Self; 5] = [Self::Fleeting, Self::Chatter, Self::Change, Self::Interaction, Self::Gateway];

    /// Its name, as metrics and logs have it.
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

    /// Whether it may be dropped, and counted, when there is no room.
    #[must_use]
    pub const fn may_be_shed(self) -> bool {
        matches!(self, Self::Fleeting)
    }
}
