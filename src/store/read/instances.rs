//! The processes that share the store.

use std::{collections::HashMap, time::Duration};

use guildhall_actors::ports::Instance;
use guildhall_core::time::UnixMs;
use sea_orm::{
    ColumnTrait as _, ConnectionTrait, DbBackend, DbErr, EntityTrait as _, FromQueryResult, PaginatorTrait as _,
    QueryFilter as _, QueryOrder as _, QuerySelect as _, sea_query::Expr,
};
use uuid::Uuid;

use crate::store::{
    cluster::MemberPhase,
    entities::{instances, shard_owners},
    error::EngineError,
    operation_row::{count, time},
    rows::query_as,
    sql::{self, cluster::NOW},
    write::signed,
};

/// Maximum number of processes in a list.
const MAX_LISTED: i64 = 1_000;

#[derive(FromQueryResult)]
struct InstanceRow {
    id: Uuid,
    name: String,
    started_at: i64,
    lag: i64,
    remaining: i64,
    leaving: i64,
    queues: i64,
    fence: Option<i64>,
}

pub(in crate::store) async fn instances(
    on: &impl ConnectionTrait,
    own_id: Uuid,
    now: UnixMs,
) -> Result<Vec<Instance>, EngineError> {
    let is_postgres = on.get_database_backend() == DbBackend::Postgres;
    let select = sql::cluster::instances(is_postgres);
    let mut values = vec![MAX_LISTED.into()];
    values.extend((!is_postgres).then(|| signed(now.millis()).into()));
    let millis = |count: i64| Duration::from_millis(count.max(0).unsigned_abs());
    let mut shards = shards(on).await?;
    let instance = |row: InstanceRow| {
        let is_self = row.id == own_id;
        let alone = is_self && !is_postgres;
        Instance {
            id: row.id,
            name: row.name,
            is_self,
            started_at: time(row.started_at),
            // A process that is alone needs no heartbeat.
            heartbeat_age: if alone { Duration::ZERO } else { millis(row.lag) },
            lease_remaining: (!alone).then(|| millis(row.remaining)),
            starting: row.leaving == MemberPhase::Arriving.number(),
            stopping: row.leaving == MemberPhase::Leaving.number(),
            queues: row.queues.unsigned_abs(),
            highest_fence: row.fence.map(i64::unsigned_abs),
            shards: shards.remove(&row.id).unwrap_or_default(),
        }
    };
    Ok(query_as(on, &select, values).await?.into_iter().map(instance).collect())
}

/// Number of processes of a PostgreSQL store that have a valid lease.
pub(in crate::store) async fn count_live(on: &impl ConnectionTrait) -> Result<u64, DbErr> {
    // A store of an older program may lack other columns.
    let select = instances::Entity::find().select_only().column(instances::Column::Id);
    select.filter(Expr::cust(format!("lease_until > {NOW}"))).count(on).await
}

/// The shards of each process, in order.
async fn shards(on: &impl ConnectionTrait) -> Result<HashMap<Uuid, Vec<u32>>, EngineError> {
    use shard_owners::Column::{Owner, Shard};
    let mut owned: HashMap<Uuid, Vec<u32>> = HashMap::new();
    for row in shard_owners::Entity::find().filter(Owner.is_not_null()).order_by_asc(Shard).all(on).await? {
        if let Some(owner) = row.owner {
            owned.entry(owner).or_default().push(count(row.shard)?);
        }
    }
    Ok(owned)
}
