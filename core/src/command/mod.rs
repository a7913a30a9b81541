//! Application commands: what users see when they type `/`, or open the menu of a user or a message.
//!
//! ```text
//!  a file ──Commands::read──▶ Commands ─┐
//!              │                        ├─plan──▶ CommandPlan: created, changed, removed, same; and the one call
//!              │          what Discord has
//!              └─▶ every invalid field, by name
//! ```
//!
//! Fields have Discord's names. Commands are compared in a canonical form, so that an explicit default equals an
//! omitted one.

mod canonical;
mod localized;
mod option;
mod plan;
mod read;
#[cfg(test)]
mod tests;

use serde_json::{Map, Value};

pub use plan::{CommandChange, CommandPlan, plan};

pub use crate::operation::payload::FieldError;

/// Where commands are available.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommandScope {
    /// Everywhere.
    Global,
    /// In one guild only, immediately.
    Guild(u64),
}

/// How a command is invoked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CommandKind {
    /// Typed: `/name`.
    ChatInput,
    /// In the menu of a user.
    User,
    /// In the menu of a message.
    Message,
    /// Opens an activity.
    EntryPoint,
}

impl CommandKind {
    const ALL: [Self; 4] = [Self::ChatInput, Self::User, Self::Message, Self::EntryPoint];

    /// Discord's number.
    #[must_use]
    pub const fn number(self) -> u8 {
        match self {
            Self::ChatInput => 1,
            Self::User => 2,
            Self::Message => 3,
            Self::EntryPoint => 4,
        }
    }

    fn from_number(number: u64) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| u64::from(kind.number()) == number)
    }

    /// Maximum number of commands of this kind in one scope.
    const fn max_count(self) -> usize {
        match self {
            Self::ChatInput => 100,
            Self::User | Self::Message => 15,
            Self::EntryPoint => 1,
        }
    }

    /// Plural name, for people.
    const fn plural(self) -> &'static str {
        match self {
            Self::ChatInput => "slash commands",
            Self::User => "user commands",
            Self::Message => "message commands",
            Self::EntryPoint => "entry points",
        }
    }

    /// Whether users type it, so that it has a description and a lower-case name.
    const fn is_typed(self) -> bool {
        match self {
            Self::ChatInput | Self::EntryPoint => true,
            Self::User | Self::Message => false,
        }
    }
}

/// A command in canonical form: without defaults.
#[derive(Clone, Debug, PartialEq)]
pub struct Command {
    kind: CommandKind,
    name: String,
    fields: Map<String, Value>,
}

impl Command {
    /// Display name: `/hello`, or `user command Report`.
    #[must_use]
    pub fn label(&self) -> String {
        match self.kind {
            CommandKind::ChatInput => format!("/{}", self.name),
            CommandKind::User => format!("user command {}", self.name),
            CommandKind::Message => format!("message command {}", self.name),
            CommandKind::EntryPoint => format!("entry point {}", self.name),
        }
    }

    fn is_same_command(&self, other: &Self) -> bool {
        (self.kind, &self.name) == (other.kind, &other.name)
    }
}

/// All commands of an application in one scope. They have no known errors.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Commands(Vec<Command>);

impl Commands {
    /// Number of commands.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
