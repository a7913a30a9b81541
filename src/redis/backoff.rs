//! Backoff between connection attempts.

use std::time::Duration;

const MIN_WAIT: Duration = Duration::from_millis(20);
const MAX_WAIT: Duration = Duration::from_millis(500);

/// Waits that double from 20 ms to half a second. Each is shortened at random, so that processes that lost their
/// connections together do not reconnect together.
#[derive(Debug, Default)]
pub(super) struct Backoff {
    attempts: u32,
}

impl Backoff {
    /// Returns the next wait. `random` is at least 0 and less than 1.
    pub(super) fn next(&mut self, random: f64) -> Duration {
        let doublings = self.attempts.min(16);
        self.attempts = self.attempts.saturating_add(1);
        MIN_WAIT.saturating_mul(1 << doublings).min(MAX_WAIT).mul_f64(1.0 - random / 2.0)
    }

    /// Resets the backoff after a successful connection.
    pub(super) fn reset(&mut self) {
        self.attempts = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_half_a_second_and_reset_after_success() {
        let mut backoff = Backoff::default();
        let waits: Vec<_> = (0..7).map(|_| backoff.next(0.0).as_millis()).collect();
        assert_eq!(waits, [20, 40, 80, 160, 320, 500, 500]);
        backoff.reset();
        assert_eq!(backoff.next(0.0), MIN_WAIT);
    }

    #[test]
    fn jitter_shortens_a_wait_by_at_most_half() {
        for random in [0.0, 0.3, 0.999] {
            let wait = Backoff::default().next(random);
            assert!(wait <= MIN_WAIT && wait >= MIN_WAIT / 2, "{wait:?}");
        }
    }

    #[test]
    fn wait_stays_at_the_maximum_after_many_attempts() {
        let mut backoff = Backoff { attempts: u32::MAX - 1 };
        assert_eq!((backoff.next(0.0), backoff.next(0.0), backoff.next(0.0)), (MAX_WAIT, MAX_WAIT, MAX_WAIT));
    }
}
