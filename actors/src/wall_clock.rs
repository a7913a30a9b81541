//! The wall clock, for times that survive a restart.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use guildhall_core::time::UnixMs;
use tokio::time::Instant;

/// The time since the Unix epoch, from the clock of the system; zero before it.
#[must_use]
#[expect(clippy::disallowed_methods, reason = "the one place that reads the clock of the system")]
pub fn unix_now() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

/// The same, in milliseconds.
#[must_use]
pub fn unix_now_ms() -> UnixMs {
    UnixMs::new(u64::try_from(unix_now().as_millis()).unwrap_or(u64::MAX))
}

/// A source of the current time. Cheap to clone.
#[derive(Clone)]
pub struct WallClock(Source);

#[derive(Clone)]
enum Source {
    System,
    Anchored { origin: Instant, at: UnixMs },
    Provided(Arc<dyn Fn() -> UnixMs + Send + Sync>),
}

impl fmt::Debug for WallClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let source = match self.0 {
            Source::System => "system",
            Source::Anchored { .. } => "anchored",
            Source::Provided(_) => "provided",
        };
        f.debug_tuple("WallClock").field(&source).finish()
    }
}

impl WallClock {
    /// The clock of the system.
    #[must_use]
    pub const fn system() -> Self {
        Self(Source::System)
    }

    /// A clock that shows `at` now, and advances with the time of the runtime.
    #[must_use]
    pub fn anchored(at: UnixMs) -> Self {
        Self(Source::Anchored { origin: Instant::now(), at })
    }

    /// A clock that shows what `now` returns.
    #[must_use]
    pub fn provided(now: impl Fn() -> UnixMs + Send + Sync + 'static) -> Self {
        Self(Source::Provided(Arc::new(now)))
    }

    /// The current time.
    #[must_use]
    pub fn now(&self) -> UnixMs {
        match &self.0 {
            Source::Provided(now) => now(),
            Source::System => unix_now_ms(),
            // Rounded down, so that nothing seems due too early.
            Source::Anchored { origin, at } => {
                let elapsed = u64::try_from(origin.elapsed().as_millis()).unwrap_or(u64::MAX);
                UnixMs::new(at.millis().saturating_add(elapsed))
            }
        }
    }

    /// How long until `at`; zero if it is past.
    #[must_use]
    pub fn until(&self, at: UnixMs) -> Duration {
        at.since(self.now())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn anchored_clock_advances_with_the_runtime_only() {
        let clock = WallClock::anchored(UnixMs::new(5_000));
        tokio::time::sleep(Duration::from_millis(1_500)).await;
        assert_eq!(clock.now(), UnixMs::new(6_500));
        assert_eq!(clock.until(UnixMs::new(7_000)), Duration::from_millis(500));
    }
}
