//! Maps the outcome of a call to the result of its operation.
//!
//! | outcome | result |
//! |---|---|
//! | not sent: breaker, ban, global limit, invalid request limit, unreachable, shutting down | held, with everything else |
//! | not sent: the caller's share of the invalid request limit | held, others may pass at once |
//! | not sent: a route's limit, the breaker of a route; 429 of a bucket or a resource | held, others may pass |
//! | not sent: malformed | `Validation` |
//! | an interaction that has expired, or is unknown | `NotFound` |
//! | 429 of the global limit, Cloudflare's ban, 401 | held, with everything else |
//! | 403 | `Forbidden` |
//! | 404 | `NotFound`; success for deletes |
//! | a quota (30xxx: too many roles, channels, pins, …) | `Conflict`: the guild is not in the state that the operation expects |
//! | any other 4xx | `Validation`, with every invalid field |
//! | 5xx, a cut connection, a timeout, a malformed response | unknown: `Transient`; `Ambiguous` if the call creates an object |
//!
//! A call that only reads has no effect, so its outcome is never unknown: it failed.

use std::time::Duration;

use guildhall_actors::gate::{CallOutcome, NotSent, RestResponse};
use guildhall_actors::ports::{ExecutionResult, HoldScope, ReconcileResult, StoreError};
use guildhall_core::breaker::{BreakerKey, BreakerKind};
use guildhall_core::operation::{Failure, FailureClass};
use guildhall_core::response::{RateLimitScope, ResponseClass};

use super::error_body;
use crate::discord::rest::CallError;

/// The guild of the call has used up its share of the invalid request limit.
const GUILD_SHARE: &str = "invalid_requests_guild_share";

/// The effect of sending the same call again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RepeatSafety {
    /// No further effect.
    Harmless,
    /// Possibly a second object: an unknown outcome must be resolved first.
    Doubles,
}

/// Why an operation is not done.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum ExecutionError {
    /// Nothing happened; retry later.
    Held { retry_after: Option<Duration>, hold: HoldScope, reason: &'static str, message: String, status: Option<u16> },
    /// Failed, without an effect.
    Failed(Failure),
    /// May have taken effect: there was no response, or the response does not show it.
    Unknown(Failure),
}

impl ExecutionError {
    /// A failure that is not a response of Discord.
    pub(crate) fn failed(class: FailureClass, message: impl Into<String>) -> Self {
        Self::Failed(Failure::new(class, message))
    }

    /// Extends the hold to the whole queue, for an operation in the queue of the guild that the call was for.
    pub(crate) fn in_queue_of_guild(self) -> Self {
        match self {
            Self::Held { retry_after, reason: reason @ GUILD_SHARE, message, status, hold: _ } => {
                Self::Held { retry_after, hold: HoldScope::All, reason, message, status }
            }
            Self::Held { .. } | Self::Failed(_) | Self::Unknown(_) => self,
        }
    }

    /// Converts an unknown outcome to a failure, for a call that only reads: it had no effect.
    pub(crate) fn without_effect(self) -> Self {
        match self {
            Self::Unknown(failure) => Self::Failed(failure),
            Self::Held { .. } | Self::Failed(_) => self,
        }
    }

    /// Whether Discord responded with this status and one of these codes.
    pub(crate) fn is_response(&self, status: u16, codes: &[u32]) -> bool {
        match self {
            Self::Failed(Failure { status: Some(found), code: Some(code), .. }) => {
                *found == status && codes.contains(code)
            }
            Self::Failed(_) | Self::Unknown(_) | Self::Held { .. } => false,
        }
    }

    /// Whether Discord rejected what the call would write, and not its target.
    pub(crate) fn is_rejected(&self) -> bool {
        match self {
            Self::Failed(Failure { class, status, .. }) => {
                status.is_some()
                    && matches!(class, FailureClass::Validation | FailureClass::Forbidden | FailureClass::Conflict)
            }
            Self::Unknown(_) | Self::Held { .. } => false,
        }
    }

    /// Whether the same call may succeed later.
    pub(crate) fn is_temporary(&self) -> bool {
        match self {
            Self::Held { .. } | Self::Unknown(_) => true,
            Self::Failed(Failure { class, .. }) => *class == FailureClass::Transient,
        }
    }

    /// Whether the object of the call does not exist. An unknown guild says nothing about its objects: the bot is no
    /// longer a member of it.
    pub(crate) fn is_gone(&self) -> bool {
        const UNKNOWN_GUILD: u32 = 10_004;
        match self {
            Self::Failed(Failure { status: Some(404), code: Some(code), .. }) => {
                (10_001..11_000).contains(code) && *code != UNKNOWN_GUILD
            }
            Self::Failed(_) | Self::Unknown(_) | Self::Held { .. } => false,
        }
    }

    /// Converts the error of a search to its result.
    pub(crate) fn into_reconcile_result(self, retry_delay: Duration) -> ReconcileResult {
        match self {
            Self::Held { retry_after, hold, reason, message, .. } => {
                // The reason of a search is carried only in its text.
                let message = if message.ends_with(reason) { message } else { format!("{message}: {reason}") };
                ReconcileResult::Held { retry_after: retry_after.unwrap_or(retry_delay), scope: hold, message }
            }
            Self::Unknown(Failure { message, .. }) => ReconcileResult::Failed(message),
            Self::Failed(Failure { class, message, .. }) => match class {
                FailureClass::Transient | FailureClass::Ambiguous | FailureClass::RateLimited => {
                    ReconcileResult::Failed(message)
                }
                FailureClass::Validation
                | FailureClass::Forbidden
                | FailureClass::NotFound
                | FailureClass::Conflict
                | FailureClass::Expired
                | FailureClass::Poison
                | FailureClass::Restored => ReconcileResult::Unclear(format!("the search failed: {message}")),
            },
        }
    }
}

impl From<ExecutionError> for ExecutionResult {
    fn from(error: ExecutionError) -> Self {
        match error {
            ExecutionError::Held { retry_after, hold, reason, message: why, status } => {
                Self::Held { retry_after, scope: hold, reason, message: why, status }
            }
            ExecutionError::Failed(failure) => Self::Failed(failure),
            ExecutionError::Unknown(failure) => Self::Unknown(failure),
        }
    }
}

impl From<CallError> for ExecutionError {
    fn from(error: CallError) -> Self {
        Self::failed(FailureClass::Validation, error.to_string())
    }
}

impl From<StoreError> for ExecutionError {
    fn from(error: StoreError) -> Self {
        Self::failed(FailureClass::Transient, error.to_string())
    }
}

/// Returns the response of a successful call, or the error that its outcome means.
pub(crate) fn evaluate(outcome: CallOutcome, repeat_safety: RepeatSafety) -> Result<RestResponse, ExecutionError> {
    match outcome {
        CallOutcome::NotSent(not_sent) => Err(not_sent_error(not_sent)),
        CallOutcome::Unknown(unknown) => Err(unknown_outcome(repeat_safety, None, unknown.to_string())),
        CallOutcome::Answered(response) => evaluate_response(response, repeat_safety),
    }
}

/// The error for a call whose outcome is unknown.
pub(crate) fn unknown_outcome(repeat_safety: RepeatSafety, status: Option<u16>, message: String) -> ExecutionError {
    let class = match repeat_safety {
        RepeatSafety::Harmless => FailureClass::Transient,
        RepeatSafety::Doubles => FailureClass::Ambiguous,
    };
    ExecutionError::Unknown(Failure { status, ..Failure::new(class, message) })
}

fn not_sent_error(NotSent { retry_after, message, reason, bucket: _ }: NotSent) -> ExecutionError {
    let hold = match reason {
        "malformed" => return ExecutionError::failed(FailureClass::Validation, message),
        "interaction_ended" => {
            return ExecutionError::failed(
                FailureClass::NotFound,
                "the interaction has expired: its token is no longer valid",
            );
        }
        "webhook_gone" => {
            return ExecutionError::failed(FailureClass::NotFound, "the webhook does not exist: it was deleted");
        }
        "route_limit" => HoldScope::Route,
        "invalid_requests_key_share" | "invalid_requests_tenant_share" | GUILD_SHARE => HoldScope::Caller,
        "breaker_open" | "breaker_half_open" | "breaker_forced_open" => breaker_hold_scope(&message, reason),
        // The invalid request limit, a ban, the global limit, a full wait queue, no connection, shutdown, and unknown
        // reasons.
        _ => HoldScope::All,
    };
    ExecutionError::Held { retry_after, hold, reason, message, status: None }
}

/// What an open breaker holds. Its key precedes the reason in the text.
fn breaker_hold_scope(message: &str, reason: &str) -> HoldScope {
    let key = message.strip_suffix(reason).and_then(|text| text.strip_suffix(": "));
    match key.and_then(|key| key.parse::<BreakerKey>().ok()).map(|key| key.kind()) {
        Some(BreakerKind::Route | BreakerKind::Pair) => HoldScope::Route,
        Some(BreakerKind::Address | BreakerKind::Discord | BreakerKind::Target) | None => HoldScope::All,
    }
}

fn evaluate_response(response: RestResponse, repeat_safety: RepeatSafety) -> Result<RestResponse, ExecutionError> {
    let status = response.status.as_u16();
    let describe = || {
        let code = response.code.filter(|code| *code != 0).map(|code| format!(" (code {code})")).unwrap_or_default();
        match error_body::format_error(&response.body) {
            Some(details) => format!("Discord returned {status}{code}: {details}"),
            None => format!("Discord returned {status}{code}"),
        }
    };
    let failed = |class, advice: &str| {
        let message = format!("{}{advice}", describe());
        Err(ExecutionError::Failed(Failure {
            status: Some(status),
            code: response.code,
            ..Failure::new(class, message)
        }))
    };
    let held = |retry_after, hold, reason| {
        Err(ExecutionError::Held { retry_after, hold, reason, message: describe(), status: Some(status) })
    };
    match response.class {
        ResponseClass::Success => Ok(response),
        ResponseClass::RateLimited { scope, retry_after } => {
            let (hold, reason) = match scope {
                RateLimitScope::User => (HoldScope::Route, "rate_limited"),
                RateLimitScope::Shared => (HoldScope::Route, "rate_limited_shared"),
                RateLimitScope::Global => (HoldScope::All, "rate_limited_global"),
            };
            held(Some(retry_after), hold, reason)
        }
        // The breaker is open from now on, and has the retry time.
        ResponseClass::Blocked { retry_after } => held(retry_after, HoldScope::All, "blocked"),
        ResponseClass::Unauthorized => held(None, HoldScope::All, "unauthorized"),
        ResponseClass::InteractionEnded => failed(FailureClass::NotFound, "; the interaction has expired"),
        ResponseClass::Forbidden => failed(FailureClass::Forbidden, "; give the bot the missing permission"),
        ResponseClass::NotFound | ResponseClass::WebhookGone => failed(FailureClass::NotFound, ""),
        ResponseClass::Rejected => match response.code {
            // "Maximum number of … reached", of any kind of object.
            Some(30_000..=30_999) => {
                failed(FailureClass::Conflict, "; remove objects that are no longer needed, then submit again")
            }
            // Not a response of the API itself: a redirect, which is not followed.
            _ if status < 400 => Err(unknown_outcome(repeat_safety, Some(status), describe())),
            _ => failed(FailureClass::Validation, ""),
        },
        ResponseClass::ServerError => Err(unknown_outcome(repeat_safety, Some(status), describe())),
    }
}

#[cfg(test)]
mod tests {
    use guildhall_actors::gate::NoResponse;
    use guildhall_core::invalid::HolderKind;

    use super::*;

    fn not_sent(reason: &'static str, message: &str) -> ExecutionError {
        let retry_after = Some(Duration::from_secs(3));
        let outcome = CallOutcome::NotSent(NotSent { retry_after, message: message.to_owned(), reason, bucket: None });
        evaluate(outcome, RepeatSafety::Doubles).unwrap_err()
    }

    fn hold_of(error: ExecutionError) -> HoldScope {
        match error {
            ExecutionError::Held { hold, .. } => hold,
            ExecutionError::Failed(failure) | ExecutionError::Unknown(failure) => panic!("not held: {failure}"),
        }
    }

    #[test]
    fn unsent_calls_hold_everything_that_would_be_held_too() {
        for reason in ["global_limit", "blocked", "unauthorized", "unreachable", "shutting_down", "queue_full"] {
            assert_eq!(hold_of(not_sent(reason, "because")), HoldScope::All, "{reason}");
        }
        assert_eq!(hold_of(not_sent("route_limit", "because")), HoldScope::Route);
        for by in [HolderKind::Key, HolderKind::Tenant, HolderKind::Guild] {
            let error = not_sent(by.reason(), "because");
            assert_eq!(hold_of(error.clone()), HoldScope::Caller);
            let scope = if by == HolderKind::Guild { HoldScope::All } else { HoldScope::Caller };
            assert_eq!(hold_of(error.in_queue_of_guild()), scope);
        }
        let pair = "discord:42/POST /guilds/{id}/roles#7: breaker_open";
        assert_eq!(hold_of(not_sent("breaker_open", pair)), HoldScope::Route);
        assert_eq!(hold_of(not_sent("breaker_open", "discord:42: breaker_open")), HoldScope::All);
        assert_eq!(hold_of(not_sent("breaker_open", "unparsable text")), HoldScope::All);
    }

    #[test]
    fn unknown_outcome_is_ambiguous_only_for_creating_calls() {
        let class =
            |repeat_safety| match evaluate(CallOutcome::Unknown(NoResponse { message: "cut".into() }), repeat_safety)
                .unwrap_err()
            {
                ExecutionError::Unknown(failure) => failure.class,
                ExecutionError::Failed(failure) => panic!("the outcome is known: {failure}"),
                ExecutionError::Held { message: why, .. } => panic!("{why}"),
            };
        assert_eq!(class(RepeatSafety::Harmless), FailureClass::Transient);
        assert_eq!(class(RepeatSafety::Doubles), FailureClass::Ambiguous);
    }

    #[test]
    fn unsendable_calls_fail_permanently() {
        assert!(matches!(
            not_sent("malformed", "no"),
            ExecutionError::Failed(Failure { class: FailureClass::Validation, .. })
        ));
        let ended = not_sent("interaction_ended", "no");
        assert!(matches!(ended, ExecutionError::Failed(Failure { class: FailureClass::NotFound, .. })));
    }
}
