//! Lease checks: whether this process may still act, as far as it can know at that moment.

use std::fmt;
use std::sync::Arc;

/// Checks a lease. Called just before every send, so it must be fast and must not block.
pub trait LeaseCheck: Send + Sync {
    /// Whether the lease is held now.
    fn holds(&self) -> bool;
}

/// A lease that may end by itself: it expires, or another process takes over the queue. Nothing may be sent after that.
#[derive(Clone)]
pub struct LeaseGuard(Option<Arc<dyn LeaseCheck>>);

impl LeaseGuard {
    /// A lease that never ends: for a single process, or for calls that belong to no queue.
    #[must_use]
    pub const fn always() -> Self {
        Self(None)
    }

    /// A lease that is held as long as this check succeeds.
    #[must_use]
    pub fn while_held(check: Arc<dyn LeaseCheck>) -> Self {
        Self(Some(check))
    }

    /// Whether it may end by itself.
    #[must_use]
    pub const fn may_end(&self) -> bool {
        self.0.is_some()
    }

    /// Whether it is held now.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.0.as_ref().is_none_or(|check| check.holds())
    }
}

impl fmt::Debug for LeaseGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LeaseGuard").field(&self.holds()).finish()
    }
}
