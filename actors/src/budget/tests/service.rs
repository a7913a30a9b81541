use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use guildhall_core::budget::{Hour, SpendRecord};
use guildhall_core::time::UnixMs;

use super::*;
use crate::ports::{StoreError, StoreFuture};
use crate::wall_clock::WallClock;

/// A quarter past an hour.
const START: UnixMs = UnixMs::new(480_000 * 3_600_000 + 900_000);

/// Points and calls, by budget, hour and process.
type Sums = BTreeMap<(BudgetName, Hour, Arc<str>), (u64, u64)>;

/// In-memory store for totals that can be made unavailable.
#[derive(Default)]
struct Shelf {
    rows: Mutex<Sums>,
    writes: Mutex<usize>,
    away: AtomicBool,
}

impl SpendStore for Shelf {
    fn keep_spend(&self, process: Arc<str>, spend: Vec<SpendRecord>) -> StoreFuture<'_, ()> {
        *self.writes.lock().unwrap() += 1;
        if self.away.load(Ordering::Relaxed) {
            return Box::pin(ready(Err(StoreError::Unavailable("away".to_owned()))));
        }
        let mut rows = self.rows.lock().unwrap();
        for sum in spend {
            rows.insert((sum.name, sum.hour, Arc::clone(&process)), (sum.micros, sum.calls));
        }
        Box::pin(ready(Ok(())))
    }

    fn spend_since(
        &self,
        process: Arc<str>,
        name: BudgetName,
        since: Hour,
    ) -> StoreFuture<'_, BTreeMap<Hour, HourlySpend>> {
        let mut spent: BTreeMap<Hour, HourlySpend> = BTreeMap::new();
        for ((of, hour, by), (micros, calls)) in &*self.rows.lock().unwrap() {
            if *of == name && *hour >= since {
                let hour = spent.entry(*hour).or_default();
                if *by == process {
                    (hour.own_micros, hour.own_calls) = (hour.own_micros + micros, hour.own_calls + calls);
                } else {
                    (hour.other_micros, hour.other_calls) = (hour.other_micros + micros, hour.other_calls + calls);
                }
            }
        }
        Box::pin(ready(Ok(spent)))
    }

    fn sweep_spend(&self, _: Hour) -> StoreFuture<'_, u64> {
        Box::pin(ready(Ok(0)))
    }
}

fn treasury(store: &Arc<Shelf>, process: &str, others: Option<BudgetLimits>) -> (BudgetService, SpendRecorder) {
    let spend = SpendRecorder::new(store.clone(), process, WallClock::anchored(START));
    let budgets = BudgetsHandle::start(2, Duration::from_secs(60));
    (BudgetService::new(budgets, others, spend.clone()), spend)
}

/// Hours counted from the first one, with points and calls.
async fn hours(treasury: &BudgetService, hours: u64) -> Vec<(u64, f64, u64)> {
    let spent = treasury.last_hours(&shop(), hours).await.unwrap();
    spent.iter().map(|spend| (spend.hour.number() - Hour::of(START).number(), spend.points(), spend.calls)).collect()
}

async fn spend(treasury: &BudgetService, cost: u64) {
    let asked = treasury.acquire(&shop(), Points::whole(cost), Duration::from_secs(60)).await.unwrap();
    assert!(matches!(asked, BudgetDecision::Allowed { .. }), "{asked:?}");
}

#[test]
fn what_is_taken_is_added_up_by_the_hour_and_kept_in_few_writes() {
    paused(async {
        let store = Arc::new(Shelf::default());
        let (treasury, keeper) = treasury(&store, "one", Some(LIMITS));
        for cost in [3, 2, 1] {
            spend(&treasury, cost).await;
        }
        let refused = treasury.acquire(&shop(), Points::whole(9), Duration::ZERO).await.unwrap();
        assert!(matches!(refused, BudgetDecision::Refused { .. }), "a refused cost is not spent");
        assert_eq!(hours(&treasury, 24).await, [(0, 6.0, 3)], "also before it is saved");
        keeper.keep().await;
        keeper.keep().await;
        assert_eq!(*store.writes.lock().unwrap(), 1, "saved totals are not written again");
        sleep(Duration::from_secs(3_600)).await;
        spend(&treasury, 7).await;
        keeper.keep().await;
        assert_eq!(hours(&treasury, 24).await, [(1, 7.0, 1), (0, 6.0, 3)], "newest first");
        assert_eq!(hours(&treasury, 1).await, [(1, 7.0, 1)]);
    });
}

#[test]
fn what_other_processes_spent_is_added_and_nothing_counts_twice_over_a_store_that_was_away() {
    paused(async {
        let store = Arc::new(Shelf::default());
        let (one, first) = treasury(&store, "one", Some(LIMITS));
        let (other, second) = treasury(&store, "other", Some(LIMITS));
        spend(&one, 3).await;
        spend(&other, 5).await;
        store.away.store(true, Ordering::Relaxed);
        first.keep().await;
        second.keep().await;
        assert!(store.rows.lock().unwrap().is_empty());
        store.away.store(false, Ordering::Relaxed);
        first.keep().await;
        second.keep().await;
        first.keep().await;
        assert_eq!((hours(&one, 2).await, hours(&other, 2).await), (vec![(0, 8.0, 2)], vec![(0, 8.0, 2)]));
    });
}

#[test]
fn a_budget_that_nobody_named_is_made_when_it_is_asked_for_if_the_settings_let_it() {
    paused(async {
        let store = Arc::new(Shelf::default());
        let (strict, _) = treasury(&store, "one", None);
        let cost = Points::whole(1);
        let unknown = BudgetError::Unknown("shop".to_owned());
        assert_eq!(strict.acquire(&shop(), cost, Duration::ZERO).await, Err(unknown.clone()));
        assert_eq!(strict.prepare(&shop(), &Observation::default()).await, Err(unknown.clone()));
        assert_eq!(strict.observe(&shop(), Observation::default()).await, Err(unknown));
        let (open, _) = treasury(&store, "two", Some(LIMITS));
        assert!(matches!(open.show(&shop()).await, Err(BudgetError::Unknown(_))), "show creates no budget");
        open.prepare(&shop(), &Observation::default()).await.unwrap();
        assert_eq!(open.show(&shop()).await.unwrap().limits, LIMITS);
        let second = BudgetName::new("second").unwrap();
        assert!(open.acquire(&second, cost, Duration::ZERO).await.is_ok());
        let third = BudgetName::new("third").unwrap();
        assert_eq!(open.acquire(&third, cost, Duration::ZERO).await, Err(BudgetError::TooMany(2)));
        assert_eq!(open.list().await.unwrap().len(), 2);
    });
}

#[test]
fn one_shared_budget_is_shown_by_itself_and_an_unknown_one_is_not() {
    paused(async {
        let place = Place::new();
        let (budgets, _line) = process(&place, "one", BudgetFallback::Share).await;
        let standing = budgets.show_one(&shop()).await.unwrap();
        assert_eq!((standing.kept, standing.available), (BudgetSource::Together, Points::whole(10)));
        let other = BudgetName::new("other").unwrap();
        assert_eq!(budgets.show_one(&other).await, Err(BudgetError::Unknown("other".to_owned())));
    });
}
