//! Time as the state machines see it: a monotonic number that is always passed in.

use std::fmt;
use std::ops::Add;
use std::time::Duration;

use chrono::{DateTime, SecondsFormat};
use serde::{Deserialize, Serialize};

/// A point in time, in microseconds since an origin that the driver of the state machines chooses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct Timestamp(u64);

impl Timestamp {
    /// The origin.
    pub const ZERO: Self = Self(0);

    /// The point `micros` microseconds after the origin.
    #[must_use]
    pub const fn from_micros(micros: u64) -> Self {
        Self(micros)
    }

    /// The point `millis` milliseconds after the origin.
    #[must_use]
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis * 1_000)
    }

    /// Microseconds since the origin.
    #[must_use]
    pub const fn micros(self) -> u64 {
        self.0
    }

    /// Time elapsed since `earlier`; zero if `earlier` is in the future.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0))
    }

    /// This point moved back by a duration; saturates at the origin.
    #[must_use]
    pub fn before(self, by: Duration) -> Self {
        Self(self.0.saturating_sub(micros(by)))
    }
}

impl Add<Duration> for Timestamp {
    type Output = Self;

    fn add(self, by: Duration) -> Self {
        Self(self.0.saturating_add(micros(by)))
    }
}

/// A duration in microseconds, the resolution of [`Timestamp`].
fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// A wall-clock time in milliseconds since 1970. Used for what is saved across a restart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct UnixMs(u64);

impl UnixMs {
    /// The point `millis` milliseconds after the start of 1970.
    #[must_use]
    pub const fn new(millis: u64) -> Self {
        Self(millis)
    }

    /// Milliseconds since the start of 1970.
    #[must_use]
    pub const fn millis(self) -> u64 {
        self.0
    }

    /// Time elapsed since `earlier`; zero if `earlier` is in the future.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(self.0.saturating_sub(earlier.0))
    }

    /// This point moved back by a duration; saturates at the start of 1970.
    #[must_use]
    pub fn before(self, by: Duration) -> Self {
        Self(self.0.saturating_sub(millis(by)))
    }
}

/// The last millisecond that RFC 3339 can write: the end of the year 9999.
const LAST_MS: u64 = 253_402_300_799_999;

/// As RFC 3339 writes it, in UTC. A later time than it can write is its last one.
impl fmt::Display for UnixMs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millis = i64::try_from(self.0.min(LAST_MS)).expect("invariant: the year 9999 fits into 64 bits");
        let at = DateTime::from_timestamp_millis(millis).expect("invariant: every year up to 9999 can be formatted");
        f.write_str(&at.to_rfc3339_opts(SecondsFormat::Millis, true))
    }
}

impl Add<Duration> for UnixMs {
    type Output = Self;

    /// Rounds up, so that nothing is due too early.
    fn add(self, by: Duration) -> Self {
        let millis = u64::try_from(by.as_micros().div_ceil(1_000)).unwrap_or(u64::MAX);
        Self(self.0.saturating_add(millis))
    }
}

/// A duration in whole milliseconds, rounded down.
#[must_use]
pub fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
