//! References from a payload to objects in Discord.

use serde::{Deserialize, Serialize};

use super::OperationId;

/// Reference to an object, by its id or, before it exists, by key or operation.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Reference {
    /// By its id.
    Id(u64),
    /// By the managed key within the guild: `{"key": "…"}`.
    Key(String),
    /// The object that this operation creates: `{"operation": "…"}`.
    Operation(OperationId),
}

/// Kinds of objects that can have keys.
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
    /// Name in the store.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Role => "role",
            Self::Channel => "channel",
            Self::Message => "message",
        }
    }

    /// The kind with this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Role, Self::Channel, Self::Message].into_iter().find(|kind| kind.name() == name)
    }
}
