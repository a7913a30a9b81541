//! Inputs that ended processes. Operations are finished when their queue is claimed. The counts of other inputs are
//! removed after the event supervisor has set them aside.

use std::collections::HashMap;

use guildhall_actors::crash::{CRASHES_BEFORE_SET_ASIDE, CrashedInput, Input};
use guildhall_actors::ports::{Claim, Fence, IntentUpdate, OperationUpdate, UpdateResult};
use guildhall_actors::telemetry::crash::OperationSetAside;
use guildhall_core::{
    operation::{Failure, FailureClass, OperationId, OperationKind, OperationState, Queue},
    time::UnixMs,
};
use sea_orm::DatabaseTransaction;

use super::{Context, EngineError, record};
use crate::store::{
    crashes::{CrashKey, OPERATION},
    operation_row::{read_u32, time},
    rows::{ColumnType, Columns, RowValue, Rows, query, with_rows},
};

/// Maximum number of rows that one sweep removes.
const SWEEP: i64 = 500;

/// Operations that ended enough processes and are not finished. There are seldom any.
pub(in crate::store) const CRASHED: &str =
    "SELECT c.operation, c.crashes, c.part, c.cause, o.queue, o.state, o.attempts,
    o.delays, o.eligible_at, o.guild_id, o.kind, CAST(CASE WHEN o.unknown_outcome IS NOT NULL
    OR o.progress IS NOT NULL OR EXISTS (SELECT 1 FROM intents i WHERE i.operation_id = o.id) THEN 1 ELSE 0 END AS BIGINT)
    FROM crashed_inputs c JOIN operations o ON o.id = c.operation
    WHERE c.kind = $1 AND c.crashes >= $2 AND o.finished_at IS NULL";

/// An operation that was finished because it ended processes.
#[derive(Debug)]
pub(super) struct SetAsideOperation {
    crashed: CrashedInput,
    kind: Option<OperationKind>,
    change: OperationUpdate,
}

impl SetAsideOperation {
    /// The telemetry event for it.
    pub(super) fn telemetry(&self) -> OperationSetAside<'_> {
        let Self { crashed, kind, change } = self;
        OperationSetAside { crashed, kind: *kind, guild: change.guild, result: change.state }
    }
}

/// Finishes operations of queues that were just claimed if they ended processes before, so that they are not continued
/// here.
pub(super) async fn set_aside(
    on: &DatabaseTransaction,
    context: &Context,
    claims: &[Claim],
) -> Result<Vec<SetAsideOperation>, EngineError> {
    if claims.is_empty() {
        return Ok(Vec::new());
    }
    let rows = query(on, CRASHED, vec![OPERATION.into(), i64::from(CRASHES_BEFORE_SET_ASIDE).into()]).await?;
    if rows.is_empty() {
        return Ok(Vec::new());
    }
    let fences: HashMap<Queue, Fence> = claims.iter().map(|claim| (claim.queue, claim.fence)).collect();
    let mut finished = Vec::new();
    for row in &rows {
        let queue = Queue::from_number(row.try_get_by_index(4)?);
        let Some(fence) = fences.get(&queue).copied() else { continue };
        let id = OperationId::from_uuid(row.try_get_by_index(0)?);
        let crashed = CrashedInput {
            input: Input::Operation(id),
            crashes: read_u32(row, 1)?,
            part: row.try_get_by_index(2)?,
            cause: row.try_get_by_index(3)?,
        };
        // An invalid value must not prevent the claim of the queue.
        let state = OperationState::from_name(&row.try_get_by_index::<String>(5)?);
        let started = state.is_none_or(|state| matches!(state, OperationState::Running | OperationState::Reconciling));
        let sent = started || row.try_get_by_index::<i64>(11)? != 0;
        let (end, error) = final_state(&crashed, sent);
        let at = UnixMs::new(u64::try_from(context.now()).unwrap_or(0));
        let change = OperationUpdate {
            queue,
            fence,
            id,
            guild: row.try_get_by_index::<Option<i64>>(9)?.map(i64::cast_unsigned),
            state: end,
            attempts: read_u32(row, 6).unwrap_or(0),
            delays: read_u32(row, 7).unwrap_or(0),
            eligible_at: time(row.try_get_by_index(8)?),
            parked: false,
            error: Some(error),
            result: None,
            created: None,
            intent: IntentUpdate::Unchanged,
            progress: None,
            attempt: None,
            unknown_outcome: None,
            bind: Vec::new(),
            unbind: Vec::new(),
            at,
        };
        finished.push(SetAsideOperation {
            crashed,
            kind: OperationKind::from_name(&row.try_get_by_index::<String>(10)?),
            change,
        });
    }
    let changes: Vec<OperationUpdate> = finished.iter().map(|one| one.change.clone()).collect();
    let recorded = record::record_updates(on, context, &[(0, changes.as_slice())]).await?;
    forget(on, finished.iter().map(|one| &one.crashed.input)).await?;
    let mut recorded = recorded.into_iter().flat_map(|(_, recorded)| recorded);
    finished.retain(|_| recorded.next() == Some(UpdateResult::Done));
    Ok(finished)
}

/// Final state of an operation that ended processes. It needs review if its call may have been sent.
fn final_state(crashed: &CrashedInput, sent: bool) -> (OperationState, Failure) {
    let reason = crashed.reason();
    if sent {
        let message = format!("{reason}. Its call may have been sent: check in Discord whether it happened");
        (OperationState::NeedsReview, Failure::new(FailureClass::Poison, message))
    } else {
        (OperationState::Dead, Failure::new(FailureClass::Poison, reason))
    }
}

/// Removes the crash counts of inputs.
pub(super) async fn forget<'a>(
    on: &DatabaseTransaction,
    inputs: impl IntoIterator<Item = &'a Input>,
) -> Result<(), EngineError> {
    const SHAPE: Columns = Columns(&[
        ("its_kind", ColumnType::Text),
        ("its_operation", ColumnType::Uuid),
        ("its_session", ColumnType::Text),
        ("its_seq", ColumnType::Number),
        ("its_handler", ColumnType::Text),
    ]);
    const FORGET: &str = "DELETE FROM crashed_inputs WHERE (kind, operation, session, seq, handler) IN
        (SELECT its_kind, its_operation, its_session, its_seq, its_handler FROM {v})";
    let mut rows = Rows::new();
    for key in inputs.into_iter().map(CrashKey::of) {
        rows.push(&[
            RowValue::Text(key.kind),
            RowValue::Uuid(key.operation),
            RowValue::Text(&key.session),
            RowValue::Number(key.seq),
            RowValue::Text(&key.handler),
        ]);
    }
    with_rows(on, FORGET, SHAPE, rows, Vec::new()).await?;
    Ok(())
}

/// Removes crashes that did not recur since then. Returns their number.
pub(super) async fn sweep(on: &DatabaseTransaction, before: i64) -> Result<usize, EngineError> {
    const DELETE: &str = "DELETE FROM crashed_inputs WHERE (kind, operation, session, seq, handler) IN
        (SELECT kind, operation, session, seq, handler FROM crashed_inputs WHERE last_at < $1
        ORDER BY last_at LIMIT $2 + 0) RETURNING kind";
    Ok(query(on, DELETE, vec![before.into(), SWEEP.into()]).await?.len())
}
