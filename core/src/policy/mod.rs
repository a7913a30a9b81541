//! Policies: how much one caller may ask of the API, and what becomes of more.
//!
//! ```text
//!  request, by key or address ──▶ Meter ──▶ Taken { delay: 0 }    it is done now
//!                                       ├─▶ Taken { delay }       it is accepted, and due by then
//!                                       └─▶ Refused { retry_after }   nothing has changed
//! ```
//!
//! A caller has a bucket of tokens that fills up again by itself. All that is kept of it is when it will be full: one that is
//! full already is no different from one that nobody has ever seen, so forgetting it changes nothing.

mod meter;
#[cfg(test)]
mod properties;
mod rate;

pub use meter::{Meter, MeterDecision};
pub use rate::{Rate, RateDecision, RateOutcome};

/// The most that one request costs.
pub const MOST_COST: u32 = 10_000;

/// Bytes of a body that cost as much as an operation.
const BYTES_PER_OPERATION: u64 = 8 * 1_024;

/// What a submission costs under [`Policy::HeavyWaits`]: one for each operation, and at least one for each 8 KiB of its body.
#[must_use]
pub fn submission_cost(operations: usize, body_bytes: u64) -> u32 {
    let by_bytes = body_bytes.div_ceil(BYTES_PER_OPERATION);
    let cost = by_bytes.max(operations as u64).clamp(1, u64::from(MOST_COST));
    u32::try_from(cost).unwrap_or(MOST_COST)
}

/// What a request counts as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Policy {
    /// Much work, and what is too much of it is accepted and waits.
    HeavyWaits,
    /// Much work, and what is too much of it is refused. Counted together with [`Policy::HeavyWaits`].
    Heavy,
    /// Little work; too much of it is refused.
    Light,
    /// What keeps the daemon running: never too much.
    Internal,
}

impl Policy {
    /// What callers know it by.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::HeavyWaits | Self::Heavy => "heavy",
            Self::Light => "light",
            Self::Internal => "internal",
        }
    }
}
