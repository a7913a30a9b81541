//! Wait reasons of scheduled and queued operations, and of others whose queue is paused.

use std::collections::HashMap;

use guildhall_actors::ports::{DelayedBy, OperationDetails, WaitReason};
use guildhall_core::operation::{OperationId, OperationState};
use sea_orm::{ConnectionTrait, FromQueryResult};
use uuid::Uuid;

use crate::store::sql;
use crate::store::{
    error::EngineError,
    rows::{ColumnType, Columns, RowValue, Rows, with_rows_as},
    write::{PAUSED, signed},
};

/// Sets the wait reason of each operation, with one statement for the queued ones and one for the scheduled ones.
pub(super) async fn fill_in(on: &impl ConnectionTrait, operations: &mut [OperationDetails]) -> Result<(), EngineError> {
    let (queued, scheduled) = (queued(on, operations).await?, scheduled(on, operations).await?);
    for one in operations {
        let (stored, id) = (&one.stored, one.stored.operation.id.uuid());
        let by = || match stored.operation.delayed_by {
            DelayedBy::Caller => WaitReason::Delay,
            DelayedBy::Policy => WaitReason::Policy,
        };
        one.waits_for = match stored.state {
            OperationState::Scheduled => {
                Some(scheduled.get(&id).map_or_else(by, |target| WaitReason::Scheduled(*target)))
            }
            OperationState::Queued => queued.get(&id).copied(),
            // Their own reason is in their row, but a pause outlasts it.
            OperationState::Delayed | OperationState::Retrying | OperationState::Reconciling => {
                let is_pause = |reason: &WaitReason| matches!(reason, WaitReason::Paused | WaitReason::AllPaused);
                queued.get(&id).copied().filter(is_pause)
            }
            OperationState::Running
            | OperationState::Succeeded
            | OperationState::Dead
            | OperationState::Cancelled
            | OperationState::NeedsReview => None,
        };
    }
    Ok(())
}

/// Whether an operation in this state does not start while its queue is paused.
fn can_be_paused(state: OperationState) -> bool {
    match state {
        OperationState::Queued | OperationState::Delayed | OperationState::Retrying | OperationState::Reconciling => {
            true
        }
        OperationState::Scheduled
        | OperationState::Running
        | OperationState::Succeeded
        | OperationState::Dead
        | OperationState::Cancelled
        | OperationState::NeedsReview => false,
    }
}

#[derive(FromQueryResult)]
struct QueuedRow {
    op: Uuid,
    paused: i64,
    owner: Option<Uuid>,
    all_paused: i64,
    blocking: Option<Uuid>,
    /// The first before it, which may be parked.
    first: Option<Uuid>,
}

async fn queued(
    on: &impl ConnectionTrait,
    operations: &[OperationDetails],
) -> Result<HashMap<Uuid, WaitReason>, EngineError> {
    const SHAPE: Columns =
        Columns(&[("op", ColumnType::Uuid), ("line", ColumnType::Number), ("place", ColumnType::Number)]);
    let mut rows = Rows::new();
    for stored in operations.iter().map(|one| &one.stored).filter(|stored| can_be_paused(stored.state)) {
        let queue = stored.operation.queue.queue(&stored.operation.tenant);
        rows.push(&[
            RowValue::Uuid(stored.operation.id.uuid()),
            RowValue::Number(queue.number()),
            RowValue::Number(signed(stored.seq)),
        ]);
    }
    let mut waits = HashMap::new();
    for row in with_rows_as::<QueuedRow>(on, sql::wait_reasons::QUEUED, SHAPE, rows, vec![PAUSED.into()]).await? {
        let waits_for = match (row.blocking.or(row.first), row.owner) {
            _ if row.all_paused != 0 => WaitReason::AllPaused,
            _ if row.paused != 0 => WaitReason::Paused,
            (Some(before), _) => WaitReason::Behind(OperationId::from_uuid(before)),
            (None, None) => WaitReason::Owner,
            (None, Some(_)) => WaitReason::NextInQueue,
        };
        waits.insert(row.op, waits_for);
    }
    Ok(waits)
}

#[derive(FromQueryResult)]
struct TargetRow {
    op: Uuid,
    id: Uuid,
    joins_at: i64,
}

/// The scheduled operations that scheduled ones refer to: of several, the one that joins last.
async fn scheduled(
    on: &impl ConnectionTrait,
    operations: &[OperationDetails],
) -> Result<HashMap<Uuid, OperationId>, EngineError> {
    const SHAPE: Columns = Columns(&[("op", ColumnType::Uuid)]);
    let ids = operations
        .iter()
        .filter(|one| one.stored.state == OperationState::Scheduled)
        .map(|one| one.stored.operation.id);
    let rows = Rows::of(ids.map(|id| RowValue::Uuid(id.uuid())));
    let mut last: HashMap<Uuid, (i64, OperationId)> = HashMap::new();
    for row in with_rows_as::<TargetRow>(on, sql::wait_reasons::SCHEDULED, SHAPE, rows, Vec::new()).await? {
        let found = (row.joins_at, OperationId::from_uuid(row.id));
        let latest = last.entry(row.op).or_insert(found);
        *latest = found.max(*latest);
    }
    Ok(last.into_iter().map(|(id, (_, target))| (id, target)).collect())
}
