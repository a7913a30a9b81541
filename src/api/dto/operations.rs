//! Operations.

use guildhall_actors::ports::{self, OperationDetails};
use guildhall_actors::submission::AcceptedOperation;
use guildhall_core::{
    operation::{self, OperationState},
    time::UnixMs,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::{
    CancelledState, FailureClass, Href, Kind, Lane, OperationId, Snowflake, State, StepName, Time, TimelineEvent,
    WaitReason,
};
use crate::api::handlers::timeline;

/// Fields that are redacted: the token permits to respond to an interaction.
const REDACTED_FIELDS: [&str; 1] = ["interaction_token"];

/// An operation that was accepted now or before.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct Accepted {
    pub(crate) id: OperationId,
    pub(crate) kind: Kind,
    pub(crate) guild_id: Option<Snowflake>,
    pub(crate) state: State,
    /// Not executed before this time; `null` for one that was accepted before.
    pub(crate) eligible_at: Option<Time>,
    /// The result, if it has succeeded already.
    pub(crate) result: Value,
    /// Whether it was accepted before with the same key, so that nothing new was accepted.
    pub(crate) replayed: bool,
    /// Path of this resource.
    pub(crate) href: Href,
}

/// The operations of one submission.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct AcceptedMany {
    pub(crate) operations: Vec<Accepted>,
}

/// A page of operations.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct OperationPage {
    pub(crate) operations: Vec<Operation>,
    /// Value of `cursor` for the next page; `null` on the last page.
    pub(crate) next: Option<String>,
}

/// An operation without its attempts.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct Operation {
    pub(crate) id: OperationId,
    pub(crate) kind: Kind,
    pub(crate) guild_id: Option<Snowflake>,
    pub(crate) state: State,
    /// Its position in its queue; `null` while it is scheduled.
    pub(crate) seq: Option<u64>,
    pub(crate) lane: Lane,
    /// The payload of its kind. Interaction tokens are redacted.
    #[schema(value_type = Object)]
    pub(crate) payload: Value,
    /// Reason for Discord's audit log.
    pub(crate) reason: Option<String>,
    /// Number of attempts.
    pub(crate) attempts: u32,
    /// Maximum number of attempts.
    #[schema(minimum = 1, maximum = 20)]
    pub(crate) max_attempts: u32,
    /// How often it was delayed by a limit or a breaker.
    pub(crate) delays: u32,
    /// Whether it waits for so long that others may overtake it.
    pub(crate) parked: bool,
    /// Not executed before this time.
    pub(crate) eligible_at: Time,
    /// Not executed after this time.
    pub(crate) deadline_at: Option<Time>,
    /// What it waits for; `null` if it does not wait, and for queued and scheduled ones in streams.
    pub(crate) waits_for: Option<WaitsFor>,
    /// The completed steps of an operation with several calls; empty if there are none, and after success.
    pub(crate) progress: Vec<ProgressStep>,
    /// Why it is delayed or failed.
    pub(crate) error: Option<Failure>,
    /// The result.
    pub(crate) result: Value,
    /// The trace of the operation (W3C `traceparent`).
    pub(crate) trace: Option<String>,
    /// The operation that this one redrives.
    pub(crate) redrive_of: Option<OperationId>,
    pub(crate) created_at: Time,
    pub(crate) updated_at: Time,
    pub(crate) finished_at: Option<Time>,
    /// Path of this resource.
    pub(crate) href: Href,
}

/// An operation with its attempts.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct OperationInFull {
    #[serde(flatten)]
    pub(crate) operation: Operation,
    /// The attempts.
    pub(crate) tries: Vec<OperationAttempt>,
    /// Its idempotency key.
    pub(crate) key: Option<String>,
    /// What happened to it, in order.
    pub(crate) timeline: Vec<TimelineRecord>,
}

/// A finished operation that the caller has waited for.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Waited {
    #[serde(flatten)]
    pub(crate) operation: OperationInFull,
    /// Whether it was accepted before with the same key, so that nothing new was accepted.
    pub(crate) replayed: bool,
}

/// An operation of a submission that the caller has waited for. If only its idempotency key is still stored, it has few
/// fields.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub(crate) enum WaitedOperation {
    Finished(Box<Waited>),
    KeyOnly(Box<Accepted>),
}

/// The operations of a submission that the caller has waited for.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct WaitedMany {
    pub(crate) operations: Vec<WaitedOperation>,
}

/// Why an operation failed or is delayed.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct Failure {
    pub(crate) class: FailureClass,
    /// What failed, and what to do if something can be done.
    pub(crate) message: String,
    /// The status of Discord's response.
    #[schema(minimum = 100, maximum = 599)]
    pub(crate) status: Option<u16>,
    /// Discord's own error code.
    pub(crate) code: Option<u32>,
}

/// What an operation waits for.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct WaitsFor {
    pub(crate) reason: WaitReason,
    /// When it continues, if that is known.
    pub(crate) until: Option<Time>,
    /// The operation that it waits for.
    pub(crate) operation: Option<OperationId>,
    /// More details.
    pub(crate) detail: Option<String>,
}

/// A call with an effect that Discord has confirmed.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
pub(crate) struct ProgressStep {
    pub(crate) step: StepName,
    pub(crate) channel_id: Snowflake,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) message_id: Option<Snowflake>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) role_id: Option<Snowflake>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) user_id: Option<Snowflake>,
    /// The key of the message from now on.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) key: Option<String>,
}

/// One attempt.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct OperationAttempt {
    /// Number of the attempt, from 1.
    pub(crate) n: u32,
    pub(crate) started_at: Time,
    pub(crate) ended_at: Time,
    /// The status of Discord's response.
    #[schema(minimum = 100, maximum = 599)]
    pub(crate) status: Option<u16>,
    /// `succeeded`, or the class of the failure.
    pub(crate) class: String,
    /// What happened.
    pub(crate) detail: Option<String>,
}

/// An entry of the timeline of an operation.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct TimelineRecord {
    pub(crate) at: Time,
    pub(crate) what: TimelineEvent,
    /// Number of the attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) attempt: Option<u32>,
    /// More details.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) detail: Option<String>,
}

/// An operation that is tried again.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct RetriedOperation {
    /// The operation to follow from now on.
    pub(crate) id: OperationId,
    pub(crate) state: State,
    /// The operation that this one redrives; `null` if it is the same one.
    pub(crate) redrive_of: Option<OperationId>,
    /// Path of this resource.
    pub(crate) href: Href,
}

/// A cancelled operation.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct Cancelled {
    pub(crate) id: OperationId,
    pub(crate) state: CancelledState,
    /// Path of this resource.
    pub(crate) href: Href,
}

/// The URL of an operation.
pub(crate) fn location(id: operation::OperationId) -> String {
    format!("/v1/operations/{id}")
}

/// A stored text as JSON; as a string, if it is not JSON.
fn embedded(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|_| text.into())
}

/// A stored payload as JSON, without its secrets.
pub(super) fn payload(text: &str) -> Value {
    let mut value = embedded(text);
    if let Some(fields) = value.as_object_mut() {
        for (_, field) in fields.iter_mut().filter(|(name, _)| REDACTED_FIELDS.contains(&name.as_str())) {
            *field = "(redacted)".into();
        }
    }
    value
}

fn result(text: Option<&str>) -> Value {
    text.map_or(Value::Null, embedded)
}

impl From<&AcceptedOperation> for Accepted {
    fn from(accepted: &AcceptedOperation) -> Self {
        Self {
            id: accepted.id.into(),
            kind: accepted.kind.name().into(),
            guild_id: accepted.guild.map(Snowflake::from),
            state: accepted.state.name().into(),
            eligible_at: accepted.eligible_at.map(Time::from),
            result: result(accepted.result.as_deref()),
            replayed: accepted.replayed,
            href: location(accepted.id).into(),
        }
    }
}

impl From<&OperationDetails> for Operation {
    fn from(details: &OperationDetails) -> Self {
        let (stored, operation) = (&details.stored, &details.stored.operation);
        Self {
            id: operation.id.into(),
            kind: operation.kind.name().into(),
            guild_id: operation.guild.map(Snowflake::from),
            state: stored.state.name().into(),
            seq: (stored.seq > 0).then_some(stored.seq),
            lane: operation.lane.name().into(),
            payload: payload(&operation.payload),
            reason: operation.reason.clone(),
            attempts: stored.attempts,
            max_attempts: operation.max_attempts,
            delays: stored.delays,
            parked: stored.parked,
            eligible_at: operation.eligible_at.into(),
            deadline_at: operation.deadline_at.map(Time::from),
            waits_for: WaitsFor::new(details),
            // After success, the result contains all of it.
            progress: match stored.state {
                OperationState::Succeeded => Vec::new(),
                OperationState::Scheduled
                | OperationState::Queued
                | OperationState::Running
                | OperationState::Delayed
                | OperationState::Retrying
                | OperationState::Reconciling
                | OperationState::Dead
                | OperationState::Cancelled
                | OperationState::NeedsReview => stored.progress.steps().iter().map(ProgressStep::from).collect(),
            },
            error: stored.error.as_ref().map(Failure::from),
            result: result(details.result.as_deref()),
            trace: operation.trace.map(|trace| trace.to_string()),
            redrive_of: operation.redrive_of.map(OperationId::from),
            created_at: operation.created_at.into(),
            updated_at: details.updated_at.into(),
            finished_at: details.finished_at.map(Time::from),
            href: location(operation.id).into(),
        }
    }
}

impl WaitsFor {
    /// What an operation waits for and until when, as far as that is known; `None` for one that does not wait.
    fn new(details: &OperationDetails) -> Option<Self> {
        use ports::WaitReason as Reason;
        let (stored, due) = (&details.stored, Some(details.stored.operation.eligible_at));
        let waits = |reason: &'static str, until: Option<UnixMs>, operation: Option<operation::OperationId>| {
            let detail = stored.error.as_ref().map(|error| error.message.clone());
            let (until, operation) = (until.map(Time::from), operation.map(OperationId::from));
            Some(Self { reason: reason.into(), until, operation, detail })
        };
        match stored.state {
            OperationState::Scheduled | OperationState::Queued => match details.waits_for? {
                Reason::Delay => waits("delay", due, None),
                Reason::Policy => waits("policy", due, None),
                Reason::Scheduled(target) => waits("scheduled_operation", None, Some(target)),
                Reason::Behind(earlier) => waits("queue", None, Some(earlier)),
                Reason::Paused => waits("guild_paused", None, None),
                Reason::AllPaused => waits("all_paused", None, None),
                Reason::Owner => waits("process", None, None),
                Reason::NextInQueue => waits("turn", None, None),
            },
            OperationState::Delayed | OperationState::Retrying | OperationState::Reconciling
                if details.waits_for == Some(Reason::Paused) =>
            {
                waits("guild_paused", None, None)
            }
            OperationState::Delayed | OperationState::Retrying | OperationState::Reconciling
                if details.waits_for == Some(Reason::AllPaused) =>
            {
                waits("all_paused", None, None)
            }
            OperationState::Delayed if stored.parked => waits("parked", due, None),
            OperationState::Delayed => waits("limit", due, None),
            OperationState::Retrying => waits("backoff", due, None),
            OperationState::Reconciling => waits("reconciliation", due, None),
            OperationState::Running
            | OperationState::Succeeded
            | OperationState::Dead
            | OperationState::Cancelled
            | OperationState::NeedsReview => None,
        }
    }
}

impl From<&operation::Failure> for Failure {
    fn from(failure: &operation::Failure) -> Self {
        Self {
            class: failure.class.name().into(),
            message: failure.message.clone(),
            status: failure.status,
            code: failure.code,
        }
    }
}

impl From<&operation::ProgressStep> for ProgressStep {
    fn from(step: &operation::ProgressStep) -> Self {
        use operation::ProgressStep as Step;
        let at = |step: &'static str, channel: u64| Self {
            step: step.into(),
            channel_id: channel.into(),
            ..Self::default()
        };
        match step {
            Step::MessageSent { channel_id, message_id, key } => {
                Self { message_id: Some((*message_id).into()), key: key.clone(), ..at("message_sent", *channel_id) }
            }
            Step::MessageEdited { channel_id, message_id } => {
                Self { message_id: Some((*message_id).into()), ..at("message_edited", *channel_id) }
            }
            Step::RoleOverwriteSet { channel_id, role_id } => {
                Self { role_id: Some((*role_id).into()), ..at("role_overwrite_set", *channel_id) }
            }
            Step::MemberOverwriteSet { channel_id, user_id } => {
                Self { user_id: Some((*user_id).into()), ..at("member_overwrite_set", *channel_id) }
            }
        }
    }
}

impl From<&OperationDetails> for OperationInFull {
    fn from(details: &OperationDetails) -> Self {
        // A delay is not an attempt.
        let tries = details.attempts.iter().filter(|one| one.class != operation::FailureClass::RateLimited.name());
        Self {
            operation: details.into(),
            tries: tries.map(OperationAttempt::from).collect(),
            key: details.stored.operation.idempotency.as_ref().map(|key| key.key.clone()),
            timeline: timeline::timeline(details),
        }
    }
}

impl From<&ports::Attempt> for OperationAttempt {
    fn from(attempt: &ports::Attempt) -> Self {
        Self {
            n: attempt.n,
            started_at: attempt.started_at.into(),
            ended_at: attempt.ended_at.into(),
            status: attempt.status,
            class: attempt.class.clone(),
            detail: attempt.detail.clone(),
        }
    }
}

impl WaitedOperation {
    pub(crate) fn new(accepted: &AcceptedOperation, details: Option<&OperationDetails>) -> Self {
        match details {
            Some(details) => {
                Self::Finished(Box::new(Waited { operation: details.into(), replayed: accepted.replayed }))
            }
            None => Self::KeyOnly(Box::new(accepted.into())),
        }
    }
}

impl RetriedOperation {
    /// An operation that redrives another one.
    pub(crate) fn redriven(id: operation::OperationId, of: operation::OperationId) -> Self {
        let state = OperationState::Queued.name().into();
        Self { id: id.into(), state, redrive_of: Some(of.into()), href: location(id).into() }
    }

    /// An operation that is due now.
    pub(crate) fn expedited(id: operation::OperationId, state: OperationState) -> Self {
        Self { id: id.into(), state: state.name().into(), redrive_of: None, href: location(id).into() }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn interaction_tokens_are_redacted() {
        let result = payload(r#"{"interaction_id":"1","interaction_token":"aW50ZXJhY3Rpb24"}"#);
        assert_eq!(result, json!({"interaction_id": "1", "interaction_token": "(redacted)"}));
        assert_eq!(payload("not json"), "not json");
    }
}
