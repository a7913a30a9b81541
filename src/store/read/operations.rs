//! Operations, for their guilds and for people.

use guildhall_actors::operations::{ListFilter, Shown, Stored};
use guildhall_core::operation::{OperationId, Queue};
use sea_orm::ConnectionTrait;

use super::{Where, limit};
use crate::store::{
    operation_row::{self, SHOWN, STORED},
    rows::query,
    trouble::Trouble,
    write::signed,
};

/// How many tries are shown of one operation.
const MOST_ATTEMPTS: i64 = 1_000;

/// The operations of a queue that are not done.
pub(in crate::store) fn load_sql() -> String {
    format!(
        "SELECT {STORED} FROM operations o LEFT JOIN intents i ON i.operation_id = o.id
        WHERE o.queue = $1 AND o.seq > $2 AND o.finished_at IS NULL ORDER BY o.seq LIMIT $3 + 0"
    )
}

pub(in crate::store) async fn load(
    on: &impl ConnectionTrait,
    queue: Queue,
    after: u64,
    most: usize,
) -> Result<Vec<Stored>, Trouble> {
    let values = vec![queue.number().into(), signed(after).into(), limit(most).into()];
    query(on, &load_sql(), values).await?.iter().map(operation_row::stored).collect()
}

fn shown_from() -> String {
    format!(
        "SELECT {STORED}, {SHOWN} FROM operations o LEFT JOIN intents i ON i.operation_id = o.id
        LEFT JOIN idempotency k ON k.operation_id = o.id"
    )
}

pub(in crate::store) async fn show(on: &impl ConnectionTrait, id: OperationId) -> Result<Option<Shown>, Trouble> {
    const ATTEMPTS: &str = "SELECT n, started_at, ended_at, status, class, detail FROM operation_attempts
        WHERE operation_id = $1 ORDER BY n, started_at LIMIT $2 + 0";
    let rows = query(on, &format!("{} WHERE o.id = $1", shown_from()), vec![id.uuid().into()]).await?;
    let Some(mut shown) = rows.first().map(operation_row::shown).transpose()? else { return Ok(None) };
    let attempts = query(on, ATTEMPTS, vec![id.uuid().into(), MOST_ATTEMPTS.into()]).await?;
    shown.attempts = attempts.iter().map(operation_row::attempt).collect::<Result<_, _>>()?;
    Ok(Some(shown))
}

/// The statement that lists what a filter lets through.
pub(in crate::store) fn list_sql(filter: &ListFilter) -> (String, Vec<sea_orm::Value>) {
    let mut conditions = Where::default();
    if let Some(tenant) = &filter.tenant {
        conditions.and("o.tenant = ?", tenant.to_string());
    }
    if let Some(guilds) = &filter.among {
        conditions.among("o.guild_id", guilds);
    }
    if let Some(state) = filter.state {
        conditions.and("o.state = ?", state.name());
    }
    if let Some(kind) = filter.kind {
        conditions.and("o.kind = ?", kind.name());
    }
    if let Some(parked) = filter.parked {
        conditions.and("o.parked = ?", i64::from(parked));
    }
    if let Some(before) = filter.before {
        conditions.and("o.id < ?", before.uuid());
    }
    let (rest, values) = conditions.ordered("o.id DESC", filter.limit);
    (format!("{} {rest}", shown_from()), values)
}

pub(in crate::store) async fn list(on: &impl ConnectionTrait, filter: &ListFilter) -> Result<Vec<Shown>, Trouble> {
    let (sql, values) = list_sql(filter);
    query(on, &sql, values).await?.iter().map(operation_row::shown).collect()
}
