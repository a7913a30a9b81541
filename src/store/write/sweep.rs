//! Removes rows whose retention has ended.

use std::time::Duration;

use guildhall_actors::ports::{Retention, SweepSummary};
use guildhall_core::{operation::OperationState, time::UnixMs};
use sea_orm::{DatabaseTransaction, QueryResult};
use uuid::Uuid;

use super::{Context, EngineError, QUEUE_NUMBERS, WriteJob, WriteTx, change_seq, interactions, locations, signed};
use crate::store::rows::{Columns, Rows, columns, query, with_rows};
use crate::store::sql;

/// Maximum number of rows of a kind that one sweep removes: small enough not to delay other jobs for long.
const SWEEP: i64 = 500;

/// Removes rows whose retention has ended, a small batch of each kind.
pub(in crate::store) struct Sweep {
    pub(in crate::store) retention: Retention,
    pub(in crate::store) now: UnixMs,
}

impl WriteJob for Sweep {
    type Output = SweepSummary;

    async fn run(&self, WriteTx { on, context, .. }: &mut WriteTx<'_>) -> Result<SweepSummary, EngineError> {
        // A wrong clock of a caller must not expire anything early.
        let now = context.expiry(self.now);
        let ended = [
            (OperationState::Succeeded, self.retention.completed),
            (OperationState::Cancelled, self.retention.completed),
            (OperationState::Dead, self.retention.failed),
            (OperationState::NeedsReview, self.retention.dead_letters),
        ];
        let (mut operations, mut highest) = (0, None);
        for (state, retention) in ended {
            let (count, change) = sweep_operations(on, context, state, before(now, retention)).await?;
            operations += count;
            highest = highest.max(change);
        }
        if let Some(change) = highest {
            change_seq::record_removed(*on, change).await?;
        }
        let bound = |at: UnixMs| vec![signed(at.millis()).into(), SWEEP.into()];
        let letters =
            query(*on, sql::sweep::DELETE_DEAD_LETTERS, bound(before(now, self.retention.dead_letters))).await?;
        let keys = query(*on, sql::sweep::KEYS, bound(now)).await?;
        context.count_removed(&letters)?;
        context.count_removed(&keys)?;
        context.usage.merge(on).await?;
        let state = query(*on, sql::sweep::STATE, bound(now)).await?;
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
}

fn before(now: UnixMs, retention: Duration) -> UnixMs {
    now.before(retention)
}

/// Returns the number of removed operations, and their highest change sequence number.
async fn sweep_operations(
    on: &DatabaseTransaction,
    context: &Context,
    state: OperationState,
    before: UnixMs,
) -> Result<(u64, Option<i64>), EngineError> {
    let values = vec![state.name().into(), signed(before.millis()).into(), SWEEP.into()];
    let gone = query(on, sql::sweep::OPERATIONS, values).await?;
    Ok((gone.len() as u64, after_removal(on, context, &gone).await?))
}

/// Removes what belongs to removed operations. The rows have the columns id, queue, changed, caller, tenant and bytes.
/// Returns the highest change sequence number.
pub(super) async fn after_removal(
    on: &DatabaseTransaction,
    context: &Context,
    gone: &[QueryResult],
) -> Result<Option<i64>, EngineError> {
    const IDS: Columns = columns![op: Uuid];
    if gone.is_empty() {
        return Ok(None);
    }
    context.count_removed(gone)?;
    let mut ids = Vec::with_capacity(gone.len());
    let (mut keyed_queues, mut highest) = (Vec::new(), None);
    for row in gone {
        ids.push(row.try_get::<Uuid>("", "id")?);
        keyed_queues.extend(Some(row.try_get::<i64>("", "queue")?).filter(|queue| *queue < 0));
        highest = highest.max(Some(row.try_get::<i64>("", "changed")?));
    }
    with_rows(on, sql::sweep::ATTEMPTS, IDS, Rows::of(ids), Vec::new()).await?;
    with_rows(on, sql::sweep::QUEUES, QUEUE_NUMBERS, Rows::of(keyed_queues), Vec::new()).await?;
    Ok(highest)
}
