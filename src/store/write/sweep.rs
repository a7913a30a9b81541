//! Removes rows whose retention has ended.

use std::time::Duration;

use guildhall_actors::ports::{Retention, SweepSummary};
use guildhall_core::{operation::OperationState, time::UnixMs};
use sea_orm::{DatabaseTransaction, QueryResult};
use uuid::Uuid;

use super::{Context, EngineError, change_seq, interactions, locations, signed};
use crate::store::rows::{ColumnType, Columns, RowValue, Rows, query, with_rows};

/// Maximum number of rows of a kind that one sweep removes: small enough not to delay other jobs for long.
const SWEEP: i64 = 500;

/// Removes rows whose retention has ended, a small batch of each kind.
pub(super) async fn sweep(
    on: &DatabaseTransaction,
    context: &Context,
    retention: Retention,
    now: UnixMs,
) -> Result<SweepSummary, EngineError> {
    const DELETE_DEAD_LETTERS: &str = "DELETE FROM dead_letters WHERE id IN
        (SELECT id FROM dead_letters WHERE died_at <= $1 ORDER BY died_at LIMIT $2 + 0) RETURNING caller, tenant, bytes";
    const KEYS: &str = "DELETE FROM idempotency WHERE (scope, key) IN (SELECT scope, key FROM idempotency
        WHERE expires_at IS NOT NULL AND expires_at <= $1 ORDER BY expires_at LIMIT $2 + 0) RETURNING scope, tenant, bytes";
    const STATE: &str = "DELETE FROM state WHERE key IN (SELECT key FROM state
        WHERE expires_at IS NOT NULL AND expires_at <= $1 ORDER BY expires_at LIMIT $2 + 0) RETURNING key";
    // A wrong clock of a caller must not expire anything early.
    let now = context.expiry(now);
    let ended = [
        (OperationState::Succeeded, retention.completed),
        (OperationState::Cancelled, retention.completed),
        (OperationState::Dead, retention.failed),
        (OperationState::NeedsReview, retention.dead_letters),
    ];
    let (mut operations, mut highest) = (0, None);
    for (state, retention) in ended {
        let (count, change) = sweep_operations(on, context, state, before(now, retention)).await?;
        operations += count;
        highest = highest.max(change);
    }
    if let Some(change) = highest {
        change_seq::record_removed(on, change).await?;
    }
    let bound = |at: UnixMs| vec![signed(at.millis()).into(), SWEEP.into()];
    let letters = query(on, DELETE_DEAD_LETTERS, bound(before(now, retention.dead_letters))).await?;
    let keys = query(on, KEYS, bound(now)).await?;
    context.count_removed(&letters, 0)?;
    context.count_removed(&keys, 0)?;
    context.usage.merge(on).await?;
    let state = query(on, STATE, bound(now)).await?;
    locations::sweep(on, now).await?;
    let received = interactions::sweep(on, now).await?;
    Ok(SweepSummary {
        operations,
        dead_letters: letters.len() as u64,
        keys: keys.len() as u64,
        state: state.len() as u64,
        interactions: received.expired,
        interactions_dropped: received.dropped,
    })
}

fn before(now: UnixMs, retention: Duration) -> UnixMs {
    now.before(retention)
}

/// Removes operations of one state to which no pending operation refers.
pub(in crate::store) const OPERATIONS: &str = "DELETE FROM operations WHERE id IN (SELECT o.id FROM operations o
    WHERE o.state = $1 AND o.finished_at IS NOT NULL AND o.finished_at <= $2
    AND NOT EXISTS (SELECT 1 FROM operation_refs r WHERE r.target = o.id)
    ORDER BY o.finished_at LIMIT $3 + 0) RETURNING id, queue, changed, caller, tenant, bytes";

/// Returns the number of removed operations, and their highest change sequence number.
async fn sweep_operations(
    on: &DatabaseTransaction,
    context: &Context,
    state: OperationState,
    before: UnixMs,
) -> Result<(u64, Option<i64>), EngineError> {
    let values = vec![state.name().into(), signed(before.millis()).into(), SWEEP.into()];
    let gone = query(on, OPERATIONS, values).await?;
    Ok((gone.len() as u64, after_removal(on, context, &gone).await?))
}

/// Removes what belongs to removed operations. `gone` has rows of id, queue, change, caller, tenant and bytes. Returns
/// the highest change sequence number.
pub(super) async fn after_removal(
    on: &DatabaseTransaction,
    context: &Context,
    gone: &[QueryResult],
) -> Result<Option<i64>, EngineError> {
    const IDS: Columns = Columns(&[("op", ColumnType::Uuid)]);
    const LINES: Columns = Columns(&[("line", ColumnType::Number)]);
    const ATTEMPTS: &str = "DELETE FROM operation_attempts WHERE operation_id IN (SELECT op FROM {v})";
    // Queues of interactions and users are temporary.
    const QUEUES: &str = "DELETE FROM guild_queues WHERE queue IN (SELECT line FROM {v}) AND queue < 0 AND pending = 0
        AND owner IS NULL AND paused = 0 AND NOT EXISTS (SELECT 1 FROM operations o WHERE o.queue = guild_queues.queue)";
    if gone.is_empty() {
        return Ok(None);
    }
    context.count_removed(gone, 3)?;
    let ids = gone.iter().map(|row| row.try_get_by_index::<Uuid>(0)).collect::<Result<Vec<_>, _>>()?;
    with_rows(on, ATTEMPTS, IDS, Rows::of(ids.into_iter().map(RowValue::Uuid)), Vec::new()).await?;
    let line = |row: &QueryResult| row.try_get_by_index::<i64>(1);
    let lines = gone.iter().map(line).collect::<Result<Vec<_>, _>>()?;
    let lines = Rows::of(lines.into_iter().filter(|line| *line < 0).map(RowValue::Number));
    if !lines.is_empty() {
        with_rows(on, QUEUES, LINES, lines, Vec::new()).await?;
    }
    let changes = gone.iter().map(|row| row.try_get_by_index::<i64>(2)).collect::<Result<Vec<_>, _>>()?;
    Ok(changes.into_iter().max())
}
