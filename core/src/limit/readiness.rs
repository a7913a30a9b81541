//! When the next call may be granted.

use crate::time::Timestamp;

/// When the next call may be granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Readiness {
    /// Immediately.
    Now,
    /// Not before this time.
    At(Timestamp),
    /// Only after a response has arrived.
    OnResponse,
}

impl Readiness {
    /// Ready at `then`, or now if `then` has passed.
    pub(crate) fn not_before(then: Timestamp, now: Timestamp) -> Self {
        if then <= now { Self::Now } else { Self::At(then) }
    }
}
