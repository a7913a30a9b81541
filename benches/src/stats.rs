//! Quantiles of durations, and rates.

use std::time::Duration;

/// Measured durations, one per call.
#[derive(Debug, Default)]
pub(crate) struct Durations(Vec<Duration>);

impl Durations {
    pub(crate) fn push(&mut self, duration: Duration) {
        self.0.push(duration);
    }

    pub(crate) fn extend(&mut self, others: Self) {
        self.0.extend(others.0);
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn sort(&mut self) {
        self.0.sort_unstable();
    }

    /// Quantile of the durations. They must be sorted.
    pub(crate) fn quantile(&self, share: f64) -> Duration {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            clippy::cast_precision_loss,
            reason = "an index"
        )]
        let index = ((self.0.len() as f64 - 1.0) * share) as usize;
        self.0.get(index).copied().unwrap_or_default()
    }

    /// Like `quantile`, in milliseconds.
    pub(crate) fn quantile_ms(&self, share: f64) -> f64 {
        self.quantile(share).as_secs_f64() * 1_000.0
    }

    /// Like `quantile`, in microseconds.
    pub(crate) fn quantile_us(&self, share: f64) -> f64 {
        self.quantile(share).as_secs_f64() * 1_000_000.0
    }
}

/// Rate per second.
pub(crate) fn per_second(count: usize, time: Duration) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "a rate needs no more digits than a double has")]
    let count = count as f64;
    count / time.as_secs_f64()
}
