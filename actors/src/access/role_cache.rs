//! The permissions of guilds' roles, as recently read from Discord.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use foldhash::fast::RandomState;
use guildhall_core::access::GuildRoles;
use tokio::time::Instant;

/// Limits of the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoleCacheConfig {
    /// Maximum age of an entry. Events and this process's operations remove entries earlier; this is the limit for a
    /// process that receives no events of a guild.
    pub max_age: Duration,
    /// Maximum number of guilds. The least recently used one is removed first.
    pub max_guilds: usize,
}

impl Default for RoleCacheConfig {
    fn default() -> Self {
        Self { max_age: Duration::from_secs(10), max_guilds: 1_000 }
    }
}

/// The permissions of guilds' roles. Share it as an `Arc`.
#[derive(Debug)]
pub struct RoleCache {
    config: RoleCacheConfig,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    guilds: HashMap<u64, Entry, RandomState>,
    /// Reads in flight, and whether something has changed since they started.
    reads: HashMap<u64, Read, RandomState>,
    /// Counts uses and reads.
    ticks: u64,
}

#[derive(Debug)]
struct Entry {
    roles: Arc<GuildRoles>,
    read_at: Instant,
    used: u64,
}

#[derive(Debug)]
struct Read {
    guild: u64,
    is_outdated: bool,
}

impl State {
    fn tick(&mut self) -> u64 {
        self.ticks += 1;
        self.ticks
    }
}

/// A read of a guild's roles in flight. A drop ends it without a result.
#[derive(Debug)]
pub struct RoleRead<'a> {
    cache: &'a RoleCache,
    number: u64,
    guild: u64,
    started: Instant,
}

impl RoleCache {
    /// Creates an empty cache.
    #[must_use]
    pub fn new(config: RoleCacheConfig) -> Self {
        Self { config, state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The roles of a guild, if they were read recently and nothing is known to have changed since.
    #[must_use]
    pub fn get(&self, guild: u64) -> Option<Arc<GuildRoles>> {
        let mut state = self.state();
        let used = state.tick();
        let entry = state.guilds.get_mut(&guild)?;
        if entry.read_at.elapsed() >= self.config.max_age {
            state.guilds.remove(&guild);
            return None;
        }
        entry.used = used;
        Some(Arc::clone(&entry.roles))
    }

    /// Starts a read of a guild's roles. A change from now on makes the result outdated.
    #[must_use]
    pub fn start_read(&self, guild: u64) -> RoleRead<'_> {
        let started = Instant::now();
        let mut state = self.state();
        let number = state.tick();
        state.reads.insert(number, Read { guild, is_outdated: false });
        RoleRead { cache: self, number, guild, started }
    }

    /// Roles or overwrites of a guild have changed, or may have.
    pub fn invalidate(&self, guild: u64) {
        let mut state = self.state();
        state.guilds.remove(&guild);
        state.reads.values_mut().filter(|read| read.guild == guild).for_each(|read| read.is_outdated = true);
    }

    /// Roles or overwrites of some guild have changed, or may have.
    pub fn clear(&self) {
        let mut state = self.state();
        state.guilds.clear();
        state.reads.values_mut().for_each(|read| read.is_outdated = true);
    }
}

impl RoleRead<'_> {
    /// Caches the result, unless something has changed since the read started.
    pub fn finish(self, roles: GuildRoles) -> Arc<GuildRoles> {
        let roles = Arc::new(roles);
        let mut state = self.cache.state();
        let used = state.tick();
        if state.reads.get(&self.number).is_some_and(|read| !read.is_outdated) {
            let is_new = !state.guilds.contains_key(&self.guild);
            if is_new && state.guilds.len() >= self.cache.config.max_guilds {
                let oldest = state.guilds.iter().min_by_key(|(_, entry)| entry.used).map(|(guild, _)| *guild);
                oldest.map(|guild| state.guilds.remove(&guild));
            }
            let entry = Entry { roles: Arc::clone(&roles), read_at: self.started, used };
            state.guilds.insert(self.guild, entry);
        }
        roles
    }
}

impl Drop for RoleRead<'_> {
    fn drop(&mut self) {
        self.cache.state().reads.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn roles(bits: u64) -> GuildRoles {
        GuildRoles::new([(1, bits)], [])
    }

    fn cache(max_guilds: usize) -> RoleCache {
        RoleCache::new(RoleCacheConfig { max_guilds, ..RoleCacheConfig::default() })
    }

    #[tokio::test(start_paused = true)]
    async fn age_of_an_entry_counts_from_the_start_of_its_read() {
        let cache = cache(9);
        let read = cache.start_read(7);
        tokio::time::advance(Duration::from_secs(4)).await;
        read.finish(roles(8));
        assert_eq!(cache.get(7).as_deref(), Some(&roles(8)));
        tokio::time::advance(Duration::from_secs(6)).await;
        assert_eq!(cache.get(7), None);
    }

    #[tokio::test(start_paused = true)]
    async fn change_during_a_read_keeps_its_result_out_of_the_cache() {
        let cache = cache(9);
        let (first, second) = (cache.start_read(7), cache.start_read(8));
        cache.invalidate(7);
        assert_eq!(*first.finish(roles(8)), roles(8));
        second.finish(roles(4));
        assert_eq!(cache.get(7), None);
        assert!(cache.get(8).is_some());
        cache.clear();
        assert_eq!(cache.get(8), None);
    }

    #[tokio::test(start_paused = true)]
    async fn cache_and_its_reads_are_bounded() {
        let cache = cache(2);
        cache.start_read(1).finish(roles(1));
        cache.start_read(2).finish(roles(2));
        assert!(cache.get(1).is_some());
        cache.start_read(3).finish(roles(3));
        assert!(cache.get(1).is_some() && cache.get(3).is_some());
        assert_eq!(cache.get(2), None, "it was the least recently used");
        drop(cache.start_read(9));
        let state = cache.state();
        assert_eq!((state.guilds.len(), state.reads.len()), (2, 0));
    }
}
