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
use sea_orm::{DatabaseTransaction, FromQueryResult};
use uuid::Uuid;

use super::{EngineError, WriteJob, WriteTx, outcome};
use crate::store::sql;
use crate::store::{
    crashes::{CrashKey, OPERATION},
    operation_row::time,
    rows::{Columns, Rows, columns, query, query_as, row, with_rows},
};

/// Maximum number of rows that one sweep removes.
const SWEEP: i64 = 500;

#[derive(FromQueryResult)]
struct CrashedOperation {
    operation: Uuid,
    crashes: i64,
    part: String,
    cause: String,
    queue: i64,
    state: String,
    attempts: i64,
    delays: i64,
    eligible_at: i64,
    guild_id: Option<i64>,
    kind: String,
    /// Whether its call may have been sent.
    sent: i64,
}

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
pub(super) async fn set_aside(tx: &mut WriteTx<'_>, claims: &[Claim]) -> Result<(), EngineError> {
    if claims.is_empty() {
        return Ok(());
    }
    let values = vec![OPERATION.into(), i64::from(CRASHES_BEFORE_SET_ASIDE).into()];
    let rows: Vec<CrashedOperation> = query_as(tx.on, sql::crashes::CRASHED_OPERATIONS, values).await?;
    if rows.is_empty() {
        return Ok(());
    }
    let fences: HashMap<Queue, Fence> = claims.iter().map(|claim| (claim.queue, claim.fence)).collect();
    let mut finished = Vec::new();
    for row in rows {
        let queue = Queue::from_number(row.queue);
        let Some(fence) = fences.get(&queue).copied() else { continue };
        let id = OperationId::from_uuid(row.operation);
        let crashes =
            u32::try_from(row.crashes).map_err(|_| EngineError::Corrupt(format!("invalid count: {}", row.crashes)))?;
        let crashed = CrashedInput { input: Input::Operation(id), crashes, part: row.part, cause: row.cause };
        // An invalid value must not prevent the claim of the queue.
        let state = OperationState::from_name(&row.state);
        let started = state.is_none_or(|state| matches!(state, OperationState::Running | OperationState::Reconciling));
        let (end, error) = final_state(&crashed, started || row.sent != 0);
        let at = UnixMs::new(u64::try_from(tx.context.now()).unwrap_or(0));
        let change = OperationUpdate {
            queue,
            fence,
            id,
            guild: row.guild_id.map(i64::cast_unsigned),
            state: end,
            attempts: u32::try_from(row.attempts).unwrap_or(0),
            delays: u32::try_from(row.delays).unwrap_or(0),
            eligible_at: time(row.eligible_at),
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
        finished.push(SetAsideOperation { crashed, kind: OperationKind::from_name(&row.kind), change });
    }
    let changes: Vec<&OperationUpdate> = finished.iter().map(|one| &one.change).collect();
    let recorded = outcome::record_updates(tx, &changes).await?;
    forget(tx.on, finished.iter().map(|one| &one.crashed.input)).await?;
    let done = finished.into_iter().zip(recorded).filter(|(_, recorded)| *recorded == UpdateResult::Done);
    tx.set_aside.extend(done.map(|(one, _)| one));
    tx.operations_changed |= !tx.set_aside.is_empty();
    Ok(())
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

/// Removes the crash counts of inputs that were set aside.
pub(in crate::store) struct ForgetCrashes(pub(in crate::store) Vec<Input>);

impl WriteJob for ForgetCrashes {
    type Output = ();

    fn size(&self) -> (usize, usize) {
        (self.0.len(), 0)
    }

    async fn run(&self, tx: &mut WriteTx<'_>) -> Result<(), EngineError> {
        forget(tx.on, &self.0).await
    }
}

/// Removes the crash counts of inputs.
async fn forget<'a>(on: &DatabaseTransaction, inputs: impl IntoIterator<Item = &'a Input>) -> Result<(), EngineError> {
    const SHAPE: Columns = columns![
        its_kind: Text, its_operation: Uuid, its_session: Text, its_seq: Number, its_handler: Text,
    ];
    let mut rows = Rows::new();
    for key in inputs.into_iter().map(CrashKey::of) {
        rows.push(row! { key.kind, key.operation, &key.session, key.seq, &key.handler });
    }
    with_rows(on, sql::crashes::FORGET_INPUTS, SHAPE, rows, Vec::new()).await?;
    Ok(())
}

/// Removes crashes that did not recur since then. Returns their number.
pub(super) async fn sweep(on: &DatabaseTransaction, before: i64) -> Result<usize, EngineError> {
    Ok(query(on, sql::crashes::SWEEP_INPUTS, vec![before.into(), SWEEP.into()]).await?.len())
}
