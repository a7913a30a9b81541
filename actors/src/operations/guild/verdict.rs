//! What becomes of an operation, from what came of doing it.

use std::time::Duration;

use guildhall_core::guild::HeldBack;
use guildhall_core::operation::{Failure, FailureClass, Sends};
use guildhall_core::time::UnixMs;

use crate::operations::{Attempt, Done, Hold, OperationsConfig, Performed, Reconciled};

/// Delays of one operation that are written down each by itself.
pub(super) const DELAYS_TOLD: u32 = 50;

/// What becomes of an operation.
#[derive(Debug, PartialEq)]
pub(super) enum Verdict {
    Succeeded(Done),
    Dead(Failure),
    /// Only a person can tell.
    Review(Failure),
    /// Nothing happened, and no attempt was used.
    Delayed {
        wait: Duration,
        held: HeldBack,
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
    /// It has not happened: it is its turn again.
    Again,
}

/// What is known of an operation that is judged.
#[derive(Clone, Copy, Debug)]
pub(super) struct Case {
    pub(super) sends: Sends,
    /// Attempts used, with the one that is judged.
    pub(super) attempts: u32,
    pub(super) max_attempts: u32,
    /// It broke its guild before.
    pub(super) poison: bool,
}

/// Judges a try. `chance` is from 0 to 1.
pub(super) fn judge(performed: Performed, case: Case, config: &OperationsConfig, chance: f64) -> Verdict {
    match performed {
        Performed::Done(done) => Verdict::Succeeded(done),
        Performed::Held { retry_after, hold, reason, why, status } => {
            let wait = retry_after.unwrap_or(config.blind_hold).max(config.least_hold);
            let error = Failure { status, ..Failure::new(FailureClass::RateLimited, why) };
            Verdict::Delayed { wait, held: held_back(hold), reason, error }
        }
        Performed::Failed(failure) => match failure.class {
            FailureClass::Validation
            | FailureClass::Forbidden
            | FailureClass::NotFound
            | FailureClass::Conflict
            | FailureClass::Expired
            | FailureClass::Poison => Verdict::Dead(failure),
            FailureClass::RateLimited => Verdict::Delayed {
                wait: config.blind_hold.max(config.least_hold),
                held: HeldBack::Alone,
                reason: FailureClass::RateLimited.name(),
                error: failure,
            },
            FailureClass::Ambiguous if case.sends != Sends::Again => {
                Verdict::Reconciling { wait: config.request_timeout, error: failure }
            }
            // What may be sent again is not looked for.
            FailureClass::Transient | FailureClass::Ambiguous if case.attempts < case.max_attempts => {
                let wait = config.backoff.delay(case.attempts, chance);
                // The call before it may still be under way, and must not arrive beside or after the next one.
                let wait = if failure.status.is_none() { wait.max(config.request_timeout) } else { wait };
                Verdict::Retrying { wait, error: failure }
            }
            FailureClass::Transient | FailureClass::Ambiguous => Verdict::Dead(failure),
        },
    }
}

/// Judges a search.
pub(super) fn judge_search(reconciled: Reconciled, case: Case, config: &OperationsConfig) -> Verdict {
    match reconciled {
        Reconciled::Found(done) => Verdict::Succeeded(done),
        Reconciled::Absent | Reconciled::Unclear(_) if case.poison => Verdict::Dead(poisoned()),
        Reconciled::Absent if case.attempts < case.max_attempts => Verdict::Again,
        Reconciled::Absent => Verdict::Dead(Failure::new(
            FailureClass::Transient,
            "it was sent as often as it may be, each time without an answer, and nothing came of it; redrive it once \
             Discord answers again",
        )),
        Reconciled::Unclear(why) => Verdict::Review(Failure::new(FailureClass::Ambiguous, why)),
        Reconciled::Held { retry_after, hold: _, why } => Verdict::Reconciling {
            wait: retry_after.max(config.least_hold),
            error: Failure::new(FailureClass::Ambiguous, why),
        },
    }
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

const fn held_back(hold: Hold) -> HeldBack {
    match hold {
        Hold::Route => HeldBack::Alone,
        Hold::Caller => HeldBack::ByCaller,
        Hold::All => HeldBack::WithAll,
    }
}
