//! Cancels or expedites one operation.

use std::collections::BTreeSet;

use guildhall_core::{
    operation::{OperationId, OperationState, Queue},
    time::UnixMs,
};
use sea_orm::{DatabaseTransaction, QueryResult, Value};

use super::{
    Context, EngineError,
    finish::{self, FinishedOperation},
    queues, schedule, signed,
};
use crate::store::{operation_row::parse_state, rows::query};

/// Cancels an operation, if it was never sent, or is known to have had no effect.
pub(super) async fn cancel(
    on: &DatabaseTransaction,
    context: &Context,
    id: OperationId,
    now: UnixMs,
    required_tenant: Option<&str>,
    woken: &mut BTreeSet<i64>,
) -> Result<Option<(OperationState, Queue)>, EngineError> {
    const CANCEL: &str =
        "UPDATE operations SET state = 'cancelled', updated_at = $2, finished_at = $2, joins_at = NULL, changed = {changed}
        WHERE id = $1 AND tenant = COALESCE($3, tenant) AND state IN ('scheduled', 'queued', 'delayed') AND attempts = 0
            AND progress IS NULL AND unknown_outcome IS NULL AND NOT EXISTS (SELECT 1 FROM intents i WHERE i.operation_id = operations.id)
        RETURNING state, queue, caller, tenant";
    let (cancel, values) = context.change_seq.bind(CANCEL, values(id, now, required_tenant), 0);
    let caller = context.tenant_scope(required_tenant);
    caller.begin(on).await?;
    let cancelled = query(on, &cancel, values).await?;
    let current = current_state(on, id, required_tenant).await?;
    caller.end(on).await?;
    let Some((state, queue)) = cancelled.first().map(read_state).transpose()? else {
        return Ok(current);
    };
    for row in &cancelled {
        let (caller, tenant): (String, String) = (row.try_get_by_index(2)?, row.try_get_by_index(3)?);
        context.usage.count_finished(&caller, &tenant, 0);
    }
    finish::finish_operations(on, context, &[FinishedOperation { id, queue, state, result: None, at: now }]).await?;
    schedule::release(on, &[id.uuid()], signed(now.millis()), woken).await?;
    // Operations behind it may be due long before it would have been.
    queues::refresh_ready_at(on, queue).await?;
    Ok(Some((state, queue)))
}

/// Makes a waiting operation due now. Does not expedite an operation that is to be reconciled: its call may still be in
/// flight.
pub(super) async fn expedite(
    on: &DatabaseTransaction,
    context: &Context,
    id: OperationId,
    now: UnixMs,
    required_tenant: Option<&str>,
    woken: &mut BTreeSet<i64>,
) -> Result<Option<(OperationState, Queue)>, EngineError> {
    const EXPEDITE: &str = "UPDATE operations SET eligible_at = $2, updated_at = $2, changed = {changed}
        WHERE id = $1 AND tenant = COALESCE($3, tenant) AND state IN ('scheduled', 'queued', 'delayed', 'retrying')
        AND eligible_at > $2
        RETURNING state, queue";
    const READY: &str =
        "UPDATE guild_queues SET ready_at = $2 WHERE queue = $1 AND (ready_at IS NULL OR ready_at > $2)";
    let (expedite, values) = context.change_seq.bind(EXPEDITE, values(id, now, required_tenant), 0);
    let caller = context.tenant_scope(required_tenant);
    caller.begin(on).await?;
    let expedited = query(on, &expedite, values).await?;
    let current = current_state(on, id, required_tenant).await?;
    caller.end(on).await?;
    let Some((mut state, queue)) = expedited.first().map(read_state).transpose()? else {
        return Ok(current);
    };
    if state == OperationState::Scheduled {
        state = schedule::join_one(on, context, id, queue, now, woken).await?;
    }
    query(on, READY, vec![queue.number().into(), signed(now.millis()).into()]).await?;
    Ok(Some((state, queue)))
}

/// The operation, the time, and the tenant that it must belong to.
fn values(id: OperationId, now: UnixMs, tenant: Option<&str>) -> Vec<Value> {
    vec![id.uuid().into(), signed(now.millis()).into(), tenant.map(str::to_owned).into()]
}

async fn current_state(
    on: &DatabaseTransaction,
    id: OperationId,
    tenant: Option<&str>,
) -> Result<Option<(OperationState, Queue)>, EngineError> {
    const SELECT: &str = "SELECT state, queue FROM operations WHERE id = $1 AND tenant = COALESCE($2, tenant)";
    let rows = query(on, SELECT, vec![id.uuid().into(), tenant.map(str::to_owned).into()]).await?;
    rows.first().map(read_state).transpose()
}

fn read_state(row: &QueryResult) -> Result<(OperationState, Queue), EngineError> {
    let state: String = row.try_get_by_index(0)?;
    Ok((parse_state(&state)?, Queue::from_number(row.try_get_by_index(1)?)))
}
