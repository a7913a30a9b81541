//! Recording the guilds that the bot is in.

use std::collections::{BTreeMap, BTreeSet};

use guildhall_core::event::{GuildChange, ShardGuilds};
use sea_orm::{EntityTrait as _, PaginatorTrait as _, QuerySelect as _};

use super::{EngineError, WriteJob, WriteTx};
use crate::store::sql;
use crate::store::{
    entities::guild_names,
    rows::{Columns, Rows, columns, row, with_rows},
};

const NAMES: Columns = columns![its_id: Number, its_name: Text];
const IDS: Columns = columns![its_id: Number];

/// Stores names of guilds, at most as many as permitted, and removes guilds that the bot has left.
pub(in crate::store) struct RecordGuilds {
    pub(in crate::store) changes: Vec<GuildChange>,
    pub(in crate::store) max: usize,
}

impl WriteJob for RecordGuilds {
    type Output = ();

    fn size(&self) -> (usize, usize) {
        let bytes = self.changes.iter().map(|change| match change {
            GuildChange::Named { name, .. } => name.len(),
            GuildChange::Left { .. } => 0,
        });
        (self.changes.len(), bytes.sum())
    }

    async fn run(&self, tx: &mut WriteTx<'_>) -> Result<(), EngineError> {
        // Sorted, so that no two processes wait for each other's rows.
        let last: BTreeMap<u64, &GuildChange> = self.changes.iter().map(|change| (change.guild(), change)).collect();
        let (mut named, mut left) = (BTreeMap::new(), Vec::new());
        for (guild, change) in last {
            match change {
                GuildChange::Named { name, .. } => drop(named.insert(guild.cast_signed(), name)),
                GuildChange::Left { .. } => left.push(guild.cast_signed()),
            }
        }
        with_rows(tx.on, sql::guilds::REMOVE, IDS, Rows::of(left), Vec::new()).await?;
        let stored = with_rows(tx.on, sql::guilds::STORED, IDS, Rows::of(named.keys().copied()), Vec::new()).await?;
        let stored = stored.iter().map(|row| row.try_get("", "guild_id")).collect::<Result<BTreeSet<i64>, _>>()?;
        let count = guild_names::Entity::find().count(tx.on).await?;
        let mut room = self.max.saturating_sub(usize::try_from(count).unwrap_or(usize::MAX));
        let mut rows = Rows::new();
        for (id, name) in named {
            if stored.contains(&id) {
                rows.push(row! { id, name });
            } else if room > 0 {
                room -= 1;
                rows.push(row! { id, name });
            }
        }
        with_rows(tx.on, sql::guilds::UPSERT, NAMES, rows, Vec::new()).await?;
        Ok(())
    }
}

/// Removes the names of guilds that a new session of their shard does not list.
impl WriteJob for ShardGuilds {
    type Output = ();

    async fn run(&self, tx: &mut WriteTx<'_>) -> Result<(), EngineError> {
        let listed: BTreeSet<u64> = self.guilds.iter().copied().collect();
        let stored = guild_names::Entity::find().select_only().column(guild_names::Column::GuildId);
        let stored = stored.into_tuple::<i64>().all(tx.on).await?;
        let is_gone = |id: &i64| self.covers(id.cast_unsigned()) && !listed.contains(&id.cast_unsigned());
        let mut gone: Vec<i64> = stored.into_iter().filter(is_gone).collect();
        gone.sort_unstable();
        with_rows(tx.on, sql::guilds::REMOVE, IDS, Rows::of(gone), Vec::new()).await?;
        Ok(())
    }
}
