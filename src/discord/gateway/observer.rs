//! What shards tell whoever watches whether they are there.

use std::{sync::Arc, time::Duration};

/// What a shard tells whoever watches it. Events go another way: to its feed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShardEvent {
    /// It has a session that receives events.
    Connected {
        /// Its number.
        shard: u32,
        /// Whether the session is a new one.
        session: SessionKind,
    },
    /// It has lost that session's connection. It connects again by itself, unless it was closed on purpose.
    Disconnected {
        /// Its number.
        shard: u32,
    },
    /// Roles of a guild or overwrites of its channels have changed, or may have.
    PermissionsChanged {
        /// The guild.
        guild: u64,
    },
    /// It needs a new session, and the day's are used up.
    OutOfIdentifies {
        /// Its number.
        shard: u32,
        /// When there is one again.
        again_in: Duration,
    },
}

/// How a shard came to have a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionKind {
    /// With IDENTIFY and READY.
    New,
    /// With RESUME and RESUMED.
    Resumed,
}

/// Whoever watches. It is called where shards run, and must not block, since heartbeats wait for it.
pub type ShardObserver = Arc<dyn Fn(ShardEvent) + Send + Sync>;
