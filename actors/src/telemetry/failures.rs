//! Log lines of repeated failures: the first at once, then a summary every 30 seconds, and one line when it works again.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use guildhall_core::failure_streak::{FailureStreak, FailureSummary, Recovery};
use tracing::info;

use super::{emit, event};
use crate::clock::Clock;

event! {
    /// What failed repeatedly works again.
    pub struct Recovered<'a> {
        /// What works again, out of a fixed set.
        what: &'static str,
        /// The handler that it belongs to, if any.
        handler: Option<&'a str>,
        /// How often and for how long it failed.
        recovery: Recovery,
    }
    let Recovery { failures, failed_for } = recovery;
    info!(what, handler, failures, failed_for_s = failed_for.as_secs(), "works again");
}

/// Decides which failures of one kind are logged. An event about such a failure takes the returned summary, updates its
/// metrics in any case, and writes its log line if there is a summary.
#[derive(Debug)]
pub struct FailureLog {
    what: &'static str,
    clock: Clock,
    streak: Mutex<FailureStreak>,
    /// Spares successes the lock while nothing fails.
    is_failing: AtomicBool,
}

impl FailureLog {
    /// A log of nothing so far. `what` names it in the line about its recovery.
    #[must_use]
    pub fn new(what: &'static str) -> Self {
        Self { what, clock: Clock::start(), streak: Mutex::default(), is_failing: AtomicBool::new(false) }
    }

    /// Records a failure. Returns what to log, if a line is due.
    #[must_use]
    pub fn on_failure(&self) -> Option<FailureSummary> {
        self.is_failing.store(true, Ordering::Relaxed);
        self.streak().on_failure(self.clock.now())
    }

    /// Records a failure of something whose successes are not recorded. Returns what to log, if a line is due.
    #[must_use]
    pub fn on_isolated_failure(&self) -> Option<FailureSummary> {
        self.streak().on_isolated_failure(self.clock.now())
    }

    /// Records a success, and logs that it works again if failures were logged.
    pub fn on_success(&self) {
        if let Some(recovery) = self.take_recovery() {
            emit(Recovered { what: self.what, handler: None, recovery });
        }
    }

    /// As [`FailureLog::on_success`], for the log of one handler.
    pub fn on_success_of(&self, handler: &str) {
        if let Some(recovery) = self.take_recovery() {
            emit(Recovered { what: self.what, handler: Some(handler), recovery });
        }
    }

    /// Records a success, for an event that logs it in any case. Returns what failed until then, if that was logged.
    pub fn take_recovery(&self) -> Option<Recovery> {
        if !self.is_failing.swap(false, Ordering::Relaxed) {
            return None;
        }
        self.streak().on_success(self.clock.now())
    }

    fn streak(&self) -> MutexGuard<'_, FailureStreak> {
        self.streak.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use guildhall_core::failure_streak::SUMMARY_INTERVAL;
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn failures_are_summarised_until_a_success() {
        let log = FailureLog::new("store");
        let first = log.on_failure();
        assert_eq!(first, Some(FailureSummary { failures: 1, failing_for: Duration::ZERO }));
        assert_eq!(log.on_failure(), None);
        advance(SUMMARY_INTERVAL).await;
        assert_eq!(log.on_failure(), Some(FailureSummary { failures: 2, failing_for: SUMMARY_INTERVAL }));
        log.on_success();
        advance(SUMMARY_INTERVAL).await;
        assert_eq!(log.on_failure(), first, "a success ends the streak");
    }
}
