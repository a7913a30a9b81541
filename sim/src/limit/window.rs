//! Discord's algorithms for counting requests: two for the bucket of a route, two for the global limit. Pure, exact to
//! the microsecond.
//!
//! A check changes nothing; only [`Window::take`] does. So a request that one limit refuses costs nothing in the
//! others.

use std::collections::VecDeque;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::time::At;

/// How a window counts requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Algorithm {
    /// The window starts with its first request, and all slots become free at its end.
    Fixed,
    /// Slots drain evenly, one every `per / limit`; `Reset-After` is the time until all are free.
    Leaky,
    /// Never more than `limit` in any interval of length `per`.
    Sliding,
    /// Windows start at whole multiples of `per`, like the seconds of a clock.
    Aligned,
}

/// A limit, its window, and how requests are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rate {
    /// Requests per window; at least 1.
    pub limit: u32,
    /// The length of the window in milliseconds; at least 1.
    pub per_ms: u64,
    /// How requests are counted.
    pub algorithm: Algorithm,
}

impl Rate {
    /// `limit` per `per_ms` milliseconds, counted by `algorithm`.
    #[must_use]
    pub const fn new(limit: u32, per_ms: u64, algorithm: Algorithm) -> Self {
        Self { limit, per_ms, algorithm }
    }

    pub(crate) fn per(&self) -> Duration {
        Duration::from_millis(self.per_ms)
    }
}

/// Result of checking a request against a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WindowDecision {
    Allowed,
    /// Refused; one slot is free after this time.
    Refused(Duration),
}

/// State of a window, for the headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WindowState {
    pub(crate) limit: u32,
    pub(crate) remaining: u32,
    /// Time until the whole limit is free.
    pub(crate) reset_after: Duration,
}

/// One window of requests.
#[derive(Clone, Debug)]
pub(crate) struct Window {
    rate: Rate,
    count: Count,
}

#[derive(Clone, Debug)]
enum Count {
    /// Fixed and aligned: requests in the window that ends at `until`.
    Until { until: At, taken: u32 },
    /// Level of the bucket at `at`, in units of 1/limit microseconds: each request adds `per`, and `limit` units drain
    /// every microsecond. Integers, so that nothing is lost to rounding.
    Level { at: At, level: u128 },
    /// Times of the last `limit` requests.
    Log(VecDeque<At>),
}

impl Window {
    pub(crate) fn new(rate: Rate) -> Self {
        let count = match rate.algorithm {
            Algorithm::Fixed | Algorithm::Aligned => Count::Until { until: At::default(), taken: 0 },
            Algorithm::Leaky => Count::Level { at: At::default(), level: 0 },
            Algorithm::Sliding => Count::Log(VecDeque::new()),
        };
        Self { rate, count }
    }

    /// Checks whether a request at `now` is within the limit.
    pub(crate) fn check(&self, now: At) -> WindowDecision {
        let limit = self.rate.limit;
        match &self.count {
            Count::Until { until, taken } if now < *until && *taken >= limit => {
                WindowDecision::Refused(until.since(now))
            }
            Count::Until { .. } => WindowDecision::Allowed,
            Count::Level { .. } => {
                let excess = (self.level(now) + self.request_cost()).saturating_sub(self.capacity());
                if excess == 0 { WindowDecision::Allowed } else { WindowDecision::Refused(self.drain_time(excess)) }
            }
            Count::Log(log) => match log.front() {
                Some(oldest) if log.len() >= limit as usize && now < oldest.after(self.rate.per()) => {
                    WindowDecision::Refused(oldest.after(self.rate.per()).since(now))
                }
                _ => WindowDecision::Allowed,
            },
        }
    }

    /// Counts a request that was allowed.
    pub(crate) fn take(&mut self, now: At) {
        let (level, pour) = (self.level(now), self.request_cost());
        match &mut self.count {
            Count::Until { until, taken } => {
                if now >= *until {
                    *until = match self.rate.algorithm {
                        Algorithm::Aligned => {
                            let per = u64::try_from(self.rate.per().as_micros()).unwrap_or(u64::MAX);
                            At::from_micros(now.micros() - now.micros() % per).after(self.rate.per())
                        }
                        Algorithm::Fixed | Algorithm::Leaky | Algorithm::Sliding => now.after(self.rate.per()),
                    };
                    *taken = 0;
                }
                *taken += 1;
            }
            Count::Level { at, level: stored } => {
                *stored = level + pour;
                *at = (*at).max(now);
            }
            Count::Log(log) => {
                while log.len() >= self.rate.limit as usize {
                    log.pop_front();
                }
                log.push_back(now);
            }
        }
    }

    pub(crate) fn state(&self, now: At) -> WindowState {
        let limit = self.rate.limit;
        let (used, reset_after) = match &self.count {
            Count::Until { until, taken } if now < *until => (*taken, until.since(now)),
            Count::Until { .. } => (0, self.rate.per()),
            Count::Level { .. } => {
                let level = self.level(now);
                (u32::try_from(level.div_ceil(self.request_cost())).unwrap_or(limit), self.drain_time(level))
            }
            Count::Log(log) => {
                let live = log.iter().filter(|taken| now < taken.after(self.rate.per())).count();
                let newest = log.back().map_or(Duration::ZERO, |taken| taken.after(self.rate.per()).since(now));
                (u32::try_from(live).unwrap_or(limit), newest)
            }
        };
        WindowState { limit, remaining: limit.saturating_sub(used), reset_after }
    }

    /// Whether it equals a new window, so that it can be removed.
    pub(crate) fn is_idle(&self, now: At) -> bool {
        match &self.count {
            Count::Until { until, .. } => now >= *until,
            Count::Level { .. } => self.level(now) == 0,
            Count::Log(log) => log.back().is_none_or(|taken| now >= taken.after(self.rate.per())),
        }
    }

    fn request_cost(&self) -> u128 {
        self.rate.per().as_micros()
    }

    fn capacity(&self) -> u128 {
        self.request_cost() * u128::from(self.rate.limit)
    }

    fn level(&self, now: At) -> u128 {
        match &self.count {
            Count::Level { at, level } => {
                level.saturating_sub(now.since(*at).as_micros() * u128::from(self.rate.limit))
            }
            Count::Until { .. } | Count::Log(_) => 0,
        }
    }

    fn drain_time(&self, level: u128) -> Duration {
        Duration::from_micros(u64::try_from(level.div_ceil(u128::from(self.rate.limit))).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(micros: u64) -> At {
        At::from_micros(1_700_000_000_000_000 + micros)
    }

    /// Sends requests through a window; returns which were allowed, and checks each refusal's `Retry-After`.
    fn run(rate: Rate, gaps: &[u64]) -> Vec<(At, bool)> {
        let mut window = Window::new(rate);
        let mut now = 0;
        let mut results = Vec::new();
        for gap in gaps {
            now += gap;
            let allowed = match window.check(at(now)) {
                WindowDecision::Allowed => {
                    window.take(at(now));
                    true
                }
                WindowDecision::Refused(wait) => {
                    assert_eq!(
                        window.check(at(now).after(wait)),
                        WindowDecision::Allowed,
                        "Retry-After is long enough"
                    );
                    let early = wait - Duration::from_micros(1);
                    assert_ne!(
                        window.check(at(now).after(early)),
                        WindowDecision::Allowed,
                        "Retry-After is not longer than necessary"
                    );
                    false
                }
            };
            results.push((at(now), allowed));
        }
        results
    }

    /// The oracle, which uses no window: is a request at `now` allowed after those in `passed`?
    fn table_allows(rate: Rate, passed: &[At], now: At) -> bool {
        let per = rate.per();
        let limit = rate.limit as usize;
        match rate.algorithm {
            Algorithm::Sliding => passed.iter().filter(|taken| now < taken.after(per)).count() < limit,
            Algorithm::Aligned => {
                let slot = |at: At| u128::from(at.micros()) / per.as_micros();
                passed.iter().filter(|taken| slot(**taken) == slot(now)).count() < limit
            }
            Algorithm::Fixed => {
                // Walk the windows from the first request.
                let mut open: Option<(At, usize)> = None;
                for taken in passed {
                    open = match open {
                        Some((end, count)) if *taken < end => Some((end, count + 1)),
                        _ => Some((taken.after(per), 1)),
                    };
                }
                open.is_none_or(|(end, count)| now >= end || count < limit)
            }
            Algorithm::Leaky => {
                // No interval that ends now may have more than `limit` requests plus what drained in it.
                passed.iter().enumerate().all(|(index, from)| {
                    let requests = (passed.len() - index + 1) as u128;
                    let drained = now.since(*from).as_micros() * u128::from(rate.limit);
                    requests * per.as_micros() <= u128::from(rate.limit) * per.as_micros() + drained
                })
            }
        }
    }

    fn rates() -> impl Strategy<Value = Rate> {
        let algorithm = prop_oneof![
            Just(Algorithm::Fixed),
            Just(Algorithm::Leaky),
            Just(Algorithm::Sliding),
            Just(Algorithm::Aligned)
        ];
        (1u32..8, 1u64..50, algorithm).prop_map(|(limit, per_ms, algorithm)| Rate { limit, per_ms, algorithm })
    }

    fn gaps() -> impl Strategy<Value = Vec<u64>> {
        prop::collection::vec(prop_oneof![0u64..200, 0u64..20_000, Just(1_000), Just(10_000)], 1..120)
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

        #[test]
        fn window_allows_exactly_what_its_rate_allows(rate in rates(), gaps in gaps()) {
            let mut passed = Vec::new();
            for (now, allowed) in run(rate, &gaps) {
                prop_assert_eq!(allowed, table_allows(rate, &passed, now));
                if allowed {
                    passed.push(now);
                }
            }
        }

        #[test]
        fn remaining_requests_can_be_used_at_once(rate in rates(), gaps in gaps()) {
            let mut window = Window::new(rate);
            let mut now = at(0);
            for gap in gaps {
                now = now.after(Duration::from_micros(gap));
                if window.check(now) == WindowDecision::Allowed {
                    window.take(now);
                }
                let state = window.state(now);
                let mut trial = window.clone();
                for _ in 0..state.remaining {
                    prop_assert_eq!(trial.check(now), WindowDecision::Allowed);
                    trial.take(now);
                }
                prop_assert_ne!(trial.check(now), WindowDecision::Allowed);
                let mut later = window.clone();
                let then = now.after(state.reset_after);
                for _ in 0..rate.limit {
                    prop_assert_eq!(later.check(then), WindowDecision::Allowed);
                    later.take(then);
                }
            }
        }
    }

    #[test]
    fn leaky_window_reports_reset_after_and_remaining() {
        let mut window = Window::new(Rate::new(5, 5_000, Algorithm::Leaky));
        for _ in 0..2 {
            window.take(at(0));
        }
        let state = window.state(at(0));
        assert_eq!((state.remaining, state.reset_after), (3, Duration::from_secs(2)));
    }
}
