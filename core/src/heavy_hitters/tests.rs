use std::collections::HashMap;

use proptest::prelude::*;

use super::*;

const WINDOW: Duration = Duration::from_secs(600);

#[test]
fn the_largest_is_found_among_thousands_in_bounded_memory() {
    let mut table = SpaceSavingTable::new(100);
    for guild in 0..9_000_u64 {
        table.add(guild);
        if guild % 10 == 0 {
            table.add(777_777);
        }
        assert!(table.len() <= 100 && table.order.len() == table.len());
    }
    let counted = table.counts[&777_777];
    assert!(counted.count >= 900 && counted.count - counted.over <= 900, "{counted:?}");
}

#[test]
fn counts_older_than_two_windows_are_dropped() {
    let start = Timestamp::from_millis(5_000);
    let mut recent = HeavyHitters::new(10, WINDOW, start);
    recent.add("a", start);
    let later = start + WINDOW;
    recent.add("a", later);
    let counted = |key, count| vec![HeavyHitter { key, count, over: 0 }];
    assert_eq!(recent.top(5, later), (counted("a", 2), start));
    assert_eq!(recent.top(5, later + WINDOW), (counted("a", 1), later));
    let long_after = later + WINDOW * 4;
    assert_eq!(recent.top(5, long_after), (Vec::new(), long_after));
}

proptest! {
    /// Compared with exact counts: no count is too low, or higher than its error allows, and every key with more than
    /// its share is in the table.
    #[test]
    fn table_never_undercounts_and_keeps_heavy_keys(
        keys in prop::collection::vec(0_u8..40, 0..600),
        most in 1_usize..12,
    ) {
        let mut table = SpaceSavingTable::new(most);
        let mut all: HashMap<u8, u64> = HashMap::new();
        for key in &keys {
            table.add(*key);
            *all.entry(*key).or_default() += 1;
        }
        let share = keys.len() as u64 / most as u64;
        prop_assert!(table.len() <= most);
        prop_assert_eq!(table.order.len(), table.len());
        prop_assert_eq!(table.counts.values().map(|known| known.count).sum::<u64>(), keys.len() as u64);
        for (key, known) in &table.counts {
            prop_assert!(table.order.contains(&(known.count, *key)));
            prop_assert!(known.count >= all[key] && known.count - known.over <= all[key] && known.over <= share);
        }
        for (key, count) in all {
            prop_assert!(count <= share || table.counts.contains_key(&key), "{key} with {count} of {}", keys.len());
        }
    }

    #[test]
    fn top_is_sorted_and_matches_recent_counts(
        steps in prop::collection::vec((0_u8..6, 0_u64..400), 1..200),
    ) {
        let mut recent = HeavyHitters::new(16, WINDOW, Timestamp::ZERO);
        let (mut now, mut added) = (Timestamp::ZERO, Vec::new());
        for (key, seconds) in steps {
            now = now + Duration::from_secs(seconds);
            recent.add(key, now);
            added.push((key, now));
            let (top, since) = recent.top(16, now);
            // All counts since then are reported: there is room for every key.
            let mut lately: HashMap<u8, u64> = HashMap::new();
            for (key, _) in added.iter().filter(|(_, at)| *at >= since) {
                *lately.entry(*key).or_default() += 1;
            }
            prop_assert!(top.windows(2).all(|pair| pair[0].count >= pair[1].count));
            let shown: HashMap<u8, u64> = top.into_iter().map(|counted| (counted.key, counted.count)).collect();
            prop_assert_eq!(shown, lately);
        }
    }
}
