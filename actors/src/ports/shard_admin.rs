//! The port to the shards of this process: how each is, and connecting one anew.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

/// What a shard is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ShardState {
    /// It has a session that receives events.
    Connected,
    /// It makes a connection, and has not been greeted.
    Connecting,
    /// It begins a session, or waits for its turn to.
    Identifying,
    /// It goes on with its session, and is told what it has missed.
    Resuming,
    /// It waits before it connects again: for a while, or for room for what comes.
    Waiting,
}

impl ShardState {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Connected, Self::Connecting, Self::Identifying, Self::Resuming, Self::Waiting];

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Connected => "connected",
            Self::Connecting => "connecting",
            Self::Identifying => "identifying",
            Self::Resuming => "resuming",
            Self::Waiting => "waiting",
        }
    }
}

/// A shard of this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardView {
    /// Its number.
    pub shard: u32,
    /// What it does.
    pub state: ShardState,
    /// What Discord calls its session, if it has had one.
    pub session: Option<Arc<str>>,
    /// The number of the last event that it has read.
    pub sequence: u64,
    /// Every event up to this one was handled; nothing if that is not known.
    pub confirmed: Option<u64>,
    /// How long Discord took to answer the last heartbeat; nothing before the first.
    pub latency: Option<Duration>,
    /// How often it has resumed a session since this process has it.
    pub resumes: u64,
    /// How often it has begun one.
    pub identifies: u64,
}

/// How the shards of this process are.
pub type ShardsFuture<'a> = Pin<Box<dyn Future<Output = Vec<ShardView>> + Send + 'a>>;

/// The shards of this process.
pub trait ShardAdmin: Send + Sync {
    /// How many shards the bot has in all.
    fn total(&self) -> u32;

    /// Those of this process, by their numbers.
    fn shards(&self) -> ShardsFuture<'_>;

    /// Closes a shard's connection so that its session lives on, and makes another one that resumes it. `false` if this
    /// process does not have the shard.
    fn restart(&self, shard: u32) -> bool;
}
