//! What has become of an operation.

use serde::{Deserialize, Serialize};

/// What has become of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OperationState {
    /// It is not due, or waits for one that is not. It has no place in its queue yet, and blocks nothing.
    Scheduled,
    /// It waits for its turn.
    Queued,
    /// It is being done: a call with an effect may be in flight. One that waits for its permit is not running yet.
    Running,
    /// It waits for a limit, a breaker or a policy. No attempt was used.
    Delayed,
    /// It failed in a way that may go right next time.
    Retrying,
    /// It was sent, and what came of it is being looked for.
    Reconciling,
    /// It is done.
    Succeeded,
    /// It was given up. It lies with the dead letters, from where it can be sent again.
    Dead,
    /// A person took it back before it was sent.
    Cancelled,
    /// It may have happened or not, and only a person can tell.
    NeedsReview,
}

/// A step that no operation takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an operation that is {} does not become {}", from.name(), to.name())]
pub struct IllegalTransition {
    /// What it was.
    pub from: OperationState,
    /// What it should have become.
    pub to: OperationState,
}

impl OperationState {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::Scheduled,
        Self::Queued,
        Self::Running,
        Self::Delayed,
        Self::Retrying,
        Self::Reconciling,
        Self::Succeeded,
        Self::Dead,
        Self::Cancelled,
        Self::NeedsReview,
    ];

    /// Its name, as the store, the API, metrics and logs have it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Scheduled => "scheduled",
            Self::Queued => "queued",
            Self::Running => "running",
            Self::Delayed => "delayed",
            Self::Retrying => "retrying",
            Self::Reconciling => "reconciling",
            Self::Succeeded => "succeeded",
            Self::Dead => "dead",
            Self::Cancelled => "cancelled",
            Self::NeedsReview => "needs_review",
        }
    }

    /// The state of this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.name() == name)
    }

    /// Whether nothing more will become of it by itself.
    #[must_use]
    pub const fn is_final(self) -> bool {
        match self {
            Self::Scheduled | Self::Queued | Self::Running | Self::Delayed | Self::Retrying | Self::Reconciling => {
                false
            }
            Self::Succeeded | Self::Dead | Self::Cancelled | Self::NeedsReview => true,
        }
    }

    /// Whether it waits for its turn or its time.
    #[must_use]
    pub const fn waits(self) -> bool {
        matches!(self, Self::Scheduled | Self::Queued | Self::Delayed | Self::Retrying)
    }

    /// Whether a person may still take it back, if no attempt was made at it: what was tried may have happened.
    #[must_use]
    pub const fn may_cancel(self) -> bool {
        matches!(self, Self::Scheduled | Self::Queued | Self::Delayed)
    }

    /// Whether this may become that, as the picture of [`crate::operation`] has it.
    ///
    /// What waits runs again once it is due, and is queued in between only if somebody writes that down. What changes nothing
    /// never runs: it succeeds, or fails at a read. Whatever is not
    /// done may be given up: its time may be up before it runs. If an earlier attempt may have taken effect, its outcome is
    /// checked first. What runs may be found again to wait after a crash, if it
    /// was never sent. Nothing becomes of what is final; to do a dead letter again is to accept a new operation.
    ///
    /// # Errors
    ///
    /// When no operation takes this step.
    pub const fn to(self, next: Self) -> Result<(), IllegalTransition> {
        let legal = match self {
            Self::Scheduled => match next {
                Self::Queued | Self::Dead | Self::Cancelled => true,
                Self::Scheduled
                | Self::Running
                | Self::Delayed
                | Self::Retrying
                | Self::Reconciling
                | Self::Succeeded
                | Self::NeedsReview => false,
            },
            Self::Queued | Self::Delayed => match next {
                // A limit or a breaker may hold what has not begun, too. The outcome of an earlier attempt may be unknown.
                Self::Queued
                | Self::Running
                | Self::Delayed
                | Self::Retrying
                | Self::Reconciling
                | Self::Succeeded
                | Self::Dead
                | Self::Cancelled
                | Self::NeedsReview => true,
                Self::Scheduled => false,
            },
            Self::Retrying => match next {
                Self::Queued
                | Self::Running
                | Self::Delayed
                | Self::Retrying
                | Self::Reconciling
                | Self::Succeeded
                | Self::Dead
                | Self::NeedsReview => true,
                Self::Scheduled | Self::Cancelled => false,
            },
            Self::Running => match next {
                Self::Queued
                | Self::Delayed
                | Self::Retrying
                | Self::Reconciling
                | Self::Succeeded
                | Self::Dead
                | Self::NeedsReview => true,
                Self::Scheduled | Self::Running | Self::Cancelled => false,
            },
            Self::Reconciling => match next {
                // Looking may be held and go on later; what is found not to have happened may be out of attempts.
                Self::Reconciling
                | Self::Succeeded
                | Self::Queued
                | Self::Retrying
                | Self::Dead
                | Self::NeedsReview => true,
                Self::Scheduled | Self::Running | Self::Delayed | Self::Cancelled => false,
            },
            Self::Succeeded | Self::Dead | Self::Cancelled | Self::NeedsReview => false,
        };
        if legal { Ok(()) } else { Err(IllegalTransition { from: self, to: next }) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operation_takes_these_steps_and_no_others() {
        use OperationState::{
            Cancelled, Dead, Delayed, NeedsReview, Queued, Reconciling, Retrying, Running, Scheduled, Succeeded,
        };
        let waiting = [Queued, Running, Delayed, Retrying, Reconciling, Succeeded, Dead, Cancelled, NeedsReview];
        let steps: [(OperationState, &[OperationState]); 10] = [
            (Scheduled, &[Queued, Dead, Cancelled]),
            (Queued, &waiting),
            (Running, &[Queued, Delayed, Retrying, Reconciling, Succeeded, Dead, NeedsReview]),
            (Delayed, &waiting),
            (Retrying, &[Queued, Running, Delayed, Retrying, Reconciling, Succeeded, Dead, NeedsReview]),
            (Reconciling, &[Queued, Retrying, Reconciling, Succeeded, Dead, NeedsReview]),
            (Succeeded, &[]),
            (Dead, &[]),
            (Cancelled, &[]),
            (NeedsReview, &[]),
        ];
        for (from, (state, nexts)) in OperationState::ALL.into_iter().zip(steps) {
            assert_eq!(from, state);
            for to in OperationState::ALL {
                let expected = if nexts.contains(&to) { Ok(()) } else { Err(IllegalTransition { from, to }) };
                assert_eq!(from.to(to), expected);
            }
        }
        let illegal = IllegalTransition { from: Dead, to: NeedsReview };
        assert_eq!(illegal.to_string(), "an operation that is dead does not become needs_review");
    }

    #[test]
    fn what_is_final_stays_and_what_is_not_can_end() {
        for state in OperationState::ALL {
            let goes_on = OperationState::ALL.into_iter().any(|next| state.to(next).is_ok());
            assert_eq!(goes_on, !state.is_final(), "{}", state.name());
            assert_eq!(state.to(OperationState::Cancelled).is_ok(), state.may_cancel(), "{}", state.name());
            assert_eq!(OperationState::from_name(state.name()), Some(state));
        }
    }
}
