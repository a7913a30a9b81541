//! Converts between the runtime's clock and [`Timestamp`].

use std::time::Duration;

use guildhall_core::time::Timestamp;
use tokio::time::Instant;

/// Clock of a process. All actors have a copy of one clock, so that their times can be compared. It follows tokio's
/// paused time.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    origin: Instant,
}

impl Clock {
    /// Creates a clock whose origin is now.
    #[must_use]
    pub fn start() -> Self {
        Self { origin: Instant::now() }
    }

    /// The current time.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        Timestamp::ZERO + self.origin.elapsed()
    }

    /// The runtime's instant for a point in time, to sleep until.
    #[must_use]
    pub fn instant(&self, at: Timestamp) -> Instant {
        self.origin + Duration::from_micros(at.micros())
    }

    /// Time until a point in time; zero if it is in the past.
    #[must_use]
    pub fn until(&self, at: Timestamp) -> Duration {
        at.since(self.now())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn clock_follows_the_paused_time_of_the_runtime() {
        let clock = Clock::start();
        assert_eq!(clock.now(), Timestamp::ZERO);
        let later = Timestamp::from_millis(1_500);
        assert_eq!(clock.until(later), Duration::from_millis(1_500));
        tokio::time::sleep_until(clock.instant(later)).await;
        assert_eq!(clock.now(), later);
        assert_eq!(clock.until(later), Duration::ZERO);
    }
}
