//! Largest spenders, found in bounded memory.

use std::time::Duration;

use serde::Serialize;

use crate::heavy_hitters::{HeavyHitter, HeavyHitters};
use crate::route::RouteKey;
use crate::time::Timestamp;

/// Maximum number of tracked spenders.
const MAX_TRACKED: usize = 100;

/// Maximum number of reported spenders.
const MAX_REPORTED: usize = 20;

/// A source of invalid requests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Spender {
    /// The guild of the requests.
    pub guild: Option<u64>,
    /// The route.
    pub route: RouteKey,
    /// Maximum count.
    pub count: u32,
    /// Maximum error of `count`.
    pub error: u32,
}

/// The spenders of this window and the one before it.
#[derive(Debug)]
pub(super) struct Spenders(HeavyHitters<(Option<u64>, RouteKey)>);

impl Spenders {
    pub(super) fn new(window: Duration) -> Self {
        Self(HeavyHitters::new(MAX_TRACKED, window, Timestamp::ZERO))
    }

    pub(super) fn add(&mut self, guild: Option<u64>, route: RouteKey, now: Timestamp) {
        self.0.add((guild, route), now);
    }

    /// The largest spenders, largest first.
    pub(super) fn top(&mut self, now: Timestamp) -> Vec<Spender> {
        let (top, _) = self.0.top(MAX_REPORTED, now);
        let small = |count: u64| u32::try_from(count).unwrap_or(u32::MAX);
        let spender = |HeavyHitter { key: (guild, route), count, over }| Spender {
            guild,
            route,
            count: small(count),
            error: small(over),
        };
        top.into_iter().map(spender).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: Duration = Duration::from_secs(600);

    #[test]
    fn the_largest_spender_is_found_among_thousands() {
        let mut spenders = Spenders::new(WINDOW);
        let route = RouteKey::new("PUT /guilds/{id}/members/{id}/roles/{id}");
        for guild in 0..9_000_u64 {
            spenders.add(Some(guild), route.clone(), Timestamp::ZERO);
            if guild % 10 == 0 {
                spenders.add(Some(777_777), route.clone(), Timestamp::ZERO);
            }
        }
        let top = spenders.top(Timestamp::ZERO);
        assert_eq!(top[0].guild, Some(777_777));
        assert!(top[0].count >= 900 && top[0].count - top[0].error <= 900);
        assert_eq!(top.len(), MAX_REPORTED);
    }

    #[test]
    fn what_was_spent_two_windows_ago_is_forgotten() {
        let mut spenders = Spenders::new(WINDOW);
        let route = RouteKey::new("GET /users/@me");
        spenders.add(None, route.clone(), Timestamp::ZERO);
        let later = Timestamp::ZERO + WINDOW;
        spenders.add(None, route, later);
        assert_eq!(spenders.top(later)[0].count, 2);
        assert_eq!(spenders.top(later + WINDOW)[0].count, 1);
        assert!(spenders.top(later + WINDOW * 3).is_empty());
    }
}
