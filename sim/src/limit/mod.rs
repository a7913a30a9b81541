//! Rate limits.

/// What the limits are.
#[derive(Clone, Debug, Default)]
pub struct LimitConfig {}
