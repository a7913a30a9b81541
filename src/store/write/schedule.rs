//! Scheduled operations: they have no position in their queue, and take one when they are due.
//!
//! ```text
//!  submit ─▶ scheduled (joins_at, seq < 0) ─▶ due: queued (seq > 0, the next of its queue)
//!                 ▲ refers to a scheduled one: joins no sooner than that one
//! ```
//!
//! Only scheduled operations have `joins_at`. A negative `seq` is the order of acceptance. No process holds a scheduled
//! operation in memory, so any writer to the queue may let due ones join. Every submission does, so a scheduled
//! operation precedes all that were accepted after it was due.

use std::collections::{BTreeSet, HashMap, HashSet};

use guildhall_core::{
    operation::{OperationId, OperationState, Queue},
    time::UnixMs,
};
use sea_orm::DatabaseTransaction;
use uuid::Uuid;

use super::{Context, EngineError, signed};
use crate::store::rows::{ColumnType, Columns, RowValue, Rows, query, with_rows};

/// Maximum number of operations that join in one statement.
const BATCH_SIZE: usize = 500;
/// Delay of the next check of an operation that waits for one of another queue which should have joined. That one wakes
/// it when it joins; this is the fallback.
const RETRY_DELAY_MS: i64 = 60_000;

const IDS: Columns = Columns(&[("op", ColumnType::Uuid)]);
const TIMES: Columns = Columns(&[("op", ColumnType::Uuid), ("at", ColumnType::Number)]);

/// Due operations of a queue, in the order in which they join.
pub(in crate::store) const DUE: &str = "SELECT o.id, o.deadline_at FROM operations o
    WHERE o.queue = $1 AND o.joins_at IS NOT NULL AND o.joins_at <= $2 ORDER BY o.joins_at, o.seq DESC LIMIT $3 + 0";

/// Time when the first scheduled operation of a queue is due.
pub(in crate::store) const FIRST: &str =
    "SELECT MIN(s.joins_at) FROM operations s WHERE s.queue = $1 AND s.joins_at IS NOT NULL";

/// Result of a join.
#[derive(Debug, Default, PartialEq, Eq)]
pub(in crate::store) struct EnqueueResult {
    /// Number of operations that have joined.
    pub(in crate::store) count: usize,
    /// Time when the next one of the queue is due.
    pub(in crate::store) next: Option<UnixMs>,
}

/// An operation that is due.
struct DueOperation {
    id: Uuid,
    deadline: Option<i64>,
}

/// Lets due scheduled operations of a queue join it, up to a limit. Adds queues to `woken` in which others may join
/// now.
pub(super) async fn join(
    on: &DatabaseTransaction,
    context: &Context,
    queue: i64,
    now: UnixMs,
    limit: usize,
    woken: &mut BTreeSet<i64>,
) -> Result<EnqueueResult, EngineError> {
    let now = signed(now.millis());
    let mut joined = EnqueueResult::default();
    while joined.count < limit {
        let batch = signed(BATCH_SIZE.min(limit - joined.count) as u64);
        let rows = query(on, DUE, vec![queue.into(), now.into(), batch.into()]).await?;
        let due: Vec<DueOperation> = rows
            .iter()
            .map(|row| {
                Ok::<_, EngineError>(DueOperation { id: row.try_get_by_index(0)?, deadline: row.try_get_by_index(1)? })
            })
            .collect::<Result<_, _>>()?;
        if due.is_empty() {
            break;
        }
        let targets = scheduled_targets(on, due.iter().map(|due| due.id)).await?;
        let (enqueued, postponed) = partition_due(&due, &targets, now);
        postpone(on, &postponed).await?;
        enqueue(on, context, queue, &enqueued, now).await?;
        release(on, &enqueued, now, woken).await?;
        joined.count += enqueued.len();
    }
    joined.next = next_due(on, queue).await?;
    Ok(joined)
}

/// Separates operations that join, in order, from those that have to wait for another, with the time until which they
/// wait.
fn partition_due(
    due: &[DueOperation],
    held: &HashMap<Uuid, Vec<(Uuid, i64)>>,
    now: i64,
) -> (Vec<Uuid>, Vec<(Uuid, i64)>) {
    let (mut enqueued, mut postponed, mut joins) = (Vec::new(), Vec::new(), HashSet::new());
    for DueOperation { id, deadline } in due {
        let expired = deadline.is_some_and(|deadline| deadline <= now);
        let targets = held.get(id).into_iter().flatten().filter(|(target, _)| !joins.contains(target));
        match targets.map(|(_, at)| *at).max() {
            // An operation past its deadline joins, and is finished before it could run.
            Some(at) if !expired => {
                let at = at.max(now + RETRY_DELAY_MS);
                postponed.push((*id, deadline.map_or(at, |deadline| at.min(deadline))));
            }
            Some(_) | None => {
                joins.insert(*id);
                enqueued.push(*id);
            }
        }
    }
    (enqueued, postponed)
}

/// The scheduled operations that each of these refers to, with the times when they join.
async fn scheduled_targets(
    on: &DatabaseTransaction,
    ids: impl Iterator<Item = Uuid>,
) -> Result<HashMap<Uuid, Vec<(Uuid, i64)>>, EngineError> {
    const SELECT: &str = "SELECT r.operation_id, t.id, t.joins_at FROM {v}
        JOIN operation_refs r ON r.operation_id = v.op JOIN operations t ON t.id = r.target WHERE t.joins_at IS NOT NULL";
    let mut held: HashMap<Uuid, Vec<(Uuid, i64)>> = HashMap::new();
    for row in with_rows(on, SELECT, IDS, Rows::of(ids.map(RowValue::Uuid)), Vec::new()).await? {
        let target = (row.try_get_by_index(1)?, row.try_get_by_index(2)?);
        held.entry(row.try_get_by_index(0)?).or_default().push(target);
    }
    Ok(held)
}

/// Gives operations the next positions of their queue.
async fn enqueue(
    on: &DatabaseTransaction,
    context: &Context,
    queue: i64,
    ids: &[Uuid],
    now: i64,
) -> Result<(), EngineError> {
    const TAKE: &str = "UPDATE guild_queues SET next_seq = next_seq + $2 WHERE queue = $1 RETURNING next_seq";
    const PLACES: Columns = Columns(&[("op", ColumnType::Uuid), ("place", ColumnType::Number)]);
    const PLACE: &str = "UPDATE operations SET state = 'queued', seq = v.place, joins_at = NULL, updated_at = $2,
        changed = {changed} FROM {v} WHERE id = v.op AND joins_at IS NOT NULL";
    if ids.is_empty() {
        return Ok(());
    }
    let count = signed(ids.len() as u64);
    let rows = query(on, TAKE, vec![queue.into(), count.into()]).await?;
    let next: i64 = match rows.first() {
        Some(row) => row.try_get_by_index(0)?,
        None => {
            return Err(EngineError::Corrupt(format!("queue {queue} of scheduled operations does not exist")));
        }
    };
    let mut rows = Rows::new();
    for (id, place) in ids.iter().zip(next - count..) {
        rows.push(&[RowValue::Uuid(*id), RowValue::Number(place)]);
    }
    let (place, values) = context.change_seq.bind(PLACE, vec![now.into()], 1);
    with_rows(on, &place, PLACES, rows, values).await?;
    Ok(())
}

async fn postpone(on: &DatabaseTransaction, times: &[(Uuid, i64)]) -> Result<(), EngineError> {
    const UPDATE: &str = "UPDATE operations SET joins_at = v.at FROM {v} WHERE id = v.op AND joins_at IS NOT NULL";
    let mut rows = Rows::new();
    for (id, at) in times {
        rows.push(&[RowValue::Uuid(*id), RowValue::Number(*at)]);
    }
    with_rows(on, UPDATE, TIMES, rows, Vec::new()).await?;
    Ok(())
}

/// These operations are no longer scheduled: those that refer to them join when they are due themselves. Adds their
/// queues to `woken`.
pub(super) async fn release(
    on: &DatabaseTransaction,
    targets: &[Uuid],
    now: i64,
    woken: &mut BTreeSet<i64>,
) -> Result<(), EngineError> {
    const FOLLOW: &str = "SELECT o.id, o.queue, o.eligible_at, o.deadline_at, o.joins_at FROM {v}
        JOIN operation_refs r ON r.target = v.op JOIN operations o ON o.id = r.operation_id WHERE o.joins_at IS NOT NULL";
    const READY: Columns = Columns(&[("line", ColumnType::Number), ("at", ColumnType::Number)]);
    const MAKE_READY: &str = "UPDATE guild_queues SET ready_at = v.at FROM {v} WHERE queue = v.line
        AND (ready_at IS NULL OR ready_at > v.at)";
    let rows = Rows::of(targets.iter().copied().map(RowValue::Uuid));
    let follow = with_rows(on, FOLLOW, IDS, rows, Vec::new()).await?;
    if follow.is_empty() {
        return Ok(());
    }
    let ids: Vec<Uuid> = follow.iter().map(|row| row.try_get_by_index(0)).collect::<Result<_, _>>()?;
    let held = scheduled_targets(on, ids.iter().copied()).await?;
    let (mut times, mut ready) = (Vec::new(), HashMap::new());
    for (row, id) in follow.iter().zip(ids) {
        let (queue, own): (i64, i64) = (row.try_get_by_index(1)?, row.try_get_by_index(2)?);
        let (deadline, before): (Option<i64>, i64) = (row.try_get_by_index(3)?, row.try_get_by_index(4)?);
        let others = held.get(&id).into_iter().flatten().map(|(_, at)| *at).max();
        // An operation that was already due keeps its turn.
        let at = now.max(own).min(before).max(others.unwrap_or(i64::MIN));
        let at = deadline.map_or(at, |deadline| at.min(deadline));
        times.push((id, at));
        let first = ready.entry(queue).or_insert(at);
        *first = at.min(*first);
    }
    postpone(on, &times).await?;
    let mut lines: Vec<_> = ready.into_iter().collect();
    lines.sort_unstable();
    let mut rows = Rows::new();
    for (queue, at) in &lines {
        rows.push(&[RowValue::Number(*queue), RowValue::Number(*at)]);
    }
    with_rows(on, MAKE_READY, READY, rows, Vec::new()).await?;
    woken.extend(lines.into_iter().map(|(queue, _)| queue));
    Ok(())
}

/// Lets an expedited operation join, unless it refers to a scheduled one. Returns its new state.
pub(super) async fn join_one(
    on: &DatabaseTransaction,
    context: &Context,
    id: OperationId,
    queue: Queue,
    now: UnixMs,
    woken: &mut BTreeSet<i64>,
) -> Result<OperationState, EngineError> {
    let now = signed(now.millis());
    let held = scheduled_targets(on, std::iter::once(id.uuid())).await?;
    if let Some(at) = held.get(&id.uuid()).into_iter().flatten().map(|(_, at)| *at).max() {
        postpone(on, &[(id.uuid(), at)]).await?;
        return Ok(OperationState::Scheduled);
    }
    enqueue(on, context, queue.number(), &[id.uuid()], now).await?;
    release(on, &[id.uuid()], now, woken).await?;
    Ok(OperationState::Queued)
}

async fn next_due(on: &DatabaseTransaction, queue: i64) -> Result<Option<UnixMs>, EngineError> {
    let rows = query(on, FIRST, vec![queue.into()]).await?;
    let first: Option<i64> = rows.first().map_or(Ok(None), |row| row.try_get_by_index(0))?;
    Ok(first.map(crate::store::operation_row::time))
}
