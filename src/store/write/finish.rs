//! What goes with the end of an operation, whoever ends it.

use std::collections::{BTreeMap, HashMap};

use guildhall_core::{
    operation::{OperationId, Queue, State},
    time::UnixMs,
    usage::Usage,
};
use sea_orm::{DatabaseTransaction, QueryResult};
use uuid::Uuid;

use super::{Context, Trouble, signed};
use crate::store::rows::{Cell, Holds, Rows, Shape, with_rows};

/// An operation that has just ended.
#[derive(Debug)]
pub(super) struct Ended<'a> {
    pub(super) id: OperationId,
    pub(super) queue: Queue,
    pub(super) state: State,
    pub(super) result: Option<&'a str>,
    pub(super) at: UnixMs,
}

impl Ended<'_> {
    /// By how many bytes its idempotency key grows.
    fn grown(&self) -> i64 {
        signed(self.result.map_or(0, str::len) as u64)
    }
}

/// Counts the results that idempotency keys store.
fn count_results(context: &Context, ended: &[(&Ended<'_>, Traces)], keys: &[QueryResult]) -> Result<(), Trouble> {
    if keys.is_empty() {
        return Ok(());
    }
    let grown: HashMap<Uuid, i64> = ended.iter().map(|(end, _)| (end.id.uuid(), end.grown())).collect();
    for row in keys {
        let (scope, tenant): (String, String) = (row.try_get_by_index(1)?, row.try_get_by_index(2)?);
        let bytes = grown.get(&row.try_get_by_index::<Uuid>(0)?).copied().unwrap_or_default();
        context.usage.add(&scope, &tenant, Usage { operations: 0, bytes });
    }
    Ok(())
}

/// What there is about an operation in other tables. Most have nothing there, and are spared a look.
#[derive(Clone, Copy, Debug)]
pub(super) struct Traces(i64);

impl Traces {
    const ANY: Self = Self(7);

    /// From a sum: a key is 1, what it refers to is 2, an intent is 4.
    pub(super) fn from_number(number: i64) -> Self {
        Self(number)
    }

    fn has_key(self) -> bool {
        self.0 & 1 != 0
    }

    fn refers(self) -> bool {
        self.0 & 2 != 0
    }

    fn has_intent(self) -> bool {
        self.0 & 4 != 0
    }
}

const IDS: Shape = Shape(&[("op", Holds::Uuid)]);

/// Counts operations out of their queues, tells their keys, and lets go of what they referred to.
pub(super) async fn all(on: &DatabaseTransaction, context: &Context, ended: &[Ended<'_>]) -> Result<(), Trouble> {
    let ended: Vec<_> = ended.iter().map(|end| (end, Traces::ANY)).collect();
    with_traces(on, context, &ended).await
}

/// As [`all`], for operations of which it is known what there is about them.
pub(super) async fn with_traces(
    on: &DatabaseTransaction,
    context: &Context,
    ended: &[(&Ended<'_>, Traces)],
) -> Result<(), Trouble> {
    const COUNTS: Shape = Shape(&[("line", Holds::Number), ("n", Holds::Number)]);
    const COUNT: &str = "UPDATE guild_queues SET pending = pending - v.n FROM {v} WHERE queue = v.line";
    const KEYS: Shape = Shape(&[
        ("op", Holds::Uuid),
        ("state", Holds::Text),
        ("result", Holds::Text),
        ("expires_at", Holds::Number),
        ("grown", Holds::Number),
    ]);
    const TELL: &str = "UPDATE idempotency SET state = v.state, result = v.result, expires_at = v.expires_at,
        bytes = idempotency.bytes + v.grown FROM {v} WHERE operation_id = v.op RETURNING operation_id, idempotency.scope, idempotency.tenant";
    const LET_GO: &str = "DELETE FROM operation_refs WHERE operation_id IN (SELECT op FROM {v})";
    if ended.is_empty() {
        return Ok(());
    }
    let mut counts: BTreeMap<i64, i64> = BTreeMap::new();
    let mut keys = Rows::new();
    for (end, traces) in ended {
        *counts.entry(end.queue.number()).or_default() += 1;
        if !traces.has_key() {
            continue;
        }
        let expires_at = end.at + context.keep_keys;
        keys.push(&[
            Cell::Uuid(end.id.uuid()),
            Cell::Text(end.state.name()),
            end.result.into(),
            Cell::Number(signed(expires_at.millis())),
            Cell::Number(end.grown()),
        ]);
    }
    let mut rows = Rows::new();
    for (queue, count) in counts {
        rows.push(&[Cell::Number(queue), Cell::Number(count)]);
    }
    with_rows(on, COUNT, COUNTS, rows, Vec::new()).await?;
    let ended_keys = with_rows(on, TELL, KEYS, keys, Vec::new()).await?;
    count_results(context, ended, &ended_keys)?;
    let those = |have: fn(Traces) -> bool| -> Vec<OperationId> {
        ended.iter().filter(|(_, traces)| have(*traces)).map(|(end, _)| end.id).collect()
    };
    with_rows(on, LET_GO, IDS, rows_of(&those(Traces::refers)), Vec::new()).await?;
    close_intents(on, &those(Traces::has_intent)).await
}

/// What came of these is known.
pub(super) async fn close_intents(on: &DatabaseTransaction, ids: &[OperationId]) -> Result<(), Trouble> {
    const CLOSE: &str = "DELETE FROM intents WHERE operation_id IN (SELECT op FROM {v})";
    with_rows(on, CLOSE, IDS, rows_of(ids), Vec::new()).await?;
    Ok(())
}

fn rows_of(ids: &[OperationId]) -> Rows {
    Rows::of(ids.iter().map(|id| Cell::Uuid(id.uuid())))
}
