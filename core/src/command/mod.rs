//! An application's commands: what users see when they type `/`, or open the menu of a user or a message.
//!
//! ```text
//!  a file ──Commands::read──▶ Commands ─┐
//!              │                        ├─plan──▶ Plan: what is new, changed, gone, the same; and the one call that does it
//!              │          what Discord has
//!              └─▶ every field that is wrong, by name
//! ```
//!
//! Fields have Discord's own names. What they say is brought into one form before it is compared, so that a default that is
//! written out is the same as one that is left out.

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

/// Where commands hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommandScope {
    /// Everywhere.
    Global,
    /// In one guild, at once and there alone.
    Guild(u64),
}

/// What a command is used on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CommandKind {
    /// Typed: `/name`.
    ChatInput,
    /// In the menu of a user.
    User,
    /// In the menu of a message.
    Message,
    /// How an activity is opened.
    EntryPoint,
}

impl CommandKind {
    const ALL: [Self; 4] = [Self::ChatInput, Self::User, Self::Message, Self::EntryPoint];

    /// Discord's number for it.
    #[must_use]
    pub const fn number(self) -> u8 {
        match self {
            Self::ChatInput => 1,
            Self::User => 2,
            Self::Message => 3,
            Self::EntryPoint => 4,
        }
    }

    fn of(number: u64) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| u64::from(kind.number()) == number)
    }

    /// How many of them an application may have in one place.
    const fn most(self) -> usize {
        match self {
            Self::ChatInput => 100,
            Self::User | Self::Message => 15,
            Self::EntryPoint => 1,
        }
    }

    /// What they are called, for people.
    const fn plural(self) -> &'static str {
        match self {
            Self::ChatInput => "slash commands",
            Self::User => "user commands",
            Self::Message => "message commands",
            Self::EntryPoint => "entry points",
        }
    }

    /// Whether it is typed, and so has a description and a name in small letters.
    const fn is_typed(self) -> bool {
        match self {
            Self::ChatInput | Self::EntryPoint => true,
            Self::User | Self::Message => false,
        }
    }
}

/// A command in the form in which it is compared: nothing in it is a default.
#[derive(Clone, Debug, PartialEq)]
pub struct Command {
    kind: CommandKind,
    name: String,
    fields: Map<String, Value>,
}

impl Command {
    /// How people call it: `/hello`, or `user command Report`.
    #[must_use]
    pub fn label(&self) -> String {
        match self.kind {
            CommandKind::ChatInput => format!("/{}", self.name),
            CommandKind::User => format!("user command {}", self.name),
            CommandKind::Message => format!("message command {}", self.name),
            CommandKind::EntryPoint => format!("entry point {}", self.name),
        }
    }

    fn is(&self, other: &Self) -> bool {
        (self.kind, &self.name) == (other.kind, &other.name)
    }
}

/// All commands that an application should have in one place. Holds nothing that is known to be wrong.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Commands(Vec<Command>);

impl Commands {
    /// How many there are.
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
