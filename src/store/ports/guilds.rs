//! Implements the port for guilds on [`Store`].

use guildhall_actors::ports::{GuildStore, StoreFuture};
use guildhall_core::event::{GuildChange, ShardGuilds};

use crate::store::{Store, write::guilds::RecordGuilds};

impl GuildStore for Store {
    fn record_guilds(&self, changes: Vec<GuildChange>, max: usize) -> StoreFuture<'_, ()> {
        Box::pin(self.write(RecordGuilds { changes, max }))
    }

    fn retain_guilds(&self, listed: ShardGuilds) -> StoreFuture<'_, ()> {
        Box::pin(self.write(listed))
    }
}
