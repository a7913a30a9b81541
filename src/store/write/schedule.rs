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

use std::collections::{HashMap, HashSet};

use guildhall_core::{
    operation::{OperationId, OperationState, Queue},
    time::UnixMs,
};
use sea_orm::{DatabaseTransaction, FromQueryResult};
use uuid::Uuid;

use super::{BatchNeeds, Context, EngineError, WriteJob, WriteTx, signed};
use crate::store::rows::{Columns, Rows, columns, query_as, query_scalar, row, with_rows, with_rows_as};
use crate::store::sql;

/// Maximum number of operations that join in one statement.
const BATCH_SIZE: usize = 500;
/// Delay of the next check of an operation that waits for one of another queue which should have joined. That one wakes
/// it when it joins; this is the fallback.
const RETRY_DELAY_MS: i64 = 60_000;

const IDS: Columns = columns![op: Uuid];
const TIMES: Columns = columns![op: Uuid, at: Number];

/// Lets due scheduled operations of a queue join it, up to a limit. Returns the time when the next one is due.
pub(in crate::store) struct JoinDue {
    pub(in crate::store) queue: Queue,
    pub(in crate::store) now: UnixMs,
    pub(in crate::store) limit: usize,
}

impl WriteJob for JoinDue {
    type Output = Option<UnixMs>;

    fn prepare(&self, needs: &mut BatchNeeds<'_>) {
        needs.lock_queues([self.queue.number()]);
    }

    async fn run(&self, tx: &mut WriteTx<'_>) -> Result<Option<UnixMs>, EngineError> {
        let joined = join(tx, self.queue.number(), self.now, self.limit).await?;
        tx.operations_changed |= joined > 0;
        next_due(tx.on, self.queue.number()).await
    }
}

/// An operation that is due.
#[derive(FromQueryResult)]
struct DueOperation {
    id: Uuid,
    deadline_at: Option<i64>,
}

/// Lets due scheduled operations of a queue join it, up to a limit. Returns their number.
pub(super) async fn join(tx: &mut WriteTx<'_>, queue: i64, now: UnixMs, limit: usize) -> Result<usize, EngineError> {
    let (on, now, mut count) = (tx.on, signed(now.millis()), 0);
    while count < limit {
        let batch = signed(BATCH_SIZE.min(limit - count) as u64);
        let due: Vec<DueOperation> =
            query_as(on, sql::schedule::DUE, vec![queue.into(), now.into(), batch.into()]).await?;
        if due.is_empty() {
            break;
        }
        let targets = scheduled_targets(on, due.iter().map(|due| due.id)).await?;
        let (enqueued, postponed) = partition_due(&due, &targets, now);
        postpone(on, &postponed).await?;
        enqueue(on, tx.context, queue, &enqueued, now).await?;
        release(tx, &enqueued, now).await?;
        count += enqueued.len();
    }
    Ok(count)
}

/// Separates operations that join, in order, from those that have to wait for another, with the time until which they
/// wait.
fn partition_due(
    due: &[DueOperation],
    held: &HashMap<Uuid, Vec<(Uuid, i64)>>,
    now: i64,
) -> (Vec<Uuid>, Vec<(Uuid, i64)>) {
    let (mut enqueued, mut postponed, mut joins) = (Vec::new(), Vec::new(), HashSet::new());
    for DueOperation { id, deadline_at: deadline } in due {
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
    let mut held: HashMap<Uuid, Vec<(Uuid, i64)>> = HashMap::new();
    for row in with_rows(on, sql::schedule::SELECT_TARGETS, IDS, Rows::of(ids), Vec::new()).await? {
        let target = (row.try_get("", "id")?, row.try_get("", "joins_at")?);
        held.entry(row.try_get("", "operation_id")?).or_default().push(target);
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
    const PLACES: Columns = columns![op: Uuid, place: Number];
    if ids.is_empty() {
        return Ok(());
    }
    let count = signed(ids.len() as u64);
    let next: Option<i64> = query_scalar(on, sql::schedule::TAKE, vec![queue.into(), count.into()]).await?;
    let missing = || EngineError::Corrupt(format!("queue {queue} of scheduled operations does not exist"));
    let next = next.ok_or_else(missing)?;
    let mut rows = Rows::new();
    for (id, place) in ids.iter().zip(next - count..) {
        rows.push(row! { *id, place });
    }
    let (place, values) = context.change_seq.bind(sql::schedule::PLACE, vec![now.into()], 1);
    with_rows(on, &place, PLACES, rows, values).await?;
    Ok(())
}

async fn postpone(on: &DatabaseTransaction, times: &[(Uuid, i64)]) -> Result<(), EngineError> {
    let mut rows = Rows::new();
    for (id, at) in times {
        rows.push(row! { *id, *at });
    }
    with_rows(on, sql::schedule::UPDATE, TIMES, rows, Vec::new()).await?;
    Ok(())
}

/// A scheduled operation that refers to another one.
#[derive(FromQueryResult)]
struct Follower {
    id: Uuid,
    queue: i64,
    eligible_at: i64,
    deadline_at: Option<i64>,
    joins_at: i64,
}

/// These operations are no longer scheduled: those that refer to them join when they are due themselves, and their
/// queues are woken.
pub(super) async fn release(tx: &mut WriteTx<'_>, targets: &[Uuid], now: i64) -> Result<(), EngineError> {
    const READY: Columns = columns![line: Number, at: Number];
    let on = tx.on;
    let rows = Rows::of(targets.iter().copied());
    let follow: Vec<Follower> = with_rows_as(on, sql::schedule::FOLLOW, IDS, rows, Vec::new()).await?;
    if follow.is_empty() {
        return Ok(());
    }
    let held = scheduled_targets(on, follow.iter().map(|follower| follower.id)).await?;
    let (mut times, mut ready) = (Vec::new(), HashMap::new());
    for Follower { id, queue, eligible_at, deadline_at, joins_at } in follow {
        let others = held.get(&id).into_iter().flatten().map(|(_, at)| *at).max();
        // An operation that was already due keeps its turn.
        let at = now.max(eligible_at).min(joins_at).max(others.unwrap_or(i64::MIN));
        let at = deadline_at.map_or(at, |deadline| at.min(deadline));
        times.push((id, at));
        let first = ready.entry(queue).or_insert(at);
        *first = at.min(*first);
    }
    postpone(on, &times).await?;
    let mut lines: Vec<_> = ready.into_iter().collect();
    lines.sort_unstable();
    let mut rows = Rows::new();
    for (queue, at) in &lines {
        rows.push(row! { *queue, *at });
    }
    with_rows(on, sql::schedule::MAKE_READY, READY, rows, Vec::new()).await?;
    tx.woken.extend(lines.into_iter().map(|(queue, _)| queue));
    Ok(())
}

/// Lets an expedited operation join, unless it refers to a scheduled one. Returns its new state.
pub(super) async fn join_one(
    tx: &mut WriteTx<'_>,
    id: OperationId,
    queue: Queue,
    now: UnixMs,
) -> Result<OperationState, EngineError> {
    let (on, now) = (tx.on, signed(now.millis()));
    let held = scheduled_targets(on, std::iter::once(id.uuid())).await?;
    if let Some(at) = held.get(&id.uuid()).into_iter().flatten().map(|(_, at)| *at).max() {
        postpone(on, &[(id.uuid(), at)]).await?;
        return Ok(OperationState::Scheduled);
    }
    enqueue(on, tx.context, queue.number(), &[id.uuid()], now).await?;
    release(tx, &[id.uuid()], now).await?;
    Ok(OperationState::Queued)
}

async fn next_due(on: &DatabaseTransaction, queue: i64) -> Result<Option<UnixMs>, EngineError> {
    let first: Option<Option<i64>> = query_scalar(on, sql::schedule::FIRST, vec![queue.into()]).await?;
    Ok(first.flatten().map(crate::store::operation_row::time))
}
