//! Decides what becomes of an operation after an attempt.

use std::time::Duration;

use guildhall_core::guild::DelayScope;
use guildhall_core::operation::{Failure, FailureClass, GateCondition, Repeatability};
use guildhall_core::time::UnixMs;

use crate::ports::{Attempt, ExecutionOutput, ExecutionResult, HoldScope, ReconcileResult, UnknownOutcome};
use crate::supervisor::OperationsConfig;

/// Maximum number of delays of one operation that are stored as attempts.
pub(super) const MAX_RECORDED_DELAYS: u32 = 50;

/// Start of the messages about an operation that was unfinished in a restored store.
const RESTORED: &str =
    "the store was restored from a backup, and the operation may have been executed since that backup";

/// What becomes of an operation.
#[derive(Debug, PartialEq)]
pub(super) enum Disposition {
    Succeeded(ExecutionOutput),
    Dead(Failure),
    /// The outcome cannot be determined: it needs review.
    Review(Failure),
    /// Nothing took effect, and no attempt was used.
    Delayed {
        wait: Duration,
        scope: DelayScope,
        reason: &'static str,
        error: Failure,
    },
    Retrying {
        wait: Duration,
        error: Failure,
    },
    /// It may have taken effect: its outcome is checked.
    Reconciling {
        wait: Duration,
        error: Failure,
    },
    /// It is not sent again, but an attempt may have taken effect. That is checked before it ends with this failure.
    Checking {
        wait: Duration,
        failure: Failure,
    },
    /// Discord did not report the outcome: it is checked again.
    CheckFailed {
        wait: Duration,
        error: Failure,
    },
    /// It did not take effect: it runs again.
    Requeued,
}

/// State of an operation after an attempt.
#[derive(Clone, Debug)]
pub(super) struct AttemptState {
    pub(super) repeatability: Repeatability,
    /// Attempts used, including the current one.
    pub(super) attempts: u32,
    pub(super) max_attempts: u32,
    /// Set if an attempt may have taken effect.
    pub(super) unknown_outcome: Option<UnknownOutcome>,
}

/// Decides what becomes of an operation after an execution. The last argument is a random number from 0 to 1, for
/// jitter.
pub(super) fn decide(
    result: ExecutionResult,
    state: &AttemptState,
    config: &OperationsConfig,
    random: f64,
) -> Disposition {
    match result {
        ExecutionResult::Done(output) => Disposition::Succeeded(output),
        ExecutionResult::Held { retry_after, scope, reason, message, status } => {
            let wait = retry_after.unwrap_or(config.default_delay).max(config.min_delay);
            let held_by = GateCondition::from_rejection(reason, &message);
            let error = Failure { status, held_by, ..Failure::new(FailureClass::RateLimited, message) };
            Disposition::Delayed { wait, scope: delay_scope(scope), reason, error }
        }
        ExecutionResult::Failed(failure) | ExecutionResult::Unknown(failure) => match failure.class {
            FailureClass::Validation
            | FailureClass::Forbidden
            | FailureClass::NotFound
            | FailureClass::Conflict
            | FailureClass::Expired
            | FailureClass::Poison
            | FailureClass::Restored => end_or_check(failure, state.unknown_outcome.as_ref(), config),
            FailureClass::RateLimited => Disposition::Delayed {
                wait: config.default_delay.max(config.min_delay),
                scope: DelayScope::Alone,
                reason: FailureClass::RateLimited.name(),
                error: failure,
            },
            FailureClass::Ambiguous if state.repeatability != Repeatability::Idempotent => {
                Disposition::Reconciling { wait: config.request_timeout, error: failure }
            }
            // Calls that may be repeated need no check.
            FailureClass::Transient | FailureClass::Ambiguous if state.attempts < state.max_attempts => {
                let wait = config.backoff.delay(state.attempts, random);
                // The previous call may still be in flight. It must not arrive together with the next one, or after it.
                let wait = if failure.status.is_none() { wait.max(config.request_timeout) } else { wait };
                Disposition::Retrying { wait, error: failure }
            }
            FailureClass::Transient | FailureClass::Ambiguous => {
                end_or_check(failure, state.unknown_outcome.as_ref(), config)
            }
        },
    }
}

/// What becomes of an operation that is not sent again. If an attempt may have taken effect, that is checked first,
/// when no call can be in flight any more.
pub(super) fn end_or_check(
    failure: Failure,
    unknown: Option<&UnknownOutcome>,
    config: &OperationsConfig,
) -> Disposition {
    match unknown {
        None => Disposition::Dead(failure),
        Some(_) => Disposition::Checking { wait: config.request_timeout, failure },
    }
}

/// Decides what becomes of an operation after a check of its outcome.
pub(super) fn decide_search(
    result: ReconcileResult,
    state: &AttemptState,
    config: &OperationsConfig,
    now: UnixMs,
    random: f64,
) -> Disposition {
    let unknown = state.unknown_outcome.as_ref();
    let failed_checks = unknown.map_or(0, |unknown| unknown.failed_checks);
    let checked_for = unknown.and_then(|unknown| unknown.checked_since).map_or(Duration::ZERO, |at| now.since(at));
    match result {
        ReconcileResult::Found(output) => Disposition::Succeeded(output),
        ReconcileResult::Absent => match unknown.and_then(|unknown| unknown.ends_with.clone()) {
            Some(failure) => Disposition::Dead(failure),
            None => Disposition::Requeued,
        },
        ReconcileResult::Unclear(message) => {
            let restored = unknown.is_some_and(|unknown| unknown.restored.is_some());
            let message = if restored { format!("{RESTORED}: {message}") } else { message };
            Disposition::Review(Failure::new(FailureClass::Ambiguous, message))
        }
        ReconcileResult::Failed(message) if failed_checks + 1 >= config.check_attempts => {
            let checks = config.check_attempts;
            Disposition::Review(unchecked_failure(&format!(
                "Discord was queried {checks} times without a result ({message})"
            )))
        }
        ReconcileResult::Held { message, .. } if checked_for >= config.check_timeout => Disposition::Review(
            unchecked_failure(&format!("Discord could not be queried for {checked_for:?} ({message})")),
        ),
        ReconcileResult::Failed(message) => Disposition::CheckFailed {
            wait: config.backoff.delay(failed_checks + 1, random),
            error: Failure::new(FailureClass::Ambiguous, message),
        },
        ReconcileResult::Held { retry_after, scope: _, message } => {
            let held_by = GateCondition::from_message(&message);
            let error = Failure { held_by, ..Failure::new(FailureClass::Ambiguous, message) };
            Disposition::Reconciling { wait: retry_after.max(config.min_delay), error }
        }
    }
}

fn unchecked_failure(cause: &str) -> Failure {
    let message =
        format!("it may have taken effect, and its outcome could not be checked: {cause}; check it in Discord");
    Failure::new(FailureClass::Ambiguous, message)
}

/// The failure of an operation that has used all attempts, none of which took effect.
pub(super) fn out_of_attempts() -> Failure {
    Failure::new(
        FailureClass::Transient,
        "all attempts were sent without a response, and none took effect; redrive it when Discord responds again",
    )
}

/// The failure of an operation of a restored store that was due and whose effect does not exist.
pub(super) fn not_sent_after_restore() -> Failure {
    let advice = "its effect was not found in Discord, and it was not sent again; redrive it if it is still wanted";
    Failure::new(FailureClass::Restored, format!("{RESTORED}; {advice}"))
}

/// The failure of an operation whose deadline has passed.
pub(super) fn expired(attempts: u32) -> Failure {
    let message = match attempts {
        0 => "its deadline passed before it could be sent".to_owned(),
        attempts => format!("its deadline passed after {attempts} attempts, none of which took effect"),
    };
    Failure::new(FailureClass::Expired, message)
}

/// The failure of an operation that crashed its guild.
pub(super) fn poisoned() -> Failure {
    Failure::new(
        FailureClass::Poison,
        "it crashed its guild and was set aside so that other operations continue; the log has the location",
    )
}

/// The record of a delay. It is not an attempt: it starts and ends at the same time, with the number of the attempt
/// before it.
pub(super) fn delay_record(attempts: u32, failure: &Failure, now: UnixMs) -> Attempt {
    Attempt {
        n: attempts,
        started_at: now,
        ended_at: now,
        status: failure.status,
        class: FailureClass::RateLimited.name().to_owned(),
        detail: Some(failure.message.clone()),
    }
}

const fn delay_scope(scope: HoldScope) -> DelayScope {
    match scope {
        HoldScope::Route => DelayScope::Alone,
        HoldScope::Caller => DelayScope::ByCaller,
        HoldScope::All => DelayScope::WithAll,
    }
}
