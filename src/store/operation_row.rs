//! Conversion from rows to operations.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, LazyLock},
};

use super::{
    entities::{idempotency, intents, operation_attempts, operations},
    error::{EngineError, ErrorClass},
};
use guildhall_actors::crash::Input;
use guildhall_actors::ports::{
    Attempt, DelayedBy, IdempotencyKey, NewOperation, OperationDetails, StoredOperation, UnknownOutcome,
    UnreadableOperation,
};
use guildhall_actors::supervision::Part;
use guildhall_actors::telemetry::crash::UnreadableSkipped;
use guildhall_actors::telemetry::emit;
use guildhall_actors::{crash, failpoint};
use guildhall_core::{
    access::{Bounds, ScopeSet},
    lane::Lane,
    operation::{Failure, OperationId, OperationKind, OperationState, Progress, Queue},
    time::UnixMs,
    trace::TraceContext,
};
use sea_orm::{
    EntityTrait as _, FromQueryResult as _, JoinType, QueryResult, QuerySelect as _, QueryTrait as _,
    RelationTrait as _, Select, sea_query::SqliteQueryBuilder,
};

/// Select list of [`stored`], for statements in SQL on `operations` and `intents`.
pub(super) static STORED: LazyLock<String> = LazyLock::new(|| select_list(stored_columns));

/// Select list of [`details`], for statements in SQL on `operations`, `intents` and `idempotency`.
pub(super) static DETAILS: LazyLock<String> = LazyLock::new(|| select_list(details_columns));

/// Joins of [`DETAILS`].
pub(super) const DETAILS_JOINS: &str = "LEFT JOIN intents ON intents.operation_id = operations.id
    LEFT JOIN idempotency ON idempotency.operation_id = operations.id";

/// Selects operations with all that [`details`] reads.
pub(super) fn select_details() -> Select<operations::Entity> {
    let select = details_columns(operations::Entity::find());
    select
        .join(JoinType::LeftJoin, operations::Relation::Intent.def())
        .join(JoinType::LeftJoin, operations::Relation::Idempotency.def())
}

fn stored_columns(select: Select<operations::Entity>) -> Select<operations::Entity> {
    select.column_as(intents::Column::At, "intent_at")
}

fn details_columns(select: Select<operations::Entity>) -> Select<operations::Entity> {
    use idempotency::Column::{Key, Scope};
    stored_columns(select).column_as(Scope, "key_scope").column_as(Key, "key")
}

/// The text of the columns that are selected. It is the same for both engines.
fn select_list(columns: fn(Select<operations::Entity>) -> Select<operations::Entity>) -> String {
    let select = columns(operations::Entity::find()).into_query().from_clear().to_string(SqliteQueryBuilder);
    select.strip_prefix("SELECT ").map(str::to_owned).expect("invariant: a select starts with this word")
}

/// How to treat an invalid value.
#[derive(Clone, Copy, Debug)]
enum ReadMode {
    /// The row cannot be read: an operation must not continue with a guess.
    ToContinue,
    /// A default replaces the value, so that the rest can be displayed.
    ToShow,
}

impl ReadMode {
    fn or<T>(self, read: Result<T, EngineError>, fallback: T) -> Result<T, EngineError> {
        match self {
            Self::ToContinue => read,
            Self::ToShow => Ok(read.unwrap_or(fallback)),
        }
    }
}

/// Reads an operation to continue it.
pub(super) fn stored(row: &QueryResult) -> Result<StoredOperation, EngineError> {
    read(operations::Model::from_query_result(row, "")?, row.try_get("", "intent_at")?, ReadMode::ToContinue)
}

/// Reads an operation to continue it. A row that cannot be read, or whose reading panics, is returned as
/// unreadable.
pub(super) fn stored_or_unreadable(
    row: &QueryResult,
) -> Result<Result<StoredOperation, UnreadableOperation>, EngineError> {
    // Without an ID the row cannot be set aside.
    let id = OperationId::from_uuid(row.try_get("", "id")?);
    let read = catch_unwind(AssertUnwindSafe(|| {
        let _entered = crash::enter(Some(Input::Operation(id)));
        failpoint::input(Part::OperationGuild, || format!("load {id}"));
        stored(row)
    }));
    let problem = match read {
        Ok(Ok(stored)) => return Ok(Ok(stored)),
        Ok(Err(error)) => error.message(),
        Err(_) => "reading it panicked; the log has the message. Please report this as a bug".to_owned(),
    };
    Ok(Err(unreadable(row, id, problem)))
}

/// The part of an operation that can be read, for a row that cannot be read as a whole.
fn unreadable(row: &QueryResult, id: OperationId, problem: String) -> UnreadableOperation {
    let number = |column| row.try_get::<Option<i64>>("", column).ok().flatten();
    // A value that cannot be read may be set.
    let may_be_set = |column| !matches!(row.try_get::<Option<String>>("", column), Ok(None));
    let intent = !matches!(row.try_get::<Option<i64>>("", "intent_at"), Ok(None));
    let state = row.try_get::<String>("", "state").ok().and_then(|name| OperationState::from_name(&name));
    let started = match state {
        Some(state) => matches!(state, OperationState::Running | OperationState::Reconciling),
        None => true,
    };
    UnreadableOperation {
        id,
        guild: number("guild_id").map(i64::cast_unsigned),
        seq: number("seq").and_then(|seq| u64::try_from(seq).ok()).unwrap_or(0),
        attempts: number("attempts").and_then(|attempts| count(attempts).ok()).unwrap_or(0),
        delays: number("delays").and_then(|delays| count(delays).ok()).unwrap_or(0),
        may_have_been_sent: started || intent || may_be_set("progress") || may_be_set("unknown_outcome"),
        problem,
    }
}

/// Reads rows for display. Rows that cannot be read at all are left out, so that the others can be displayed.
pub(super) fn readable<T>(
    rows: &[QueryResult],
    read: impl Fn(&QueryResult) -> Result<T, EngineError>,
) -> Result<Vec<T>, EngineError> {
    rows.iter().filter_map(|row| unless_corrupt(read(row)).transpose()).collect()
}

/// Returns `None` for a row that cannot be read at all.
pub(super) fn unless_corrupt<T>(read: Result<T, EngineError>) -> Result<Option<T>, EngineError> {
    match read {
        Ok(one) => Ok(Some(one)),
        Err(error) if error.class() == ErrorClass::Corrupt => {
            emit(UnreadableSkipped { problem: &error.message() });
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

fn read(row: operations::Model, intent: Option<i64>, reading: ReadMode) -> Result<StoredOperation, EngineError> {
    let id = row.id;
    let _entered = crash::enter(Some(Input::Operation(OperationId::from_uuid(id))));
    let corrupt = |what: &str| EngineError::Corrupt(format!("operation {id} has {what}"));
    let unknown_kind = || corrupt(&format!("the kind {:?}, which this version does not know", row.kind));
    let operation = NewOperation {
        id: OperationId::from_uuid(id),
        kind: OperationKind::from_name(&row.kind).ok_or_else(unknown_kind)?,
        tenant: Arc::from(row.tenant),
        queue: Queue::from_number(row.queue).into(),
        guild: row.guild_id.map(i64::cast_unsigned),
        caller: Arc::from(row.caller),
        bounds: Bounds::from_number(row.bounds),
        scopes: ScopeSet::from_number(row.scopes),
        payload: row.payload,
        payload_hash: reading
            .or(row.payload_hash.try_into().map_err(|_| corrupt("a hash of invalid length")), [0; 32])?,
        lane: reading.or(parse_lane(&row.lane).ok_or_else(|| corrupt("an unknown lane")), Lane::Operation)?,
        max_attempts: reading.or(count(row.max_attempts), 0)?,
        eligible_at: time(row.eligible_at),
        delayed_by: if row.put_off == 0 { DelayedBy::Caller } else { DelayedBy::Policy },
        deadline_at: row.deadline_at.map(time),
        deployment: row.deployment_id.map(OperationId::from_uuid),
        trace: row.trace.as_deref().and_then(TraceContext::read),
        reason: row.reason,
        idempotency: None,
        refers_to: Vec::new(),
        redrive_of: row.redrive_of.map(OperationId::from_uuid),
        created_at: time(row.created_at),
    };
    Ok(StoredOperation {
        operation,
        // For a scheduled operation this is the order of acceptance, not a position in the queue.
        seq: u64::try_from(row.seq).unwrap_or(0),
        state: parse_state(&row.state)?,
        attempts: reading.or(count(row.attempts), 0)?,
        delays: reading.or(count(row.delays), 0)?,
        parked: row.parked != 0,
        intent: intent.map(time),
        progress: reading.or(row.progress.map(|text| progress(&text)).transpose(), None)?.unwrap_or_default(),
        error: reading.or(row.error.map(|text| failure(&text)).transpose(), None)?,
        unknown_outcome: reading.or(row.unknown_outcome.map(|text| unknown_outcome(&text)).transpose(), None)?,
    })
}

/// Reads a row of [`select_details`], without the attempts.
pub(super) fn details(row: &QueryResult) -> Result<OperationDetails, EngineError> {
    let mut model = operations::Model::from_query_result(row, "")?;
    let (result, updated_at, finished_at) = (model.result.take(), model.updated_at, model.finished_at);
    let mut stored = read(model, row.try_get("", "intent_at")?, ReadMode::ToShow)?;
    let scope: Option<String> = row.try_get("", "key_scope")?;
    let key: Option<String> = row.try_get("", "key")?;
    stored.operation.idempotency = scope.zip(key).map(|(scope, key)| IdempotencyKey { scope: Arc::from(scope), key });
    Ok(OperationDetails {
        stored,
        result,
        updated_at: time(updated_at),
        finished_at: finished_at.map(time),
        attempts: Vec::new(),
        waits_for: None,
    })
}

pub(super) fn attempt(row: operation_attempts::Model) -> Result<Attempt, EngineError> {
    Ok(Attempt {
        n: count(row.n)?,
        started_at: time(row.started_at),
        ended_at: time(row.ended_at),
        status: row.status.and_then(|status| u16::try_from(status).ok()),
        class: row.class,
        detail: row.detail,
    })
}

pub(super) fn failure(text: &str) -> Result<Failure, EngineError> {
    serde_json::from_str(text).map_err(|error| EngineError::Corrupt(format!("invalid failure: {error}")))
}

fn unknown_outcome(text: &str) -> Result<UnknownOutcome, EngineError> {
    serde_json::from_str(text).map_err(|error| EngineError::Corrupt(format!("invalid unknown_outcome: {error}")))
}

fn progress(text: &str) -> Result<Progress, EngineError> {
    serde_json::from_str(text).map_err(|error| EngineError::Corrupt(format!("invalid progress: {error}")))
}

pub(super) fn parse_state(name: &str) -> Result<OperationState, EngineError> {
    OperationState::from_name(name).ok_or_else(|| EngineError::Corrupt(format!("unknown operation state: {name}")))
}

pub(super) fn time(millis: i64) -> UnixMs {
    UnixMs::new(u64::try_from(millis).unwrap_or(0))
}

/// A count that was written as a `u32`.
pub(super) fn count(number: i64) -> Result<u32, EngineError> {
    u32::try_from(number).map_err(|_| EngineError::Corrupt(format!("invalid count: {number}")))
}

fn parse_lane(name: &str) -> Option<Lane> {
    Lane::ALL.into_iter().find(|lane| lane.name() == name)
}
