//! Processes that lose the connection to Redis and regain it.

use std::time::Duration;

use guildhall::settings::RedisUrl;
use guildhall_actors::budget::BudgetsHandle;
use guildhall_core::budget::{
    BudgetDecision, BudgetError, BudgetFallback, BudgetLimits, BudgetName, BudgetSnapshot, BudgetSource,
    BudgetUnreachable, Observation, Points,
};
use guildhall_testkit::redis::{RedisServer, Relay};

use super::process::{MAX_WAIT, RETRY_DELAY, run_local, start_shared};

/// One point takes 100 seconds to come back.
fn limits() -> BudgetLimits {
    BudgetLimits { maximum: Points::whole(100), restore_per_second: Points::new(0.01).unwrap() }
}

fn budget_name() -> BudgetName {
    BudgetName::new("shop").unwrap()
}

async fn open(url: &RedisUrl, member: &str, on_loss: BudgetFallback) -> BudgetsHandle {
    let budgets = start_shared(url, member, on_loss);
    budgets.configure(&budget_name(), limits()).await.unwrap();
    budgets
}

async fn acquire(budgets: &BudgetsHandle, cost: u64, max_wait: Duration) -> Result<BudgetDecision, BudgetError> {
    budgets.acquire(&budget_name(), Points::whole(cost), max_wait).await
}

/// Spends points that are available at once.
async fn spend(budgets: &BudgetsHandle, cost: u64) {
    let decision = acquire(budgets, cost, Duration::ZERO).await;
    assert!(matches!(decision, Ok(BudgetDecision::Allowed { delay: Duration::ZERO, .. })), "{decision:?}");
}

async fn show(budgets: &BudgetsHandle) -> BudgetSnapshot {
    budgets.show().await.unwrap().remove(0)
}

/// Polls until the budget has this source.
async fn wait_for_source(budgets: &BudgetsHandle, source: BudgetSource) -> BudgetSnapshot {
    loop {
        let snapshot = show(budgets).await;
        if snapshot.source == source {
            return snapshot;
        }
    }
}

/// Asserts what remains, allowing for the refill since the test started: no test takes 50 s.
fn assert_about(points: Points, whole: u64) {
    let max = Points::whole(whole).plus(Points::new(0.5).unwrap());
    assert!((Points::whole(whole)..max).contains(&points), "{points} is not about {whole}");
}

#[test]
fn disconnected_process_spends_its_share_and_reports_it_later() {
    run_local(async {
        let server = RedisServer::start();
        let relay = Relay::to(&server);
        let two = open(&server.url(), "two", BudgetFallback::Share).await;
        let one = open(&relay.url(), "one", BudgetFallback::Share).await;
        spend(&one, 10).await;
        relay.cut();
        let share = wait_for_source(&one, BudgetSource::Meanwhile).await;
        assert_eq!(share.limits, limits().share(2));
        assert_about(share.available, 0);
        // Three points at half the rate.
        let Ok(BudgetDecision::Allowed { delay, .. }) = acquire(&one, 3, MAX_WAIT).await else { panic!("refused") };
        assert!(delay > Duration::from_secs(500), "{delay:?}");
        let above = BudgetUnreachable::AboveShare { cost: Points::whole(51), share: Points::whole(50) };
        let refusal = acquire(&one, 51, MAX_WAIT).await;
        assert_eq!(refusal, Err(BudgetError::Unreachable { reason: above, retry_after: RETRY_DELAY }));
        // The connected process is not affected.
        spend(&two, 20).await;
        relay.restore();
        assert_about(wait_for_source(&one, BudgetSource::Together).await.available, 67);
        assert_about(show(&two).await.available, 67);
    });
}

#[test]
fn without_redis_closed_grants_nothing_and_open_everything() {
    run_local(async {
        let server = RedisServer::start();
        let relay = Relay::to(&server);
        let closed = open(&relay.url(), "closed", BudgetFallback::Closed).await;
        let open = open(&relay.url(), "open", BudgetFallback::Open).await;
        spend(&closed, 30).await;
        relay.cut();
        wait_for_source(&closed, BudgetSource::Meanwhile).await;
        wait_for_source(&open, BudgetSource::Meanwhile).await;
        let refusal = Err(BudgetError::Unreachable { reason: BudgetUnreachable::Closed, retry_after: RETRY_DELAY });
        assert_eq!(acquire(&closed, 1, MAX_WAIT).await, refusal);
        spend(&open, 100).await;
        relay.restore();
        // It owes the points that it spent.
        wait_for_source(&open, BudgetSource::Together).await;
        wait_for_source(&closed, BudgetSource::Together).await;
        let Ok(BudgetDecision::Refused { retry_after, .. }) = acquire(&closed, 1, Duration::ZERO).await else {
            panic!("allowed")
        };
        assert!(retry_after > Some(Duration::from_secs(3_000)), "{retry_after:?}");
    });
}

#[test]
fn process_that_never_reached_redis_spends_nothing() {
    run_local(async {
        let server = RedisServer::start();
        let relay = Relay::to(&server);
        relay.cut();
        for on_loss in [BudgetFallback::Share, BudgetFallback::Closed] {
            relay.cut();
            let fresh = open(&relay.url(), "fresh", on_loss).await;
            let refusal = Err(BudgetError::Unreachable { reason: BudgetUnreachable::Never, retry_after: RETRY_DELAY });
            assert_eq!(acquire(&fresh, 1, MAX_WAIT).await, refusal);
            relay.restore();
            assert_eq!(
                wait_for_source(&fresh, BudgetSource::Together).await.limits,
                limits(),
                "its defaults were sent"
            );
            spend(&fresh, 1).await;
        }
    });
}

#[test]
fn emptied_redis_grants_only_new_budgets() {
    run_local(async {
        let mut server = RedisServer::start();
        let one = open(&server.url(), "one", BudgetFallback::Share).await;
        spend(&one, 40).await;
        // A booking that an emptied server does not know.
        let Ok(BudgetDecision::Allowed { delay, .. }) = acquire(&one, 61, MAX_WAIT).await else { panic!("refused") };
        let seen = Observation { restore_per_second: Some(Points::new(0.02).unwrap()), ..Observation::default() };
        one.observe(&budget_name(), seen).await.unwrap();
        server.restart_empty();
        let after = wait_for_source(&one, BudgetSource::Together).await;
        assert_about(after.available, 0);
        assert_eq!((after.limits.restore_per_second, after.observed), (Points::new(0.02).unwrap(), true));
        let Ok(BudgetDecision::Allowed { delay: later, .. }) = acquire(&one, 1, MAX_WAIT).await else {
            panic!("refused")
        };
        assert!(later > delay, "{later:?} is not after {delay:?}");
        let new = BudgetName::new("a-new-one").unwrap();
        one.configure(&new, limits()).await.unwrap();
        assert_eq!(one.show().await.unwrap()[0].available, limits().maximum);
    });
}

#[test]
fn hung_redis_is_not_awaited_and_its_spends_are_not_refunded() {
    run_local(async {
        let server = RedisServer::start();
        let one = open(&server.url(), "one", BudgetFallback::Share).await;
        spend(&one, 10).await;
        server.stop();
        let Ok(BudgetDecision::Allowed { delay, .. }) = acquire(&one, 2, MAX_WAIT).await else { panic!("refused") };
        assert!(delay > Duration::from_secs(100), "{delay:?} is too short for a share that starts empty");
        server.resume();
        let available = wait_for_source(&one, BudgetSource::Together).await.available;
        assert!(available < Points::new(88.5).unwrap() && available >= Points::whole(86), "{available}");
    });
}

#[test]
fn observation_while_disconnected_is_reported_later() {
    run_local(async {
        let server = RedisServer::start();
        let relay = Relay::to(&server);
        let two = open(&server.url(), "two", BudgetFallback::Share).await;
        let one = open(&relay.url(), "one", BudgetFallback::Share).await;
        relay.cut();
        wait_for_source(&one, BudgetSource::Meanwhile).await;
        let pause = Duration::from_secs(3_000);
        let seen = Observation { retry_after: Some(pause), maximum: Some(Points::whole(60)), ..Observation::default() };
        one.observe(&budget_name(), seen).await.unwrap();
        assert!(show(&one).await.blocked_for > pause / 2);
        relay.restore();
        // The process reports it as soon as it is connected.
        let received = loop {
            let snapshot = show(&two).await;
            if snapshot.observed {
                break snapshot;
            }
        };
        assert_eq!(received.limits.maximum, Points::whole(60));
        assert!(received.blocked_for > pause / 2 && received.blocked_for <= pause, "{:?}", received.blocked_for);
    });
}
