//! Port to the shards of this process: their state, and how to restart one.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

guildhall_core::named_enum! {
    /// State of a shard.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum ShardState {
        /// It has a session that receives events.
        Connected = "connected",
        /// It is connecting, and has not received HELLO.
        Connecting = "connecting",
        /// It starts a session, or waits until it may.
        Identifying = "identifying",
        /// It resumes its session, and receives missed events.
        Resuming = "resuming",
        /// It waits before it connects again: for a backoff, or for room for events.
        Waiting = "waiting",
    }
}

/// A shard of this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardView {
    /// Number of the shard.
    pub shard: u32,
    /// Its state.
    pub state: ShardState,
    /// Its session id, if it has had a session.
    pub session: Option<Arc<str>>,
    /// Sequence number of the last event that it has read.
    pub sequence: u64,
    /// Every event up to this one was handled. `None` if that is unknown.
    pub confirmed: Option<u64>,
    /// Round-trip time of the last heartbeat. `None` before the first.
    pub latency: Option<Duration>,
    /// How often it has resumed a session in this process.
    pub resumes: u64,
    /// How often it has started a session in this process.
    pub identifies: u64,
}

/// Pending list of shards.
pub type ShardsFuture<'a> = Pin<Box<dyn Future<Output = Vec<ShardView>> + Send + 'a>>;

/// The shards of this process.
pub trait ShardAdmin: Send + Sync {
    /// Number of shards of the bot.
    fn total(&self) -> u32;

    /// The shards of this process, by number.
    fn shards(&self) -> ShardsFuture<'_>;

    /// Closes the connection of a shard without ending its session, and resumes it on a new connection. `false` if this
    /// process does not have the shard.
    fn restart(&self, shard: u32) -> bool;
}
