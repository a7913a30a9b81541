//! States of an operation.

use serde::{Deserialize, Serialize};

crate::named_enum! {
    /// State of an operation.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum OperationState {
        /// It is not due, or it waits for an operation that is not. It is not in its queue yet, and blocks nothing.
        Scheduled = "scheduled",
        /// It waits for its turn.
        Queued = "queued",
        /// It is executing: a call with an effect may be in flight. An operation that waits for its permit is not
        /// running yet.
        Running = "running",
        /// It waits for a limit, a breaker or a policy. No attempt was used.
        Delayed = "delayed",
        /// It failed and will be retried.
        Retrying = "retrying",
        /// It was sent, and its outcome is being determined.
        Reconciling = "reconciling",
        /// It succeeded.
        Succeeded = "succeeded",
        /// It failed for good. It is a dead letter and can be redriven.
        Dead = "dead",
        /// It was cancelled before it was sent.
        Cancelled = "cancelled",
        /// Whether it took effect is unknown, and it needs review.
        NeedsReview = "needs_review",
    }
}

/// A state transition that is not allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("illegal state transition of an operation: {} to {}", from.name(), to.name())]
pub struct IllegalTransition {
    /// State before.
    pub from: OperationState,
    /// Rejected next state.
    pub to: OperationState,
}

impl OperationState {
    /// Whether it does not change any more by itself.
    #[must_use]
    pub const fn is_final(self) -> bool {
        match self {
            Self::Scheduled | Self::Queued | Self::Running | Self::Delayed | Self::Retrying | Self::Reconciling => {
                false
            }
            Self::Succeeded | Self::Dead | Self::Cancelled | Self::NeedsReview => true,
        }
    }

    /// Whether it waits for its turn or its due time.
    #[must_use]
    pub const fn is_waiting(self) -> bool {
        matches!(self, Self::Scheduled | Self::Queued | Self::Delayed | Self::Retrying)
    }

    /// Whether it can still be cancelled, if no attempt was made: an attempt may have taken effect.
    #[must_use]
    pub const fn may_cancel(self) -> bool {
        matches!(self, Self::Scheduled | Self::Queued | Self::Delayed)
    }

    /// Checks the transition from this state to `next`, as in the diagram of [`crate::operation`].
    ///
    /// A waiting operation runs again when it is due; it becomes queued in between only if that is stored. An operation
    /// without an effect never runs: it succeeds, or fails at a read. Every operation that is not final may become
    /// dead, because its deadline may pass before it runs. If an earlier attempt may have taken effect, its outcome is
    /// checked first. A running operation may return to a waiting state after a crash if it was never sent. A final
    /// state has no successor; to redrive a dead letter is to accept a new operation.
    ///
    /// # Errors
    ///
    /// When the transition is not allowed.
    pub const fn check_transition(self, next: Self) -> Result<(), IllegalTransition> {
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
                // A limit or a breaker may also hold an operation that has not started. The outcome of an earlier
                // attempt may be unknown.
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
                // The check may be held and continue later; an operation found not to have taken effect may be out of
                // attempts.
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
    fn only_listed_transitions_are_legal() {
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
                assert_eq!(from.check_transition(to), expected);
            }
        }
        let illegal = IllegalTransition { from: Dead, to: NeedsReview };
        assert_eq!(illegal.to_string(), "illegal state transition of an operation: dead to needs_review");
    }

    #[test]
    fn only_final_states_have_no_successor() {
        for state in OperationState::ALL {
            let has_successor = OperationState::ALL.into_iter().any(|next| state.check_transition(next).is_ok());
            assert_eq!(has_successor, !state.is_final(), "{}", state.name());
            assert_eq!(
                state.check_transition(OperationState::Cancelled).is_ok(),
                state.may_cancel(),
                "{}",
                state.name()
            );
            assert_eq!(OperationState::from_name(state.name()), Some(state));
        }
    }
}
