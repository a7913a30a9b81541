//! How a payload names an object of Discord.

use serde::{Deserialize, Serialize};

use super::OperationId;

/// An object: by its id, or by what is known of it before it exists.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Reference {
    /// By its id.
    Id(u64),
    /// By the key under which this guild's objects are managed: `{"key": "…"}`.
    Key(String),
    /// As what this operation makes: `{"operation": "…"}`.
    Operation(OperationId),
}

/// What kinds of objects have keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ManagedKind {
    /// A role.
    Role,
    /// A channel or a category.
    Channel,
    /// A message.
    Message,
}

impl ManagedKind {
    /// Its name, as the store has it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Role => "role",
            Self::Channel => "channel",
            Self::Message => "message",
        }
    }

    /// The kind of this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Role, Self::Channel, Self::Message].into_iter().find(|kind| kind.name() == name)
    }
}
