//! Totals, paused queues, and the next due time.

use std::collections::BTreeMap;

use guildhall_actors::ports::{DEAD_EVENTS, DEAD_LETTERS};
use guildhall_core::{
    operation::{OperationState, Queue},
    time::UnixMs,
};
use sea_orm::{
    ColumnTrait as _, Condition, ConnectionTrait, EntityTrait, FromQueryResult, QueryFilter as _, QueryOrder as _,
    QuerySelect as _, Select, sea_query::Expr,
};

use super::MAX_ROWS;
use crate::store::sql;
use crate::store::{
    entities::{dead_letters, guild_queues, inbox, state, switches},
    error::EngineError,
    operation_row::{parse_state, time},
    rows::{query_as, query_scalar},
    write::{PAUSED, signed},
};

pub(in crate::store) async fn next_due(on: &impl ConnectionTrait) -> Result<Option<UnixMs>, EngineError> {
    Ok(query_scalar(on, sql::totals::NEXT_DUE, vec![PAUSED.into()]).await?.map(time))
}

pub(in crate::store) async fn paused(
    on: &impl ConnectionTrait,
    tenant: Option<&str>,
) -> Result<(bool, Vec<Queue>), EngineError> {
    use guild_queues::Column::{Queue as Number, Tenant};
    let switch = switches::Entity::find_by_id(PAUSED).all(on).await?;
    let of_tenant = Condition::all().add_option(tenant.map(|tenant| Tenant.eq(tenant)));
    // A constant: SQLite uses a partial index only if the text has the condition of the index.
    let queues = guild_queues::Entity::find().filter(Expr::cust("paused = 1")).filter(of_tenant);
    let queues = queues.select_only().column(Number).order_by_asc(Number).limit(MAX_ROWS as u64);
    let queues = queues.into_tuple::<i64>().all(on).await?;
    Ok((switch.iter().any(|switch| switch.is_on == 1), queues.into_iter().map(Queue::from_number).collect()))
}

#[derive(FromQueryResult)]
struct Depth {
    state: String,
    depth: i64,
}

pub(in crate::store) async fn depths(on: &impl ConnectionTrait) -> Result<BTreeMap<&'static str, u64>, EngineError> {
    let pending = OperationState::ALL.into_iter().filter(|state| !state.is_final());
    let select = sql::totals::depths(pending);
    let mut depths = BTreeMap::new();
    for row in query_as::<Depth>(on, &select, Vec::new()).await? {
        depths.insert(parse_state(&row.state)?.name(), row.depth.unsigned_abs());
    }
    // A dead letter that was redriven no longer needs attention.
    let letters = dead_letters::Entity::find().filter(dead_letters::Column::RedrivenAs.is_null());
    depths.insert(DEAD_LETTERS, count_rows(on, letters).await?);
    let events = inbox::Entity::find().filter(inbox::Column::Dead.is_not_null());
    depths.insert(DEAD_EVENTS, count_rows(on, events).await?);
    Ok(depths)
}

/// Counts rows from an index alone: the `count` of a paginator selects their columns.
async fn count_rows(on: &impl ConnectionTrait, rows: Select<impl EntityTrait>) -> Result<u64, EngineError> {
    let count = rows.select_only().expr(Expr::cust("COUNT(*)")).into_tuple::<i64>().one(on).await?;
    Ok(count.unwrap_or_default().unsigned_abs())
}

/// The states in which an operation waits for its turn, a limit or another attempt.
const WAITING: [OperationState; 4] =
    [OperationState::Queued, OperationState::Delayed, OperationState::Retrying, OperationState::Reconciling];

#[derive(FromQueryResult)]
struct OldestWaiting {
    state: String,
    since: Option<i64>,
}

/// Since when the operation waits that waits longest in each state: since its acceptance, or since it was due if it was
/// scheduled. `None` if no operation is in the state.
pub(in crate::store) async fn oldest_waiting(
    on: &impl ConnectionTrait,
) -> Result<BTreeMap<&'static str, Option<UnixMs>>, EngineError> {
    let select = sql::totals::oldest_waiting(WAITING);
    let rows: Vec<OldestWaiting> = query_as(on, &select, Vec::new()).await?;
    rows.into_iter().map(|row| Ok((parse_state(&row.state)?.name(), row.since.map(time)))).collect()
}

/// A state value, unless it has expired.
pub(in crate::store) async fn state(
    on: &impl ConnectionTrait,
    key: &str,
    now: UnixMs,
) -> Result<Option<String>, EngineError> {
    use state::Column::ExpiresAt;
    let is_valid = Condition::any().add(ExpiresAt.is_null()).add(ExpiresAt.gt(signed(now.millis())));
    let found = state::Entity::find_by_id(key).filter(is_valid).all(on).await?;
    Ok(found.into_iter().next().map(|row| row.value))
}
