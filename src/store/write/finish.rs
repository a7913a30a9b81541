//! Writes that belong to the end of an operation, whatever ends it.

use std::collections::{BTreeMap, HashMap};

use guildhall_core::{
    operation::{OperationId, OperationState, Queue},
    time::UnixMs,
    usage::Usage,
};
use sea_orm::{DatabaseTransaction, QueryResult};
use uuid::Uuid;

use super::{Context, EngineError, signed};
use crate::store::rows::{Columns, Rows, columns, row, with_rows};
use crate::store::sql;

/// An operation that has just finished.
#[derive(Debug)]
pub(super) struct FinishedOperation<'a> {
    pub(super) id: OperationId,
    pub(super) queue: Queue,
    pub(super) state: OperationState,
    pub(super) result: Option<&'a str>,
    pub(super) at: UnixMs,
}

impl FinishedOperation<'_> {
    /// Number of bytes by which its idempotency key grows.
    fn growth(&self) -> i64 {
        signed(self.result.map_or(0, str::len) as u64)
    }
}

/// Counts the results that idempotency keys store.
fn count_results(
    context: &Context,
    finished: &[(&FinishedOperation<'_>, RelatedRows)],
    keys: &[QueryResult],
) -> Result<(), EngineError> {
    if keys.is_empty() {
        return Ok(());
    }
    let grown: HashMap<Uuid, i64> = finished.iter().map(|(end, _)| (end.id.uuid(), end.growth())).collect();
    for row in keys {
        let (scope, tenant): (String, String) = (row.try_get("", "scope")?, row.try_get("", "tenant")?);
        let bytes = grown.get(&row.try_get::<Uuid>("", "operation_id")?).copied().unwrap_or_default();
        context.usage.add(&scope, &tenant, Usage { operations: 0, bytes });
    }
    Ok(())
}

/// Which related rows of an operation exist in other tables. Most have none, so their statements are skipped.
#[derive(Clone, Copy, Debug)]
pub(super) struct RelatedRows(i64);

impl RelatedRows {
    const ANY: Self = Self(7);

    /// From a bit mask: 1 is an idempotency key, 2 is references, 4 is an intent.
    pub(super) fn from_number(number: i64) -> Self {
        Self(number)
    }

    fn has_key(self) -> bool {
        self.0 & 1 != 0
    }

    fn has_references(self) -> bool {
        self.0 & 2 != 0
    }

    fn has_intent(self) -> bool {
        self.0 & 4 != 0
    }
}

const IDS: Columns = columns![op: Uuid];

/// Decrements the pending counts of queues, stores the results with idempotency keys, and removes references.
pub(super) async fn finish_operations(
    on: &DatabaseTransaction,
    context: &Context,
    finished: &[FinishedOperation<'_>],
) -> Result<(), EngineError> {
    let finished: Vec<_> = finished.iter().map(|end| (end, RelatedRows::ANY)).collect();
    finish_with_related(on, context, &finished).await
}

/// The same for operations whose related rows are known.
pub(super) async fn finish_with_related(
    on: &DatabaseTransaction,
    context: &Context,
    finished: &[(&FinishedOperation<'_>, RelatedRows)],
) -> Result<(), EngineError> {
    const COUNTS: Columns = columns![line: Number, n: Number];
    const KEYS: Columns = columns![op: Uuid, state: Text, result: Text, expires_at: Number, grown: Number];
    if finished.is_empty() {
        return Ok(());
    }
    let mut counts: BTreeMap<i64, i64> = BTreeMap::new();
    let mut keys = Rows::new();
    for (end, related) in finished {
        *counts.entry(end.queue.number()).or_default() += 1;
        if !related.has_key() {
            continue;
        }
        let expires_at = end.at + context.keep_keys;
        keys.push(row! { end.id, end.state.name(), end.result, expires_at, end.growth() });
    }
    let mut rows = Rows::new();
    for (queue, count) in counts {
        rows.push(row! { queue, count });
    }
    with_rows(on, sql::finish::COUNT_FINISHED, COUNTS, rows, Vec::new()).await?;
    let ended_keys = with_rows(on, sql::finish::UPDATE_KEYS, KEYS, keys, Vec::new()).await?;
    count_results(context, finished, &ended_keys)?;
    let ids_with = |have: fn(RelatedRows) -> bool| -> Vec<OperationId> {
        finished.iter().filter(|(_, related)| have(*related)).map(|(end, _)| end.id).collect()
    };
    with_rows(on, sql::finish::DELETE_REFS, IDS, rows_of(&ids_with(RelatedRows::has_references)), Vec::new()).await?;
    close_intents(on, &ids_with(RelatedRows::has_intent)).await
}

/// Removes the intents of operations whose outcome is known.
pub(super) async fn close_intents(on: &DatabaseTransaction, ids: &[OperationId]) -> Result<(), EngineError> {
    with_rows(on, sql::finish::CLOSE_INTENTS, IDS, rows_of(ids), Vec::new()).await?;
    Ok(())
}

fn rows_of(ids: &[OperationId]) -> Rows {
    Rows::of(ids.iter().copied())
}
