//! Backoff between connection attempts.

use std::time::Duration;

const SHORTEST: Duration = Duration::from_millis(20);
const LONGEST: Duration = Duration::from_millis(500);

/// Waits that double from 20 ms to half a second. Each is shortened at random, so that processes that lost their
/// connections together do not reconnect together.
#[derive(Debug, Default)]
pub(super) struct Backoff {
    tries: u32,
}

impl Backoff {
    /// Returns the next wait. `random` is at least 0 and less than 1.
    pub(super) fn next(&mut self, chance: f64) -> Duration {
        let doublings = self.tries.min(16);
        self.tries = self.tries.saturating_add(1);
        SHORTEST.saturating_mul(1 << doublings).min(LONGEST).mul_f64(1.0 - chance / 2.0)
    }

    /// Resets the backoff after a successful connection.
    pub(super) fn reset(&mut self) {
        self.tries = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_half_a_second_and_begin_anew_after_a_success() {
        let mut backoff = Backoff::default();
        let waits: Vec<_> = (0..7).map(|_| backoff.next(0.0).as_millis()).collect();
        assert_eq!(waits, [20, 40, 80, 160, 320, 500, 500]);
        backoff.reset();
        assert_eq!(backoff.next(0.0), SHORTEST);
    }

    #[test]
    fn chance_shortens_a_wait_by_half_at_most() {
        for chance in [0.0, 0.3, 0.999] {
            let wait = Backoff::default().next(chance);
            assert!(wait <= SHORTEST && wait >= SHORTEST / 2, "{wait:?}");
        }
    }

    #[test]
    fn the_longest_wait_stays_however_many_tries_there_were() {
        let mut backoff = Backoff { tries: u32::MAX - 1 };
        assert_eq!((backoff.next(0.0), backoff.next(0.0), backoff.next(0.0)), (LONGEST, LONGEST, LONGEST));
    }
}
