//! Limits of IDENTIFY: by concurrency, and by day.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::config::GatewayConfig;
use crate::id::Snowflake;
use crate::time::At;

/// The window of session starts, from the first of them.
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// The `session_start_limit` in `/gateway/bot`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionStarts {
    /// Session starts per day.
    pub total: u32,
    /// Remaining session starts of the current day.
    pub remaining: u32,
    /// Milliseconds until all of them are available again.
    pub reset_after: u64,
    /// IDENTIFYs allowed within the same five seconds.
    pub max_concurrency: u32,
}

/// Decision on an IDENTIFY.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IdentifyDecision {
    Start,
    /// Another shard of the same bucket identified just before.
    TooSoon,
    /// The session starts of the day are used up: the token is reset.
    Exhausted,
    /// The token was reset earlier.
    TokenReset,
}

/// The IDENTIFYs of all bots.
#[derive(Debug)]
pub(crate) struct IdentifyBudget {
    max_concurrency: u32,
    window: Duration,
    per_day: u32,
    last_by_bucket: HashMap<(Snowflake, u32), At>,
    days: HashMap<Snowflake, Day>,
    reset: HashSet<Snowflake>,
}

#[derive(Clone, Copy, Debug)]
struct Day {
    started: At,
    used: u32,
}

impl IdentifyBudget {
    pub(crate) fn new(config: &GatewayConfig) -> Self {
        Self {
            max_concurrency: config.max_concurrency.max(1),
            window: config.identify_window,
            per_day: config.session_starts,
            last_by_bucket: HashMap::new(),
            days: HashMap::new(),
            reset: HashSet::new(),
        }
    }

    pub(crate) fn identify(&mut self, application: Snowflake, shard: u32, now: At) -> IdentifyDecision {
        if self.is_token_reset(application) {
            return IdentifyDecision::TokenReset;
        }
        let bucket = (application, shard % self.max_concurrency);
        // A client that waits exactly the window by its own clock must not fail because of the transit time of its
        // frames.
        let spacing = self.window - self.window / 50;
        if self.last_by_bucket.get(&bucket).is_some_and(|last| now.since(*last) < spacing) {
            return IdentifyDecision::TooSoon;
        }
        let day = self.days.entry(application).or_insert(Day { started: now, used: 0 });
        if now.since(day.started) >= DAY {
            *day = Day { started: now, used: 0 };
        }
        if day.used >= self.per_day {
            self.reset.insert(application);
            return IdentifyDecision::Exhausted;
        }
        day.used += 1;
        self.last_by_bucket.insert(bucket, now);
        IdentifyDecision::Start
    }

    pub(crate) fn is_token_reset(&self, application: Snowflake) -> bool {
        self.reset.contains(&application)
    }

    pub(crate) fn starts(&self, application: Snowflake, now: At) -> SessionStarts {
        let day = self.days.get(&application).filter(|day| now.since(day.started) < DAY);
        let (used, remaining) = day.map_or((0, DAY), |day| (day.used, DAY.saturating_sub(now.since(day.started))));
        SessionStarts {
            total: self.per_day,
            remaining: self.per_day.saturating_sub(used),
            reset_after: u64::try_from(remaining.as_millis()).unwrap_or(u64::MAX),
            max_concurrency: self.max_concurrency,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: At = At::from_micros(1_700_000_000_000_000);
    const BOT: Snowflake = Snowflake::new(1);

    fn budget(max_concurrency: u32, session_starts: u32) -> IdentifyBudget {
        IdentifyBudget::new(&GatewayConfig { max_concurrency, session_starts, ..GatewayConfig::default() })
    }

    #[test]
    fn shards_of_one_bucket_identify_one_window_apart() {
        let mut budget = budget(2, 1_000);
        assert_eq!(budget.identify(BOT, 0, START), IdentifyDecision::Start);
        assert_eq!(budget.identify(BOT, 1, START), IdentifyDecision::Start, "another bucket");
        assert_eq!(budget.identify(BOT, 2, START), IdentifyDecision::TooSoon);
        assert_eq!(budget.identify(BOT, 2, START.after(Duration::from_secs(4))), IdentifyDecision::TooSoon);
        assert_eq!(budget.identify(BOT, 2, START.after(Duration::from_secs(5))), IdentifyDecision::Start);
        assert_eq!(budget.identify(Snowflake::new(2), 0, START), IdentifyDecision::Start, "another bot");
    }

    #[test]
    fn session_starts_are_counted_and_reset_after_a_day() {
        let mut budget = budget(16, 10);
        assert_eq!(budget.starts(BOT, START).remaining, 10);
        budget.identify(BOT, 0, START);
        budget.identify(BOT, 1, START);
        budget.identify(BOT, 1, START);
        let later = START.after(Duration::from_secs(60));
        let starts = budget.starts(BOT, later);
        assert_eq!((starts.remaining, starts.total, starts.max_concurrency), (8, 10, 16), "a refusal costs nothing");
        assert_eq!(starts.reset_after, 86_340_000);
        assert_eq!(budget.starts(BOT, START.after(DAY)).remaining, 10);
    }

    #[test]
    fn session_start_beyond_the_limit_resets_the_token() {
        let mut budget = budget(16, 2);
        assert_eq!(budget.identify(BOT, 0, START), IdentifyDecision::Start);
        assert_eq!(budget.identify(BOT, 1, START), IdentifyDecision::Start);
        assert_eq!(budget.identify(BOT, 2, START), IdentifyDecision::Exhausted);
        assert_eq!(budget.identify(BOT, 3, START.after(DAY * 2)), IdentifyDecision::TokenReset);
        assert!(budget.is_token_reset(BOT));
    }
}
