mod counting;
mod fake_shared_budgets;
mod service;

use std::collections::BTreeMap;
use std::future::Future;

use futures_util::future::join_all;
use guildhall_core::budget::{BudgetFallback, BudgetSource, BudgetUnreachable};
use tokio::task::{LocalSet, spawn_local};
use tokio::time::{Instant, sleep};

use self::fake_shared_budgets::{FakeBudgetStore, FakeConnection};
use super::*;
use crate::telemetry::limits::{ACQUIRED, AVAILABLE, EXHAUSTED, WAITS};

const LIMITS: BudgetLimits = BudgetLimits { maximum: Points::whole(10), restore_per_second: Points::whole(2) };
const RETRY: Duration = Duration::from_secs(1);
const MAX_IN_FLIGHT: usize = 8;

/// Runs a test with paused time.
fn paused(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    LocalSet::new().block_on(&runtime, test);
}

fn shop() -> BudgetName {
    BudgetName::new("shop").unwrap()
}

async fn start_local() -> BudgetsHandle {
    let budgets = BudgetsHandle::start(1, Duration::from_secs(60));
    budgets.configure(&shop(), LIMITS).await.unwrap();
    budgets
}

/// A process that shares budgets, and its connection to them.
async fn start_shared(
    store: &Arc<FakeBudgetStore>,
    member: &'static str,
    on_loss: BudgetFallback,
) -> (BudgetsHandle, Arc<FakeConnection>) {
    let connection = FakeConnection::to(store, member);
    let max_wait = Duration::from_secs(60);
    let member_config = BudgetMemberConfig { max_budgets: 2, max_wait, on_loss, retry_after: RETRY };
    let port = Arc::clone(&connection);
    let budgets =
        BudgetsHandle::start_shared(port, SharedBudgetsConfig { member: member_config, max_in_flight: MAX_IN_FLIGHT });
    budgets.configure(&shop(), LIMITS).await.unwrap();
    (budgets, connection)
}

async fn acquire(budgets: &BudgetsHandle, cost: u64, wait: u64) -> BudgetDecision {
    budgets.acquire(&shop(), Points::whole(cost), Duration::from_secs(wait)).await.unwrap()
}

async fn show(budgets: &BudgetsHandle) -> BudgetSnapshot {
    budgets.show().await.unwrap().remove(0)
}

fn allowed(delay_ms: u64, remaining: u64) -> BudgetDecision {
    BudgetDecision::Allowed { delay: Duration::from_millis(delay_ms), remaining: Points::whole(remaining) }
}

/// Lets all tasks run that do not wait for time.
async fn run_ready_tasks() {
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
}

#[test]
fn booked_turn_is_available_after_its_delay() {
    paused(async {
        let budgets = start_local().await;
        assert!(matches!(acquire(&budgets, 10, 0).await, BudgetDecision::Allowed { delay: Duration::ZERO, .. }));
        let BudgetDecision::Allowed { delay, .. } = acquire(&budgets, 4, 5).await else { panic!("refused") };
        assert_eq!(delay, Duration::from_secs(2));
        assert!(matches!(acquire(&budgets, 1, 2).await, BudgetDecision::Refused { .. }));
        sleep(delay).await;
        let snapshot = show(&budgets).await;
        assert_eq!((snapshot.available, snapshot.booked), (Points::ZERO, Points::ZERO));
        assert_eq!(snapshot.source, BudgetSource::Alone);
    });
}

#[test]
fn observation_applies_and_unconfigured_budget_is_unknown() {
    paused(async {
        let budgets = start_local().await;
        let observation = Observation { available: Some(Points::whole(3)), ..Observation::default() };
        budgets.observe(&shop(), observation).await.unwrap();
        assert!(matches!(acquire(&budgets, 4, 0).await, BudgetDecision::Refused { .. }));
        let other = BudgetName::new("other").unwrap();
        assert_eq!(budgets.observe(&other, observation).await, Err(BudgetError::Unknown("other".to_owned())));
        assert_eq!(budgets.configure(&other, LIMITS).await, Err(BudgetError::TooMany(1)));
    });
}

#[test]
fn grants_waits_and_refusals_are_counted_by_budget() {
    let recorder = counting::Recorder::default();
    metrics::with_local_recorder(&recorder, || {
        paused(async {
            let store = FakeBudgetStore::new();
            let (budgets, connection) = start_shared(&store, "one", BudgetFallback::Closed).await;
            for (cost, wait) in [(7, 0), (5, 5), (5, 0)] {
                let _ = acquire(&budgets, cost, wait).await;
            }
            connection.cut();
            let cost = Points::whole(1);
            assert!(budgets.acquire(&shop(), cost, Duration::ZERO).await.is_err());
            connection.restore();
            sleep(Duration::from_secs(2)).await;
            let _ = show(&budgets).await;
        });
    });
    let expected = [
        (format!("{} shop", ACQUIRED.name), 2.0),
        (format!("{} shop", WAITS.name), 1.0),
        (format!("{} shop,exhausted", EXHAUSTED.name), 1.0),
        (format!("{} shop,out_of_reach", EXHAUSTED.name), 1.0),
        (format!("{} shop", AVAILABLE.name), 2.0),
    ];
    assert_eq!(recorder.values(), BTreeMap::from(expected));
}

#[test]
fn processes_share_one_budget() {
    paused(async {
        let store = FakeBudgetStore::new();
        let (one, _) = start_shared(&store, "one", BudgetFallback::Share).await;
        let (two, _) = start_shared(&store, "two", BudgetFallback::Share).await;
        assert_eq!(acquire(&one, 7, 0).await, allowed(0, 3));
        assert_eq!(acquire(&two, 4, 1).await, allowed(500, 0));
        let snapshot = show(&one).await;
        assert_eq!((snapshot.booked, snapshot.source), (Points::whole(4), BudgetSource::Together));
    });
}

#[test]
fn requests_behind_one_in_flight_are_sent_as_one_batch() {
    paused(async {
        let store = FakeBudgetStore::new();
        let (budgets, connection) = start_shared(&store, "one", BudgetFallback::Share).await;
        connection.hold();
        let request = |count| {
            let budgets = budgets.clone();
            spawn_local(async move { join_all((0..count).map(|_| acquire(&budgets, 3, 60))).await })
        };
        let first = request(1);
        run_ready_tasks().await;
        let others = request(4);
        run_ready_tasks().await;
        connection.restore();
        // In the order of the requests, whichever batch carried them.
        assert_eq!(first.await.unwrap(), [allowed(0, 7)]);
        assert_eq!(others.await.unwrap(), [allowed(0, 4), allowed(0, 1), allowed(1_000, 0), allowed(2_500, 0)]);
        assert_eq!(store.batch_sizes(), [1, 4]);
    });
}

#[test]
fn a_budget_does_not_wait_for_another_one() {
    paused(async {
        let store = FakeBudgetStore::new();
        let (budgets, connection) = start_shared(&store, "one", BudgetFallback::Share).await;
        let other = BudgetName::new("other").unwrap();
        budgets.configure(&other, LIMITS).await.unwrap();
        connection.hold_only(&shop());
        let slow = spawn_local({
            let budgets = budgets.clone();
            async move { acquire(&budgets, 1, 0).await }
        });
        run_ready_tasks().await;
        let quick = budgets.acquire(&other, Points::whole(1), Duration::ZERO).await.unwrap();
        assert_eq!(quick, allowed(0, 9));
        assert!(!slow.is_finished());
        connection.restore();
        assert_eq!(slow.await.unwrap(), allowed(0, 9));
    });
}

#[test]
fn requests_above_the_maximum_in_flight_are_refused() {
    paused(async {
        let store = FakeBudgetStore::new();
        let (budgets, connection) = start_shared(&store, "one", BudgetFallback::Share).await;
        connection.hold();
        let request = || {
            let budgets = budgets.clone();
            spawn_local(async move { budgets.acquire(&shop(), Points::whole(1), Duration::ZERO).await })
        };
        let requests: Vec<_> = (0..MAX_IN_FLIGHT).map(|_| request()).collect();
        run_ready_tasks().await;
        let busy = BudgetError::Busy { max: MAX_IN_FLIGHT, retry_after: RETRY };
        assert_eq!(request().await.unwrap(), Err(busy.clone()));
        assert_eq!(budgets.show().await, Err(busy.clone()));
        assert_eq!(budgets.observe(&shop(), Observation::default()).await, Err(busy));
        connection.restore();
        for pending in requests {
            assert!(pending.await.unwrap().is_ok());
        }
        assert!(request().await.unwrap().is_ok());
    });
}

#[test]
fn cancelled_request_costs_nothing() {
    paused(async {
        let store = FakeBudgetStore::new();
        let (budgets, connection) = start_shared(&store, "one", BudgetFallback::Share).await;
        connection.hold();
        let request = || {
            let budgets = budgets.clone();
            spawn_local(async move { acquire(&budgets, 2, 0).await })
        };
        let first = request();
        run_ready_tasks().await;
        let second = request();
        run_ready_tasks().await;
        second.abort();
        run_ready_tasks().await;
        connection.restore();
        let _ = first.await.unwrap();
        assert_eq!(acquire(&budgets, 8, 0).await, allowed(0, 0));
    });
}

#[test]
fn unreachable_budgets_are_only_probed_and_requests_do_not_wait() {
    paused(async {
        let store = FakeBudgetStore::new();
        let (budgets, connection) = start_shared(&store, "one", BudgetFallback::Share).await;
        connection.cut();
        let _ = acquire(&budgets, 1, 0).await;
        run_ready_tasks().await;
        let (tries, started) = (connection.tries(), Instant::now());
        for _ in 0..50 {
            let _ = acquire(&budgets, 1, 0).await;
        }
        assert_eq!((connection.tries(), Instant::now()), (tries, started));
        sleep(RETRY * 3).await;
        assert!((2..=4).contains(&(connection.tries() - tries)), "{}", connection.tries() - tries);
    });
}

#[test]
fn requests_behind_a_lost_one_do_not_wait_for_another_call() {
    paused(async {
        let store = FakeBudgetStore::new();
        let (budgets, connection) = start_shared(&store, "one", BudgetFallback::Closed).await;
        connection.hold();
        let request = || {
            let budgets = budgets.clone();
            spawn_local(async move { budgets.acquire(&shop(), Points::whole(1), Duration::ZERO).await })
        };
        let first = request();
        run_ready_tasks().await;
        let second = request();
        run_ready_tasks().await;
        let tries = connection.tries();
        connection.cut();
        let closed = Err(BudgetError::Unreachable { reason: BudgetUnreachable::Closed, retry_after: RETRY });
        assert_eq!((first.await.unwrap(), second.await.unwrap()), (closed.clone(), closed));
        assert!(connection.tries() <= tries + 1, "only the probe is sent");
    });
}

#[test]
fn offline_spend_is_charged_after_reconnecting_without_requests() {
    paused(async {
        let store = FakeBudgetStore::new();
        let (one, connection) = start_shared(&store, "one", BudgetFallback::Share).await;
        let (two, _) = start_shared(&store, "two", BudgetFallback::Share).await;
        // So that it knows of the other member.
        assert_eq!(acquire(&one, 0, 0).await, allowed(0, 10));
        connection.cut();
        let BudgetDecision::Refused { retry_after, .. } = acquire(&one, 4, 0).await else {
            panic!("a share starts empty")
        };
        assert_eq!(retry_after, Some(Duration::from_secs(4)));
        sleep(Duration::from_secs(5)).await;
        assert_eq!(acquire(&one, 5, 0).await, allowed(0, 0));
        let reason = BudgetUnreachable::AboveShare { cost: Points::whole(6), share: Points::whole(5) };
        let above = one.acquire(&shop(), Points::whole(6), Duration::ZERO).await;
        assert_eq!(above, Err(BudgetError::Unreachable { reason, retry_after: RETRY }));
        assert_eq!(show(&two).await.available, Points::whole(10));
        connection.restore();
        sleep(RETRY).await;
        run_ready_tasks().await;
        // At most one second has passed since then.
        let remaining = show(&two).await.available;
        assert!(remaining >= Points::whole(5) && remaining <= Points::whole(7), "{remaining}");
        assert_eq!(show(&one).await.source, BudgetSource::Together);
    });
}

#[test]
fn lost_reply_is_followed_by_a_probe_at_once() {
    paused(async {
        let store = FakeBudgetStore::new();
        let (budgets, connection) = start_shared(&store, "one", BudgetFallback::Share).await;
        connection.lose_next_reply();
        let BudgetDecision::Refused { .. } = acquire(&budgets, 4, 0).await else { panic!("a share starts empty") };
        run_ready_tasks().await;
        // The cost was taken nevertheless.
        assert_eq!(acquire(&budgets, 6, 0).await, allowed(0, 0));
    });
}

#[test]
fn budget_of_a_new_epoch_starts_empty_once_a_member_reports_it() {
    paused(async {
        let store = FakeBudgetStore::new();
        let (one, _) = start_shared(&store, "one", BudgetFallback::Share).await;
        let _ = acquire(&one, 3, 0).await;
        store.forget();
        // A new member has no older epoch to report.
        let (two, _) = start_shared(&store, "two", BudgetFallback::Share).await;
        assert_eq!(acquire(&two, 1, 0).await, allowed(0, 9));
        assert!(matches!(acquire(&one, 1, 0).await, BudgetDecision::Refused { .. }));
        assert!(matches!(acquire(&two, 1, 0).await, BudgetDecision::Refused { .. }));
    });
}

#[test]
fn idle_process_sends_heartbeats() {
    paused(async {
        let store = FakeBudgetStore::new();
        let (_budgets, connection) = start_shared(&store, "one", BudgetFallback::Share).await;
        let before = connection.tries();
        sleep(RETRY * 10).await;
        assert!(connection.tries() - before >= 9);
    });
}
