//! Operations, for their guilds and for display.

use std::{collections::HashMap, time::Duration};

use guildhall_actors::ports::{Attempt, OperationDetails, OperationFilter, OperationPage};
use guildhall_core::{
    operation::{OperationId, Queue},
    time::UnixMs,
};
use sea_orm::{ConnectionTrait, DbBackend};
use uuid::Uuid;

use super::{WhereClause, limit, wait_reasons};
use crate::store::{
    error::EngineError,
    operation_row::{self, AFTER_STORED, DETAILS, STORED},
    rows::{ColumnType, Columns, RowValue, Rows, query, with_rows},
    write::{FIRST_SCHEDULED, signed},
};

/// Maximum number of attempts that are returned for one operation.
const MAX_ATTEMPTS: i64 = 1_000;

/// Operations of a queue that are neither finished nor scheduled, and the time when the first scheduled one is due.
pub(in crate::store) fn load_sql() -> String {
    format!(
        "SELECT {STORED}, ({FIRST_SCHEDULED}) FROM operations o LEFT JOIN intents i ON i.operation_id = o.id
        WHERE o.queue = $1 AND o.seq > $2 AND o.finished_at IS NULL ORDER BY o.seq LIMIT $3 + 0"
    )
}

pub(in crate::store) async fn load(
    on: &impl ConnectionTrait,
    queue: Queue,
    after: u64,
    max: usize,
) -> Result<OperationPage, EngineError> {
    let values = vec![queue.number().into(), signed(after).into(), limit(max).into()];
    let rows = query(on, &load_sql(), values).await?;
    let first: Option<i64> = match rows.first() {
        Some(row) => row.try_get_by_index(AFTER_STORED)?,
        None => {
            let rows = query(on, FIRST_SCHEDULED, vec![queue.number().into()]).await?;
            rows.first().map_or(Ok(None), |row| row.try_get_by_index(0))?
        }
    };
    let mut page = OperationPage { scheduled: first.map(operation_row::time), ..OperationPage::default() };
    for row in &rows {
        match operation_row::stored_or_unreadable(row)? {
            Ok(stored) => page.operations.push(stored),
            Err(unreadable) => page.unreadable.push(unreadable),
        }
    }
    Ok(page)
}

/// Number of scheduled operations of a queue, up to a limit.
pub(in crate::store) async fn scheduled(
    on: &impl ConnectionTrait,
    queue: Queue,
    max: usize,
) -> Result<u64, EngineError> {
    const SELECT: &str =
        "SELECT COUNT(*) FROM (SELECT 1 FROM operations o WHERE o.queue = $1 AND o.joins_at IS NOT NULL
        LIMIT $2 + 0) counted";
    let rows = query(on, SELECT, vec![queue.number().into(), limit(max).into()]).await?;
    let count: i64 = rows.first().map_or(Ok(0), |row| row.try_get_by_index(0))?;
    Ok(count.unsigned_abs())
}

/// Joins that the display columns need in addition to `operations o`.
pub(super) const JOINS: &str =
    "LEFT JOIN intents i ON i.operation_id = o.id LEFT JOIN idempotency k ON k.operation_id = o.id";

fn select_details() -> String {
    format!("SELECT {STORED}, {DETAILS} FROM operations o {JOINS}")
}

pub(in crate::store) async fn show(
    on: &impl ConnectionTrait,
    id: OperationId,
) -> Result<Option<OperationDetails>, EngineError> {
    const ATTEMPTS: &str = "SELECT n, started_at, ended_at, status, class, detail FROM operation_attempts
        WHERE operation_id = $1 ORDER BY n, started_at LIMIT $2 + 0";
    let rows = query(on, &format!("{} WHERE o.id = $1", select_details()), vec![id.uuid().into()]).await?;
    let Some(mut details) = rows.first().map(operation_row::details).transpose()? else { return Ok(None) };
    let attempts = query(on, ATTEMPTS, vec![id.uuid().into(), MAX_ATTEMPTS.into()]).await?;
    details.attempts = attempts.iter().map(operation_row::attempt).collect::<Result<_, _>>()?;
    wait_reasons::fill_in(on, std::slice::from_mut(&mut details)).await?;
    Ok(Some(details))
}

/// Parameter columns of statements that take operation IDs.
pub(in crate::store) const IDS: Columns = Columns(&[("op", ColumnType::Uuid)]);

/// Operations that are finished, or no longer exist.
pub(in crate::store) const FINISHED: &str = "SELECT v.op FROM {v} LEFT JOIN operations o ON o.id = v.op
    WHERE o.id IS NULL OR o.finished_at IS NOT NULL";

fn rows_of(ids: &[OperationId]) -> Rows {
    Rows::of(ids.iter().map(|id| RowValue::Uuid(id.uuid())))
}

pub(in crate::store) async fn finished(
    on: &impl ConnectionTrait,
    ids: &[OperationId],
) -> Result<Vec<OperationId>, EngineError> {
    let rows = with_rows(on, FINISHED, IDS, rows_of(ids), Vec::new()).await?;
    Ok(rows.iter().map(|row| row.try_get_by_index(0).map(OperationId::from_uuid)).collect::<Result<_, _>>()?)
}

/// Operations with their attempts.
pub(in crate::store) async fn show_all(
    on: &impl ConnectionTrait,
    ids: &[OperationId],
) -> Result<Vec<OperationDetails>, EngineError> {
    const ATTEMPTS: &str = "SELECT a.n, a.started_at, a.ended_at, a.status, a.class, a.detail, a.operation_id
        FROM {v} JOIN operation_attempts a ON a.operation_id = v.op";
    let select = format!("SELECT {STORED}, {DETAILS} FROM {{v}} JOIN operations o ON o.id = v.op {JOINS}");
    let mut attempts_by_id: HashMap<Uuid, Vec<Attempt>> = HashMap::new();
    for row in with_rows(on, ATTEMPTS, IDS, rows_of(ids), Vec::new()).await? {
        attempts_by_id.entry(row.try_get_by_index(6)?).or_default().push(operation_row::attempt(&row)?);
    }
    let mut all = Vec::with_capacity(ids.len());
    for row in with_rows(on, &select, IDS, rows_of(ids), Vec::new()).await? {
        let Some(mut details) = operation_row::unless_corrupt(operation_row::details(&row))? else { continue };
        details.attempts = attempts_by_id.remove(&details.stored.operation.id.uuid()).unwrap_or_default();
        details.attempts.sort_by_key(|attempt| (attempt.n, attempt.started_at));
        all.push(details);
    }
    Ok(all)
}

/// Conditions of a filter that apply to lists and to change feeds.
pub(super) fn apply_filter(conditions: &mut WhereClause, filter: &OperationFilter) {
    if let Some(tenant) = &filter.tenant {
        conditions.and("o.tenant = ?", tenant.to_string());
    }
    if let Some(guilds) = &filter.guilds {
        conditions.and_in("o.guild_id", guilds);
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
    if let Some(deployment) = filter.deployment {
        conditions.and("o.deployment_id = ?", deployment.uuid());
    }
    if let Some(after) = filter.created_after {
        conditions.and("o.created_at >= ?", signed(after.millis()));
    }
    if let Some(before) = filter.created_before {
        conditions.and("o.created_at < ?", signed(before.millis()));
    }
}

/// IDs contain the time, so that a time range limits the rows to read. A clock that is set back leaves IDs that are
/// ahead of it by as much: this much is allowed for.
const MAX_CLOCK_SETBACK: Duration = Duration::from_secs(24 * 60 * 60);

/// The lowest ID that can have been assigned at this time.
fn lowest_id(at: UnixMs) -> Uuid {
    Uuid::from_u128(u128::from(at.millis()) << 80)
}

/// Conditions of a filter for lists, newest first.
fn apply_list_filter(conditions: &mut WhereClause, filter: &OperationFilter) {
    apply_filter(conditions, filter);
    if let Some(after) = filter.created_after {
        conditions.and("o.id >= ?", lowest_id(after));
    }
    if let Some(before) = filter.created_before {
        conditions.and("o.id < ?", lowest_id(before + MAX_CLOCK_SETBACK));
    }
    if let Some(before) = filter.before {
        conditions.and("o.id < ?", before.uuid());
    }
}

/// The statement that lists the operations of a filter.
pub(in crate::store) fn list_sql(engine: DbBackend, filter: &OperationFilter) -> (String, Vec<sea_orm::Value>) {
    match &filter.guilds {
        Some(guilds) if engine == DbBackend::Sqlite => list_of_guilds(guilds, filter),
        Some(_) | None => {
            let mut conditions = WhereClause::default();
            apply_list_filter(&mut conditions, filter);
            let (rest, values) = conditions.ordered("o.id DESC", filter.limit);
            (format!("{} {rest}", select_details()), values)
        }
    }
}

/// The same for guilds on SQLite. There finished operations, pending operations in the guild's own queue, and pending
/// ones in other queues each have an index. The newest of all are among the newest of each.
fn list_of_guilds(guilds: &[u64], filter: &OperationFilter) -> (String, Vec<sea_orm::Value>) {
    type Which = fn(&mut WhereClause, &[u64]);
    const DONE: (&str, Which) = ("operations_guild", |done, _| done.and_sql("o.finished_at IS NOT NULL"));
    const WAITING: (&str, Which) = ("operations_pending", |waiting, guilds| {
        waiting.and_sql("o.finished_at IS NULL");
        waiting.and_in("o.queue", guilds);
    });
    const APART: (&str, Which) = ("operations_apart", |apart, _| {
        apart.and_sql("o.finished_at IS NULL AND o.guild_id <> o.queue");
    });
    let pieces: &[(&str, Which)] = match filter.state {
        Some(state) if state.is_final() => &[DONE],
        Some(_) => &[WAITING, APART],
        None => &[DONE, WAITING, APART],
    };
    let (mut found, mut values) = (Vec::new(), Vec::new());
    for (nth, (index, which)) in pieces.iter().enumerate() {
        let mut piece = WhereClause::after(values);
        which(&mut piece, guilds);
        apply_list_filter(&mut piece, filter);
        let (rest, so_far) = piece.ordered("o.id DESC", filter.limit);
        values = so_far;
        found.push(format!("SELECT * FROM (SELECT o.id FROM operations o INDEXED BY {index} {rest}) piece{nth}"));
    }
    let (rest, values) = WhereClause::after(values).ordered("o.id DESC", filter.limit);
    let found = found.join(" UNION ALL ");
    (
        format!("SELECT {STORED}, {DETAILS} FROM ({found}) found JOIN operations o ON o.id = found.id {JOINS} {rest}"),
        values,
    )
}

pub(in crate::store) async fn list(
    on: &impl ConnectionTrait,
    filter: &OperationFilter,
) -> Result<Vec<OperationDetails>, EngineError> {
    let (sql, values) = list_sql(on.get_database_backend(), filter);
    let mut details = operation_row::readable(&query(on, &sql, values).await?, operation_row::details)?;
    wait_reasons::fill_in(on, &mut details).await?;
    Ok(details)
}
