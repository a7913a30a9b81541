//! Index of sessions by shard, to find the sessions of an event without a scan of all sessions.

use std::collections::HashMap;

use super::session::{SessionKey, Shard};
use crate::id::Snowflake;

/// The sessions of all bots, by bot and shard.
#[derive(Debug, Default)]
pub(crate) struct SessionIndex {
    /// There are few bots, and one bot uses few shard counts at the same time: lists are faster than maps.
    bots: Vec<(Snowflake, Vec<Sharding>)>,
}

#[derive(Debug)]
struct Sharding {
    of: u32,
    shards: HashMap<u32, Vec<SessionKey>>,
}

impl SessionIndex {
    pub(crate) fn add(&mut self, application: Snowflake, shard: Shard, session: SessionKey) {
        let index = self.bots.iter().position(|(bot, _)| *bot == application).unwrap_or_else(|| {
            self.bots.push((application, Vec::new()));
            self.bots.len() - 1
        });
        let shardings = &mut self.bots[index].1;
        let index = shardings.iter().position(|sharding| sharding.of == shard.of).unwrap_or_else(|| {
            shardings.push(Sharding { of: shard.of, shards: HashMap::new() });
            shardings.len() - 1
        });
        shardings[index].shards.entry(shard.id).or_default().push(session);
    }

    pub(crate) fn remove(&mut self, application: Snowflake, shard: Shard, session: SessionKey) {
        for (_, shardings) in self.bots.iter_mut().filter(|(bot, _)| *bot == application) {
            for sharding in shardings.iter_mut().filter(|sharding| sharding.of == shard.of) {
                if let Some(sessions) = sharding.shards.get_mut(&shard.id) {
                    sessions.retain(|other| *other != session);
                    if sessions.is_empty() {
                        sharding.shards.remove(&shard.id);
                    }
                }
            }
            shardings.retain(|sharding| !sharding.shards.is_empty());
        }
        self.bots.retain(|(_, shardings)| !shardings.is_empty());
    }

    /// The sessions of this guild, for the bots that `is_member` accepts.
    pub(crate) fn sessions_of_guild<'a>(
        &'a self,
        guild: Snowflake,
        is_member: impl Fn(Snowflake) -> bool + 'a,
    ) -> impl Iterator<Item = SessionKey> + 'a {
        self.bots
            .iter()
            .filter(move |(bot, _)| is_member(*bot))
            .flat_map(|(_, shardings)| shardings)
            .filter_map(move |sharding| sharding.shards.get(&guild.shard(sharding.of)))
            .flatten()
            .copied()
    }

    /// The sessions of one shard.
    pub(crate) fn sessions_of_shard(
        &self,
        application: Snowflake,
        shard: Shard,
    ) -> impl Iterator<Item = SessionKey> + '_ {
        self.shardings(application)
            .filter(move |sharding| sharding.of == shard.of)
            .filter_map(move |sharding| sharding.shards.get(&shard.id))
            .flatten()
            .copied()
    }

    /// The sessions of a bot's shard 0, for any number of shards.
    pub(crate) fn sessions_of_first_shards(&self, application: Snowflake) -> impl Iterator<Item = SessionKey> + '_ {
        self.shardings(application).filter_map(|sharding| sharding.shards.get(&0)).flatten().copied()
    }

    /// All sessions of a bot.
    pub(crate) fn sessions_of_bot(&self, application: Snowflake) -> impl Iterator<Item = SessionKey> + '_ {
        self.shardings(application).flat_map(|sharding| sharding.shards.values()).flatten().copied()
    }

    fn shardings(&self, application: Snowflake) -> impl Iterator<Item = &Sharding> + '_ {
        self.bots.iter().filter(move |(bot, _)| *bot == application).flat_map(|(_, shardings)| shardings)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOT: Snowflake = Snowflake::new(1);
    const OTHER: Snowflake = Snowflake::new(2);

    fn session_index() -> SessionIndex {
        let mut index = SessionIndex::default();
        for id in 0..4 {
            index.add(BOT, Shard { id, of: 4 }, SessionKey(u64::from(id)));
        }
        index.add(BOT, Shard { id: 0, of: 1 }, SessionKey(10));
        index.add(OTHER, Shard { id: 0, of: 1 }, SessionKey(20));
        index
    }

    #[test]
    fn guild_is_found_by_its_shard_in_every_sharding() {
        let guild = Snowflake::new(6 << 22);
        let mut readers: Vec<_> = session_index().sessions_of_guild(guild, |bot| bot == BOT).collect();
        readers.sort();
        assert_eq!(readers, [SessionKey(2), SessionKey(10)]);
        assert_eq!(session_index().sessions_of_guild(guild, |_| true).count(), 3);
    }

    #[test]
    fn direct_events_go_to_shard_zero_only() {
        let mut readers: Vec<_> = session_index().sessions_of_first_shards(BOT).collect();
        readers.sort();
        assert_eq!(readers, [SessionKey(0), SessionKey(10)]);
    }

    #[test]
    fn removed_session_leaves_no_entry() {
        let mut index = session_index();
        for id in 0..4 {
            index.remove(BOT, Shard { id, of: 4 }, SessionKey(u64::from(id)));
        }
        assert_eq!(index.sessions_of_bot(BOT).collect::<Vec<_>>(), [SessionKey(10)]);
        index.remove(BOT, Shard { id: 0, of: 1 }, SessionKey(10));
        index.remove(OTHER, Shard { id: 0, of: 1 }, SessionKey(20));
        assert!(index.bots.is_empty());
    }
}
