//! Time as the machines see it: a number that only grows, always handed in.

use std::ops::Add;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A point in time, in microseconds since an origin that whoever drives the machines has chosen.
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

    /// How long ago `earlier` was; nothing if it lies ahead.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0))
    }

    /// This point moved back; the origin if there is not so much before it.
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

/// A duration in microseconds, which is as fine as these machines count.
fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// A point in time by the wall clock, in milliseconds since 1970: what is kept over a restart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct UnixMs(u64);

impl UnixMs {
    /// So many milliseconds after the start of 1970.
    #[must_use]
    pub const fn new(millis: u64) -> Self {
        Self(millis)
    }

    /// Milliseconds since the start of 1970.
    #[must_use]
    pub const fn millis(self) -> u64 {
        self.0
    }

    /// How long ago `earlier` was; nothing if it lies ahead.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(self.0.saturating_sub(earlier.0))
    }

    /// This point moved back; the start of 1970 if there is not so much before it.
    #[must_use]
    pub fn before(self, by: Duration) -> Self {
        Self(self.0.saturating_sub(u64::try_from(by.as_millis()).unwrap_or(u64::MAX)))
    }
}

impl Add<Duration> for UnixMs {
    type Output = Self;

    /// Rounded up: what is due then is not due before.
    fn add(self, by: Duration) -> Self {
        let millis = u64::try_from(by.as_micros().div_ceil(1_000)).unwrap_or(u64::MAX);
        Self(self.0.saturating_add(millis))
    }
}
