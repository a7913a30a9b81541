//! Interactions with an expired token.

use std::collections::{HashSet, VecDeque};
use std::time::Duration;

use crate::route::TopLevelId;
use crate::time::Timestamp;

/// Remembers expired interactions for the lifetime of a token, up to a maximum number.
#[derive(Debug, Default)]
pub(super) struct ExpiredInteractions {
    order: VecDeque<(Timestamp, TopLevelId)>,
    ids: HashSet<TopLevelId>,
}

impl ExpiredInteractions {
    pub(super) fn insert(&mut self, major: TopLevelId, lifetime: Duration, max_len: usize, now: Timestamp) {
        self.forget(now);
        if max_len == 0 || !self.ids.insert(major) {
            return;
        }
        self.order.push_back((now + lifetime, major));
        while self.order.len() > max_len {
            self.drop_oldest();
        }
    }

    pub(super) fn contains(&mut self, major: TopLevelId, now: Timestamp) -> bool {
        self.forget(now);
        self.ids.contains(&major)
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
            self.ids.remove(&major);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIFETIME: Duration = Duration::from_secs(900);

    #[test]
    fn expired_interaction_is_forgotten_after_its_lifetime() {
        let mut ended = ExpiredInteractions::default();
        ended.insert(TopLevelId::of(1), LIFETIME, 10, Timestamp::ZERO);
        assert!(ended.contains(TopLevelId::of(1), Timestamp::from_millis(899_999)));
        assert!(!ended.contains(TopLevelId::of(1), Timestamp::from_millis(900_000)));
        assert_eq!(ended.len(), 0);
    }

    #[test]
    fn oldest_is_dropped_at_the_maximum() {
        let mut ended = ExpiredInteractions::default();
        for id in 1..=3 {
            ended.insert(TopLevelId::of(id), LIFETIME, 2, Timestamp::ZERO);
        }
        assert_eq!(ended.len(), 2);
        assert!(!ended.contains(TopLevelId::of(1), Timestamp::ZERO));
        assert!(ended.contains(TopLevelId::of(3), Timestamp::ZERO));
    }
}
