//! Interactions and webhooks to which no call can succeed any more.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use crate::route::TopLevelId;
use crate::time::Timestamp;

/// Remembers targets that have ended for a time, up to a maximum number.
#[derive(Debug, Default)]
pub(super) struct EndedTargets {
    order: VecDeque<(Timestamp, TopLevelId)>,
    ends: HashMap<TopLevelId, Timestamp>,
}

impl EndedTargets {
    pub(super) fn insert(&mut self, major: TopLevelId, lifetime: Duration, max_len: usize, now: Timestamp) {
        self.forget(now);
        if max_len == 0 || lifetime.is_zero() || self.ends.contains_key(&major) {
            return;
        }
        self.ends.insert(major, now + lifetime);
        self.order.push_back((now + lifetime, major));
        while self.order.len() > max_len {
            self.drop_oldest();
        }
    }

    /// Until when the target is remembered, if it is.
    pub(super) fn until(&mut self, major: TopLevelId, now: Timestamp) -> Option<Timestamp> {
        self.forget(now);
        self.ends.get(&major).copied()
    }

    /// Forgets all targets with this id, whatever their token. Returns their number.
    pub(super) fn clear(&mut self, id: u64) -> usize {
        let before = self.order.len();
        self.order.retain(|(_, major)| major.id() != id);
        self.ends.retain(|major, _| major.id() != id);
        before - self.order.len()
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
            self.ends.remove(&major);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIFETIME: Duration = Duration::from_secs(900);

    #[test]
    fn ended_target_is_forgotten_after_its_lifetime() {
        let mut ended = EndedTargets::default();
        ended.insert(TopLevelId::of(1), LIFETIME, 10, Timestamp::ZERO);
        let end = Timestamp::from_millis(900_000);
        assert_eq!(ended.until(TopLevelId::of(1), Timestamp::from_millis(899_999)), Some(end));
        assert_eq!(ended.until(TopLevelId::of(1), end), None);
        assert_eq!(ended.len(), 0);
    }

    #[test]
    fn oldest_is_dropped_at_the_maximum() {
        let mut ended = EndedTargets::default();
        for id in 1..=3 {
            ended.insert(TopLevelId::of(id), LIFETIME, 2, Timestamp::ZERO);
        }
        assert_eq!(ended.len(), 2);
        assert!(ended.until(TopLevelId::of(1), Timestamp::ZERO).is_none());
        assert!(ended.until(TopLevelId::of(3), Timestamp::ZERO).is_some());
    }

    #[test]
    fn cleared_target_is_forgotten_with_every_token() {
        let mut ended = EndedTargets::default();
        for (id, token) in [(1, "a"), (1, "b"), (2, "a")] {
            ended.insert(TopLevelId::with_token(id, token), LIFETIME, 10, Timestamp::ZERO);
        }
        assert_eq!((ended.clear(1), ended.clear(1), ended.len()), (2, 0, 1));
        assert!(ended.until(TopLevelId::with_token(1, "a"), Timestamp::ZERO).is_none());
        assert!(ended.until(TopLevelId::with_token(2, "a"), Timestamp::ZERO).is_some());
        // It can end again.
        ended.insert(TopLevelId::with_token(1, "a"), LIFETIME, 10, Timestamp::ZERO);
        assert_eq!(ended.len(), 2);
    }
}
