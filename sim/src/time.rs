//! Time as the simulator sees it: microseconds, always passed in.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

/// A point in time, in microseconds since the Unix epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct At(u64);

impl At {
    /// The point `micros` microseconds after the Unix epoch.
    #[must_use]
    pub const fn from_micros(micros: u64) -> Self {
        Self(micros)
    }

    /// Microseconds since the Unix epoch.
    #[must_use]
    pub const fn micros(self) -> u64 {
        self.0
    }

    /// Milliseconds since the Unix epoch.
    #[must_use]
    pub const fn millis(self) -> u64 {
        self.0 / 1_000
    }

    /// Time since `earlier`; zero if that is in the future.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0))
    }

    /// The point `by` later.
    #[must_use]
    pub fn after(self, by: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(by.as_micros()).unwrap_or(u64::MAX)))
    }

    /// Discord's format of timestamps: `2015-01-01T00:00:00.000000+00:00`.
    #[must_use]
    pub fn iso8601(self) -> String {
        let micros = i64::try_from(self.0).unwrap_or(i64::MAX);
        chrono::DateTime::from_timestamp_micros(micros)
            .unwrap_or_default()
            .format("%Y-%m-%dT%H:%M:%S%.6f+00:00")
            .to_string()
    }
}

/// A wall clock that never goes backwards: read once at the start, then advanced by the monotonic clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    started: Instant,
    epoch: At,
}

impl Clock {
    /// Starts a clock that is `ahead_s` seconds ahead of this machine's, or behind it if negative.
    pub(crate) fn start(ahead_s: i64) -> Self {
        let epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let ahead = Duration::from_secs(ahead_s.unsigned_abs());
        let epoch = if ahead_s < 0 { epoch.saturating_sub(ahead) } else { epoch.saturating_add(ahead) };
        Self { started: Instant::now(), epoch: At::default().after(epoch) }
    }

    /// Starts a clock that shows `epoch` now.
    pub(crate) fn starting_at(epoch: At) -> Self {
        Self { started: Instant::now(), epoch }
    }

    pub(crate) fn now(&self) -> At {
        self.epoch.after(self.started.elapsed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timestamp_has_discords_format() {
        assert_eq!(At::from_micros(1_420_070_400_000_000).iso8601(), "2015-01-01T00:00:00.000000+00:00");
        assert_eq!(At::from_micros(1_420_070_400_123_456).iso8601(), "2015-01-01T00:00:00.123456+00:00");
    }

    #[test]
    fn a_clock_may_be_ahead_or_behind() {
        let exact = Clock::start(0).now();
        let hour = Duration::from_secs(3_600);
        assert!(Clock::start(3_600).now() >= exact.after(hour));
        assert!(Clock::start(-3_600).now().after(hour) >= exact);
        assert!(Clock::start(-3_600).now() < exact);
    }

    #[test]
    fn time_since_a_future_point_is_zero() {
        assert_eq!(At::from_micros(1).since(At::from_micros(5)), Duration::ZERO);
    }
}
