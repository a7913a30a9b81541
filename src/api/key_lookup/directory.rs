//! Which key ids exist, as far as this process knows.

use std::{
    collections::HashSet,
    time::{Duration, Instant},
};

use guildhall_core::{access::KeyId, time::UnixMs};

/// How many ids are cached: the newest ones, about 2 MiB. Older ones are found as well, but not before those of other
/// callers.
const MAX_IDS: usize = 100_000;
/// Minimum interval between two queries for new ids.
const REFRESH_EVERY: Duration = Duration::from_secs(5);
/// By how much the clocks of two processes may differ.
const CLOCK_SKEW: Duration = Duration::from_secs(600);

#[derive(Debug, Default)]
pub(crate) struct KeyDirectory {
    ids: HashSet<KeyId>,
    /// When it was last read, by the wall clock; `None` before the first time.
    read_at: Option<UnixMs>,
    /// When a read was last started.
    refresh_started_at: Option<Instant>,
}

impl KeyDirectory {
    pub(crate) fn contains(&self, id: KeyId) -> bool {
        self.ids.contains(&id)
    }

    pub(crate) fn insert(&mut self, id: KeyId) {
        if self.ids.len() < MAX_IDS {
            self.ids.insert(id);
        }
    }

    pub(crate) fn remove(&mut self, id: KeyId) {
        self.ids.remove(&id);
    }

    /// Whether the caller must read new ids now.
    pub(crate) fn start_refresh(&mut self, now: Instant) -> bool {
        let is_due = self.refresh_started_at.is_none_or(|at| now.saturating_duration_since(at) >= REFRESH_EVERY);
        if is_due {
            self.refresh_started_at = Some(now);
        }
        is_due
    }

    /// Which ids to read: those created since this time, and how many.
    pub(crate) fn next_query(&self) -> (UnixMs, usize) {
        let skew = u64::try_from(CLOCK_SKEW.as_millis()).unwrap_or(u64::MAX);
        (UnixMs::new(self.read_at.map_or(0, |at| at.millis().saturating_sub(skew))), MAX_IDS)
    }

    /// Adds ids that were read at this time.
    pub(crate) fn add(&mut self, ids: Vec<KeyId>, read_at: UnixMs) {
        ids.into_iter().for_each(|id| self.insert(id));
        self.read_at = Some(read_at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_ids_are_read_incrementally_and_not_too_often() {
        let (mut directory, start) = (KeyDirectory::default(), Instant::now());
        assert_eq!(directory.next_query().0, UnixMs::new(0));
        assert!(directory.start_refresh(start) && !directory.start_refresh(start));
        directory.add(vec![KeyId::from_random(1)], UnixMs::new(1_000_000));
        assert!(directory.contains(KeyId::from_random(1)));
        assert_eq!(directory.next_query().0, UnixMs::new(400_000));
        assert!(!directory.start_refresh(start + REFRESH_EVERY / 2));
        assert!(directory.start_refresh(start + REFRESH_EVERY));
    }

    #[test]
    fn ids_are_bounded() {
        let mut directory = KeyDirectory::default();
        let ids = (0..MAX_IDS as u128 + 5).map(KeyId::from_random).collect();
        directory.add(ids, UnixMs::new(1));
        assert_eq!(directory.ids.len(), MAX_IDS);
        directory.remove(KeyId::from_random(0));
        directory.insert(KeyId::from_random(u128::MAX));
        assert!(directory.contains(KeyId::from_random(u128::MAX)));
    }
}
