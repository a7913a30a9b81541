//! The age of a snapshot, and the remaining duration of its entries.

use std::time::Duration;

use crate::time::UnixMs;

/// Upper bound of all restored durations: the longest of Discord's limits end within two days, and a longer duration is
/// caused by a wrong clock or a corrupt record.
pub const MAX_DURATION: Duration = Duration::from_secs(7 * 86_400);

/// How long ago a snapshot was saved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotAge(Duration);

impl SnapshotAge {
    /// The age at `now` of a snapshot that was saved at `saved_at`. Zero if `saved_at` is in the future: the clock was
    /// set back, and the elapsed time is unknown.
    #[must_use]
    pub const fn of(saved_at: UnixMs, now: UnixMs) -> Self {
        Self(now.since(saved_at))
    }

    /// The rest of a duration that was saved; `None` if it has ended.
    #[must_use]
    pub fn remaining(self, duration_ms: u64) -> Option<Duration> {
        let remaining = Duration::from_millis(duration_ms).min(MAX_DURATION).checked_sub(self.0)?;
        (!remaining.is_zero()).then_some(remaining)
    }

    /// How long ago a duration that was saved has ended; `None` if it has not.
    #[must_use]
    pub fn elapsed_since_end(self, duration_ms: u64) -> Option<Duration> {
        self.0.checked_sub(Duration::from_millis(duration_ms).min(MAX_DURATION))
    }
}

/// A duration in the saved form: rounded up, so that nothing ends early.
pub(crate) fn duration_ms(remaining: Duration) -> u64 {
    u64::try_from(remaining.as_micros().div_ceil(1_000)).unwrap_or(u64::MAX)
}
