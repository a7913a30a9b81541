//! When a guild that ended unexpectedly starts again, and which input it was working on.

use std::collections::VecDeque;
use std::time::Duration;

use guildhall_core::time::UnixMs;

/// Restarts within this time count.
const WINDOW: Duration = Duration::from_secs(60);

/// How often a guild restarts at once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RestartPolicy {
    /// Restarts within a minute that follow at once. The next one waits.
    pub(crate) max_restarts: usize,
    /// How long it waits then.
    pub(crate) rest: Duration,
}

/// An input that a guild was working on when it ended unexpectedly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Poison<K> {
    pub(crate) input: K,
    /// How often in a row.
    pub(crate) times: u32,
}

/// The recent unexpected exits of one guild.
///
/// Every active guild has one, and almost none ever exits unexpectedly: until then it is one empty pointer.
#[derive(Debug)]
pub(crate) struct RestartHistory<K> {
    exits: Option<Box<RecentExits<K>>>,
}

#[derive(Debug)]
struct RecentExits<K> {
    times: VecDeque<UnixMs>,
    poison: Option<Poison<K>>,
}

impl<K> Default for RestartHistory<K> {
    fn default() -> Self {
        Self { exits: None }
    }
}

impl<K: PartialEq> RestartHistory<K> {
    /// Records an exit while the guild was working on `executing`. Returns how long the guild must rest before it restarts, if
    /// it has restarted too often.
    pub(crate) fn on_exit(&mut self, executing: Option<K>, now: UnixMs, policy: RestartPolicy) -> Option<Duration> {
        let exits = self.exits.get_or_insert_with(|| Box::new(RecentExits { times: VecDeque::new(), poison: None }));
        let before = exits.poison.take();
        exits.poison = executing.map(|input| {
            let times = before.filter(|poison| poison.input == input).map_or(0, |poison| poison.times);
            Poison { input, times: times + 1 }
        });
        exits.times.push_back(now);
        while exits.times.front().is_some_and(|at| now.since(*at) >= WINDOW) {
            exits.times.pop_front();
        }
        if exits.times.len() <= policy.max_restarts {
            return None;
        }
        exits.times.clear();
        Some(policy.rest)
    }

    /// What the guild was working on at its last exit.
    pub(crate) fn poison(&self) -> Option<&Poison<K>> {
        self.exits.as_ref()?.poison.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: RestartPolicy = RestartPolicy { max_restarts: 2, rest: Duration::from_secs(30) };

    fn at(seconds: u64) -> UnixMs {
        UnixMs::new(1_000_000 + seconds * 1_000)
    }

    #[test]
    fn rests_after_too_many_exits_within_a_minute() {
        let mut history = RestartHistory::<u8>::default();
        assert_eq!(history.on_exit(None, at(0), POLICY), None);
        assert_eq!(history.on_exit(None, at(1), POLICY), None);
        assert_eq!(history.on_exit(None, at(2), POLICY), Some(POLICY.rest));
        assert_eq!(history.on_exit(None, at(33), POLICY), None, "the count starts again after a rest");
        let mut slow = RestartHistory::<u8>::default();
        let rests: Vec<_> = (0..10).map(|minute| slow.on_exit(None, at(minute * 60), POLICY)).collect();
        assert!(rests.iter().all(Option::is_none), "exits a minute apart do not count together");
    }

    #[test]
    fn guild_without_exits_holds_one_pointer() {
        assert_eq!(size_of::<RestartHistory<[u64; 16]>>(), size_of::<usize>());
    }

    #[test]
    fn counts_exits_in_a_row_on_the_same_input() {
        let mut history = RestartHistory::default();
        let mut times = |executing| {
            history.on_exit(executing, at(0), POLICY);
            history.poison().map(|poison| poison.times)
        };
        assert_eq!(
            [times(Some(1)), times(Some(1)), times(Some(2)), times(None), times(Some(2))],
            [Some(1), Some(2), Some(1), None, Some(1)]
        );
    }
}
