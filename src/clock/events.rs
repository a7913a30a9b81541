//! Log lines and metrics about clocks.

use tracing::{info, warn};

use crate::{
    events::{event, gauge},
    metrics::{CLOCK_EXPIRY_LAG, CLOCK_OFFSET},
};

/// A clock that this machine's is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReferenceClock {
    Discord,
    Database,
}

impl ReferenceClock {
    const fn name(self) -> &'static str {
        match self {
            Self::Discord => "discord",
            Self::Database => "database",
        }
    }
}

event! {
    /// The wall clock was compared with a reference.
    pub(super) struct ClockCompared {
        reference: ReferenceClock,
        /// How far the wall clock is ahead.
        ahead_ms: i64,
    }
    gauge!(CLOCK_OFFSET, "reference" => reference.name()).set(ahead_ms as f64 / 1_000.0);
}

event! {
    /// The wall clock differs from a reference by more than the tolerance.
    pub(super) struct ClockSkewDetected { reference: ReferenceClock, ahead_ms: i64 }
    warn!(
        reference = reference.name(), ahead_ms,
        "the clock of this machine is wrong; check its time synchronization (NTP)"
    );
}

event! {
    /// The wall clock agrees with a reference again.
    pub(super) struct ClockSkewResolved { reference: ReferenceClock, ahead_ms: i64 }
    info!(reference = reference.name(), ahead_ms, "the clock of this machine is correct again");
}

event! {
    /// Store time was corrected forward.
    pub(super) struct StoreTimeAdvanced { by_ms: u64 }
    warn!(by_ms, "store time moved forward; data that was stored before expires that much later");
}

event! {
    /// Store time was corrected backward.
    pub(super) struct StoreTimeSetBack { by_ms: u64 }
    warn!(by_ms, "store time moves back; waiting operations may wait that much longer");
}

event! {
    /// The wall clock was set, and the new time is not confirmed.
    pub(super) struct WallClockUnconfirmed { by_ms: i64 }
    warn!(by_ms, "the wall clock was set; store time follows when Discord's clock confirms it");
}

event! {
    /// The lag of expiry behind store time was measured.
    pub(super) struct ExpiryLagMeasured { seconds: f64 }
    gauge!(CLOCK_EXPIRY_LAG).set(seconds);
}
