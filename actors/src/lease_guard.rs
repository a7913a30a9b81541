//! The right to act on somebody's behalf, as far as this process can know it at the moment it acts.

use std::fmt;
use std::sync::Arc;

/// Knows whether a right still holds. Asked just before every send, so it must be quick and never wait.
pub trait LeaseCheck: Send + Sync {
    /// Whether it holds now.
    fn holds(&self) -> bool;
}

/// A right that may end by itself: a lease that runs out, a queue that another process has taken over. What was sent before
/// that has been sent; nothing may be sent after it.
#[derive(Clone)]
pub struct LeaseGuard(Option<Arc<dyn LeaseCheck>>);

impl LeaseGuard {
    /// The right of somebody who is alone, or acts for itself: it never ends.
    #[must_use]
    pub const fn always() -> Self {
        Self(None)
    }

    /// A right for as long as this says that it holds.
    #[must_use]
    pub fn while_held(by: Arc<dyn LeaseCheck>) -> Self {
        Self(Some(by))
    }

    /// Whether it may end by itself.
    #[must_use]
    pub const fn may_end(&self) -> bool {
        self.0.is_some()
    }

    /// Whether it holds now.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.0.as_ref().is_none_or(|by| by.holds())
    }
}

impl fmt::Debug for LeaseGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LeaseGuard").field(&self.holds()).finish()
    }
}
