//! Guilds, by name and tenant.

use std::{collections::BTreeMap, sync::Arc};

use guildhall_actors::access::DEFAULT_TENANT;
use guildhall_actors::ports::{GuildFilter, GuildPage, KnownGuild};
use sea_orm::{
    ColumnTrait as _, Condition, ConnectionTrait, EntityTrait as _, QueryFilter as _, QueryOrder as _, QuerySelect as _,
};

use super::MAX_ROWS;
use crate::store::{
    entities::{guild_names, guild_queues},
    error::EngineError,
};

/// Guilds with a name, and guilds with a queue, merged by id.
///
/// Both are read up to the limit. If one of them has more, nothing behind its last id is returned: the other may lack
/// guilds there.
pub(in crate::store) async fn guilds(
    on: &impl ConnectionTrait,
    filter: &GuildFilter,
) -> Result<GuildPage, EngineError> {
    let limit = filter.limit.min(MAX_ROWS);
    let after = i64::try_from(filter.after).unwrap_or(i64::MAX);
    let wanted: Option<Vec<i64>> =
        filter.guilds.as_ref().map(|guilds| guilds.iter().map(|id| id.cast_signed()).collect());
    let queues = queues(on, filter.tenant.as_deref(), wanted.as_deref(), after, limit).await?;
    // A guild without a queue belongs to the default tenant.
    let names = if filter.tenant.as_deref().is_none_or(|tenant| tenant == DEFAULT_TENANT) {
        names(on, wanted.as_deref(), after, limit).await?
    } else {
        BTreeMap::new()
    };
    let full = |map_len: usize, last: Option<i64>| last.filter(|_| map_len == limit);
    let ends = [
        full(queues.len(), queues.last_key_value().map(|(id, _)| *id)),
        full(names.len(), names.last_key_value().map(|(id, _)| *id)),
    ];
    let end = ends.into_iter().flatten().min();

    let tenants = tenants(on, names.keys().filter(|id| !queues.contains_key(id)).copied()).await?;
    let nameless = queues.keys().filter(|id| !names.contains_key(id)).copied().collect::<Vec<_>>();
    let more_names = self::names(on, Some(&nameless), i64::MIN, nameless.len()).await?;
    let mut all: BTreeMap<i64, KnownGuild> = BTreeMap::new();
    for id in queues.keys().chain(names.keys()).copied().filter(|id| end.is_none_or(|end| *id <= end)) {
        let tenant = queues.get(&id).or_else(|| tenants.get(&id));
        let tenant = tenant.map_or(DEFAULT_TENANT, String::as_str);
        if filter.tenant.as_deref().is_some_and(|own| own != tenant) {
            continue;
        }
        let name = names.get(&id).or_else(|| more_names.get(&id)).cloned();
        all.insert(id, KnownGuild { id: id.cast_unsigned(), name, tenant: Arc::from(tenant) });
    }
    let mut guilds: Vec<KnownGuild> = all.into_values().collect();
    let mut next = end.map(i64::cast_unsigned);
    if guilds.len() > limit {
        guilds.truncate(limit);
        next = guilds.last().map(|guild| guild.id);
    }
    Ok(GuildPage { guilds, next })
}

/// The fence of a guild's queue, if it has one.
pub(in crate::store) async fn queue_fence(on: &impl ConnectionTrait, guild: u64) -> Result<Option<u64>, EngineError> {
    let Ok(queue) = i64::try_from(guild) else { return Ok(None) };
    let select = guild_queues::Entity::find_by_id(queue).select_only().column(guild_queues::Column::Fence);
    let fence = select.into_tuple::<i64>().one(on).await?;
    Ok(fence.map(i64::unsigned_abs))
}

/// Tenants of the guilds that have a queue.
async fn queues(
    on: &impl ConnectionTrait,
    tenant: Option<&str>,
    wanted: Option<&[i64]>,
    after: i64,
    limit: usize,
) -> Result<BTreeMap<i64, String>, EngineError> {
    use guild_queues::Column::{Queue, Tenant};
    // Queues of guilds have the guild's id as their number; others are negative.
    let matches = Condition::all()
        .add(Queue.gt(after.max(0)))
        .add_option(tenant.map(|tenant| Tenant.eq(tenant)))
        .add_option(wanted.map(|ids| Queue.is_in(ids.iter().copied())));
    let select = guild_queues::Entity::find().select_only().columns([Queue, Tenant]).filter(matches);
    let rows = select.order_by_asc(Queue).limit(limit as u64).into_tuple::<(i64, String)>().all(on).await?;
    Ok(rows.into_iter().collect())
}

async fn names(
    on: &impl ConnectionTrait,
    wanted: Option<&[i64]>,
    after: i64,
    limit: usize,
) -> Result<BTreeMap<i64, String>, EngineError> {
    use guild_names::Column::GuildId;
    if wanted.is_some_and(<[i64]>::is_empty) {
        return Ok(BTreeMap::new());
    }
    let matches =
        Condition::all().add(GuildId.gt(after)).add_option(wanted.map(|ids| GuildId.is_in(ids.iter().copied())));
    let select = guild_names::Entity::find().filter(matches).order_by_asc(GuildId).limit(limit as u64);
    Ok(select.all(on).await?.into_iter().map(|row| (row.guild_id, row.name)).collect())
}

async fn tenants(
    on: &impl ConnectionTrait,
    ids: impl Iterator<Item = i64>,
) -> Result<BTreeMap<i64, String>, EngineError> {
    let ids: Vec<i64> = ids.collect();
    if ids.is_empty() {
        return Ok(BTreeMap::new());
    }
    queues(on, None, Some(&ids), 0, ids.len()).await
}
