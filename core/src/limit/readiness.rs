//! When something may go.

use crate::time::Timestamp;

/// When something may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Readiness {
    /// At once.
    Now,
    /// Not before then.
    At(Timestamp),
    /// Only after an answer has come in.
    OnAnswer,
}

impl Readiness {
    /// At `then`, or at once if that is past.
    pub(crate) fn not_before(then: Timestamp, now: Timestamp) -> Self {
        if then <= now { Self::Now } else { Self::At(then) }
    }
}
