//! Where an operation stands in line.

use serde::Serialize;

/// A line of operations that run one at a time, in the order accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Queue {
    /// A guild's.
    Guild(u64),
    /// What the application does for one user, outside any guild.
    User(u64),
    /// What the application does for itself.
    Application,
    /// The answers to one interaction. They wait for nothing else.
    Interaction(u64),
}

/// Marks the names of interactions' queues: Discord's snowflakes do not reach this before 2049.
const INTERACTION: i64 = 1 << 62;

impl Queue {
    /// Its name in the store: guilds as they are, users below zero, interactions far below.
    #[must_use]
    pub const fn number(self) -> i64 {
        match self {
            Self::Guild(id) => id as i64,
            Self::Application => 0,
            Self::User(id) => -(id as i64),
            Self::Interaction(id) => -(id as i64) - INTERACTION,
        }
    }

    /// The guild whose it is, if it is one's.
    #[must_use]
    pub const fn guild(self) -> Option<u64> {
        match self {
            Self::Guild(id) => Some(id),
            Self::User(_) | Self::Application | Self::Interaction(_) => None,
        }
    }

    /// The queue with this name.
    #[must_use]
    pub const fn from_number(number: i64) -> Self {
        match number {
            0 => Self::Application,
            1.. => Self::Guild(number as u64),
            _ if number <= -INTERACTION => Self::Interaction((-(number + INTERACTION)) as u64),
            _ => Self::User(-number as u64),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_queue_has_a_name_of_its_own() {
        let id = 1_571_715_189_416_398_849;
        for queue in [Queue::Guild(id), Queue::User(id), Queue::Application, Queue::Interaction(id), Queue::User(1)] {
            assert_eq!(Queue::from_number(queue.number()), queue);
        }
        assert_ne!(Queue::User(id).number(), Queue::Interaction(id).number());
    }
}
