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
struct FakeSpendStore {
    rows: Mutex<Sums>,
    writes: Mutex<usize>,
    unavailable: AtomicBool,
}

impl SpendStore for FakeSpendStore {
    fn save_spend(&self, process: Arc<str>, spend: Vec<SpendRecord>) -> StoreFuture<'_, ()> {
        *self.writes.lock().unwrap() += 1;
        if self.unavailable.load(Ordering::Relaxed) {
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

fn start_service(
    store: &Arc<FakeSpendStore>,
    process: &str,
    default_limits: Option<BudgetLimits>,
) -> (BudgetService, SpendRecorder) {
    let spend = SpendRecorder::new(store.clone(), process, WallClock::anchored(START));
    let budgets = BudgetsHandle::start(2, Duration::from_secs(60));
    (BudgetService::new(budgets, default_limits, spend.clone()), spend)
}

/// Hours counted from the first one, with points and calls.
async fn hours(service: &BudgetService, hours: u64) -> Vec<(u64, f64, u64)> {
    let spent = service.last_hours(&shop(), hours).await.unwrap();
    spent.iter().map(|spend| (spend.hour.number() - Hour::of(START).number(), spend.points(), spend.calls)).collect()
}

async fn spend(service: &BudgetService, cost: u64) {
    let result = service.acquire(&shop(), Points::whole(cost), Duration::from_secs(60)).await.unwrap();
    assert!(matches!(result, BudgetDecision::Allowed { .. }), "{result:?}");
}

#[test]
fn spend_is_summed_by_hour_and_saved_in_few_writes() {
    paused(async {
        let store = Arc::new(FakeSpendStore::default());
        let (service, recorder) = start_service(&store, "one", Some(LIMITS));
        for cost in [3, 2, 1] {
            spend(&service, cost).await;
        }
        let refused = service.acquire(&shop(), Points::whole(9), Duration::ZERO).await.unwrap();
        assert!(matches!(refused, BudgetDecision::Refused { .. }), "a refused cost is not spent");
        assert_eq!(hours(&service, 24).await, [(0, 6.0, 3)], "also before it is saved");
        recorder.save().await;
        recorder.save().await;
        assert_eq!(*store.writes.lock().unwrap(), 1, "saved totals are not written again");
        sleep(Duration::from_secs(3_600)).await;
        spend(&service, 7).await;
        recorder.save().await;
        assert_eq!(hours(&service, 24).await, [(1, 7.0, 1), (0, 6.0, 3)], "newest first");
        assert_eq!(hours(&service, 1).await, [(1, 7.0, 1)]);
    });
}

#[test]
fn spend_of_other_processes_is_added_once_despite_an_outage() {
    paused(async {
        let store = Arc::new(FakeSpendStore::default());
        let (one, first) = start_service(&store, "one", Some(LIMITS));
        let (other, second) = start_service(&store, "other", Some(LIMITS));
        spend(&one, 3).await;
        spend(&other, 5).await;
        store.unavailable.store(true, Ordering::Relaxed);
        first.save().await;
        second.save().await;
        assert!(store.rows.lock().unwrap().is_empty());
        store.unavailable.store(false, Ordering::Relaxed);
        first.save().await;
        second.save().await;
        first.save().await;
        assert_eq!((hours(&one, 2).await, hours(&other, 2).await), (vec![(0, 8.0, 2)], vec![(0, 8.0, 2)]));
    });
}

#[test]
fn unconfigured_budget_is_created_at_first_use_if_configured_so() {
    paused(async {
        let store = Arc::new(FakeSpendStore::default());
        let (strict, _) = start_service(&store, "one", None);
        let cost = Points::whole(1);
        let unknown = BudgetError::Unknown("shop".to_owned());
        assert_eq!(strict.acquire(&shop(), cost, Duration::ZERO).await, Err(unknown.clone()));
        assert_eq!(strict.prepare(&shop(), &Observation::default()).await, Err(unknown.clone()));
        assert_eq!(strict.observe(&shop(), Observation::default()).await, Err(unknown));
        let (open, _) = start_service(&store, "two", Some(LIMITS));
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
fn existing_shared_budget_is_returned_and_unknown_one_is_not() {
    paused(async {
        let store = FakeBudgetStore::new();
        let (budgets, _connection) = start_shared(&store, "one", BudgetFallback::Share).await;
        let snapshot = budgets.show_one(&shop()).await.unwrap();
        assert_eq!((snapshot.source, snapshot.available), (BudgetSource::Together, Points::whole(10)));
        let other = BudgetName::new("other").unwrap();
        assert_eq!(budgets.show_one(&other).await, Err(BudgetError::Unknown("other".to_owned())));
    });
}
