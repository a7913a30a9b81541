//! Decides what becomes of an operation after an attempt.

use std::time::Duration;

use guildhall_core::guild::DelayScope;
use guildhall_core::operation::{Failure, FailureClass, GateCondition, Repeatability};
use guildhall_core::time::UnixMs;

use crate::ports::{Attempt, ExecutionOutput, ExecutionResult, HoldScope, ReconcileResult, UnknownOutcome};
use crate::supervisor::OperationsConfig;

/// Delays of one operation that are written down each by itself.
pub(super) const DELAYS_TOLD: u32 = 50;

/// What becomes of an operation.
#[derive(Debug, PartialEq)]
pub(super) enum Disposition {
    Succeeded(ExecutionOutput),
    Dead(Failure),
    /// Only a person can tell.
    Review(Failure),
    /// Nothing happened, and no attempt was used.
    Delayed {
        wait: Duration,
        held: DelayScope,
        reason: &'static str,
        error: Failure,
    },
    Retrying {
        wait: Duration,
        error: Failure,
    },
    /// It may have happened: it is looked for.
    Reconciling {
        wait: Duration,
        error: Failure,
    },
    /// It is not sent again, and an attempt may have taken effect: that is checked before it ends with this failure.
    Checking {
        wait: Duration,
        failure: Failure,
    },
    /// Discord was asked for the outcome and did not tell: it is asked again.
    Unchecked {
        wait: Duration,
        error: Failure,
    },
    /// It has not happened: it is its turn again.
    Again,
}

/// What is known of an operation that is judged.
#[derive(Clone, Debug)]
pub(super) struct AttemptState {
    pub(super) sends: Repeatability,
    /// Attempts used, with the one that is judged.
    pub(super) attempts: u32,
    pub(super) max_attempts: u32,
    /// Set if an attempt may have taken effect.
    pub(super) unknown_outcome: Option<UnknownOutcome>,
}

/// Judges a try. `chance` is from 0 to 1.
pub(super) fn judge(
    performed: ExecutionResult,
    case: &AttemptState,
    config: &OperationsConfig,
    chance: f64,
) -> Disposition {
    match performed {
        ExecutionResult::Done(done) => Disposition::Succeeded(done),
        ExecutionResult::Held { retry_after, hold, reason, why, status } => {
            let wait = retry_after.unwrap_or(config.blind_hold).max(config.least_hold);
            let held_by = GateCondition::of_refusal(reason, &why);
            let error = Failure { status, held_by, ..Failure::new(FailureClass::RateLimited, why) };
            Disposition::Delayed { wait, held: held_back(hold), reason, error }
        }
        ExecutionResult::Failed(failure) | ExecutionResult::Unknown(failure) => match failure.class {
            FailureClass::Validation
            | FailureClass::Forbidden
            | FailureClass::NotFound
            | FailureClass::Conflict
            | FailureClass::Expired
            | FailureClass::Poison => give_up(failure, case.unknown_outcome.as_ref(), config),
            FailureClass::RateLimited => Disposition::Delayed {
                wait: config.blind_hold.max(config.least_hold),
                held: DelayScope::Alone,
                reason: FailureClass::RateLimited.name(),
                error: failure,
            },
            FailureClass::Ambiguous if case.sends != Repeatability::Again => {
                Disposition::Reconciling { wait: config.request_timeout, error: failure }
            }
            // What may be sent again is not looked for.
            FailureClass::Transient | FailureClass::Ambiguous if case.attempts < case.max_attempts => {
                let wait = config.backoff.delay(case.attempts, chance);
                // The call before it may still be under way, and must not arrive beside or after the next one.
                let wait = if failure.status.is_none() { wait.max(config.request_timeout) } else { wait };
                Disposition::Retrying { wait, error: failure }
            }
            FailureClass::Transient | FailureClass::Ambiguous => {
                give_up(failure, case.unknown_outcome.as_ref(), config)
            }
        },
    }
}

/// What becomes of an operation that is not sent again. If an attempt may have taken effect, that is checked first, once no
/// call can still be under way.
pub(super) fn give_up(failure: Failure, unknown: Option<&UnknownOutcome>, config: &OperationsConfig) -> Disposition {
    match unknown {
        None => Disposition::Dead(failure),
        Some(_) => Disposition::Checking { wait: config.request_timeout, failure },
    }
}

/// Judges a search for the outcome.
pub(super) fn judge_search(
    reconciled: ReconcileResult,
    case: &AttemptState,
    config: &OperationsConfig,
    now: UnixMs,
    chance: f64,
) -> Disposition {
    let unknown = case.unknown_outcome.as_ref();
    let failed_checks = unknown.map_or(0, |unknown| unknown.failed_checks);
    let checked_for = unknown.and_then(|unknown| unknown.checked_since).map_or(Duration::ZERO, |at| now.since(at));
    match reconciled {
        ReconcileResult::Found(done) => Disposition::Succeeded(done),
        ReconcileResult::Absent => match unknown.and_then(|unknown| unknown.ends_with.clone()) {
            Some(failure) => Disposition::Dead(failure),
            None => Disposition::Again,
        },
        ReconcileResult::Unclear(why) => Disposition::Review(Failure::new(FailureClass::Ambiguous, why)),
        ReconcileResult::Failed(why) if failed_checks + 1 >= config.check_attempts => {
            let asked = config.check_attempts;
            Disposition::Review(unchecked(&format!("Discord was asked {asked} times and did not tell ({why})")))
        }
        ReconcileResult::Held { why, .. } if checked_for >= config.check_timeout => {
            Disposition::Review(unchecked(&format!("Discord could not be asked for {checked_for:?} ({why})")))
        }
        ReconcileResult::Failed(why) => Disposition::Unchecked {
            wait: config.backoff.delay(failed_checks + 1, chance),
            error: Failure::new(FailureClass::Ambiguous, why),
        },
        ReconcileResult::Held { retry_after, hold: _, why } => {
            let held_by = GateCondition::of_text(&why);
            let error = Failure { held_by, ..Failure::new(FailureClass::Ambiguous, why) };
            Disposition::Reconciling { wait: retry_after.max(config.least_hold), error }
        }
    }
}

fn unchecked(why: &str) -> Failure {
    let message = format!("it may have taken effect, and its outcome could not be checked: {why}; check it in Discord");
    Failure::new(FailureClass::Ambiguous, message)
}

/// Why an operation ends that was sent as often as it may be, if none of the attempts took effect.
pub(super) fn out_of_attempts() -> Failure {
    Failure::new(
        FailureClass::Transient,
        "it was sent as often as it may be, each time without an answer, and nothing came of it; redrive it once \
         Discord answers again",
    )
}

/// Why an operation ends whose deadline has passed.
pub(super) fn expired(attempts: u32) -> Failure {
    let message = match attempts {
        0 => "its deadline passed before it could be sent".to_owned(),
        attempts => format!("its deadline passed after {attempts} attempts, none of which took effect"),
    };
    Failure::new(FailureClass::Expired, message)
}

/// Why an operation ends that broke its guild.
pub(super) fn poisoned() -> Failure {
    Failure::new(
        FailureClass::Poison,
        "it broke what executes operations, and was taken out so that the others go on; the log tells where",
    )
}

/// What is written down of a delay: it was no try, so it ends when it begins, with the number of the tries before it.
pub(super) fn held_up(attempts: u32, why: &Failure, now: UnixMs) -> Attempt {
    Attempt {
        n: attempts,
        started_at: now,
        ended_at: now,
        status: why.status,
        class: FailureClass::RateLimited.name().to_owned(),
        detail: Some(why.message.clone()),
    }
}

const fn held_back(hold: HoldScope) -> DelayScope {
    match hold {
        HoldScope::Route => DelayScope::Alone,
        HoldScope::Caller => DelayScope::ByCaller,
        HoldScope::All => DelayScope::WithAll,
    }
}
