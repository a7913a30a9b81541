//! Totals, paused queues, and the next due time.

use std::collections::BTreeMap;

use guildhall_core::{
    operation::{OperationState, Queue},
    time::UnixMs,
};
use sea_orm::ConnectionTrait;

use super::MAX_ROWS;
use crate::store::{
    error::EngineError,
    operation_row::{parse_state, time},
    rows::query,
    write::{PAUSED, signed},
};

/// Name of dead letters among the depths.
const DEAD_LETTERS: &str = "dead_letters";
/// Name of dead events among the depths.
const DEAD_EVENTS: &str = "dead_events";

pub(in crate::store) async fn next_due(on: &impl ConnectionTrait) -> Result<Option<UnixMs>, EngineError> {
    const SELECT: &str = "SELECT ready_at FROM guild_queues
        WHERE owner IS NULL AND paused = 0 AND ready_at IS NOT NULL
        AND NOT EXISTS (SELECT 1 FROM switches WHERE name = $1 AND is_on = 1) ORDER BY ready_at LIMIT 1";
    let rows = query(on, SELECT, vec![PAUSED.into()]).await?;
    Ok(rows.first().map(|row| row.try_get_by_index(0)).transpose()?.map(time))
}

pub(in crate::store) async fn paused(
    on: &impl ConnectionTrait,
    tenant: Option<&str>,
) -> Result<(bool, Vec<Queue>), EngineError> {
    let all = query(on, "SELECT 1 FROM switches WHERE name = $1 AND is_on = 1", vec![PAUSED.into()]).await?;
    let max = i64::try_from(MAX_ROWS).unwrap_or(i64::MAX);
    let select = "SELECT queue FROM guild_queues WHERE paused = 1 AND tenant = COALESCE($2, tenant)
        ORDER BY queue LIMIT $1 + 0";
    let queues = query(on, select, vec![max.into(), tenant.map(str::to_owned).into()]).await?;
    let queues = queues.iter().map(|row| row.try_get_by_index(0).map(Queue::from_number)).collect::<Result<_, _>>()?;
    Ok((!all.is_empty(), queues))
}

pub(in crate::store) async fn depths(on: &impl ConnectionTrait) -> Result<BTreeMap<&'static str, u64>, EngineError> {
    let pending = OperationState::ALL.into_iter().filter(|state| !state.is_final());
    // One count for each state, each from the index by state: grouping would also read finished operations.
    let count =
        |state: OperationState| format!("SELECT '{0}', COUNT(*) FROM operations WHERE state = '{0}'", state.name());
    let select = pending.map(count).collect::<Vec<_>>().join(" UNION ALL ");
    let mut depths = BTreeMap::new();
    for row in query(on, &select, Vec::new()).await? {
        let state = parse_state(&row.try_get_by_index::<String>(0)?)?;
        let count: i64 = row.try_get_by_index(1)?;
        depths.insert(state.name(), count.unsigned_abs());
    }
    // A dead letter that was redriven no longer needs attention.
    for (name, select) in [
        (DEAD_LETTERS, "SELECT COUNT(*) FROM dead_letters WHERE redriven_as IS NULL"),
        (DEAD_EVENTS, "SELECT COUNT(*) FROM inbox WHERE dead IS NOT NULL"),
    ] {
        let counted = query(on, select, Vec::new()).await?;
        let count: i64 = counted.first().map_or(Ok(0), |row| row.try_get_by_index(0))?;
        depths.insert(name, count.unsigned_abs());
    }
    Ok(depths)
}

/// A state value, unless it has expired.
pub(in crate::store) async fn state(
    on: &impl ConnectionTrait,
    key: &str,
    now: UnixMs,
) -> Result<Option<String>, EngineError> {
    let select = "SELECT value FROM state WHERE key = $1 AND (expires_at IS NULL OR expires_at > $2)";
    let rows = query(on, select, vec![key.into(), signed(now.millis()).into()]).await?;
    Ok(rows.first().map(|row| row.try_get_by_index(0)).transpose()?)
}
