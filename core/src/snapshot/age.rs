//! How old a memory is, and what is left of what it says.

use std::time::Duration;

use crate::time::UnixMs;

/// Nothing that is recalled lasts longer: the longest of Discord's limits end within two days, and a time further ahead
/// than this is a clock's mistake or a broken record.
pub const LONGEST: Duration = Duration::from_secs(7 * 86_400);

/// How long ago something was remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotAge(Duration);

impl SnapshotAge {
    /// The age at `now` of what was remembered at `saved_at`. None at all if that lies ahead: the clock was set back, and
    /// nobody knows how much time has passed.
    #[must_use]
    pub const fn of(saved_at: UnixMs, now: UnixMs) -> Self {
        Self(now.since(saved_at))
    }

    /// What is left of what was to last so long; nothing if that is over.
    #[must_use]
    pub fn left(self, lasting_ms: u64) -> Option<Duration> {
        let left = Duration::from_millis(lasting_ms).min(LONGEST).checked_sub(self.0)?;
        (!left.is_zero()).then_some(left)
    }

    /// How long ago that ended which was to last so long; nothing if it has not.
    #[must_use]
    pub fn over(self, lasting_ms: u64) -> Option<Duration> {
        self.0.checked_sub(Duration::from_millis(lasting_ms).min(LONGEST))
    }
}

/// How long something lasts, as it is kept: rounded up, so that nothing ends early.
pub(crate) fn lasting_ms(left: Duration) -> u64 {
    u64::try_from(left.as_micros().div_ceil(1_000)).unwrap_or(u64::MAX)
}
