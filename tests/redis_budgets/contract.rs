//! Contract of the budgets actor. The same tests run for one process with local budgets and for two that share budgets.

use std::time::Duration;

use futures_util::future::join_all;
use guildhall_actors::budget::BudgetsHandle;
use guildhall_core::budget::{
    BudgetDecision, BudgetError, BudgetFallback, BudgetLimits, BudgetName, BudgetSnapshot, Observation, Points,
};

use crate::process::{LONGEST_WAIT, MOST, alone, on_a_system, shared};
use crate::support::RedisServer;

/// The refill is too small to be visible in a test.
const LIMITS: BudgetLimits = BudgetLimits { maximum: Points::whole(10), restore_per_second: Points::SMALLEST };

/// Runs each test with local and with shared budgets. It gets two handles to the same budgets.
macro_rules! contract {
    ($($test:ident),* $(,)?) => {
        mod kept_alone {
            $(#[test]
            fn $test() {
                super::on_a_system(async {
                    let budgets = super::alone();
                    super::$test(budgets.clone(), budgets).await;
                });
            })*
        }

        mod kept_together {
            $(#[test]
            fn $test() {
                super::on_a_system(async {
                    let server = super::RedisServer::start();
                    let one = super::shared(&server.url(), "one", super::BudgetFallback::Share);
                    let two = super::shared(&server.url(), "two", super::BudgetFallback::Share);
                    super::$test(one, two).await;
                });
            })*
        }
    };
}

contract![
    what_is_there_is_spent_at_once_and_by_one_alone,
    waiting_is_booked_in_the_order_of_asking,
    a_refusal_changes_nothing,
    an_upstreams_word_counts_for_all,
    an_upstream_that_wants_to_be_left_alone_is,
    a_word_that_makes_no_sense_changes_nothing,
    defaults_hold_until_the_upstream_speaks,
    what_cannot_be_is_an_error_that_says_so,
    many_at_once_get_what_is_there_and_no_more,
];

fn name(name: &str) -> BudgetName {
    BudgetName::new(name).unwrap()
}

async fn configure(budgets: &BudgetsHandle, limits: BudgetLimits) {
    budgets.configure(&name("shop"), limits).await.unwrap();
}

/// Configures the budget on both handles.
async fn open(one: &BudgetsHandle, two: &BudgetsHandle) {
    configure(one, LIMITS).await;
    configure(two, LIMITS).await;
}

async fn try_take(budgets: &BudgetsHandle, cost: Points, max_wait: Duration) -> Result<BudgetDecision, BudgetError> {
    budgets.acquire(&name("shop"), cost, max_wait).await
}

async fn take(budgets: &BudgetsHandle, cost: u64, max_wait: Duration) -> BudgetDecision {
    try_take(budgets, Points::whole(cost), max_wait).await.unwrap()
}

async fn observe(budgets: &BudgetsHandle, seen: Observation) -> Result<(), BudgetError> {
    budgets.observe(&name("shop"), seen).await
}

async fn show(budgets: &BudgetsHandle) -> BudgetSnapshot {
    budgets.show().await.unwrap().remove(0)
}

fn left(points: u64) -> Observation {
    Observation { available: Some(Points::whole(points)), ..Observation::default() }
}

/// Asserts what remains, allowing for the refill since the test started.
fn about(points: Points, whole: u64) {
    assert!(
        (Points::whole(whole)..Points::whole(whole).plus(Points::new(0.01).unwrap())).contains(&points),
        "{points}"
    );
}

async fn what_is_there_is_spent_at_once_and_by_one_alone(one: BudgetsHandle, two: BudgetsHandle) {
    open(&one, &two).await;
    let BudgetDecision::Allowed { delay, remaining } = take(&one, 7, Duration::ZERO).await else { panic!("refused") };
    assert_eq!(delay, Duration::ZERO);
    about(remaining, 3);
    let BudgetDecision::Allowed { remaining, .. } = take(&two, 3, Duration::ZERO).await else { panic!("refused") };
    about(remaining, 0);
    assert!(matches!(take(&one, 1, Duration::ZERO).await, BudgetDecision::Refused { .. }));
}

async fn waiting_is_booked_in_the_order_of_asking(one: BudgetsHandle, two: BudgetsHandle) {
    configure(&one, BudgetLimits { restore_per_second: Points::new(0.01).unwrap(), ..LIMITS }).await;
    configure(&two, BudgetLimits { restore_per_second: Points::new(0.01).unwrap(), ..LIMITS }).await;
    let _ = take(&one, 10, Duration::ZERO).await;
    let mut last = Duration::ZERO;
    for budgets in [&one, &two, &one] {
        let BudgetDecision::Allowed { delay, remaining } = take(budgets, 1, LONGEST_WAIT).await else {
            panic!("refused")
        };
        assert!(delay > last + Duration::from_secs(50), "{delay:?} after {last:?}");
        assert_eq!(remaining, Points::ZERO);
        last = delay;
    }
    assert_eq!(show(&two).await.booked, Points::whole(3));
    let far = Duration::from_secs(1_000_000);
    assert!(matches!(take(&one, 10, far).await, BudgetDecision::Allowed { .. }));
    assert!(matches!(take(&one, 10, far).await, BudgetDecision::Allowed { .. }));
    assert!(matches!(take(&two, 10, far).await, BudgetDecision::Allowed { .. }));
    assert!(matches!(take(&two, 10, far).await, BudgetDecision::Refused { .. }), "the maximum wait is one hour");
}

async fn a_refusal_changes_nothing(one: BudgetsHandle, two: BudgetsHandle) {
    open(&one, &two).await;
    let _ = take(&one, 8, Duration::ZERO).await;
    for budgets in [&one, &two] {
        let BudgetDecision::Refused { retry_after, remaining } = take(budgets, 3, LONGEST_WAIT).await else {
            panic!("allowed")
        };
        assert!(retry_after.unwrap() > LONGEST_WAIT);
        about(remaining, 2);
    }
    assert!(matches!(take(&two, 2, Duration::ZERO).await, BudgetDecision::Allowed { delay: Duration::ZERO, .. }));
}

async fn an_upstreams_word_counts_for_all(one: BudgetsHandle, two: BudgetsHandle) {
    open(&one, &two).await;
    observe(&one, left(3)).await.unwrap();
    assert!(matches!(take(&two, 4, Duration::ZERO).await, BudgetDecision::Refused { .. }));
    observe(&two, Observation { maximum: Some(Points::whole(50)), ..left(20) }).await.unwrap();
    assert!(matches!(take(&one, 20, Duration::ZERO).await, BudgetDecision::Allowed { .. }));
    // A response to a call sent long before that cost was spent: the upstream cannot know of it.
    observe(&two, Observation { age: Duration::from_secs(30), ..left(21) }).await.unwrap();
    about(show(&one).await.available, 1);
}

async fn an_upstream_that_wants_to_be_left_alone_is(one: BudgetsHandle, two: BudgetsHandle) {
    open(&one, &two).await;
    let pause = Duration::from_secs(600);
    observe(&one, Observation { retry_after: Some(pause), ..left(10) }).await.unwrap();
    let BudgetDecision::Refused { retry_after, remaining } = take(&two, 1, Duration::ZERO).await else {
        panic!("allowed")
    };
    let wait = retry_after.unwrap();
    assert!(wait <= pause && wait > pause / 2, "{wait:?}");
    assert_eq!(remaining, Points::ZERO);
    let BudgetDecision::Allowed { delay, .. } = take(&two, 1, LONGEST_WAIT).await else { panic!("refused") };
    assert!(delay <= pause && delay > pause / 2, "{delay:?}");
    let standing = show(&one).await;
    assert_eq!(standing.booked, Points::whole(1));
    assert!(standing.blocked_for > pause / 2);
}

async fn a_word_that_makes_no_sense_changes_nothing(one: BudgetsHandle, two: BudgetsHandle) {
    open(&one, &two).await;
    let old = Observation { age: Duration::from_secs(61), ..left(0) };
    assert_eq!(observe(&one, old).await, Err(BudgetError::StaleObservation));
    let none = Observation { maximum: Some(Points::ZERO), ..left(0) };
    assert_eq!(observe(&one, none).await, Err(BudgetError::MaximumZero));
    let unknown = one.observe(&name("other"), left(0)).await;
    assert_eq!(unknown, Err(BudgetError::Unknown("other".to_owned())));
    assert_eq!(show(&two).await.available, Points::whole(10));
}

async fn defaults_hold_until_the_upstream_speaks(one: BudgetsHandle, two: BudgetsHandle) {
    open(&one, &two).await;
    let wider = BudgetLimits { maximum: Points::whole(40), ..LIMITS };
    configure(&two, wider).await;
    assert_eq!((show(&one).await.limits, show(&one).await.observed), (wider, false));
    observe(&one, Observation { maximum: Some(Points::whole(5)), ..Observation::default() }).await.unwrap();
    configure(&two, BudgetLimits { maximum: Points::whole(80), restore_per_second: Points::ZERO }).await;
    let limits = BudgetLimits { maximum: Points::whole(5), restore_per_second: Points::ZERO };
    assert_eq!((show(&one).await.limits, show(&one).await.observed), (limits, true));
    let BudgetDecision::Allowed { .. } = take(&one, 5, Duration::ZERO).await else { panic!("refused") };
    let never = BudgetDecision::Refused { retry_after: None, remaining: Points::ZERO };
    assert_eq!(take(&two, 1, LONGEST_WAIT).await, never);
}

async fn what_cannot_be_is_an_error_that_says_so(one: BudgetsHandle, two: BudgetsHandle) {
    open(&one, &two).await;
    let error = try_take(&two, Points::whole(11), LONGEST_WAIT).await.unwrap_err();
    assert_eq!(error.to_string(), "cost 11 exceeds the maximum of the budget (10); split the call");
    let asked = one.acquire(&name("other"), Points::whole(1), Duration::ZERO).await;
    assert_eq!(asked, Err(BudgetError::Unknown("other".to_owned())));
    let nothing = BudgetLimits { maximum: Points::ZERO, ..LIMITS };
    let made = one.configure(&name("other"), nothing).await;
    assert_eq!(made, Err(BudgetError::MaximumZero));
    for number in 1..MOST {
        one.configure(&name(&format!("more-{number}")), LIMITS).await.unwrap();
    }
    let too_many = one.configure(&name("other"), LIMITS).await;
    assert_eq!(too_many, Err(BudgetError::TooMany(MOST)));
}

async fn many_at_once_get_what_is_there_and_no_more(one: BudgetsHandle, two: BudgetsHandle) {
    let limits = BudgetLimits { maximum: Points::whole(300), restore_per_second: Points::ZERO };
    configure(&one, limits).await;
    configure(&two, limits).await;
    let asked = join_all((0..1_000).map(|n| take(if n % 2 == 0 { &one } else { &two }, 1, LONGEST_WAIT))).await;
    let allowed = asked.iter().filter(|asked| matches!(asked, BudgetDecision::Allowed { .. })).count();
    assert_eq!(allowed, 300);
    assert_eq!(show(&two).await.available, Points::ZERO);
}
