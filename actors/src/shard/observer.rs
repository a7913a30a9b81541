//! Status events of shards.

use std::{sync::Arc, time::Duration};

use guildhall_core::event::{GuildChange, ShardGuilds};

/// A status event of a shard. Gateway events do not come here: they go to the shard's sender.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ShardEvent {
    /// The shard has a session that receives events.
    Connected {
        /// Shard number.
        shard: u32,
        /// Whether the session is new.
        session: SessionKind,
    },
    /// The shard has lost the connection of that session. It reconnects by itself, unless it was closed on purpose.
    Disconnected {
        /// Shard number.
        shard: u32,
    },
    /// Roles of a guild, or overwrites of its channels, have changed or may have changed.
    PermissionsChanged {
        /// The guild.
        guild: u64,
    },
    /// The bot has joined or left a guild, or a guild has a name.
    GuildChanged(GuildChange),
    /// A new session has started, with these guilds.
    GuildsListed(ShardGuilds),
    /// The shard needs a new session, and the daily session starts are used up.
    OutOfIdentifies {
        /// Shard number.
        shard: u32,
        /// Time until the next one is available.
        retry_in: Duration,
    },
}

/// How a shard got its session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionKind {
    /// By IDENTIFY and READY.
    New,
    /// By RESUME and RESUMED.
    Resumed,
}

/// Receives status events. It is called on the threads of the shards and must not block, because heartbeats wait for
/// it.
pub type ShardObserver = Arc<dyn Fn(ShardEvent) + Send + Sync>;
