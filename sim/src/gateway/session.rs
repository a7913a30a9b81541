//! A session: the events of a bot's shard, with or without a connection.

use std::collections::{HashSet, VecDeque};

use super::gateway_state::ConnectionId;
use super::intents;
use super::replay::Replay;
use super::score::SessionScore;
use crate::id::Snowflake;
use crate::time::At;

/// Internal id of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct SessionKey(pub(crate) u64);

/// The part of a bot's guilds that a session receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Shard {
    pub(crate) id: u32,
    pub(crate) of: u32,
}

/// The connection of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SessionAttachment {
    Connection(ConnectionId),
    /// None since this time; the session is stored for a RESUME.
    Detached(At),
}

/// One session.
#[derive(Debug)]
pub(crate) struct Session {
    /// The id that clients know.
    pub(crate) id: String,
    pub(crate) application: Snowflake,
    pub(crate) user: Snowflake,
    pub(crate) shard: Shard,
    pub(crate) intents: u64,
    /// Number of the IDENTIFY that started it, counted from 1 since the simulator started.
    pub(crate) identify: u64,
    pub(crate) replay: Replay,
    pub(crate) attachment: SessionAttachment,
    pub(crate) unannounced: UnannouncedGuilds,
}

impl Session {
    /// Whether its intents include one of these.
    pub(crate) fn accepts(&self, intents: u64) -> bool {
        intents::matches(self.intents, intents)
    }

    /// How many more events it can certainly take: the first event of a guild also queues its GUILD_CREATE.
    pub(crate) fn free_capacity(&self) -> usize {
        self.replay.free_capacity().saturating_sub(self.unannounced.len())
    }

    pub(crate) fn score(&self, live: bool) -> SessionScore {
        SessionScore {
            application: self.application,
            shard: self.shard.id,
            shards: self.shard.of,
            identify: self.identify,
            events: self.replay.numbered(),
            replayed: self.replay.repeated(),
            sent_seq: self.replay.sent(),
            last_seq: self.replay.last(),
            live,
        }
    }
}

/// Guilds in READY whose GUILD_CREATE is not queued yet: they are encoded only when there is room, so that the JSON of
/// thousands of guilds is never in memory at once.
#[derive(Debug, Default)]
pub(crate) struct UnannouncedGuilds {
    order: VecDeque<Snowflake>,
    remaining: HashSet<Snowflake>,
}

impl UnannouncedGuilds {
    pub(crate) fn new(guilds: Vec<Snowflake>) -> Self {
        Self { remaining: guilds.iter().copied().collect(), order: guilds.into() }
    }

    pub(crate) fn len(&self) -> usize {
        self.remaining.len()
    }

    /// The next guild to announce.
    pub(crate) fn next(&mut self) -> Option<Snowflake> {
        while let Some(guild) = self.order.pop_front() {
            if self.remaining.remove(&guild) {
                return Some(guild);
            }
        }
        None
    }

    /// Removes a guild before its turn, because of an event of it; returns whether it was not announced yet.
    pub(crate) fn remove(&mut self, guild: Snowflake) -> bool {
        !self.remaining.is_empty() && self.remaining.remove(&guild)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guild_announced_early_is_not_announced_twice() {
        let guilds: Vec<_> = (1..=3).map(Snowflake::new).collect();
        let mut unannounced = UnannouncedGuilds::new(guilds.clone());
        assert!(unannounced.remove(guilds[1]));
        assert!(!unannounced.remove(guilds[1]));
        assert_eq!(unannounced.next(), Some(guilds[0]));
        assert_eq!(unannounced.next(), Some(guilds[2]));
        assert_eq!(unannounced.next(), None);
        assert_eq!(unannounced.len(), 0);
    }
}
