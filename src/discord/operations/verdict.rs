//! What the outcome of a call means for its operation.
//!
//! | outcome | verdict |
//! |---|---|
//! | not sent: breaker, ban, global limit, invalid budget, unreachable, ending | held, and so is everything else |
//! | not sent: the caller's share of the invalid budget | held, others may pass at once |
//! | not sent: a route's limit, the breaker of a route; 429 of a bucket or a resource | held, others may pass |
//! | not sent: malformed | `Validation` |
//! | an interaction that has ended, or is unknown | `NotFound` |
//! | 429 of the global limit, Cloudflare's ban, 401 | held, and so is everything else |
//! | 403 | `Forbidden` |
//! | 404 | `NotFound`; deletes take it for done |
//! | a quota (30xxx: too many roles, channels, pins, …) | `Conflict`: the guild is not as the operation took it to be |
//! | any other 4xx | `Validation`, with every field that is wrong |
//! | 5xx, a cut connection, no answer in time, an answer that cannot be read | unknown: `Transient`; `Ambiguous` if the call makes something |
//!
//! A call that only reads has no effect, so its outcome is never unknown: it failed.

use std::time::Duration;

use guildhall_actors::operations::{Hold, Performed, Reconciled, StoreError};
use guildhall_actors::rest::{Answered, NotSent, Outcome};
use guildhall_core::answer::{Class, Scope};
use guildhall_core::breaker::{BreakerKey, Kind as BreakerKind};
use guildhall_core::operation::{Failure, FailureClass};

use super::refusal;
use crate::discord::rest::CallError;

/// The guild that a call is for has used up its share of the invalid budget.
const GUILD_SHARE: &str = "invalid_requests_guild_share";

/// What sending the same call again would do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Again {
    /// Nothing more than the first time did.
    Harmless,
    /// Perhaps a second thing: a doubt has to be cleared up first.
    Doubles,
}

/// Why an operation is not done.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Stop {
    /// Nothing happened: later.
    Held { retry_after: Option<Duration>, hold: Hold, reason: &'static str, why: String, status: Option<u16> },
    /// It failed, and took no effect.
    Failed(Failure),
    /// It may have taken effect: it was not answered, or the answer does not tell.
    Unknown(Failure),
}

impl Stop {
    /// A failure that no answer of Discord tells of.
    pub(super) fn failed(class: FailureClass, message: impl Into<String>) -> Self {
        Self::Failed(Failure::new(class, message))
    }

    /// The same for an operation in the queue of the guild that the call was for: what is behind it is held, too.
    pub(super) fn in_queue_of_guild(self) -> Self {
        match self {
            Self::Held { retry_after, reason: reason @ GUILD_SHARE, why, status, hold: _ } => {
                Self::Held { retry_after, hold: Hold::All, reason, why, status }
            }
            Self::Held { .. } | Self::Failed(_) | Self::Unknown(_) => self,
        }
    }

    /// The same for a call that only reads: it had no effect.
    pub(super) fn without_effect(self) -> Self {
        match self {
            Self::Unknown(failure) => Self::Failed(failure),
            Self::Held { .. } | Self::Failed(_) => self,
        }
    }

    /// Whether Discord said this: its status, and one of its codes.
    pub(super) fn is(&self, status: u16, codes: &[u32]) -> bool {
        match self {
            Self::Failed(Failure { status: Some(found), code: Some(code), .. }) => {
                *found == status && codes.contains(code)
            }
            Self::Failed(_) | Self::Unknown(_) | Self::Held { .. } => false,
        }
    }

    /// Whether Discord does not have what the call was about. A guild that is unknown says nothing of what is in it: the bot
    /// is no longer there.
    pub(super) fn is_gone(&self) -> bool {
        const UNKNOWN_GUILD: u32 = 10_004;
        match self {
            Self::Failed(Failure { status: Some(404), code: Some(code), .. }) => {
                (10_001..11_000).contains(code) && *code != UNKNOWN_GUILD
            }
            Self::Failed(_) | Self::Unknown(_) | Self::Held { .. } => false,
        }
    }

    /// What it means for a question that was asked to find something out.
    pub(super) fn unasked(self, ask_again: Duration) -> Reconciled {
        match self {
            Self::Held { retry_after, hold, reason, why, .. } => {
                // A search tells its reason by its text alone.
                let why = if why.ends_with(reason) { why } else { format!("{why}: {reason}") };
                Reconciled::Held { retry_after: retry_after.unwrap_or(ask_again), hold, why }
            }
            Self::Unknown(Failure { message, .. }) => Reconciled::Failed(message),
            Self::Failed(Failure { class, message, .. }) => match class {
                FailureClass::Transient | FailureClass::Ambiguous | FailureClass::RateLimited => {
                    Reconciled::Failed(message)
                }
                FailureClass::Validation
                | FailureClass::Forbidden
                | FailureClass::NotFound
                | FailureClass::Conflict
                | FailureClass::Expired
                | FailureClass::Poison => Reconciled::Unclear(format!("it could not be looked for: {message}")),
            },
        }
    }
}

impl From<Stop> for Performed {
    fn from(stop: Stop) -> Self {
        match stop {
            Stop::Held { retry_after, hold, reason, why, status } => {
                Self::Held { retry_after, hold, reason, why, status }
            }
            Stop::Failed(failure) => Self::Failed(failure),
            Stop::Unknown(failure) => Self::Unknown(failure),
        }
    }
}

impl From<CallError> for Stop {
    fn from(error: CallError) -> Self {
        Self::failed(FailureClass::Validation, error.to_string())
    }
}

impl From<StoreError> for Stop {
    fn from(error: StoreError) -> Self {
        Self::failed(FailureClass::Transient, error.to_string())
    }
}

/// The answer to a call if it was a success; what the outcome means if not.
pub(super) fn judge(outcome: Outcome, again: Again) -> Result<Answered, Stop> {
    match outcome {
        Outcome::NotSent(not_sent) => Err(unsent(not_sent)),
        Outcome::Unknown(unknown) => Err(doubt(again, None, unknown.to_string())),
        Outcome::Answered(answered) => judge_answer(answered, again),
    }
}

/// What a call means whose effect nobody knows.
pub(super) fn doubt(again: Again, status: Option<u16>, why: String) -> Stop {
    let class = match again {
        Again::Harmless => FailureClass::Transient,
        Again::Doubles => FailureClass::Ambiguous,
    };
    Stop::Unknown(Failure { status, ..Failure::new(class, why) })
}

fn unsent(NotSent { retry_after, why, reason }: NotSent) -> Stop {
    let hold = match reason {
        "malformed" => return Stop::failed(FailureClass::Validation, why),
        "interaction_ended" => {
            return Stop::failed(FailureClass::NotFound, "the interaction has ended: its token no longer works");
        }
        "route_limit" => Hold::Route,
        "invalid_requests_key_share" | "invalid_requests_tenant_share" | GUILD_SHARE => Hold::Caller,
        "breaker_open" | "breaker_half_open" | "breaker_forced_open" => held_by(&why, reason),
        // The invalid budget, a ban, the global limit, no room to wait, no connection, the end of the process, and what is
        // not known.
        _ => Hold::All,
    };
    Stop::Held { retry_after, hold, reason, why, status: None }
}

/// Whom an open breaker holds: its key is told in front of the reason.
fn held_by(why: &str, reason: &str) -> Hold {
    let key = why.strip_suffix(reason).and_then(|text| text.strip_suffix(": "));
    match key.and_then(|key| key.parse::<BreakerKey>().ok()).map(|key| key.kind()) {
        Some(BreakerKind::Route | BreakerKind::Pair) => Hold::Route,
        Some(BreakerKind::Address | BreakerKind::Discord | BreakerKind::Target) | None => Hold::All,
    }
}

fn judge_answer(answered: Answered, again: Again) -> Result<Answered, Stop> {
    let status = answered.status.as_u16();
    let told = || {
        let code = answered.code.filter(|code| *code != 0).map(|code| format!(" (code {code})")).unwrap_or_default();
        match refusal::told(&answered.body) {
            Some(said) => format!("Discord answered {status}{code}: {said}"),
            None => format!("Discord answered {status}{code}"),
        }
    };
    let failed = |class, advice: &str| {
        let message = format!("{}{advice}", told());
        Err(Stop::Failed(Failure { status: Some(status), code: answered.code, ..Failure::new(class, message) }))
    };
    let held =
        |retry_after, hold, reason| Err(Stop::Held { retry_after, hold, reason, why: told(), status: Some(status) });
    match answered.class {
        Class::Success => Ok(answered),
        Class::RateLimited { scope, retry_after } => {
            let (hold, reason) = match scope {
                Scope::User => (Hold::Route, "rate_limited"),
                Scope::Shared => (Hold::Route, "rate_limited_shared"),
                Scope::Global => (Hold::All, "rate_limited_global"),
            };
            held(Some(retry_after), hold, reason)
        }
        // The breaker is open from now on, and knows for how long.
        Class::Blocked { retry_after } => held(retry_after, Hold::All, "blocked"),
        Class::Unauthorized => held(None, Hold::All, "unauthorized"),
        Class::InteractionEnded => failed(FailureClass::NotFound, "; the interaction has ended"),
        Class::Forbidden => failed(FailureClass::Forbidden, "; see to it that the bot has the permission"),
        Class::NotFound => failed(FailureClass::NotFound, ""),
        Class::Rejected => match answered.code {
            // "Maximum number of … reached", whatever it is of.
            Some(30_000..=30_999) => {
                failed(FailureClass::Conflict, "; remove what is no longer needed, and plan again")
            }
            // No answer of the API's own: a redirect, which is not followed.
            _ if status < 400 => Err(doubt(again, Some(status), told())),
            _ => failed(FailureClass::Validation, ""),
        },
        Class::ServerError => Err(doubt(again, Some(status), told())),
    }
}

#[cfg(test)]
mod tests {
    use guildhall_actors::rest::Unknown;
    use guildhall_core::invalid::HolderKind;

    use super::*;

    fn not_sent(reason: &'static str, why: &str) -> Stop {
        let retry_after = Some(Duration::from_secs(3));
        let outcome = Outcome::NotSent(NotSent { retry_after, why: why.to_owned(), reason });
        judge(outcome, Again::Doubles).unwrap_err()
    }

    fn hold_of(stop: Stop) -> Hold {
        match stop {
            Stop::Held { hold, .. } => hold,
            Stop::Failed(failure) | Stop::Unknown(failure) => panic!("not held: {failure}"),
        }
    }

    #[test]
    fn what_was_not_sent_is_held_with_those_who_would_be_held_too() {
        for reason in ["global_limit", "blocked", "unauthorized", "unreachable", "shutting_down", "queue_full"] {
            assert_eq!(hold_of(not_sent(reason, "because")), Hold::All, "{reason}");
        }
        assert_eq!(hold_of(not_sent("route_limit", "because")), Hold::Route);
        for by in [HolderKind::Key, HolderKind::Tenant, HolderKind::Guild] {
            let stop = not_sent(by.reason(), "because");
            assert_eq!(hold_of(stop.clone()), Hold::Caller);
            let within = if by == HolderKind::Guild { Hold::All } else { Hold::Caller };
            assert_eq!(hold_of(stop.in_queue_of_guild()), within);
        }
        let pair = "discord:42/POST /guilds/{id}/roles#7: breaker_open";
        assert_eq!(hold_of(not_sent("breaker_open", pair)), Hold::Route);
        assert_eq!(hold_of(not_sent("breaker_open", "discord:42: breaker_open")), Hold::All);
        assert_eq!(hold_of(not_sent("breaker_open", "nothing that can be read")), Hold::All);
    }

    #[test]
    fn a_doubt_is_ambiguous_only_about_what_would_be_made_twice() {
        let class = |again| match judge(Outcome::Unknown(Unknown { why: "cut".into() }), again).unwrap_err() {
            Stop::Unknown(failure) => failure.class,
            Stop::Failed(failure) => panic!("the outcome is known: {failure}"),
            Stop::Held { why, .. } => panic!("{why}"),
        };
        assert_eq!(class(Again::Harmless), FailureClass::Transient);
        assert_eq!(class(Again::Doubles), FailureClass::Ambiguous);
    }

    #[test]
    fn what_cannot_be_sent_at_all_fails_for_good() {
        assert!(matches!(not_sent("malformed", "no"), Stop::Failed(Failure { class: FailureClass::Validation, .. })));
        let ended = not_sent("interaction_ended", "no");
        assert!(matches!(ended, Stop::Failed(Failure { class: FailureClass::NotFound, .. })));
    }
}
