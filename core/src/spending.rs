//! Consumers of Discord's API: the guilds with the most calls and the most failed calls.

use std::time::Duration;

use serde::Serialize;

use crate::breaker::CallResult;
use crate::heavy_hitters::{HeavyHitter, HeavyHitters};
use crate::response::ResponseClass;
use crate::time::Timestamp;

/// Maximum number of tracked consumers per measure.
const MAX_TRACKED: usize = 500;

/// Length of a window. Reports cover this window and the one before it.
const WINDOW: Duration = Duration::from_secs(600);

/// On whose behalf a call is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Consumer {
    /// A guild.
    Guild(u64),
    /// The application itself: no guild is known.
    Application,
}

impl Consumer {
    /// The consumer of a call with this guild.
    #[must_use]
    pub const fn of(guild: Option<u64>) -> Self {
        match guild {
            Some(guild) => Self::Guild(guild),
            None => Self::Application,
        }
    }
}

crate::named_enum! {
    /// What is counted.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum Measure {
        /// Calls that were made.
        Spend = "spend",
        /// Calls with a 429 response, of any scope.
        Limited = "429",
        /// Calls that Discord counts towards the ban.
        Invalid = "invalid",
    }
}

impl Measure {
    /// Whether a call with this result counts.
    #[must_use]
    pub const fn counts(self, result: CallResult) -> bool {
        match (self, result) {
            // A call that was never sent costs nothing.
            (Self::Spend, CallResult::Unreachable) => false,
            (Self::Spend, CallResult::Answered(_) | CallResult::TimedOut | CallResult::Broken) => true,
            (Self::Limited, CallResult::Answered(ResponseClass::RateLimited { .. })) => true,
            (Self::Invalid, CallResult::Answered(class)) => class.is_invalid(),
            (Self::Limited | Self::Invalid, _) => false,
        }
    }
}

/// Recent usage of consumers, by every measure.
#[derive(Clone, Debug)]
pub struct Spending([HeavyHitters<Consumer>; 3]);

impl Spending {
    /// Creates it empty.
    #[must_use]
    pub fn new(now: Timestamp) -> Self {
        Self(Measure::ALL.map(|_| HeavyHitters::new(MAX_TRACKED, WINDOW, now)))
    }

    /// Records a call and its result.
    pub fn on_call(&mut self, consumer: Consumer, result: CallResult, now: Timestamp) {
        for (measure, recent) in Measure::ALL.into_iter().zip(&mut self.0) {
            if measure.counts(result) {
                recent.add(consumer, now);
            }
        }
    }

    /// The largest consumers by a measure, largest first, and since when they were counted.
    pub fn top(&mut self, by: Measure, limit: usize, now: Timestamp) -> (Vec<HeavyHitter<Consumer>>, Timestamp) {
        let [spend, limited, invalid] = &mut self.0;
        match by {
            Measure::Spend => spend.top(limit, now),
            Measure::Limited => limited.top(limit, now),
            Measure::Invalid => invalid.top(limit, now),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::response::RateLimitScope;

    const NOW: Timestamp = Timestamp::from_millis(1);

    fn limited(scope: RateLimitScope) -> CallResult {
        CallResult::Answered(ResponseClass::RateLimited { scope, retry_after: Duration::from_secs(1) })
    }

    #[test]
    fn results_count_towards_their_measures() {
        use Measure::{Invalid, Limited, Spend};
        for (result, expected) in [
            (CallResult::Answered(ResponseClass::Success), vec![Spend]),
            (CallResult::Answered(ResponseClass::Forbidden), vec![Spend, Invalid]),
            (CallResult::Answered(ResponseClass::ServerError), vec![Spend]),
            (limited(RateLimitScope::User), vec![Spend, Limited, Invalid]),
            (limited(RateLimitScope::Shared), vec![Spend, Limited]),
            (CallResult::TimedOut, vec![Spend]),
            (CallResult::Broken, vec![Spend]),
            (CallResult::Unreachable, vec![]),
        ] {
            let counts: Vec<_> = Measure::ALL.into_iter().filter(|measure| measure.counts(result)).collect();
            assert_eq!(counts, expected, "{result:?}");
        }
    }

    #[test]
    fn largest_consumer_comes_first_by_each_measure() {
        let mut spending = Spending::new(NOW);
        for _ in 0..3 {
            spending.on_call(Consumer::Guild(7), CallResult::Answered(ResponseClass::Success), NOW);
        }
        spending.on_call(Consumer::of(Some(8)), limited(RateLimitScope::User), NOW);
        spending.on_call(Consumer::of(None), limited(RateLimitScope::Shared), NOW);
        let top = |spending: &mut Spending, by| {
            let (top, since) = spending.top(by, 2, NOW);
            assert_eq!(since, NOW);
            top.into_iter().map(|counted| (counted.key, counted.count)).collect::<Vec<_>>()
        };
        assert_eq!(top(&mut spending, Measure::Spend), [(Consumer::Guild(7), 3), (Consumer::Guild(8), 1)]);
        assert_eq!(top(&mut spending, Measure::Limited), [(Consumer::Guild(8), 1), (Consumer::Application, 1)]);
        assert_eq!(top(&mut spending, Measure::Invalid), [(Consumer::Guild(8), 1)]);
    }

    #[test]
    fn measure_names_round_trip() {
        for measure in Measure::ALL {
            assert_eq!(Measure::from_name(measure.name()), Some(measure));
        }
        assert_eq!(Measure::from_name("calls"), None);
    }
}
