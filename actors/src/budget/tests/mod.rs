mod counting;
mod fake_shared_budgets;
mod service;

use std::collections::BTreeMap;
use std::future::Future;

use futures_util::future::join_all;
use guildhall_core::budget::{BudgetFallback, BudgetSource, BudgetUnreachable};
use tokio::task::{LocalSet, spawn_local};
use tokio::time::{Instant, sleep};

use self::fake_shared_budgets::{Line, Place};
use super::*;

const LIMITS: BudgetLimits = BudgetLimits { maximum: Points::whole(10), restore_per_second: Points::whole(2) };
const RETRY: Duration = Duration::from_secs(1);
const MOST_UNDER_WAY: usize = 8;

/// Runs a test with paused time.
fn paused(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    LocalSet::new().block_on(&runtime, test);
}

fn shop() -> BudgetName {
    BudgetName::new("shop").unwrap()
}

async fn alone() -> BudgetsHandle {
    let budgets = BudgetsHandle::start(1, Duration::from_secs(60));
    budgets.configure(&shop(), LIMITS).await.unwrap();
    budgets
}

/// A process that shares budgets, and its connection to them.
async fn process(place: &Arc<Place>, member: &'static str, on_loss: BudgetFallback) -> (BudgetsHandle, Arc<Line>) {
    let line = Line::to(place, member);
    let longest_wait = Duration::from_secs(60);
    let partner = BudgetMemberConfig { most: 2, longest_wait, on_loss, retry_after: RETRY };
    let port = Arc::clone(&line);
    let budgets = BudgetsHandle::start_shared(port, SharedBudgetsConfig { partner, most_under_way: MOST_UNDER_WAY });
    budgets.configure(&shop(), LIMITS).await.unwrap();
    (budgets, line)
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
async fn meanwhile() {
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
}

#[test]
fn whoever_waits_as_told_finds_what_was_booked_and_nobody_else_takes_it() {
    paused(async {
        let budgets = alone().await;
        assert!(matches!(acquire(&budgets, 10, 0).await, BudgetDecision::Allowed { delay: Duration::ZERO, .. }));
        let BudgetDecision::Allowed { delay, .. } = acquire(&budgets, 4, 5).await else { panic!("refused") };
        assert_eq!(delay, Duration::from_secs(2));
        assert!(matches!(acquire(&budgets, 1, 2).await, BudgetDecision::Refused { .. }));
        sleep(delay).await;
        let standing = show(&budgets).await;
        assert_eq!((standing.available, standing.booked), (Points::ZERO, Points::ZERO));
        assert_eq!(standing.kept, BudgetSource::Alone);
    });
}

#[test]
fn an_upstreams_word_counts_and_a_budget_that_nobody_named_does_not_exist() {
    paused(async {
        let budgets = alone().await;
        let seen = Observation { available: Some(Points::whole(3)), ..Observation::default() };
        budgets.observe(&shop(), seen).await.unwrap();
        assert!(matches!(acquire(&budgets, 4, 0).await, BudgetDecision::Refused { .. }));
        let other = BudgetName::new("other").unwrap();
        assert_eq!(budgets.observe(&other, seen).await, Err(BudgetError::Unknown("other".to_owned())));
        assert_eq!(budgets.configure(&other, LIMITS).await, Err(BudgetError::TooMany(1)));
    });
}

#[test]
fn every_taking_waiting_and_refusal_is_counted_under_the_budgets_name() {
    let recorder = counting::Recorder::default();
    metrics::with_local_recorder(&recorder, || {
        paused(async {
            let place = Place::new();
            let (budgets, line) = process(&place, "one", BudgetFallback::Closed).await;
            for (cost, wait) in [(7, 0), (5, 5), (5, 0)] {
                let _ = acquire(&budgets, cost, wait).await;
            }
            line.cut();
            let cost = Points::whole(1);
            assert!(budgets.acquire(&shop(), cost, Duration::ZERO).await.is_err());
            line.restore();
            sleep(Duration::from_secs(2)).await;
            let _ = show(&budgets).await;
        });
    });
    let expected = [
        (format!("{ACQUIRED} shop"), 2.0),
        (format!("{WAITS} shop"), 1.0),
        (format!("{EXHAUSTED} shop,exhausted"), 1.0),
        (format!("{EXHAUSTED} shop,out_of_reach"), 1.0),
        (format!("{AVAILABLE} shop"), 2.0),
    ];
    assert_eq!(recorder.values(), BTreeMap::from(expected));
}

#[test]
fn what_one_process_spends_another_does_not_find() {
    paused(async {
        let place = Place::new();
        let (one, _) = process(&place, "one", BudgetFallback::Share).await;
        let (two, _) = process(&place, "two", BudgetFallback::Share).await;
        assert_eq!(acquire(&one, 7, 0).await, allowed(0, 3));
        assert_eq!(acquire(&two, 4, 1).await, allowed(500, 0));
        let standing = show(&one).await;
        assert_eq!((standing.booked, standing.kept), (Points::whole(4), BudgetSource::Together));
    });
}

#[test]
fn those_who_come_while_one_is_on_its_way_go_together_after_it() {
    paused(async {
        let place = Place::new();
        let (budgets, line) = process(&place, "one", BudgetFallback::Share).await;
        line.hold();
        let ask = |count| {
            let budgets = budgets.clone();
            spawn_local(async move { join_all((0..count).map(|_| acquire(&budgets, 3, 60))).await })
        };
        let first = ask(1);
        meanwhile().await;
        let others = ask(4);
        meanwhile().await;
        line.restore();
        // In the order of the requests, whichever batch carried them.
        assert_eq!(first.await.unwrap(), [allowed(0, 7)]);
        assert_eq!(others.await.unwrap(), [allowed(0, 4), allowed(0, 1), allowed(1_000, 0), allowed(2_500, 0)]);
        assert_eq!(place.asks_by_call(), [1, 4]);
    });
}

#[test]
fn a_budget_does_not_wait_for_another_one() {
    paused(async {
        let place = Place::new();
        let (budgets, line) = process(&place, "one", BudgetFallback::Share).await;
        let other = BudgetName::new("other").unwrap();
        budgets.configure(&other, LIMITS).await.unwrap();
        line.hold_only(&shop());
        let slow = spawn_local({
            let budgets = budgets.clone();
            async move { acquire(&budgets, 1, 0).await }
        });
        meanwhile().await;
        let quick = budgets.acquire(&other, Points::whole(1), Duration::ZERO).await.unwrap();
        assert_eq!(quick, allowed(0, 9));
        assert!(!slow.is_finished());
        line.restore();
        assert_eq!(slow.await.unwrap(), allowed(0, 9));
    });
}

#[test]
fn more_questions_than_may_be_under_way_are_refused_with_a_time_to_come_back() {
    paused(async {
        let place = Place::new();
        let (budgets, line) = process(&place, "one", BudgetFallback::Share).await;
        line.hold();
        let ask = || {
            let budgets = budgets.clone();
            spawn_local(async move { budgets.acquire(&shop(), Points::whole(1), Duration::ZERO).await })
        };
        let asking: Vec<_> = (0..MOST_UNDER_WAY).map(|_| ask()).collect();
        meanwhile().await;
        let busy = BudgetError::Busy { most: MOST_UNDER_WAY, retry_after: RETRY };
        assert_eq!(ask().await.unwrap(), Err(busy.clone()));
        assert_eq!(budgets.show().await, Err(busy.clone()));
        assert_eq!(budgets.observe(&shop(), Observation::default()).await, Err(busy));
        line.restore();
        for asked in asking {
            assert!(asked.await.unwrap().is_ok());
        }
        assert!(ask().await.unwrap().is_ok());
    });
}

#[test]
fn whoever_gives_up_before_its_turn_pays_nothing() {
    paused(async {
        let place = Place::new();
        let (budgets, line) = process(&place, "one", BudgetFallback::Share).await;
        line.hold();
        let ask = || {
            let budgets = budgets.clone();
            spawn_local(async move { acquire(&budgets, 2, 0).await })
        };
        let first = ask();
        meanwhile().await;
        let second = ask();
        meanwhile().await;
        second.abort();
        meanwhile().await;
        line.restore();
        let _ = first.await.unwrap();
        assert_eq!(acquire(&budgets, 8, 0).await, allowed(0, 0));
    });
}

#[test]
fn out_of_reach_nobody_waits_and_nothing_is_asked_but_whether_it_has_ended() {
    paused(async {
        let place = Place::new();
        let (budgets, line) = process(&place, "one", BudgetFallback::Share).await;
        line.cut();
        let _ = acquire(&budgets, 1, 0).await;
        meanwhile().await;
        let (tries, started) = (line.tries(), Instant::now());
        for _ in 0..50 {
            let _ = acquire(&budgets, 1, 0).await;
        }
        assert_eq!((line.tries(), Instant::now()), (tries, started));
        sleep(RETRY * 3).await;
        assert!((2..=4).contains(&(line.tries() - tries)), "{}", line.tries() - tries);
    });
}

#[test]
fn those_who_wait_behind_a_question_that_got_lost_do_not_wait_for_another() {
    paused(async {
        let place = Place::new();
        let (budgets, line) = process(&place, "one", BudgetFallback::Closed).await;
        line.hold();
        let ask = || {
            let budgets = budgets.clone();
            spawn_local(async move { budgets.acquire(&shop(), Points::whole(1), Duration::ZERO).await })
        };
        let first = ask();
        meanwhile().await;
        let second = ask();
        meanwhile().await;
        let tries = line.tries();
        line.cut();
        let closed = Err(BudgetError::OutOfReach { why: BudgetUnreachable::Closed, retry_after: RETRY });
        assert_eq!((first.await.unwrap(), second.await.unwrap()), (closed.clone(), closed));
        assert!(line.tries() <= tries + 1, "only the probe is sent");
    });
}

#[test]
fn what_was_spent_out_of_reach_is_missing_once_it_is_back_though_nobody_asks() {
    paused(async {
        let place = Place::new();
        let (one, line) = process(&place, "one", BudgetFallback::Share).await;
        let (two, _) = process(&place, "two", BudgetFallback::Share).await;
        // So that it knows of the other member.
        assert_eq!(acquire(&one, 0, 0).await, allowed(0, 10));
        line.cut();
        let BudgetDecision::Refused { retry_after, .. } = acquire(&one, 4, 0).await else {
            panic!("a share starts empty")
        };
        assert_eq!(retry_after, Some(Duration::from_secs(4)));
        sleep(Duration::from_secs(5)).await;
        assert_eq!(acquire(&one, 5, 0).await, allowed(0, 0));
        let why = BudgetUnreachable::AboveShare { cost: Points::whole(6), share: Points::whole(5) };
        let above = one.acquire(&shop(), Points::whole(6), Duration::ZERO).await;
        assert_eq!(above, Err(BudgetError::OutOfReach { why, retry_after: RETRY }));
        assert_eq!(show(&two).await.available, Points::whole(10));
        line.restore();
        sleep(RETRY).await;
        meanwhile().await;
        // At most one second has passed since then.
        let left = show(&two).await.available;
        assert!(left >= Points::whole(5) && left <= Points::whole(7), "{left}");
        assert_eq!(show(&one).await.kept, BudgetSource::Together);
    });
}

#[test]
fn an_answer_that_got_lost_is_found_out_about_at_once() {
    paused(async {
        let place = Place::new();
        let (budgets, line) = process(&place, "one", BudgetFallback::Share).await;
        line.lose_one();
        let BudgetDecision::Refused { .. } = acquire(&budgets, 4, 0).await else { panic!("a share starts empty") };
        meanwhile().await;
        // The cost was taken nevertheless.
        assert_eq!(acquire(&budgets, 6, 0).await, allowed(0, 0));
    });
}

#[test]
fn a_place_that_forgot_the_budgets_gives_nothing_of_what_was_known() {
    paused(async {
        let place = Place::new();
        let (one, _) = process(&place, "one", BudgetFallback::Share).await;
        let _ = acquire(&one, 3, 0).await;
        place.forget();
        // A new member has no older epoch to report.
        let (two, _) = process(&place, "two", BudgetFallback::Share).await;
        assert_eq!(acquire(&two, 1, 0).await, allowed(0, 9));
        assert!(matches!(acquire(&one, 1, 0).await, BudgetDecision::Refused { .. }));
        assert!(matches!(acquire(&two, 1, 0).await, BudgetDecision::Refused { .. }));
    });
}

#[test]
fn a_process_that_nobody_asks_still_says_that_it_is_there() {
    paused(async {
        let place = Place::new();
        let (_budgets, line) = process(&place, "one", BudgetFallback::Share).await;
        let before = line.tries();
        sleep(RETRY * 10).await;
        assert!(line.tries() - before >= 9);
    });
}
