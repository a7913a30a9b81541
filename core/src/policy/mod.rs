//! Policies: how much one caller may request from the API, and how excess requests are handled.
//!
//! ```text
//!  request, by key or address ──▶ Meter ──▶ Taken { delay: 0 }    it is handled now
//!                                       ├─▶ Taken { delay }       it is accepted, and due after the delay
//!                                       └─▶ Refused { retry_after }   nothing has changed
//! ```
//!
//! A caller has a bucket of tokens that refills over time. Only the time when it will be full is stored. A full bucket
//! is the same as that of an unknown caller, so it can be removed without effect.

mod meter;
#[cfg(test)]
mod properties;
mod rate;

pub use meter::{Meter, MeterDecision};
pub use rate::{Rate, RateDecision, RateOutcome};

/// Maximum cost of one request.
pub const MAX_COST: u32 = 10_000;

/// Bytes of a body that cost as much as one operation.
const BYTES_PER_OPERATION: u64 = 8 * 1_024;

/// The cost of a submission under [`Policy::HeavyWaits`]: one for each operation, and at least one for each 8 KiB of
/// its body.
#[must_use]
pub fn submission_cost(operations: usize, body_bytes: u64) -> u32 {
    let by_bytes = body_bytes.div_ceil(BYTES_PER_OPERATION);
    let cost = by_bytes.max(operations as u64).clamp(1, u64::from(MAX_COST));
    u32::try_from(cost).unwrap_or(MAX_COST)
}

/// The policy of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Policy {
    /// Expensive; excess requests are accepted and wait.
    HeavyWaits,
    /// Expensive; excess requests are refused. Counted together with [`Policy::HeavyWaits`].
    Heavy,
    /// Cheap; excess requests are refused.
    Light,
    /// Needed to operate the daemon: not limited.
    Internal,
}

impl Policy {
    /// Name in the API.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::HeavyWaits | Self::Heavy => "heavy",
            Self::Light => "light",
            Self::Internal => "internal",
        }
    }
}
