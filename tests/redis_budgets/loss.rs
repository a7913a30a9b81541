//! Processes that lose the connection to Redis and regain it.

use std::time::Duration;

use guildhall::settings::RedisUrl;
use guildhall_actors::budget::BudgetsHandle;
use guildhall_core::budget::{
    BudgetDecision, BudgetError, BudgetFallback, BudgetLimits, BudgetName, BudgetSnapshot, BudgetSource,
    BudgetUnreachable, Observation, Points,
};

use crate::process::{LONGEST_WAIT, RETRY, on_a_system, shared};
use crate::support::{RedisServer, Relay};

/// One point takes 100 seconds to come back.
fn limits() -> BudgetLimits {
    BudgetLimits { maximum: Points::whole(100), restore_per_second: Points::new(0.01).unwrap() }
}

fn shop() -> BudgetName {
    BudgetName::new("shop").unwrap()
}

async fn open(url: &RedisUrl, member: &str, on_loss: BudgetFallback) -> BudgetsHandle {
    let budgets = shared(url, member, on_loss);
    budgets.configure(&shop(), limits()).await.unwrap();
    budgets
}

async fn take(budgets: &BudgetsHandle, cost: u64, max_wait: Duration) -> Result<BudgetDecision, BudgetError> {
    budgets.acquire(&shop(), Points::whole(cost), max_wait).await
}

/// Spends points that are available at once.
async fn spend(budgets: &BudgetsHandle, cost: u64) {
    let asked = take(budgets, cost, Duration::ZERO).await;
    assert!(matches!(asked, Ok(BudgetDecision::Allowed { delay: Duration::ZERO, .. })), "{asked:?}");
}

async fn show(budgets: &BudgetsHandle) -> BudgetSnapshot {
    budgets.show().await.unwrap().remove(0)
}

/// Polls until the budget has this source.
async fn until(budgets: &BudgetsHandle, kept: BudgetSource) -> BudgetSnapshot {
    loop {
        let standing = show(budgets).await;
        if standing.kept == kept {
            return standing;
        }
    }
}

/// Asserts what remains, allowing for the refill since the test started: no test takes 50 s.
fn about(points: Points, whole: u64) {
    let most = Points::whole(whole).plus(Points::new(0.5).unwrap());
    assert!((Points::whole(whole)..most).contains(&points), "{points} is not about {whole}");
}

#[test]
fn a_process_that_is_cut_off_spends_its_share_and_tells_of_it_when_it_is_back() {
    on_a_system(async {
        let server = RedisServer::start();
        let relay = Relay::to(&server);
        let two = open(&server.url(), "two", BudgetFallback::Share).await;
        let one = open(&relay.url(), "one", BudgetFallback::Share).await;
        spend(&one, 10).await;
        relay.cut();
        let share = until(&one, BudgetSource::Meanwhile).await;
        assert_eq!(share.limits, limits().share(2));
        about(share.available, 0);
        // Three points at half the rate.
        let Ok(BudgetDecision::Allowed { delay, .. }) = take(&one, 3, LONGEST_WAIT).await else { panic!("refused") };
        assert!(delay > Duration::from_secs(500), "{delay:?}");
        let above = BudgetUnreachable::AboveShare { cost: Points::whole(51), share: Points::whole(50) };
        let refusal = take(&one, 51, LONGEST_WAIT).await;
        assert_eq!(refusal, Err(BudgetError::OutOfReach { why: above, retry_after: RETRY }));
        // The connected process is not affected.
        spend(&two, 20).await;
        relay.restore();
        about(until(&one, BudgetSource::Together).await.available, 67);
        about(show(&two).await.available, 67);
    });
}

#[test]
fn out_of_reach_a_closed_budget_gives_nothing_and_an_open_one_everything() {
    on_a_system(async {
        let server = RedisServer::start();
        let relay = Relay::to(&server);
        let closed = open(&relay.url(), "closed", BudgetFallback::Closed).await;
        let open = open(&relay.url(), "open", BudgetFallback::Open).await;
        spend(&closed, 30).await;
        relay.cut();
        until(&closed, BudgetSource::Meanwhile).await;
        until(&open, BudgetSource::Meanwhile).await;
        let refusal = Err(BudgetError::OutOfReach { why: BudgetUnreachable::Closed, retry_after: RETRY });
        assert_eq!(take(&closed, 1, LONGEST_WAIT).await, refusal);
        spend(&open, 100).await;
        relay.restore();
        // It owes the points that it spent.
        until(&open, BudgetSource::Together).await;
        until(&closed, BudgetSource::Together).await;
        let Ok(BudgetDecision::Refused { retry_after, .. }) = take(&closed, 1, Duration::ZERO).await else {
            panic!("allowed")
        };
        assert!(retry_after > Some(Duration::from_secs(3_000)), "{retry_after:?}");
    });
}

#[test]
fn a_process_that_never_reached_redis_spends_nothing_until_it_does() {
    on_a_system(async {
        let server = RedisServer::start();
        let relay = Relay::to(&server);
        relay.cut();
        for on_loss in [BudgetFallback::Share, BudgetFallback::Closed] {
            relay.cut();
            let fresh = open(&relay.url(), "fresh", on_loss).await;
            let refusal = Err(BudgetError::OutOfReach { why: BudgetUnreachable::Never, retry_after: RETRY });
            assert_eq!(take(&fresh, 1, LONGEST_WAIT).await, refusal);
            relay.restore();
            assert_eq!(until(&fresh, BudgetSource::Together).await.limits, limits(), "its defaults were sent");
            spend(&fresh, 1).await;
        }
    });
}

#[test]
fn an_emptied_redis_gives_nothing_of_what_was_known_and_all_of_what_is_new() {
    on_a_system(async {
        let mut server = RedisServer::start();
        let one = open(&server.url(), "one", BudgetFallback::Share).await;
        spend(&one, 40).await;
        // A booking that an emptied server does not know.
        let Ok(BudgetDecision::Allowed { delay, .. }) = take(&one, 61, LONGEST_WAIT).await else { panic!("refused") };
        let seen = Observation { restore_per_second: Some(Points::new(0.02).unwrap()), ..Observation::default() };
        one.observe(&shop(), seen).await.unwrap();
        server.restart_empty();
        let after = until(&one, BudgetSource::Together).await;
        about(after.available, 0);
        assert_eq!((after.limits.restore_per_second, after.observed), (Points::new(0.02).unwrap(), true));
        let Ok(BudgetDecision::Allowed { delay: later, .. }) = take(&one, 1, LONGEST_WAIT).await else {
            panic!("refused")
        };
        assert!(later > delay, "{later:?} is not after {delay:?}");
        let new = BudgetName::new("a-new-one").unwrap();
        one.configure(&new, limits()).await.unwrap();
        assert_eq!(one.show().await.unwrap()[0].available, limits().maximum);
    });
}

#[test]
fn a_redis_that_hangs_is_not_waited_for_and_what_it_may_have_done_is_not_given_back() {
    on_a_system(async {
        let server = RedisServer::start();
        let one = open(&server.url(), "one", BudgetFallback::Share).await;
        spend(&one, 10).await;
        server.stop();
        let Ok(BudgetDecision::Allowed { delay, .. }) = take(&one, 2, LONGEST_WAIT).await else { panic!("refused") };
        assert!(delay > Duration::from_secs(100), "{delay:?} is too short for a share that starts empty");
        server.resume();
        let left = until(&one, BudgetSource::Together).await.available;
        assert!(left < Points::new(88.5).unwrap() && left >= Points::whole(86), "{left}");
    });
}

#[test]
fn what_an_upstream_said_to_a_process_that_was_cut_off_is_passed_on() {
    on_a_system(async {
        let server = RedisServer::start();
        let relay = Relay::to(&server);
        let two = open(&server.url(), "two", BudgetFallback::Share).await;
        let one = open(&relay.url(), "one", BudgetFallback::Share).await;
        relay.cut();
        until(&one, BudgetSource::Meanwhile).await;
        let pause = Duration::from_secs(3_000);
        let seen = Observation { retry_after: Some(pause), maximum: Some(Points::whole(60)), ..Observation::default() };
        one.observe(&shop(), seen).await.unwrap();
        assert!(show(&one).await.blocked_for > pause / 2);
        relay.restore();
        // The process reports it as soon as it is connected.
        let heard = loop {
            let standing = show(&two).await;
            if standing.observed {
                break standing;
            }
        };
        assert_eq!(heard.limits.maximum, Points::whole(60));
        assert!(heard.blocked_for > pause / 2 && heard.blocked_for <= pause, "{:?}", heard.blocked_for);
    });
}
