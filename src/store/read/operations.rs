//! Operations, for their guilds and for display.

use std::{collections::HashMap, sync::LazyLock, time::Duration};

use guildhall_actors::ports::{Attempt, OperationDetails, OperationFilter, OperationPage};
use guildhall_core::{
    operation::{OperationId, Queue},
    time::UnixMs,
};
use sea_orm::{
    ColumnTrait as _, Condition, ConnectionTrait, DbBackend, EntityTrait as _, QueryFilter as _, QueryOrder as _,
    QuerySelect as _, QueryTrait as _, Statement, sea_query::Expr,
};
use uuid::Uuid;

use super::{limit, wait_reasons};
use crate::store::{
    entities::{operation_attempts, operations::Column},
    error::EngineError,
    operation_row::{self, DETAILS, DETAILS_JOINS, STORED, select_details},
    rows::{
        ColumnType, Columns, RowValue, Rows, SqlText, first_rows, query, query_scalar, scalars, with_rows, with_rows_as,
    },
    sql::{self, schedule::FIRST as FIRST_SCHEDULED},
    write::signed,
};

/// Maximum number of attempts that are returned for one operation.
const MAX_ATTEMPTS: u64 = 1_000;

/// Operations of a queue that are neither finished nor scheduled, and the time when the first scheduled one is due. In
/// SQL, because its text is built only once: it runs whenever a queue is claimed.
pub(in crate::store) static LOAD: LazyLock<String> = LazyLock::new(|| {
    let stored = &*STORED;
    format!(
        "SELECT {stored}, ({FIRST_SCHEDULED}) AS first_scheduled FROM operations
        LEFT JOIN intents ON intents.operation_id = operations.id
        WHERE operations.queue = $1 AND operations.seq > $2 AND operations.finished_at IS NULL
        ORDER BY operations.seq LIMIT $3 + 0"
    )
});

pub(in crate::store) async fn load(
    on: &impl ConnectionTrait,
    queue: Queue,
    after: u64,
    max: usize,
) -> Result<OperationPage, EngineError> {
    let values = vec![queue.number().into(), signed(after).into(), limit(max).into()];
    let rows = query(on, &LOAD, values).await?;
    let first: Option<i64> = match rows.first() {
        Some(row) => row.try_get("", "first_scheduled")?,
        None => query_scalar(on, FIRST_SCHEDULED, vec![queue.number().into()]).await?.flatten(),
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
    let count: Option<i64> =
        query_scalar(on, sql::operations::COUNT_SCHEDULED, vec![queue.number().into(), limit(max).into()]).await?;
    Ok(count.unwrap_or_default().unsigned_abs())
}

pub(in crate::store) async fn show(
    on: &impl ConnectionTrait,
    id: OperationId,
) -> Result<Option<OperationDetails>, EngineError> {
    use operation_attempts::Column::{N, OperationId as Operation, StartedAt};
    let rows = on.query_all(&select_details().filter(Column::Id.eq(id.uuid())).into_query()).await?;
    let Some(mut details) = rows.first().map(operation_row::details).transpose()? else { return Ok(None) };
    let attempts = operation_attempts::Entity::find().filter(Operation.eq(id.uuid()));
    let attempts = attempts.order_by_asc(N).order_by_asc(StartedAt).limit(MAX_ATTEMPTS).all(on).await?;
    details.attempts = attempts.into_iter().map(operation_row::attempt).collect::<Result<_, _>>()?;
    wait_reasons::fill_in(on, std::slice::from_mut(&mut details)).await?;
    Ok(Some(details))
}

/// Parameter columns of statements that take operation IDs.
pub(in crate::store) const IDS: Columns = Columns(&[("op", ColumnType::Uuid)]);

fn rows_of(ids: &[OperationId]) -> Rows {
    Rows::of(ids.iter().map(|id| RowValue::Uuid(id.uuid())))
}

pub(in crate::store) async fn finished(
    on: &impl ConnectionTrait,
    ids: &[OperationId],
) -> Result<Vec<OperationId>, EngineError> {
    let rows = with_rows(on, sql::operations::FINISHED, IDS, rows_of(ids), Vec::new()).await?;
    Ok(scalars(&rows)?.into_iter().map(OperationId::from_uuid).collect())
}

/// Operations with their attempts.
pub(in crate::store) async fn show_all(
    on: &impl ConnectionTrait,
    ids: &[OperationId],
) -> Result<Vec<OperationDetails>, EngineError> {
    let details = &*DETAILS;
    let select = format!("SELECT {details} FROM {{v}} JOIN operations ON operations.id = v.op {DETAILS_JOINS}");
    let mut attempts_by_id: HashMap<Uuid, Vec<Attempt>> = HashMap::new();
    for row in
        with_rows_as::<operation_attempts::Model>(on, sql::operations::ATTEMPTS, IDS, rows_of(ids), Vec::new()).await?
    {
        attempts_by_id.entry(row.operation_id).or_default().push(operation_row::attempt(row)?);
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
pub(super) fn conditions(filter: &OperationFilter) -> Condition {
    Condition::all()
        .add_option(filter.tenant.as_deref().map(|tenant| Column::Tenant.eq(tenant)))
        .add_option(filter.guilds.as_deref().map(|guilds| one_of(Column::GuildId, guilds)))
        .add_option(filter.state.map(|state| Column::State.eq(state.name())))
        .add_option(filter.kind.map(|kind| Column::Kind.eq(kind.name())))
        .add_option(filter.parked.map(|parked| Column::Parked.eq(i64::from(parked))))
        .add_option(filter.created_after.map(|after| Column::CreatedAt.gte(signed(after.millis()))))
        .add_option(filter.created_before.map(|before| Column::CreatedAt.lt(signed(before.millis()))))
}

fn one_of(column: Column, ids: &[u64]) -> Expr {
    column.is_in(ids.iter().map(|id| id.cast_signed()))
}

/// IDs contain the time, so that a time range limits the rows to read. A clock that is set back leaves IDs that are
/// ahead of it by as much: this much is allowed for.
const MAX_CLOCK_SETBACK: Duration = Duration::from_secs(24 * 60 * 60);

/// The lowest ID that can have been assigned at this time.
fn lowest_id(at: UnixMs) -> Uuid {
    Uuid::from_u128(u128::from(at.millis()) << 80)
}

/// Conditions of a filter for lists, newest first.
fn list_conditions(filter: &OperationFilter) -> Condition {
    conditions(filter)
        .add_option(filter.created_after.map(|after| Column::Id.gte(lowest_id(after))))
        .add_option(filter.created_before.map(|before| Column::Id.lt(lowest_id(before + MAX_CLOCK_SETBACK))))
        .add_option(filter.before.map(|before| Column::Id.lt(before.uuid())))
}

/// The statement that lists the operations of a filter.
pub(in crate::store) fn select_list(engine: DbBackend, filter: &OperationFilter) -> Statement {
    match &filter.guilds {
        Some(guilds) if engine == DbBackend::Sqlite => select_list_of_guilds(guilds, filter),
        Some(_) | None => {
            let select = select_details().filter(list_conditions(filter)).order_by_desc(Column::Id);
            first_rows(engine, &select, filter.limit)
        }
    }
}

/// The same for guilds on SQLite. There finished operations, pending operations in the guild's own queue, and pending
/// ones in other queues each have an index. The newest of all are among the newest of each. In SQL, because SeaORM's
/// builders cannot name an index.
fn select_list_of_guilds(guilds: &[u64], filter: &OperationFilter) -> Statement {
    let is_pending = || Condition::all().add(Column::FinishedAt.is_null());
    let finished = ("operations_guild", Condition::all().add(Column::FinishedAt.is_not_null()));
    let own_queue = ("operations_pending", is_pending().add(one_of(Column::Queue, guilds)));
    let other_queue = ("operations_apart", is_pending().add(Expr::cust("operations.guild_id <> operations.queue")));
    let pieces = match filter.state {
        Some(state) if state.is_final() => vec![finished],
        Some(_) => vec![own_queue, other_queue],
        None => vec![finished, own_queue, other_queue],
    };
    let mut sql = SqlText::new(DbBackend::Sqlite);
    sql.push(&format!("SELECT {} FROM (", *DETAILS));
    for (nth, (index, piece)) in pieces.into_iter().enumerate() {
        let union = if nth == 0 { "" } else { " UNION ALL " };
        sql.push(&format!("{union}SELECT * FROM (SELECT id FROM operations INDEXED BY {index} WHERE "));
        sql.condition(piece.add(list_conditions(filter))).push(" ORDER BY id DESC").limit(filter.limit);
        sql.push(&format!(") piece{nth}"));
    }
    sql.push(&format!(
        ") found JOIN operations ON operations.id = found.id {DETAILS_JOINS} ORDER BY operations.id DESC"
    ));
    sql.limit(filter.limit);
    sql.finish()
}

pub(in crate::store) async fn list(
    on: &impl ConnectionTrait,
    filter: &OperationFilter,
) -> Result<Vec<OperationDetails>, EngineError> {
    let select = select_list(on.get_database_backend(), filter);
    let mut details = operation_row::readable(&on.query_all_raw(select).await?, operation_row::details)?;
    wait_reasons::fill_in(on, &mut details).await?;
    Ok(details)
}
