//! Guilds in the store, and the port that records those that the bot is in.

use std::sync::Arc;

use guildhall_core::event::{GuildChange, ShardGuilds};

use super::StoreFuture;

/// Which guilds to list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GuildFilter {
    /// Only guilds of this tenant.
    pub tenant: Option<Arc<str>>,
    /// Only these guilds.
    pub guilds: Option<Vec<u64>>,
    /// Only guilds with a higher id.
    pub after: u64,
    /// Maximum number of guilds.
    pub limit: usize,
}

/// A guild that the store knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownGuild {
    /// Its id.
    pub id: u64,
    /// Its name; `None` if it is known only from an operation or a pause.
    pub name: Option<String>,
    /// Its tenant.
    pub tenant: Arc<str>,
}

/// A page of guilds, in the order of their ids.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GuildPage {
    /// The guilds. There may be fewer than the limit although more follow.
    pub guilds: Vec<KnownGuild>,
    /// `after` of the next page, unless this is the last one.
    pub next: Option<u64>,
}

/// Records the guilds that the bot is in, by id and name.
pub trait GuildStore: Send + Sync {
    /// Stores names, and removes guilds that the bot has left. A new guild is not stored if there are `max` already. Of
    /// several changes of one guild the last counts.
    fn record_guilds(&self, changes: Vec<GuildChange>, max: usize) -> StoreFuture<'_, ()>;

    /// Removes the names of guilds of a shard that are not among these: the bot has left them while it was not connected.
    fn retain_guilds(&self, listed: ShardGuilds) -> StoreFuture<'_, ()>;
}
