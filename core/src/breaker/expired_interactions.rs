//! Interactions with an expired token.

use std::collections::{HashSet, VecDeque};
use std::time::Duration;

use crate::route::TopLevelId;
use crate::time::Timestamp;

/// Remembers expired interactions for the lifetime of a token, up to a maximum number.
#[derive(Debug, Default)]
pub(super) struct ExpiredInteractions {
    order: VecDeque<(Timestamp, TopLevelId)>,
    known: HashSet<TopLevelId>,
}

impl ExpiredInteractions {
    pub(super) fn insert(&mut self, major: TopLevelId, keep: Duration, most: usize, now: Timestamp) {
        self.forget(now);
        if most == 0 || !self.known.insert(major) {
            return;
        }
        self.order.push_back((now + keep, major));
        while self.order.len() > most {
            self.drop_oldest();
        }
    }

    pub(super) fn contains(&mut self, major: TopLevelId, now: Timestamp) -> bool {
        self.forget(now);
        self.known.contains(&major)
    }

    pub(super) fn len(&self) -> usize {
        self.order.len()
    }

    fn forget(&mut self, now: Timestamp) {
        while self.order.front().is_some_and(|(until, _)| *until <= now) {
            self.drop_oldest();
        }
    }

    fn drop_oldest(&mut self) {
        if let Some((_, major)) = self.order.pop_front() {
            self.known.remove(&major);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEEP: Duration = Duration::from_secs(900);

    #[test]
    fn an_ended_interaction_is_forgotten_when_no_token_of_it_could_live() {
        let mut ended = ExpiredInteractions::default();
        ended.insert(TopLevelId::of(1), KEEP, 10, Timestamp::ZERO);
        assert!(ended.contains(TopLevelId::of(1), Timestamp::from_millis(899_999)));
        assert!(!ended.contains(TopLevelId::of(1), Timestamp::from_millis(900_000)));
        assert_eq!(ended.len(), 0);
    }

    #[test]
    fn past_the_bound_the_oldest_goes() {
        let mut ended = ExpiredInteractions::default();
        for id in 1..=3 {
            ended.insert(TopLevelId::of(id), KEEP, 2, Timestamp::ZERO);
        }
        assert_eq!(ended.len(), 2);
        assert!(!ended.contains(TopLevelId::of(1), Timestamp::ZERO));
        assert!(ended.contains(TopLevelId::of(3), Timestamp::ZERO));
    }
}
