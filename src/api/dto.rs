//! Operations, dead letters and guilds as JSON.

use chrono::{DateTime, SecondsFormat};
use guildhall_actors::ports::{Attempt, DeadLetter, OperationDetails, WaitReason};
use guildhall_actors::submission::{AcceptedOperation, DiscardSummary, GuildStatus, RedriveSummary};
use guildhall_core::{
    operation::{Failure, FailureClass, OperationId, OperationState},
    time::UnixMs,
};
use serde::Serialize;
use serde_json::{Value, json};

use super::params;
use crate::api::handlers::timeline;

/// Fields that are redacted: the token permits to respond to an interaction.
const REDACTED_FIELDS: [&str; 1] = ["interaction_token"];

/// The URL of an operation.
pub(crate) fn location(id: OperationId) -> String {
    format!("/v1/operations/{id}")
}

pub(crate) fn time(at: UnixMs) -> Value {
    let at = i64::try_from(at.millis()).ok().and_then(DateTime::from_timestamp_millis);
    at.map_or(Value::Null, |at| at.to_rfc3339_opts(SecondsFormat::Millis, true).into())
}

fn id_text(id: Option<u64>) -> Value {
    id.map_or(Value::Null, |id| id.to_string().into())
}

/// A stored text as JSON; as a string, if it is not JSON.
fn embedded(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|_| text.into())
}

fn payload(text: &str) -> Value {
    let mut value = embedded(text);
    if let Some(fields) = value.as_object_mut() {
        for (_, field) in fields.iter_mut().filter(|(name, _)| REDACTED_FIELDS.contains(&name.as_str())) {
            *field = "(redacted)".into();
        }
    }
    value
}

fn failure(failure: &Failure) -> Value {
    json!({"class": failure.class.name(), "message": failure.message, "status": failure.status, "code": failure.code})
}

fn attempt(attempt: &Attempt) -> Value {
    json!({
        "n": attempt.n,
        "started_at": time(attempt.started_at),
        "ended_at": time(attempt.ended_at),
        "status": attempt.status,
        "class": attempt.class,
        "detail": attempt.detail,
    })
}

/// An operation that was accepted now or before. Every submission is answered with one, so it is serialized without an
/// intermediate value.
#[derive(Debug, Serialize)]
pub(crate) struct AcceptedOperationDto {
    eligible_at: Option<Value>,
    guild_id: Option<String>,
    href: String,
    id: OperationId,
    kind: &'static str,
    replayed: bool,
    result: Option<Value>,
    state: &'static str,
}

pub(crate) fn accepted(accepted: &AcceptedOperation) -> AcceptedOperationDto {
    AcceptedOperationDto {
        eligible_at: accepted.eligible_at.map(time),
        guild_id: accepted.guild.map(|guild| guild.to_string()),
        href: location(accepted.id),
        id: accepted.id,
        kind: accepted.kind.name(),
        replayed: accepted.replayed,
        result: accepted.result.as_deref().map(embedded),
        state: accepted.state.name(),
    }
}

/// Operations of one submission.
#[derive(Debug, Serialize)]
pub(crate) struct AcceptedBatch {
    operations: Vec<AcceptedOperationDto>,
}

pub(crate) fn accepted_batch(all: &[AcceptedOperation]) -> AcceptedBatch {
    AcceptedBatch { operations: all.iter().map(accepted).collect() }
}

/// An operation without its attempts, as in lists.
pub(crate) fn operation_summary(details: &OperationDetails) -> Value {
    let (stored, operation) = (&details.stored, &details.stored.operation);
    json!({
        "id": operation.id,
        "kind": operation.kind.name(),
        "guild_id": id_text(operation.guild),
        "state": stored.state.name(),
        "seq": (stored.seq > 0).then_some(stored.seq),
        "lane": operation.lane.name(),
        "payload": payload(&operation.payload),
        "reason": operation.reason,
        "attempts": stored.attempts,
        "max_attempts": operation.max_attempts,
        "delays": stored.delays,
        "parked": stored.parked,
        "eligible_at": time(operation.eligible_at),
        "deadline_at": operation.deadline_at.map(time),
        "waits_for": waits_for(details),
        "progress": progress(details),
        "error": stored.error.as_ref().map(failure),
        "result": details.result.as_deref().map(embedded),
        "trace": operation.trace,
        "deployment_id": operation.deployment,
        "redrive_of": operation.redrive_of,
        "created_at": time(operation.created_at),
        "updated_at": time(details.updated_at),
        "finished_at": details.finished_at.map(time),
        "href": location(operation.id),
    })
}

/// The finished steps of an operation with several calls. After success, the result contains all of it.
fn progress(details: &OperationDetails) -> Value {
    match details.stored.state {
        OperationState::Succeeded => json!([]),
        OperationState::Scheduled
        | OperationState::Queued
        | OperationState::Running
        | OperationState::Delayed
        | OperationState::Retrying
        | OperationState::Reconciling
        | OperationState::Dead
        | OperationState::Cancelled
        | OperationState::NeedsReview => json!(details.stored.progress),
    }
}

/// What an operation waits for and until when, as far as that is known; `null` for one that does not wait.
fn waits_for(details: &OperationDetails) -> Value {
    let (stored, due) = (&details.stored, Some(details.stored.operation.eligible_at));
    let waits = |reason: &str, until: Option<UnixMs>, operation: Option<OperationId>| {
        let detail = stored.error.as_ref().map(|error| &error.message);
        json!({"reason": reason, "until": until.map(time), "operation": operation, "detail": detail})
    };
    match stored.state {
        OperationState::Scheduled | OperationState::Queued => match details.waits_for {
            Some(WaitReason::Delay) => waits("delay", due, None),
            Some(WaitReason::Policy) => waits("policy", due, None),
            Some(WaitReason::Scheduled(target)) => waits("scheduled_operation", None, Some(target)),
            Some(WaitReason::Behind(earlier)) => waits("queue", None, Some(earlier)),
            Some(WaitReason::Paused) => waits("guild_paused", None, None),
            Some(WaitReason::AllPaused) => waits("all_paused", None, None),
            Some(WaitReason::Owner) => waits("process", None, None),
            Some(WaitReason::NextInQueue) => waits("turn", None, None),
            None => Value::Null,
        },
        OperationState::Delayed if stored.parked => waits("parked", due, None),
        OperationState::Delayed => waits("limit", due, None),
        OperationState::Retrying => waits("backoff", due, None),
        OperationState::Reconciling => waits("reconciliation", due, None),
        OperationState::Running
        | OperationState::Succeeded
        | OperationState::Dead
        | OperationState::Cancelled
        | OperationState::NeedsReview => Value::Null,
    }
}

/// An operation with its attempts and its timeline.
pub(crate) fn operation(details: &OperationDetails) -> Value {
    let mut value = operation_summary(details);
    // A delay is not an attempt.
    let tries = details.attempts.iter().filter(|attempt| attempt.class != FailureClass::RateLimited.name());
    value["tries"] = tries.map(attempt).collect();
    value["timeline"] = timeline::timeline(details);
    value["key"] = details.stored.operation.idempotency.as_ref().map_or(Value::Null, |key| key.key.clone().into());
    value
}

/// A page of operations; `more` if another one follows.
pub(crate) fn operations(operations: &[OperationDetails], more: bool) -> Value {
    let last = operations.last().filter(|_| more).map(|last| params::cursor(last.stored.operation.id));
    json!({"operations": operations.iter().map(operation_summary).collect::<Vec<_>>(), "next": last})
}

/// A dead letter.
pub(crate) fn dead_letter(letter: &DeadLetter) -> Value {
    json!({
        "id": letter.id,
        "kind": letter.kind.name(),
        "guild_id": id_text(letter.guild),
        "payload": payload(&letter.payload),
        "reason": letter.reason,
        "error": failure(&letter.error),
        "attempts": letter.attempts,
        "created_at": time(letter.created_at),
        "died_at": time(letter.died_at),
        "redrive_of": letter.redrive_of,
        "redriven_as": letter.redriven_as,
        "href": format!("/v1/dead-letters/{}", letter.id),
    })
}

/// A page of dead letters; `more` if another one follows.
pub(crate) fn dead_letters(letters: &[DeadLetter], more: bool) -> Value {
    let last = letters.last().filter(|_| more).map(|last| params::cursor(last.id));
    json!({"dead_letters": letters.iter().map(dead_letter).collect::<Vec<_>>(), "next": last})
}

/// The result of redriving dead letters.
pub(crate) fn redriven(summary: &RedriveSummary) -> Value {
    let pairs = summary.redriven.iter().map(|(letter, operation)| json!({"letter": letter, "operation": operation}));
    let skipped = summary.skipped.iter().map(|skipped| json!({"letter": skipped.id, "why": skipped.reason}));
    json!({
        "redriven": summary.redriven.len(),
        "operations": pairs.collect::<Vec<_>>(),
        "skipped": skipped.collect::<Vec<_>>(),
        "more": summary.more,
        "stopped": summary.stopped.as_ref().map(ToString::to_string),
    })
}

/// The result of discarding dead letters.
pub(crate) fn discarded(summary: DiscardSummary) -> Value {
    json!({"discarded": summary.count, "more": summary.more})
}

/// The status of a guild.
pub(crate) fn guild(guild: u64, status: &GuildStatus) -> Value {
    json!({
        "guild_id": guild.to_string(),
        "paused": status.paused,
        "all_paused": status.all_paused,
        "depth": status.pending.values().sum::<u64>(),
        "depth_is_more": status.more,
        "pending": status.pending,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_rfc_3339() {
        assert_eq!(time(UnixMs::new(1_700_000_000_123)), "2023-11-14T22:13:20.123Z");
        assert_eq!(time(UnixMs::new(u64::MAX)), Value::Null);
    }

    #[test]
    fn interaction_tokens_are_redacted() {
        let result = payload(r#"{"interaction_id":"1","interaction_token":"aW50ZXJhY3Rpb24"}"#);
        assert_eq!(result, json!({"interaction_id": "1", "interaction_token": "(redacted)"}));
        assert_eq!(payload("not json"), "not json");
    }
}
