//! What concerns one operation, and is rare.

use guildhall_core::{
    operation::{OperationId, Queue, State},
    time::UnixMs,
};
use sea_orm::{DatabaseTransaction, QueryResult};

use super::{
    Context, Trouble,
    finish::{self, Ended},
    queues, signed,
};
use crate::store::{operation_row::state_named, rows::query};

/// Takes an operation back, if it was never sent, or is known not to have happened.
pub(super) async fn cancel(
    on: &DatabaseTransaction,
    context: &Context,
    id: OperationId,
    now: UnixMs,
) -> Result<Option<(State, Queue)>, Trouble> {
    const CANCEL: &str =
        "UPDATE operations SET state = 'cancelled', updated_at = $2, finished_at = $2, changed = {changed}
        WHERE id = $1 AND state IN ('queued', 'delayed') AND attempts = 0
            AND NOT EXISTS (SELECT 1 FROM intents i WHERE i.operation_id = operations.id)
        RETURNING state, queue";
    let (cancel, values) = context.stamp.put(CANCEL, vec![id.uuid().into(), signed(now.millis()).into()], 0);
    let cancelled = query(on, &cancel, values).await?;
    let Some((state, queue)) = cancelled.first().map(standing).transpose()? else {
        return as_it_stands(on, id).await;
    };
    finish::all(on, context, &[Ended { id, queue, state, result: None, at: now }]).await?;
    // What waited behind it may be due long before it would have been.
    queues::look_again(on, queue).await?;
    Ok(Some((state, queue)))
}

/// Makes an operation that waits due now. One that is to be looked for is not hastened: its call may still be under way.
pub(super) async fn hasten(
    on: &DatabaseTransaction,
    context: &Context,
    id: OperationId,
    now: UnixMs,
) -> Result<Option<(State, Queue)>, Trouble> {
    const HASTEN: &str = "UPDATE operations SET eligible_at = $2, updated_at = $2, changed = {changed}
        WHERE id = $1 AND state IN ('queued', 'delayed', 'retrying') AND eligible_at > $2
        RETURNING state, queue";
    const READY: &str =
        "UPDATE guild_queues SET ready_at = $2 WHERE queue = $1 AND (ready_at IS NULL OR ready_at > $2)";
    let now = signed(now.millis());
    let (hasten, values) = context.stamp.put(HASTEN, vec![id.uuid().into(), now.into()], 0);
    let hastened = query(on, &hasten, values).await?;
    let Some((state, queue)) = hastened.first().map(standing).transpose()? else {
        return as_it_stands(on, id).await;
    };
    query(on, READY, vec![queue.number().into(), now.into()]).await?;
    Ok(Some((state, queue)))
}

async fn as_it_stands(on: &DatabaseTransaction, id: OperationId) -> Result<Option<(State, Queue)>, Trouble> {
    let rows = query(on, "SELECT state, queue FROM operations WHERE id = $1", vec![id.uuid().into()]).await?;
    rows.first().map(standing).transpose()
}

fn standing(row: &QueryResult) -> Result<(State, Queue), Trouble> {
    let state: String = row.try_get_by_index(0)?;
    Ok((state_named(&state)?, Queue::from_number(row.try_get_by_index(1)?)))
}
