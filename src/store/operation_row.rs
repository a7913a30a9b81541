//! From rows to operations.

use std::sync::Arc;

use guildhall_actors::operations::{Attempt, DelayedBy, IdempotencyKey, NewOperation, Shown, Stored};
use guildhall_core::{
    access::{Bounds, ScopeSet},
    lane::Lane,
    operation::{Failure, Kind, OperationId, Queue, State},
    time::UnixMs,
    trace::Trace,
};
use sea_orm::QueryResult;
use uuid::Uuid;

use super::trouble::Trouble;

/// What [`stored`] reads, with `operations o` and `intents i`.
pub(super) const STORED: &str = "o.id, o.tenant, o.queue, o.guild_id, o.seq, o.kind, o.payload, o.payload_hash, o.lane,
    o.state, o.attempts, o.delays, o.max_attempts, o.eligible_at, o.deadline_at, o.parked, o.deployment_id, o.trace,
    o.reason, o.error, o.redrive_of, o.created_at, i.at, o.bounds, o.caller, o.scopes, o.put_off";

/// What [`shown`] reads beside, with `idempotency k`.
pub(super) const SHOWN: &str = "o.result, o.updated_at, o.finished_at, k.scope, k.key";

/// How many columns [`STORED`] has.
pub(super) const AFTER_STORED: usize = 27;

/// How many columns [`STORED`] and [`SHOWN`] have together.
pub(super) const AFTER_SHOWN: usize = AFTER_STORED + 5;

/// Reads the columns of [`STORED`].
pub(super) fn stored(row: &QueryResult) -> Result<Stored, Trouble> {
    let id: Uuid = row.try_get_by_index(0)?;
    let wrong = |what: &str| Trouble::Corrupt(format!("operation {id} has {what}"));
    let tenant: String = row.try_get_by_index(1)?;
    let kind: String = row.try_get_by_index(5)?;
    let hash: Vec<u8> = row.try_get_by_index(7)?;
    let lane: String = row.try_get_by_index(8)?;
    let state: String = row.try_get_by_index(9)?;
    let error: Option<String> = row.try_get_by_index(19)?;
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
        kind: Kind::from_name(&kind).ok_or_else(|| wrong("a kind that nobody knows"))?,
        payload: row.try_get_by_index(6)?,
        payload_hash: hash.try_into().map_err(|_| wrong("a hash of a wrong length"))?,
        lane: lane_named(&lane).ok_or_else(|| wrong("a lane that nobody knows"))?,
        max_attempts: small(row, 12)?,
        eligible_at: time(row.try_get_by_index(13)?),
        delayed_by: if row.try_get_by_index::<i64>(26)? == 0 { DelayedBy::Caller } else { DelayedBy::Policy },
        deadline_at: row.try_get_by_index::<Option<i64>>(14)?.map(time),
        deployment: deployment.map(OperationId::from_uuid),
        trace: trace.as_deref().and_then(Trace::read),
        reason: row.try_get_by_index(18)?,
        idempotency: None,
        refers_to: Vec::new(),
        redrive_of: redrive_of.map(OperationId::from_uuid),
        created_at: time(row.try_get_by_index(21)?),
    };
    Ok(Stored {
        operation,
        // That of a scheduled one is the order of acceptance, and no place.
        seq: u64::try_from(row.try_get_by_index::<i64>(4)?).unwrap_or(0),
        state: state_named(&state)?,
        attempts: small(row, 10)?,
        delays: small(row, 11)?,
        parked: row.try_get_by_index::<i64>(15)? != 0,
        intent: row.try_get_by_index::<Option<i64>>(22)?.map(time),
        error: error.map(|text| failure(&text)).transpose()?,
    })
}

/// Reads the columns of [`STORED`] and [`SHOWN`]; without the tries.
pub(super) fn shown(row: &QueryResult) -> Result<Shown, Trouble> {
    let mut stored = stored(row)?;
    let scope: Option<String> = row.try_get_by_index(AFTER_STORED + 3)?;
    let key: Option<String> = row.try_get_by_index(AFTER_STORED + 4)?;
    stored.operation.idempotency = scope.zip(key).map(|(scope, key)| IdempotencyKey { scope: Arc::from(scope), key });
    Ok(Shown {
        stored,
        result: row.try_get_by_index(AFTER_STORED)?,
        updated_at: time(row.try_get_by_index(AFTER_STORED + 1)?),
        finished_at: row.try_get_by_index::<Option<i64>>(AFTER_STORED + 2)?.map(time),
        attempts: Vec::new(),
        waits_for: None,
    })
}

/// Reads n, started_at, ended_at, status, class and detail.
pub(super) fn attempt(row: &QueryResult) -> Result<Attempt, Trouble> {
    Ok(Attempt {
        n: small(row, 0)?,
        started_at: time(row.try_get_by_index(1)?),
        ended_at: time(row.try_get_by_index(2)?),
        status: row.try_get_by_index::<Option<i64>>(3)?.and_then(|status| u16::try_from(status).ok()),
        class: row.try_get_by_index(4)?,
        detail: row.try_get_by_index(5)?,
    })
}

pub(super) fn failure(text: &str) -> Result<Failure, Trouble> {
    serde_json::from_str(text).map_err(|error| Trouble::Corrupt(format!("a failure that is none: {error}")))
}

pub(super) fn state_named(name: &str) -> Result<State, Trouble> {
    State::from_name(name).ok_or_else(|| Trouble::Corrupt(format!("a state that nobody knows: {name}")))
}

pub(super) fn time(millis: i64) -> UnixMs {
    UnixMs::new(u64::try_from(millis).unwrap_or(0))
}

/// A count that began as a `u32`.
pub(super) fn small(row: &QueryResult, index: usize) -> Result<u32, Trouble> {
    let number: i64 = row.try_get_by_index(index)?;
    u32::try_from(number).map_err(|_| Trouble::Corrupt(format!("a count of {number}")))
}

fn lane_named(name: &str) -> Option<Lane> {
    Lane::ALL.into_iter().find(|lane| lane.name() == name)
}
