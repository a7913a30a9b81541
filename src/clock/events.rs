//! Log lines and metrics about clocks.

use metrics::gauge;
use tracing::{info, warn};

use crate::{
    events::InternalEvent,
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

/// The wall clock was compared with a reference.
pub(super) struct ClockCompared {
    pub(super) reference: ReferenceClock,
    /// How far the wall clock is ahead.
    pub(super) ahead_ms: i64,
}

impl InternalEvent for ClockCompared {
    fn emit(self) {
        #[expect(clippy::cast_precision_loss, reason = "a gauge has no more precision")]
        gauge!(CLOCK_OFFSET, "reference" => self.reference.name()).set(self.ahead_ms as f64 / 1_000.0);
    }
}

/// The wall clock differs from a reference by more than the tolerance.
pub(super) struct ClockSkewDetected {
    pub(super) reference: ReferenceClock,
    pub(super) ahead_ms: i64,
}

impl InternalEvent for ClockSkewDetected {
    fn emit(self) {
        warn!(
            reference = self.reference.name(),
            ahead_ms = self.ahead_ms,
            "the clock of this machine is wrong; check its time synchronization (NTP)"
        );
    }
}

/// The wall clock agrees with a reference again.
pub(super) struct ClockSkewResolved {
    pub(super) reference: ReferenceClock,
    pub(super) ahead_ms: i64,
}

impl InternalEvent for ClockSkewResolved {
    fn emit(self) {
        info!(
            reference = self.reference.name(),
            ahead_ms = self.ahead_ms,
            "the clock of this machine is correct \
            again"
        );
    }
}

/// Store time was corrected forward.
pub(super) struct StoreTimeAdvanced {
    pub(super) by_ms: u64,
}

impl InternalEvent for StoreTimeAdvanced {
    fn emit(self) {
        warn!(by_ms = self.by_ms, "store time moved forward; data that was stored before expires that much later");
    }
}

/// Store time was corrected backward.
pub(super) struct StoreTimeSetBack {
    pub(super) by_ms: u64,
}

impl InternalEvent for StoreTimeSetBack {
    fn emit(self) {
        warn!(by_ms = self.by_ms, "store time moves back; waiting operations may wait that much longer");
    }
}

/// The wall clock was set, and the new time is not confirmed.
pub(super) struct WallClockUnconfirmed {
    pub(super) by_ms: i64,
}

impl InternalEvent for WallClockUnconfirmed {
    fn emit(self) {
        warn!(by_ms = self.by_ms, "the wall clock was set; store time follows when Discord's clock confirms it");
    }
}

/// The lag of expiry behind store time was measured.
pub(super) struct ExpiryLagMeasured {
    pub(super) seconds: f64,
}

impl InternalEvent for ExpiryLagMeasured {
    fn emit(self) {
        gauge!(CLOCK_EXPIRY_LAG).set(self.seconds);
    }
}
