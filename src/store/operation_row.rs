//! Conversion from rows to operations.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
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
use sea_orm::QueryResult;
use uuid::Uuid;

use super::error::{EngineError, ErrorClass};

/// Columns that [`stored`] reads, of `operations o` and `intents i`.
pub(super) const STORED: &str = "o.id, o.tenant, o.queue, o.guild_id, o.seq, o.kind, o.payload, o.payload_hash, o.lane,
    o.state, o.attempts, o.delays, o.max_attempts, o.eligible_at, o.deadline_at, o.parked, o.deployment_id, o.trace,
    o.reason, o.error, o.redrive_of, o.created_at, i.at, o.bounds, o.caller, o.scopes, o.put_off,
    o.progress, o.unknown_outcome";

/// Further columns for display, of `operations o` and `idempotency k`.
pub(super) const DETAILS: &str = "o.result, o.updated_at, o.finished_at, k.scope, k.key";

/// Number of columns in [`STORED`].
pub(super) const AFTER_STORED: usize = 29;

/// Number of columns in [`STORED`] and the display columns together.
pub(super) const AFTER_DETAILS: usize = AFTER_STORED + 5;

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

/// Reads the columns of [`STORED`], to continue the operation.
pub(super) fn stored(row: &QueryResult) -> Result<StoredOperation, EngineError> {
    read(row, ReadMode::ToContinue)
}

/// Reads the columns of [`STORED`] of one row. A row that cannot be read, or whose reading panics, is returned as
/// unreadable.
pub(super) fn stored_or_unreadable(
    row: &QueryResult,
) -> Result<Result<StoredOperation, UnreadableOperation>, EngineError> {
    // Without an ID the row cannot be set aside.
    let id = OperationId::from_uuid(row.try_get_by_index(0)?);
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

/// The part of a row of [`STORED`] that can be read, for a row that cannot be read as a whole.
fn unreadable(row: &QueryResult, id: OperationId, problem: String) -> UnreadableOperation {
    // A value that cannot be read may be set.
    let has = |index| !matches!(row.try_get_by_index::<Option<String>>(index), Ok(None));
    let intent = !matches!(row.try_get_by_index::<Option<i64>>(22), Ok(None));
    let state = row.try_get_by_index::<String>(9).ok().and_then(|name| OperationState::from_name(&name));
    let started = match state {
        Some(state) => matches!(state, OperationState::Running | OperationState::Reconciling),
        None => true,
    };
    UnreadableOperation {
        id,
        guild: row.try_get_by_index::<Option<i64>>(3).ok().flatten().map(i64::cast_unsigned),
        seq: row.try_get_by_index::<i64>(4).ok().and_then(|seq| u64::try_from(seq).ok()).unwrap_or(0),
        attempts: read_u32(row, 10).unwrap_or(0),
        delays: read_u32(row, 11).unwrap_or(0),
        may_have_been_sent: started || intent || has(27) || has(28),
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

fn read(row: &QueryResult, reading: ReadMode) -> Result<StoredOperation, EngineError> {
    let id: Uuid = row.try_get_by_index(0)?;
    let _entered = crash::enter(Some(Input::Operation(OperationId::from_uuid(id))));
    let corrupt = |what: &str| EngineError::Corrupt(format!("operation {id} has {what}"));
    let tenant: String = row.try_get_by_index(1)?;
    let kind: String = row.try_get_by_index(5)?;
    let hash: Vec<u8> = row.try_get_by_index(7)?;
    let lane: String = row.try_get_by_index(8)?;
    let state: String = row.try_get_by_index(9)?;
    let error: Option<String> = row.try_get_by_index(19)?;
    let progress: Option<String> = row.try_get_by_index(27)?;
    let unknown: Option<String> = row.try_get_by_index(28)?;
    let trace: Option<String> = row.try_get_by_index(17)?;
    let deployment: Option<Uuid> = row.try_get_by_index(16)?;
    let redrive_of: Option<Uuid> = row.try_get_by_index(20)?;
    let operation = NewOperation {
        id: OperationId::from_uuid(id),
        tenant: Arc::from(tenant),
        queue: Queue::from_number(row.try_get_by_index(2)?).into(),
        guild: row.try_get_by_index::<Option<i64>>(3)?.map(i64::cast_unsigned),
        caller: Arc::from(row.try_get_by_index::<String>(24)?),
        bounds: Bounds::from_number(row.try_get_by_index(23)?),
        scopes: ScopeSet::from_number(row.try_get_by_index(25)?),
        kind: OperationKind::from_name(&kind)
            .ok_or_else(|| corrupt(&format!("the kind {kind:?}, which this version does not know")))?,
        payload: row.try_get_by_index(6)?,
        payload_hash: reading.or(hash.try_into().map_err(|_| corrupt("a hash of invalid length")), [0; 32])?,
        lane: reading.or(parse_lane(&lane).ok_or_else(|| corrupt("an unknown lane")), Lane::Operation)?,
        max_attempts: reading.or(read_u32(row, 12), 0)?,
        eligible_at: time(row.try_get_by_index(13)?),
        delayed_by: if row.try_get_by_index::<i64>(26)? == 0 { DelayedBy::Caller } else { DelayedBy::Policy },
        deadline_at: row.try_get_by_index::<Option<i64>>(14)?.map(time),
        deployment: deployment.map(OperationId::from_uuid),
        trace: trace.as_deref().and_then(TraceContext::read),
        reason: row.try_get_by_index(18)?,
        idempotency: None,
        refers_to: Vec::new(),
        redrive_of: redrive_of.map(OperationId::from_uuid),
        created_at: time(row.try_get_by_index(21)?),
    };
    Ok(StoredOperation {
        operation,
        // For a scheduled operation this is the order of acceptance, not a position in the queue.
        seq: u64::try_from(row.try_get_by_index::<i64>(4)?).unwrap_or(0),
        state: parse_state(&state)?,
        attempts: reading.or(read_u32(row, 10), 0)?,
        delays: reading.or(read_u32(row, 11), 0)?,
        parked: row.try_get_by_index::<i64>(15)? != 0,
        intent: row.try_get_by_index::<Option<i64>>(22)?.map(time),
        progress: reading.or(progress.map(|text| self::progress(&text)).transpose(), None)?.unwrap_or_default(),
        error: reading.or(error.map(|text| failure(&text)).transpose(), None)?,
        unknown_outcome: reading.or(unknown.map(|text| unknown_outcome(&text)).transpose(), None)?,
    })
}

/// Reads the columns of [`STORED`] and the display columns, without the attempts.
pub(super) fn details(row: &QueryResult) -> Result<OperationDetails, EngineError> {
    let mut stored = read(row, ReadMode::ToShow)?;
    let scope: Option<String> = row.try_get_by_index(AFTER_STORED + 3)?;
    let key: Option<String> = row.try_get_by_index(AFTER_STORED + 4)?;
    stored.operation.idempotency = scope.zip(key).map(|(scope, key)| IdempotencyKey { scope: Arc::from(scope), key });
    Ok(OperationDetails {
        stored,
        result: row.try_get_by_index(AFTER_STORED)?,
        updated_at: time(row.try_get_by_index(AFTER_STORED + 1)?),
        finished_at: row.try_get_by_index::<Option<i64>>(AFTER_STORED + 2)?.map(time),
        attempts: Vec::new(),
        waits_for: None,
    })
}

/// Reads n, started_at, ended_at, status, class and detail.
pub(super) fn attempt(row: &QueryResult) -> Result<Attempt, EngineError> {
    Ok(Attempt {
        n: read_u32(row, 0)?,
        started_at: time(row.try_get_by_index(1)?),
        ended_at: time(row.try_get_by_index(2)?),
        status: row.try_get_by_index::<Option<i64>>(3)?.and_then(|status| u16::try_from(status).ok()),
        class: row.try_get_by_index(4)?,
        detail: row.try_get_by_index(5)?,
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

/// Reads a count that was written as a `u32`.
pub(super) fn read_u32(row: &QueryResult, index: usize) -> Result<u32, EngineError> {
    let number: i64 = row.try_get_by_index(index)?;
    u32::try_from(number).map_err(|_| EngineError::Corrupt(format!("invalid count: {number}")))
}

fn parse_lane(name: &str) -> Option<Lane> {
    Lane::ALL.into_iter().find(|lane| lane.name() == name)
}
