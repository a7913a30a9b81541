//! Cancels or expedites one operation.

use std::sync::Arc;

use guildhall_core::{
    operation::{OperationId, OperationState, Queue},
    time::UnixMs,
};
use sea_orm::{ColumnTrait as _, Condition, EntityTrait as _, QueryFilter as _, QueryResult, Value, sea_query::Expr};

use super::{
    BatchNeeds, EngineError, WriteJob, WriteTx,
    finish::{self, FinishedOperation},
    queues, schedule, signed,
};
use crate::store::sql;
use crate::store::{
    entities::guild_queues::{self, Column::ReadyAt},
    operation_row::parse_state,
    rows::query,
};

/// State and queue of an operation after the job; `None` if the operation does not exist.
type Moved = Option<(OperationState, Queue)>;

/// The operation to change.
pub(in crate::store) struct CancelTarget {
    pub(in crate::store) id: OperationId,
    pub(in crate::store) now: UnixMs,
    /// Tenant that the operation must belong to.
    pub(in crate::store) tenant: Option<Arc<str>>,
}

/// Cancels an operation, if it was never sent, or is known to have had no effect.
pub(in crate::store) struct Cancel(pub(in crate::store) CancelTarget);

/// Makes a waiting operation due now. Does not expedite an operation that is to be reconciled: its call may still be in
/// flight.
pub(in crate::store) struct Expedite(pub(in crate::store) CancelTarget);

impl WriteJob for Cancel {
    type Output = Moved;

    fn prepare(&self, needs: &mut BatchNeeds<'_>) {
        needs.lock_queue_of(self.0.id);
    }

    async fn run(&self, tx: &mut WriteTx<'_>) -> Result<Moved, EngineError> {
        let CancelTarget { id, now, .. } = self.0;
        let (changed, moved) = self.0.update(tx, sql::cancel::CANCEL).await?;
        if let (Some(row), Some((state, queue))) = (changed, moved) {
            let (caller, tenant): (String, String) = (row.try_get("", "caller")?, row.try_get("", "tenant")?);
            tx.context.usage.count_finished(&caller, &tenant, 0);
            let finished = FinishedOperation { id, queue, state, result: None, at: now };
            finish::finish_operations(tx.on, tx.context, &[finished]).await?;
            schedule::release(tx, &[id.uuid()], signed(now.millis())).await?;
            // Operations behind it may be due long before it would have been.
            queues::refresh_ready_at(tx.on, queue).await?;
        }
        // An operation that was not cancelled continues as before: its owner must not be notified.
        if let Some((OperationState::Cancelled, queue)) = moved {
            tx.operations_changed = true;
            tx.notify_cancelled(queue, id);
        }
        Ok(moved)
    }

    fn is_change(moved: &Moved) -> bool {
        moved.is_some_and(|(state, _)| state == OperationState::Cancelled)
    }
}

impl WriteJob for Expedite {
    type Output = Moved;

    fn prepare(&self, needs: &mut BatchNeeds<'_>) {
        needs.lock_queue_of(self.0.id);
    }

    async fn run(&self, tx: &mut WriteTx<'_>) -> Result<Moved, EngineError> {
        let CancelTarget { id, now, .. } = self.0;
        let (changed, mut moved) = self.0.update(tx, sql::cancel::EXPEDITE).await?;
        if let (Some(_), Some((state, queue))) = (changed, &mut moved) {
            if *state == OperationState::Scheduled {
                *state = schedule::join_one(tx, id, *queue, now).await?;
            }
            let now = signed(now.millis());
            guild_queues::Entity::update_many()
                .col_expr(ReadyAt, Expr::value(now))
                .filter(guild_queues::Column::Queue.eq(queue.number()))
                .filter(Condition::any().add(ReadyAt.is_null()).add(ReadyAt.gt(now)))
                .exec(tx.on)
                .await?;
        }
        // An operation that was not expedited continues as before: its owner must not be notified.
        if let Some((state, queue)) = moved
            && state.is_waiting()
        {
            tx.operations_changed = true;
            tx.notify_expedited(queue, id);
        }
        Ok(moved)
    }

    fn is_change(moved: &Moved) -> bool {
        moved.is_some_and(|(state, _)| state.is_waiting())
    }
}

impl CancelTarget {
    /// Updates the operation in the scope of the tenant, with its id, the time and the tenant as parameters. Returns
    /// the changed row, if there is one, and the state afterwards.
    async fn update(&self, tx: &WriteTx<'_>, sql: &str) -> Result<(Option<QueryResult>, Moved), EngineError> {
        let (id, tenant) = (Value::from(self.id.uuid()), Value::from(self.tenant.as_deref().map(str::to_owned)));
        let values = vec![id.clone(), signed(self.now.millis()).into(), tenant.clone()];
        let (sql, values) = tx.context.change_seq.bind(sql, values, 0);
        let caller = tx.context.tenant_scope(self.tenant.as_deref());
        caller.begin(tx.on).await?;
        let changed = query(tx.on, &sql, values).await?.pop();
        let after = query(tx.on, sql::cancel::SELECT_STATE, vec![id, tenant]).await?;
        caller.end(tx.on).await?;
        let moved = after.first().map(read_state).transpose()?;
        Ok((changed, moved))
    }
}

fn read_state(row: &QueryResult) -> Result<(OperationState, Queue), EngineError> {
    let state: String = row.try_get("", "state")?;
    Ok((parse_state(&state)?, Queue::from_number(row.try_get("", "queue")?)))
}
