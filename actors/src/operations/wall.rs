//! The wall clock: what is kept over a restart is told by it.

use std::time::{Duration, SystemTime};

use guildhall_core::time::UnixMs;
use tokio::time::Instant;

/// Tells the time of day. Cheap to copy.
#[derive(Clone, Copy, Debug)]
pub struct WallClock(Source);

#[derive(Clone, Copy, Debug)]
enum Source {
    System,
    Anchored { origin: Instant, at: UnixMs },
}

impl WallClock {
    /// The machine's clock.
    #[must_use]
    pub const fn system() -> Self {
        Self(Source::System)
    }

    /// A clock that shows `at` now, and goes on with the runtime's time: it stands still when that does.
    #[must_use]
    pub fn anchored(at: UnixMs) -> Self {
        Self(Source::Anchored { origin: Instant::now(), at })
    }

    /// The present time.
    #[must_use]
    pub fn now(&self) -> UnixMs {
        match self.0 {
            Source::System => {
                let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
                UnixMs::new(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
            }
            // Rounded down: what is due at a moment must not seem due before it.
            Source::Anchored { origin, at } => {
                let passed = u64::try_from(origin.elapsed().as_millis()).unwrap_or(u64::MAX);
                UnixMs::new(at.millis().saturating_add(passed))
            }
        }
    }

    /// How long it is until then; nothing if that is past.
    #[must_use]
    pub fn until(&self, at: UnixMs) -> Duration {
        at.since(self.now())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_anchored_clock_moves_with_the_runtime_alone() {
        let clock = WallClock::anchored(UnixMs::new(5_000));
        tokio::time::sleep(Duration::from_millis(1_500)).await;
        assert_eq!(clock.now(), UnixMs::new(6_500));
        assert_eq!(clock.until(UnixMs::new(7_000)), Duration::from_millis(500));
    }
}
