//! Spending of each budget by hour.
//!
//! A process adds up what it grants, and reports the sum of an hour as often as needed: reports are idempotent.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{BudgetName, Points};
use crate::time::UnixMs;

/// How many hours a sum is stored after its hour: clocks may be set back, and a sum must not restart at zero.
const RETENTION_HOURS: u64 = 2;

/// An hour of the wall clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Hour(u64);

impl Hour {
    const MS: u64 = 60 * 60 * 1_000;

    /// The hour of a time.
    #[must_use]
    pub const fn of(at: UnixMs) -> Self {
        Self(at.millis() / Self::MS)
    }

    /// The hour `number` after the start of 1970.
    #[must_use]
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// Number of the hour since the start of 1970.
    #[must_use]
    pub const fn number(self) -> u64 {
        self.0
    }

    /// Start of the hour.
    #[must_use]
    pub const fn start(self) -> UnixMs {
        UnixMs::new(self.0.saturating_mul(Self::MS))
    }

    /// The hour `hours` before this one.
    #[must_use]
    pub const fn before(self, hours: u64) -> Self {
        Self(self.0.saturating_sub(hours))
    }

    /// The first hour that is still stored at `at`.
    #[must_use]
    pub fn first_within(at: UnixMs, retention: Duration) -> Self {
        Self::of(at.before(retention))
    }
}

/// Spending of a budget in an hour.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpendRecord {
    /// The budget.
    pub name: BudgetName,
    /// The hour.
    pub hour: Hour,
    /// Amount in millionths of a point.
    pub micros: u64,
    /// Number of calls.
    pub calls: u64,
}

impl SpendRecord {
    /// Amount as a decimal number.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "for display and JSON")]
    pub fn points(&self) -> f64 {
        self.micros as f64 / Points::whole(1).micros() as f64
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct SpendSum {
    micros: u64,
    calls: u64,
    /// How many of the calls are stored.
    saved_calls: u64,
}

/// Spending that one process granted, by hour and budget.
#[derive(Clone, Debug)]
pub struct SpendTotals {
    sums: BTreeMap<(Hour, BudgetName), SpendSum>,
    max: usize,
    dropped: u64,
}

impl SpendTotals {
    /// Creates empty totals with at most `max` sums. Beyond it the oldest are dropped, stored or not.
    #[must_use]
    pub const fn new(max: usize) -> Self {
        Self { sums: BTreeMap::new(), max, dropped: 0 }
    }

    /// Adds spending.
    pub fn on_spent(&mut self, name: &BudgetName, cost: Points, at: UnixMs) {
        let sum = self.sums.entry((Hour::of(at), name.clone())).or_default();
        sum.micros = sum.micros.saturating_add(cost.micros());
        sum.calls = sum.calls.saturating_add(1);
        while self.sums.len() > self.max.max(1) {
            let dropped = self.sums.pop_first();
            self.dropped += u64::from(dropped.is_some_and(|(_, sum)| sum.saved_calls < sum.calls));
        }
    }

    /// Sums that have grown since they were stored, at most `max`.
    #[must_use]
    pub fn unsaved(&self, max: usize) -> Vec<SpendRecord> {
        let grown = self.sums.iter().filter(|(_, sum)| sum.saved_calls < sum.calls);
        grown.take(max).map(|((hour, name), sum)| record(name, *hour, sum)).collect()
    }

    /// These records were stored. Old sums that have not grown since are dropped.
    pub fn on_saved(&mut self, saved: &[SpendRecord], now: UnixMs) {
        for spend in saved {
            if let Some(sum) = self.sums.get_mut(&(spend.hour, spend.name.clone())) {
                sum.saved_calls = sum.saved_calls.max(spend.calls);
            }
        }
        let expired_before = Hour::of(now).before(RETENTION_HOURS);
        self.sums.retain(|(hour, _), sum| *hour >= expired_before || sum.saved_calls < sum.calls);
    }

    /// All sums of a budget, the oldest first.
    pub fn records_of<'a>(&'a self, name: &'a BudgetName) -> impl Iterator<Item = SpendRecord> + 'a {
        let own_sums = self.sums.iter().filter(move |((_, of), _)| of == name);
        own_sums.map(|((hour, name), sum)| record(name, *hour, sum))
    }

    /// Number of sums that were dropped for lack of space before they were stored.
    #[must_use]
    pub const fn dropped(&self) -> u64 {
        self.dropped
    }
}

fn record(name: &BudgetName, hour: Hour, sum: &SpendSum) -> SpendRecord {
    SpendRecord { name: name.clone(), hour, micros: sum.micros, calls: sum.calls }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    fn name(name: &str) -> BudgetName {
        BudgetName::new(name).unwrap()
    }

    fn at(hour: u64) -> UnixMs {
        UnixMs::new(hour * Hour::MS + 17)
    }

    #[test]
    fn spend_adds_up_by_hour_and_is_unsaved_until_confirmed() {
        let mut totals = SpendTotals::new(10);
        totals.on_spent(&name("shop"), Points::whole(2), at(100));
        totals.on_spent(&name("shop"), Points::whole(3), at(100));
        totals.on_spent(&name("shop"), Points::whole(7), at(101));
        let unsaved = totals.unsaved(10);
        let figures: Vec<_> = unsaved.iter().map(|spend| (spend.hour.number(), spend.points(), spend.calls)).collect();
        assert_eq!(figures, [(100, 5.0, 2), (101, 7.0, 1)]);
        // Spending during a store operation is reported the next time, with all before it.
        totals.on_spent(&name("shop"), Points::whole(1), at(101));
        totals.on_saved(&unsaved, at(101));
        let unsaved: Vec<_> =
            totals.unsaved(10).iter().map(|spend| (spend.hour.number(), spend.points(), spend.calls)).collect();
        assert_eq!(unsaved, [(101, 8.0, 2)]);
    }

    #[test]
    fn sum_is_dropped_only_when_saved_and_old() {
        let mut totals = SpendTotals::new(10);
        totals.on_spent(&name("a"), Points::whole(1), at(100));
        totals.on_spent(&name("b"), Points::whole(1), at(100));
        let of_a: Vec<_> = totals.unsaved(1);
        totals.on_saved(&of_a, at(102));
        assert_eq!(totals.records_of(&name("a")).count(), 1);
        totals.on_saved(&of_a, at(103));
        assert_eq!((totals.records_of(&name("a")).count(), totals.records_of(&name("b")).count()), (0, 1));
    }

    #[test]
    fn oldest_sum_is_dropped_and_counted_when_full() {
        let mut totals = SpendTotals::new(3);
        for hour in 0..10 {
            totals.on_spent(&name("a"), Points::whole(1), at(hour));
        }
        assert_eq!((totals.records_of(&name("a")).count(), totals.dropped()), (3, 7));
    }

    proptest! {
        /// Regardless of failures, the stored sums equal the spending in the end.
        #[test]
        fn repeated_reports_end_with_the_right_sums(
            steps in prop::collection::vec((0_u8..3, 0_u64..4, 1_u64..50, prop::bool::ANY, prop::bool::ANY), 0..120),
        ) {
            let names = ["a", "b", "c"];
            let (mut totals, mut now) = (SpendTotals::new(10_000), 1_000);
            let (mut spent, mut saved): (HashMap<_, u64>, HashMap<_, u64>) = Default::default();
            for (which, hours, cost, tells, is_heard) in steps {
                now += hours;
                let name = name(names[usize::from(which)]);
                totals.on_spent(&name, Points::whole(cost), at(now));
                *spent.entry((name, Hour::of(at(now)))).or_default() += Points::whole(cost).micros();
                if tells {
                    let unsaved = totals.unsaved(2);
                    // It may be stored and the confirmation lost.
                    saved.extend(unsaved.iter().map(|spend| ((spend.name.clone(), spend.hour), spend.micros)));
                    if is_heard {
                        totals.on_saved(&unsaved, at(now));
                    }
                }
            }
            loop {
                let unsaved = totals.unsaved(2);
                if unsaved.is_empty() {
                    break;
                }
                saved.extend(unsaved.iter().map(|spend| ((spend.name.clone(), spend.hour), spend.micros)));
                totals.on_saved(&unsaved, at(now));
            }
            prop_assert_eq!(saved, spent);
        }
    }
}
