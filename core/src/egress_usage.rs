//! Usage of the REST proxy: the routes and the callers with the most calls, waits, refusals and errors.

use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use crate::heavy_hitters::{HeavyHitter, HeavyHitters};
use crate::route::RouteKey;
use crate::time::{Timestamp, millis};

/// Maximum number of tracked routes, and of tracked callers, per measure.
const MAX_TRACKED: usize = 200;

/// Length of a window. Reports cover this window and the one before it.
const WINDOW: Duration = Duration::from_secs(600);

crate::named_enum! {
    /// What is counted.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum EgressMeasure {
        /// Calls.
        Calls = "calls",
        /// Milliseconds that calls were delayed: by the wait for a permit, by checks and by their bodies.
        Waited = "waited",
        /// Calls that the proxy answered itself.
        Refused = "refused",
        /// Calls that Discord answered with a status of 400 or more.
        Errors = "errors",
    }
}

/// A call that has ended.
#[derive(Clone, Debug)]
pub struct EndedCall<'a> {
    /// Its route, if it is known.
    pub route: Option<&'a RouteKey>,
    /// Its caller, if it was identified.
    pub caller: Option<&'a Arc<str>>,
    /// How long it was delayed.
    pub waited: Duration,
    /// The status of Discord's response; `None` if the proxy answered.
    pub status: Option<u16>,
}

/// The usage of a route or of a caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsageRow<K> {
    /// The route or the caller.
    pub key: K,
    /// Number of calls.
    pub calls: u64,
    /// Milliseconds that calls were delayed.
    pub waited_ms: u64,
    /// Calls that the proxy answered itself.
    pub refused: u64,
    /// Calls that Discord answered with a status of 400 or more.
    pub errors: u64,
    /// Maximum overestimate of the number that rows are sorted by.
    pub over: u64,
}

/// The routes and callers with the highest usage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EgressTop {
    /// Routes, the highest first.
    pub routes: Vec<UsageRow<RouteKey>>,
    /// Callers, the highest first.
    pub callers: Vec<UsageRow<Arc<str>>>,
    /// Time that the numbers cover.
    pub period: Duration,
}

/// Recent usage of the REST proxy.
#[derive(Clone, Debug)]
pub struct EgressUsage {
    routes: UsageTable<RouteKey>,
    callers: UsageTable<Arc<str>>,
}

impl EgressUsage {
    /// Creates it empty.
    #[must_use]
    pub fn new(now: Timestamp) -> Self {
        Self { routes: UsageTable::new(now), callers: UsageTable::new(now) }
    }

    /// Records a call.
    pub fn on_call(&mut self, call: &EndedCall<'_>, now: Timestamp) {
        if let Some(route) = call.route {
            self.routes.on_call(route, call, now);
        }
        if let Some(caller) = call.caller {
            self.callers.on_call(caller, call, now);
        }
    }

    /// The highest usage by a measure, at most `limit` routes and `limit` callers.
    pub fn top(&mut self, by: EgressMeasure, limit: usize, now: Timestamp) -> EgressTop {
        let (routes, since) = self.routes.top(by, limit, now);
        let (callers, _) = self.callers.top(by, limit, now);
        EgressTop { routes, callers, period: now.since(since) }
    }
}

/// The counts of each measure.
#[derive(Clone, Debug)]
struct UsageTable<K>([HeavyHitters<K>; EgressMeasure::ALL.len()]);

impl<K: Clone + Eq + Hash + Ord> UsageTable<K> {
    fn new(now: Timestamp) -> Self {
        Self(EgressMeasure::ALL.map(|_| HeavyHitters::new(MAX_TRACKED, WINDOW, now)))
    }

    fn on_call(&mut self, key: &K, call: &EndedCall<'_>, now: Timestamp) {
        for (measure, counts) in EgressMeasure::ALL.into_iter().zip(&mut self.0) {
            let times = match (measure, call.status) {
                (EgressMeasure::Calls, _) | (EgressMeasure::Refused, None) => 1,
                (EgressMeasure::Waited, _) => millis(call.waited),
                (EgressMeasure::Errors, Some(status)) => u64::from(status >= 400),
                (EgressMeasure::Refused, Some(_)) | (EgressMeasure::Errors, None) => 0,
            };
            if times > 0 {
                counts.add_many(key.clone(), times, now);
            }
        }
    }

    fn top(&mut self, by: EgressMeasure, limit: usize, now: Timestamp) -> (Vec<UsageRow<K>>, Timestamp) {
        // Every table moves on to the same window.
        let tops = self.0.each_mut().map(|counts| counts.top(limit, now));
        let mut chosen = EgressMeasure::ALL.into_iter().zip(tops).filter(|(measure, _)| *measure == by);
        let (_, (top, since)) = chosen.next().expect("invariant: every measure has a table");
        let row = |HeavyHitter { key, over, .. }: HeavyHitter<K>| {
            let [calls, waited_ms, refused, errors] = self.0.each_ref().map(|counts| counts.count(&key));
            UsageRow { key, calls, waited_ms, refused, errors, over }
        };
        (top.into_iter().map(row).collect(), since)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Timestamp = Timestamp::ZERO;

    fn record(usage: &mut EgressUsage, route: &str, caller: &str, waited_ms: u64, status: Option<u16>, now: Timestamp) {
        let (route, caller) = (RouteKey::new(route), Arc::from(caller));
        let waited = Duration::from_millis(waited_ms);
        usage.on_call(&EndedCall { route: Some(&route), caller: Some(&caller), waited, status }, now);
    }

    fn row<K>(key: K, [calls, waited_ms, refused, errors]: [u64; 4]) -> UsageRow<K> {
        UsageRow { key, calls, waited_ms, refused, errors, over: 0 }
    }

    #[test]
    fn rows_have_every_number_and_are_sorted_by_one() {
        let mut usage = EgressUsage::new(START);
        record(&mut usage, "GET /a", "shop", 5, Some(200), START);
        record(&mut usage, "GET /a", "bot", 0, Some(404), START);
        record(&mut usage, "POST /b", "shop", 70, None, START);
        let top = usage.top(EgressMeasure::Calls, 10, START);
        let routes = [row(RouteKey::new("GET /a"), [2, 5, 0, 1]), row(RouteKey::new("POST /b"), [1, 70, 1, 0])];
        assert_eq!(top.routes, routes);
        assert_eq!(usage.top(EgressMeasure::Waited, 1, START).routes, routes[1..]);
        let callers = usage.top(EgressMeasure::Refused, 10, START).callers;
        assert_eq!(callers, [row(Arc::<str>::from("shop"), [2, 75, 1, 0])], "callers without refusals are not listed");
        assert_eq!(usage.top(EgressMeasure::Errors, 10, START).callers[0].key, Arc::from("bot"));
    }

    #[test]
    fn calls_without_route_or_caller_count_for_the_other() {
        let mut usage = EgressUsage::new(START);
        let route = RouteKey::new("GET /a");
        let call = EndedCall { route: Some(&route), caller: None, waited: Duration::ZERO, status: None };
        usage.on_call(&call, START);
        let top = usage.top(EgressMeasure::Calls, 10, START);
        assert_eq!((top.routes.len(), top.callers.len()), (1, 0));
    }

    #[test]
    fn usage_is_forgotten_after_two_windows_in_every_measure() {
        let mut usage = EgressUsage::new(START);
        record(&mut usage, "GET /a", "bot", 5, Some(500), START);
        let later = START + WINDOW + Duration::from_secs(1);
        record(&mut usage, "GET /a", "bot", 0, Some(200), later);
        let top = usage.top(EgressMeasure::Calls, 10, later);
        assert_eq!((top.routes[0].calls, top.routes[0].waited_ms, top.routes[0].errors), (2, 5, 1));
        assert_eq!(top.period, WINDOW + Duration::from_secs(1));
        let top = usage.top(EgressMeasure::Calls, 10, later + WINDOW * 2);
        assert!(top.routes.is_empty() && top.callers.is_empty(), "{top:?}");
    }

    #[test]
    fn number_of_keys_is_bounded() {
        let mut usage = EgressUsage::new(START);
        for number in 0..MAX_TRACKED as u64 * 3 {
            record(&mut usage, &format!("GET /{number}"), &number.to_string(), 1, None, START);
        }
        let top = usage.top(EgressMeasure::Calls, usize::MAX, START);
        assert_eq!((top.routes.len(), top.callers.len()), (MAX_TRACKED, MAX_TRACKED));
        assert!(top.routes[0].over > 0, "{:?}", top.routes[0]);
    }
}
