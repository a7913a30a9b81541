//! How far store time was ahead of Discord's clock, by day.
//!
//! The id of an object that an operation created contains the time of Discord's clock; the operation's intent has store
//! time. If store time was ahead when the intent was written, the object looks older than the intent. The clock may
//! have been corrected since, by another process or after a restart, so the measured values are stored.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::time::UnixMs;

const DAY_MS: u64 = 24 * 60 * 60 * 1_000;
/// Discord's audit log goes back 45 days.
const DAYS: usize = 46;
/// Smaller values are within the margin of every search.
const MIN_RECORDED_MS: u64 = 1_000;

/// The maximum lead of store time over Discord's clock in milliseconds, by day.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct AheadLog(BTreeMap<u64, u64>);

impl AheadLog {
    /// Records a lead of store time. Returns whether the log has changed.
    pub fn observe(&mut self, ahead_ms: i64, now: UnixMs) -> bool {
        // In whole seconds, rounded up, so that it does not change with every response.
        let ahead = u64::try_from(ahead_ms).unwrap_or(0).div_ceil(1_000) * 1_000;
        if ahead < MIN_RECORDED_MS {
            return false;
        }
        let day = self.0.entry(now.millis() / DAY_MS).or_default();
        let changed = *day < ahead;
        *day = ahead.max(*day);
        while self.0.len() > DAYS {
            self.0.pop_first();
        }
        changed
    }

    /// Adds the values that another process has measured.
    pub fn merge(&mut self, other: &Self) {
        for (day, ahead) in &other.0 {
            let own = self.0.entry(*day).or_default();
            *own = (*own).max(*ahead);
        }
        while self.0.len() > DAYS {
            self.0.pop_first();
        }
    }

    /// The maximum lead of store time when `at` was written, or later.
    #[must_use]
    pub fn max_since(&self, at: UnixMs) -> Duration {
        // One day earlier: a clock that is ahead may show the next day.
        let first = (at.millis() / DAY_MS).saturating_sub(1);
        Duration::from_millis(self.0.range(first..).map(|(_, ahead)| *ahead).max().unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn day(number: u64) -> UnixMs {
        UnixMs::new(number * DAY_MS + 5)
    }

    #[test]
    fn maximum_of_the_days_since_counts() {
        let mut log = AheadLog::default();
        assert!(!log.observe(-5_000, day(20_000)), "behind is not ahead");
        assert!(!log.observe(0, day(20_000)));
        assert!(log.observe(600_001, day(20_000)));
        assert!(!log.observe(600_500, day(20_000)), "whole seconds");
        assert!(log.observe(5_000, day(20_003)));
        assert_eq!(log.max_since(day(20_000)), Duration::from_secs(601));
        assert_eq!(log.max_since(day(20_001)), Duration::from_secs(601), "a clock that is ahead may show the next day");
        assert_eq!(log.max_since(day(20_002)), Duration::from_secs(5));
        assert_eq!(log.max_since(day(20_009)), Duration::ZERO);
    }

    #[test]
    fn the_log_is_bounded_and_merges() {
        let (mut log, mut other) = (AheadLog::default(), AheadLog::default());
        for number in 0..100 {
            log.observe(2_000, day(20_000 + number));
        }
        assert_eq!(log.0.len(), DAYS);
        other.observe(9_000, day(20_099));
        log.merge(&other);
        assert_eq!((log.0.len(), log.max_since(day(20_099))), (DAYS, Duration::from_secs(9)));
        let text = serde_json::to_string(&log).unwrap();
        assert_eq!(serde_json::from_str::<AheadLog>(&text).unwrap(), log);
    }
}
