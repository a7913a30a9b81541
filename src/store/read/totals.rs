//! Totals, paused queues, and the next due time.

use std::collections::BTreeMap;

use guildhall_actors::ports::{DEAD_EVENTS, DEAD_LETTERS};
use guildhall_core::{
    operation::{OperationState, Queue},
    time::UnixMs,
};
use sea_orm::{
    ColumnTrait as _, Condition, ConnectionTrait, EntityTrait as _, FromQueryResult, QueryFilter as _, QueryOrder as _,
    QuerySelect as _, sea_query::Expr,
};

use super::MAX_ROWS;
use crate::store::{
    entities::{guild_queues, state, switches},
    error::EngineError,
    operation_row::{parse_state, time},
    rows::{query_as, query_scalar},
    write::{PAUSED, signed},
};

pub(in crate::store) async fn next_due(on: &impl ConnectionTrait) -> Result<Option<UnixMs>, EngineError> {
    const SELECT: &str = "SELECT ready_at FROM guild_queues
        WHERE owner IS NULL AND paused = 0 AND ready_at IS NOT NULL
        AND NOT EXISTS (SELECT 1 FROM switches WHERE name = $1 AND is_on = 1) ORDER BY ready_at LIMIT 1";
    Ok(query_scalar(on, SELECT, vec![PAUSED.into()]).await?.map(time))
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
    // One count for each state, each from the index by state: grouping would also read finished operations.
    let count = |state: OperationState| {
        format!("SELECT '{0}' AS state, COUNT(*) AS depth FROM operations WHERE state = '{0}'", state.name())
    };
    let select = pending.map(count).collect::<Vec<_>>().join(" UNION ALL ");
    let mut depths = BTreeMap::new();
    for row in query_as::<Depth>(on, &select, Vec::new()).await? {
        depths.insert(parse_state(&row.state)?.name(), row.depth.unsigned_abs());
    }
    // A dead letter that was redriven no longer needs attention.
    for (name, select) in [
        (DEAD_LETTERS, "SELECT COUNT(*) FROM dead_letters WHERE redriven_as IS NULL"),
        (DEAD_EVENTS, "SELECT COUNT(*) FROM inbox WHERE dead IS NOT NULL"),
    ] {
        let count: Option<i64> = query_scalar(on, select, Vec::new()).await?;
        depths.insert(name, count.unwrap_or_default().unsigned_abs());
    }
    Ok(depths)
}

/// The states in which an operation waits for its turn, a limit or another attempt.
const WAITING: [OperationState; 4] =
    [OperationState::Queued, OperationState::Delayed, OperationState::Retrying, OperationState::Reconciling];

/// Number of operations in each state that are read to find the one that waits longest. They are read in the order of
/// acceptance, which differs from the order of waiting only for operations that were scheduled.
const OLDEST_READ: u32 = 256;

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
    let oldest = |state: OperationState| {
        format!(
            "SELECT '{0}' AS state, MIN(w.since) AS since FROM (SELECT COALESCE(o.joined_at, o.created_at) AS since
            FROM operations o WHERE o.state = '{0}' ORDER BY o.id LIMIT {OLDEST_READ}) AS w",
            state.name()
        )
    };
    let select = WAITING.map(oldest).join(" UNION ALL ");
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
