//! Who spends the most, found in bounded memory.

use std::collections::HashMap;
use std::time::Duration;

use serde::Serialize;

use crate::route::RouteKey;
use crate::time::Timestamp;

/// How many are watched at once.
const WATCHED: usize = 100;

/// How many are shown.
const SHOWN: usize = 20;

/// Somebody who caused invalid requests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Spender {
    /// The guild it was for.
    pub guild: Option<u64>,
    /// The route.
    pub route: RouteKey,
    /// How many, at most.
    pub count: u32,
    /// By how much `count` may be too high.
    pub error: u32,
}

type Key = (Option<u64>, RouteKey);

#[derive(Clone, Copy, Debug)]
struct Count {
    count: u32,
    error: u32,
}

/// A space-saving table: past its bound the smallest gives its place and its count to the newcomer, so that whoever spent
/// more than a hundredth of all is certainly in it.
#[derive(Debug, Default)]
struct Table {
    counts: HashMap<Key, Count>,
}

impl Table {
    fn add(&mut self, key: Key) {
        if let Some(known) = self.counts.get_mut(&key) {
            known.count += 1;
            return;
        }
        let mut error = 0;
        if self.counts.len() >= WATCHED {
            let smallest = self.counts.iter().min_by_key(|(key, known)| (known.count, *key));
            if let Some((key, known)) = smallest.map(|(key, known)| (key.clone(), *known)) {
                self.counts.remove(&key);
                error = known.count;
            }
        }
        self.counts.insert(key, Count { count: error + 1, error });
    }
}

/// The spenders of this window and the one before it.
#[derive(Debug)]
pub(super) struct Spenders {
    window: Duration,
    since: Timestamp,
    present: Table,
    past: Table,
}

impl Spenders {
    pub(super) fn new(window: Duration) -> Self {
        Self { window, since: Timestamp::ZERO, present: Table::default(), past: Table::default() }
    }

    pub(super) fn add(&mut self, guild: Option<u64>, route: RouteKey, now: Timestamp) {
        self.turn(now);
        self.present.add((guild, route));
    }

    /// The largest, the largest first.
    pub(super) fn top(&mut self, now: Timestamp) -> Vec<Spender> {
        self.turn(now);
        let mut sums: HashMap<&Key, Count> = HashMap::new();
        for (key, known) in self.present.counts.iter().chain(&self.past.counts) {
            let sum = sums.entry(key).or_insert(Count { count: 0, error: 0 });
            sum.count += known.count;
            sum.error += known.error;
        }
        let mut sums: Vec<(&Key, Count)> = sums.into_iter().collect();
        sums.sort_unstable_by(|(a, one), (b, other)| other.count.cmp(&one.count).then_with(|| a.cmp(b)));
        let shown = sums.into_iter().take(SHOWN);
        shown
            .map(|((guild, route), Count { count, error })| Spender {
                guild: *guild,
                route: route.clone(),
                count,
                error,
            })
            .collect()
    }

    fn turn(&mut self, now: Timestamp) {
        let passed = now.since(self.since);
        if passed >= self.window {
            let present = std::mem::take(&mut self.present);
            self.past = if passed >= self.window * 2 { Table::default() } else { present };
            self.since = now;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: Duration = Duration::from_secs(600);

    #[test]
    fn the_largest_spender_is_found_among_thousands_in_bounded_memory() {
        let mut spenders = Spenders::new(WINDOW);
        let route = RouteKey::new("PUT /guilds/{id}/members/{id}/roles/{id}");
        for guild in 0..9_000_u64 {
            spenders.add(Some(guild), route.clone(), Timestamp::ZERO);
            if guild % 10 == 0 {
                spenders.add(Some(777_777), route.clone(), Timestamp::ZERO);
            }
            assert!(spenders.present.counts.len() <= WATCHED);
        }
        let top = spenders.top(Timestamp::ZERO);
        assert_eq!(top[0].guild, Some(777_777));
        assert!(top[0].count >= 900 && top[0].count - top[0].error <= 900);
        assert_eq!(top.len(), SHOWN);
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
