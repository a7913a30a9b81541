//! Which successful writes of keys are recorded in the audit log: a bounded number of each key.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

/// Records of one key in a window.
const MAX_RECORDS: u32 = 30;
/// The window.
const WINDOW: Duration = Duration::from_secs(60);
/// Maximum number of keys that are counted.
const MAX_KEYS: usize = 10_000;

#[derive(Debug)]
struct RecentWrites {
    since: Instant,
    recorded: u32,
    /// Writes without a record since the last one with.
    skipped: u64,
}

/// Counts the writes of keys.
#[derive(Debug, Default)]
pub(super) struct WriteAudit(Mutex<HashMap<Arc<str>, RecentWrites>>);

impl WriteAudit {
    /// Whether this write of a key is recorded; if so, how many before it were not.
    pub(super) fn on_write(&self, key: &Arc<str>, now: Instant) -> Option<u64> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= MAX_KEYS && !all.contains_key(key) {
            all.retain(|_, recent| now.saturating_duration_since(recent.since) < WINDOW);
            if all.len() >= MAX_KEYS {
                return None;
            }
        }
        let recent = all.entry(Arc::clone(key)).or_insert(RecentWrites { since: now, recorded: 0, skipped: 0 });
        if now.saturating_duration_since(recent.since) >= WINDOW {
            (recent.since, recent.recorded) = (now, 0);
        }
        if recent.recorded >= MAX_RECORDS {
            recent.skipped += 1;
            return None;
        }
        recent.recorded += 1;
        Some(std::mem::take(&mut recent.skipped))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_of_a_key_are_bounded_and_the_rest_is_counted() {
        let (audit, key, start) = (WriteAudit::default(), Arc::from("one"), Instant::now());
        let recorded = (0..100).filter_map(|_| audit.on_write(&key, start)).collect::<Vec<_>>();
        assert_eq!(recorded, [0; 30]);
        assert_eq!(audit.on_write(&Arc::from("two"), start), Some(0), "each key has its own");
        assert_eq!(audit.on_write(&key, start + WINDOW), Some(70));
        assert_eq!(audit.on_write(&key, start + WINDOW), Some(0));
        for number in 0..MAX_KEYS {
            audit.on_write(&Arc::from(number.to_string()), start + WINDOW * 2);
        }
        assert!(audit.0.lock().unwrap().len() <= MAX_KEYS);
    }
}
