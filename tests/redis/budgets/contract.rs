//! Contract of the budgets actor. The same tests run for one process with local budgets and for two that share budgets.

use std::time::Duration;

use futures_util::future::join_all;
use guildhall_actors::budget::BudgetsHandle;
use guildhall_core::budget::{
    BudgetDecision, BudgetError, BudgetFallback, BudgetLimits, BudgetName, BudgetSnapshot, Observation, Points,
};
use guildhall_testkit::redis::RedisServer;

use super::process::{MAX_BUDGETS, MAX_WAIT, run_local, start_local, start_shared};

/// The refill is too small to be visible in a test.
const LIMITS: BudgetLimits = BudgetLimits { maximum: Points::whole(10), restore_per_second: Points::SMALLEST };

/// Runs each test with local and with shared budgets. It gets two handles to the same budgets.
macro_rules! contract {
    ($($test:ident),* $(,)?) => {
        mod local_budgets {
            $(#[test]
            fn $test() {
                super::run_local(async {
                    let budgets = super::start_local();
                    super::$test(budgets.clone(), budgets).await;
                });
            })*
        }

        mod shared_budgets {
            $(#[test]
            fn $test() {
                super::run_local(async {
                    let server = super::RedisServer::start();
                    let one = super::start_shared(&server.url(), "one", super::BudgetFallback::Share);
                    let two = super::start_shared(&server.url(), "two", super::BudgetFallback::Share);
                    super::$test(one, two).await;
                });
            })*
        }
    };
}

contract![
    available_points_are_spent_at_once_and_only_once,
    waits_are_booked_in_request_order,
    refusal_changes_nothing,
    observation_applies_to_all_processes,
    retry_after_blocks_all_processes,
    invalid_observation_changes_nothing,
    defaults_hold_until_an_observation,
    impossible_requests_are_errors,
    concurrent_callers_get_no_more_than_available,
];

fn budget_name(name: &str) -> BudgetName {
    BudgetName::new(name).unwrap()
}

async fn configure(budgets: &BudgetsHandle, limits: BudgetLimits) {
    budgets.configure(&budget_name("shop"), limits).await.unwrap();
}

/// Configures the budget on both handles.
async fn configure_both(one: &BudgetsHandle, two: &BudgetsHandle) {
    configure(one, LIMITS).await;
    configure(two, LIMITS).await;
}

async fn try_acquire(budgets: &BudgetsHandle, cost: Points, max_wait: Duration) -> Result<BudgetDecision, BudgetError> {
    budgets.acquire(&budget_name("shop"), cost, max_wait).await
}

async fn acquire(budgets: &BudgetsHandle, cost: u64, max_wait: Duration) -> BudgetDecision {
    try_acquire(budgets, Points::whole(cost), max_wait).await.unwrap()
}

async fn observe(budgets: &BudgetsHandle, seen: Observation) -> Result<(), BudgetError> {
    budgets.observe(&budget_name("shop"), seen).await
}

async fn snapshot(budgets: &BudgetsHandle) -> BudgetSnapshot {
    budgets.show().await.unwrap().remove(0)
}

fn available(points: u64) -> Observation {
    Observation { available: Some(Points::whole(points)), ..Observation::default() }
}

/// Asserts what remains, allowing for the refill since the test started.
fn assert_about(points: Points, whole: u64) {
    assert!(
        (Points::whole(whole)..Points::whole(whole).plus(Points::new(0.01).unwrap())).contains(&points),
        "{points}"
    );
}

async fn available_points_are_spent_at_once_and_only_once(one: BudgetsHandle, two: BudgetsHandle) {
    configure_both(&one, &two).await;
    let BudgetDecision::Allowed { delay, remaining } = acquire(&one, 7, Duration::ZERO).await else {
        panic!("refused")
    };
    assert_eq!(delay, Duration::ZERO);
    assert_about(remaining, 3);
    let BudgetDecision::Allowed { remaining, .. } = acquire(&two, 3, Duration::ZERO).await else { panic!("refused") };
    assert_about(remaining, 0);
    assert!(matches!(acquire(&one, 1, Duration::ZERO).await, BudgetDecision::Refused { .. }));
}

async fn waits_are_booked_in_request_order(one: BudgetsHandle, two: BudgetsHandle) {
    configure(&one, BudgetLimits { restore_per_second: Points::new(0.01).unwrap(), ..LIMITS }).await;
    configure(&two, BudgetLimits { restore_per_second: Points::new(0.01).unwrap(), ..LIMITS }).await;
    let _ = acquire(&one, 10, Duration::ZERO).await;
    let mut last = Duration::ZERO;
    for budgets in [&one, &two, &one] {
        let BudgetDecision::Allowed { delay, remaining } = acquire(budgets, 1, MAX_WAIT).await else {
            panic!("refused")
        };
        assert!(delay > last + Duration::from_secs(50), "{delay:?} after {last:?}");
        assert_eq!(remaining, Points::ZERO);
        last = delay;
    }
    assert_eq!(snapshot(&two).await.booked, Points::whole(3));
    let far = Duration::from_secs(1_000_000);
    assert!(matches!(acquire(&one, 10, far).await, BudgetDecision::Allowed { .. }));
    assert!(matches!(acquire(&one, 10, far).await, BudgetDecision::Allowed { .. }));
    assert!(matches!(acquire(&two, 10, far).await, BudgetDecision::Allowed { .. }));
    assert!(matches!(acquire(&two, 10, far).await, BudgetDecision::Refused { .. }), "the maximum wait is one hour");
}

async fn refusal_changes_nothing(one: BudgetsHandle, two: BudgetsHandle) {
    configure_both(&one, &two).await;
    let _ = acquire(&one, 8, Duration::ZERO).await;
    for budgets in [&one, &two] {
        let BudgetDecision::Refused { retry_after, remaining } = acquire(budgets, 3, MAX_WAIT).await else {
            panic!("allowed")
        };
        assert!(retry_after.unwrap() > MAX_WAIT);
        assert_about(remaining, 2);
    }
    assert!(matches!(acquire(&two, 2, Duration::ZERO).await, BudgetDecision::Allowed { delay: Duration::ZERO, .. }));
}

async fn observation_applies_to_all_processes(one: BudgetsHandle, two: BudgetsHandle) {
    configure_both(&one, &two).await;
    observe(&one, available(3)).await.unwrap();
    assert!(matches!(acquire(&two, 4, Duration::ZERO).await, BudgetDecision::Refused { .. }));
    observe(&two, Observation { maximum: Some(Points::whole(50)), ..available(20) }).await.unwrap();
    assert!(matches!(acquire(&one, 20, Duration::ZERO).await, BudgetDecision::Allowed { .. }));
    // A response to a call sent long before that cost was spent: the upstream cannot know of it.
    observe(&two, Observation { age: Duration::from_secs(30), ..available(21) }).await.unwrap();
    assert_about(snapshot(&one).await.available, 1);
}

async fn retry_after_blocks_all_processes(one: BudgetsHandle, two: BudgetsHandle) {
    configure_both(&one, &two).await;
    let pause = Duration::from_secs(600);
    observe(&one, Observation { retry_after: Some(pause), ..available(10) }).await.unwrap();
    let BudgetDecision::Refused { retry_after, remaining } = acquire(&two, 1, Duration::ZERO).await else {
        panic!("allowed")
    };
    let wait = retry_after.unwrap();
    assert!(wait <= pause && wait > pause / 2, "{wait:?}");
    assert_eq!(remaining, Points::ZERO);
    let BudgetDecision::Allowed { delay, .. } = acquire(&two, 1, MAX_WAIT).await else { panic!("refused") };
    assert!(delay <= pause && delay > pause / 2, "{delay:?}");
    let state = snapshot(&one).await;
    assert_eq!(state.booked, Points::whole(1));
    assert!(state.blocked_for > pause / 2);
}

async fn invalid_observation_changes_nothing(one: BudgetsHandle, two: BudgetsHandle) {
    configure_both(&one, &two).await;
    let old = Observation { age: Duration::from_secs(61), ..available(0) };
    assert_eq!(observe(&one, old).await, Err(BudgetError::StaleObservation));
    let none = Observation { maximum: Some(Points::ZERO), ..available(0) };
    assert_eq!(observe(&one, none).await, Err(BudgetError::MaximumZero));
    let unknown = one.observe(&budget_name("other"), available(0)).await;
    assert_eq!(unknown, Err(BudgetError::Unknown("other".to_owned())));
    assert_eq!(snapshot(&two).await.available, Points::whole(10));
}

async fn defaults_hold_until_an_observation(one: BudgetsHandle, two: BudgetsHandle) {
    configure_both(&one, &two).await;
    let wider = BudgetLimits { maximum: Points::whole(40), ..LIMITS };
    configure(&two, wider).await;
    assert_eq!((snapshot(&one).await.limits, snapshot(&one).await.observed), (wider, false));
    observe(&one, Observation { maximum: Some(Points::whole(5)), ..Observation::default() }).await.unwrap();
    configure(&two, BudgetLimits { maximum: Points::whole(80), restore_per_second: Points::ZERO }).await;
    let limits = BudgetLimits { maximum: Points::whole(5), restore_per_second: Points::ZERO };
    assert_eq!((snapshot(&one).await.limits, snapshot(&one).await.observed), (limits, true));
    let BudgetDecision::Allowed { .. } = acquire(&one, 5, Duration::ZERO).await else { panic!("refused") };
    let never = BudgetDecision::Refused { retry_after: None, remaining: Points::ZERO };
    assert_eq!(acquire(&two, 1, MAX_WAIT).await, never);
}

async fn impossible_requests_are_errors(one: BudgetsHandle, two: BudgetsHandle) {
    configure_both(&one, &two).await;
    let error = try_acquire(&two, Points::whole(11), MAX_WAIT).await.unwrap_err();
    assert_eq!(error.to_string(), "cost 11 exceeds the maximum of the budget (10); split the call");
    let acquired = one.acquire(&budget_name("other"), Points::whole(1), Duration::ZERO).await;
    assert_eq!(acquired, Err(BudgetError::Unknown("other".to_owned())));
    let nothing = BudgetLimits { maximum: Points::ZERO, ..LIMITS };
    let configured = one.configure(&budget_name("other"), nothing).await;
    assert_eq!(configured, Err(BudgetError::MaximumZero));
    for number in 1..MAX_BUDGETS {
        one.configure(&budget_name(&format!("more-{number}")), LIMITS).await.unwrap();
    }
    let too_many = one.configure(&budget_name("other"), LIMITS).await;
    assert_eq!(too_many, Err(BudgetError::TooMany(MAX_BUDGETS)));
}

async fn concurrent_callers_get_no_more_than_available(one: BudgetsHandle, two: BudgetsHandle) {
    let limits = BudgetLimits { maximum: Points::whole(300), restore_per_second: Points::ZERO };
    configure(&one, limits).await;
    configure(&two, limits).await;
    let results = join_all((0..1_000).map(|n| acquire(if n % 2 == 0 { &one } else { &two }, 1, MAX_WAIT))).await;
    let allowed = results.iter().filter(|results| matches!(results, BudgetDecision::Allowed { .. })).count();
    assert_eq!(allowed, 300);
    assert_eq!(snapshot(&two).await.available, Points::ZERO);
}
