//! The processes that share the store.

use std::{collections::HashMap, time::Duration};

use guildhall_actors::ports::Instance;
use guildhall_core::time::UnixMs;
use sea_orm::{ConnectionTrait, DbBackend};
use uuid::Uuid;

use crate::store::{
    cluster::MemberPhase,
    error::EngineError,
    operation_row::{read_u32, time},
    rows::query,
    write::signed,
};

/// Maximum number of processes in a list.
const MAX_LISTED: i64 = 1_000;

pub(in crate::store) async fn instances(
    on: &impl ConnectionTrait,
    own_id: Uuid,
    now: UnixMs,
) -> Result<Vec<Instance>, EngineError> {
    // Leases use the clock of the database; an SQLite file has none of its own.
    let clock = match on.get_database_backend() {
        DbBackend::Postgres => "(EXTRACT(EPOCH FROM clock_timestamp()) * 1000)::bigint",
        _ => "CAST($2 AS BIGINT)",
    };
    let select = format!(
        "SELECT i.id, i.name, i.started_at, {clock} - i.seen_at, i.lease_until - {clock}, i.leaving,
        (SELECT COUNT(*) FROM guild_queues q WHERE q.owner = i.id),
        (SELECT MAX(q.fence) FROM guild_queues q WHERE q.owner = i.id)
        FROM instances i ORDER BY i.started_at, i.id LIMIT $1"
    );
    let mut values = vec![MAX_LISTED.into()];
    if on.get_database_backend() != DbBackend::Postgres {
        values.push(signed(now.millis()).into());
    }
    let millis = |count: i64| Duration::from_millis(count.max(0).unsigned_abs());
    let mut shards = shards(on).await?;
    let mut instances = Vec::new();
    for row in query(on, &select, values).await? {
        let id: Uuid = row.try_get_by_index(0)?;
        let (lag, remaining): (i64, i64) = (row.try_get_by_index(3)?, row.try_get_by_index(4)?);
        let (phase, queues): (i64, i64) = (row.try_get_by_index(5)?, row.try_get_by_index(6)?);
        let fence: Option<i64> = row.try_get_by_index(7)?;
        let alone = id == own_id && on.get_database_backend() != DbBackend::Postgres;
        instances.push(Instance {
            id,
            name: row.try_get_by_index(1)?,
            is_self: id == own_id,
            started_at: time(row.try_get_by_index(2)?),
            // A process that is alone needs no heartbeat.
            heartbeat_age: if alone { Duration::ZERO } else { millis(lag) },
            lease_remaining: (!alone).then(|| millis(remaining)),
            starting: phase == MemberPhase::Arriving.number(),
            stopping: phase == MemberPhase::Leaving.number(),
            queues: queues.unsigned_abs(),
            highest_fence: fence.map(i64::unsigned_abs),
            shards: shards.remove(&id).unwrap_or_default(),
        });
    }
    Ok(instances)
}

/// The shards of each process, in order.
async fn shards(on: &impl ConnectionTrait) -> Result<HashMap<Uuid, Vec<u32>>, EngineError> {
    const OWNED: &str = "SELECT owner, shard FROM shard_owners WHERE owner IS NOT NULL ORDER BY shard";
    let mut owned: HashMap<Uuid, Vec<u32>> = HashMap::new();
    for row in query(on, OWNED, Vec::new()).await? {
        owned.entry(row.try_get_by_index(0)?).or_default().push(read_u32(&row, 1)?);
    }
    Ok(owned)
}
