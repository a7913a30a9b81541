use proptest::prelude::*;

use super::*;

const LIMITS: BudgetLimits = BudgetLimits { maximum: Points::whole(10), restore_per_second: Points::whole(2) };
const NOW: Timestamp = Timestamp::from_millis(100_000);

fn budget() -> Budget {
    Budget::new(LIMITS, NOW).unwrap()
}

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn take(budget: &mut Budget, cost: u64, max_wait: u64, now: Timestamp) -> BudgetDecision {
    budget.acquire(Points::whole(cost), seconds(max_wait), now).unwrap()
}

fn allowed(delay_ms: u64, remaining: u64) -> BudgetDecision {
    BudgetDecision::Allowed { delay: Duration::from_millis(delay_ms), remaining: Points::whole(remaining) }
}

fn refused(retry_ms: u64, remaining: u64) -> BudgetDecision {
    let retry_after = Some(Duration::from_millis(retry_ms));
    BudgetDecision::Refused { retry_after, remaining: Points::whole(remaining) }
}

fn left(points: u64) -> Observation {
    Observation { available: Some(Points::whole(points)), ..Observation::default() }
}

#[test]
fn full_budget_is_spent_at_once_and_then_as_it_is_restored() {
    let mut budget = budget();
    assert_eq!(take(&mut budget, 7, 0, NOW), allowed(0, 3));
    assert_eq!(take(&mut budget, 4, 0, NOW), refused(500, 3));
    assert_eq!(take(&mut budget, 4, 1, NOW), allowed(500, 0));
    assert_eq!(take(&mut budget, 2, 1, NOW), refused(1_500, 0), "it waits behind earlier bookings");
    assert_eq!(budget.booked(NOW), Points::whole(4));
    assert_eq!(budget.available(NOW + seconds(5)), Points::whole(9));
    assert_eq!(budget.available(NOW + seconds(60)), LIMITS.maximum);
}

#[test]
fn cost_above_the_maximum_is_an_error() {
    let error = budget().try_acquire(Points::whole(11), NOW).unwrap_err();
    assert_eq!(error.to_string(), "cost 11 exceeds the maximum of the budget (10); split the call");
}

#[test]
fn budget_that_is_not_restored_refuses_without_a_retry_time() {
    let mut budget = Budget::new(BudgetLimits { restore_per_second: Points::ZERO, ..LIMITS }, NOW).unwrap();
    assert_eq!(take(&mut budget, 10, 0, NOW), allowed(0, 0));
    let never = BudgetDecision::Refused { retry_after: None, remaining: Points::ZERO };
    assert_eq!(take(&mut budget, 1, 1_000_000, NOW + seconds(1_000)), never);
}

#[test]
fn low_restore_rate_is_not_lost_to_frequent_requests() {
    let hourly = Points::new(1.0 / 3_600.0).unwrap();
    let mut budget = Budget::new(BudgetLimits { maximum: Points::whole(1), restore_per_second: hourly }, NOW).unwrap();
    assert_eq!(take(&mut budget, 1, 0, NOW), allowed(0, 0));
    for millis in 0..3_000 {
        let result = budget.try_acquire(Points::whole(1), NOW + Duration::from_millis(millis)).unwrap();
        assert!(matches!(result, BudgetDecision::Refused { .. }));
    }
    assert_eq!(take(&mut budget, 1, 0, NOW + seconds(3_610)), allowed(0, 0));
}

#[test]
fn observed_limits_replace_the_defaults_permanently() {
    let mut budget = budget();
    let observation =
        Observation { maximum: Some(Points::whole(100)), restore_per_second: Some(Points::whole(50)), ..left(40) };
    budget.observe(&observation, NOW).unwrap();
    assert_eq!(budget.available(NOW), Points::whole(40));
    budget.configure(LIMITS, NOW).unwrap();
    let upstreams = BudgetLimits { maximum: Points::whole(100), restore_per_second: Points::whole(50) };
    assert_eq!((budget.limits(), budget.observed()), (upstreams, ObservedLimits { maximum: true, restore: true }));
    assert_eq!(budget.available(NOW + seconds(1)), Points::whole(90));
}

#[test]
fn default_can_change_until_the_upstream_reports_the_limit() {
    let mut budget = budget();
    budget.observe(&Observation { maximum: Some(Points::whole(5)), ..Observation::default() }, NOW).unwrap();
    assert_eq!(budget.available(NOW), Points::whole(5));
    budget.configure(BudgetLimits { maximum: Points::whole(20), restore_per_second: Points::whole(3) }, NOW).unwrap();
    assert_eq!(budget.limits(), BudgetLimits { maximum: Points::whole(5), restore_per_second: Points::whole(3) });
}

#[test]
fn observation_drops_nothing_that_the_upstream_cannot_have_seen() {
    let mut budget = budget();
    // The observed call, then one in flight, then one that still waits.
    assert_eq!(take(&mut budget, 4, 0, NOW), allowed(0, 6));
    let later = NOW + seconds(1);
    assert_eq!(take(&mut budget, 8, 0, later), allowed(0, 0));
    assert_eq!(take(&mut budget, 3, 10, later), allowed(1_500, 0));
    // The upstream counted only the first. Of its 6 points the others need 11, so 1 more is available in 3 seconds.
    budget.observe(&Observation { age: seconds(1), ..left(6) }, later).unwrap();
    assert_eq!(take(&mut budget, 1, 0, later), refused(3_000, 0));
    // A response to the second: only the waiting one is unknown to it, and the budget is full by then.
    budget.observe(&left(9), later).unwrap();
    assert_eq!(budget.available(later + Duration::from_millis(1_500)), Points::whole(7));
}

#[test]
fn booking_during_a_pause_of_the_upstream_is_not_returned() {
    let mut budget = budget();
    budget.observe(&Observation { retry_after: Some(seconds(50)), ..left(10) }, NOW).unwrap();
    assert_eq!(take(&mut budget, 6, 60, NOW), allowed(50_000, 0));
    assert_eq!(take(&mut budget, 6, 60, NOW + seconds(49)), allowed(2_000, 0));
}

#[test]
fn retry_after_of_the_upstream_is_respected() {
    let mut budget = budget();
    budget.observe(&Observation { retry_after: Some(seconds(5)), ..Observation::default() }, NOW).unwrap();
    assert_eq!(budget.available(NOW), Points::ZERO);
    assert_eq!(take(&mut budget, 1, 4, NOW), refused(5_000, 0));
    assert_eq!(take(&mut budget, 1, 5, NOW), allowed(5_000, 0));
    budget.observe(&left(10), NOW + seconds(1)).unwrap();
    assert_eq!(budget.blocked_for(NOW + seconds(1)), seconds(4), "a report of available points does not end the pause");
    assert_eq!(take(&mut budget, 1, 0, NOW + seconds(5)), allowed(0, 8));
}

#[test]
fn invalid_observation_changes_nothing() {
    let mut budget = budget();
    let before = budget.clone();
    let old = Observation { age: Budget::MEMORY + seconds(1), ..left(0) };
    assert_eq!(budget.observe(&old, NOW), Err(BudgetError::StaleObservation));
    let none = Observation { maximum: Some(Points::ZERO), ..left(0) };
    assert_eq!(budget.observe(&none, NOW), Err(BudgetError::MaximumZero));
    assert_eq!(budget, before);
    assert!(Budget::new(BudgetLimits { maximum: Points::ZERO, ..LIMITS }, NOW).is_err());
}

#[test]
fn bookings_are_bounded_without_loss_from_the_sum() {
    let limits = BudgetLimits { maximum: Points::whole(100_000), restore_per_second: Points::whole(1) };
    let mut budget = Budget::new(limits, NOW).unwrap();
    for _ in 0..3_000 {
        assert!(matches!(take(&mut budget, 1, 0, NOW + seconds(1)), BudgetDecision::Allowed { .. }));
    }
    assert_eq!(budget.bookings.len(), Budget::MAX_BOOKINGS);
    budget.observe(&Observation { age: seconds(1), ..left(50_000) }, NOW + seconds(1)).unwrap();
    assert_eq!(budget.available(NOW + seconds(1)), Points::whole(47_000));
    let much_later = NOW + seconds(200);
    let _ = take(&mut budget, 1, 0, much_later);
    assert_eq!(budget.bookings.len(), 1, "old bookings are dropped");
}

#[test]
fn charge_is_owed_and_an_observation_does_not_drop_it() {
    let mut budget = budget();
    budget.charge(Points::whole(14), NOW);
    assert_eq!(take(&mut budget, 1, 0, NOW), refused(2_500, 0));
    // Sent before: the upstream has not counted it.
    budget.observe(&Observation { age: seconds(1), ..left(10) }, NOW).unwrap();
    assert_eq!(take(&mut budget, 1, 0, NOW), refused(2_500, 0));
    // It is charged after what is booked already, because that was granted.
    assert_eq!(take(&mut budget, 1, 3, NOW), allowed(2_500, 0));
    budget.charge(Points::whole(2), NOW);
    assert_eq!(take(&mut budget, 1, 0, NOW), refused(4_000, 0));
}

#[test]
fn inherited_spend_is_owed() {
    let mut budget = budget();
    budget.inherit(LIMITS.maximum, seconds(3), NOW);
    assert_eq!(budget, Budget::empty(LIMITS, NOW + seconds(3)).unwrap());
    assert_eq!(budget.booked_for(NOW), seconds(3));
    assert_eq!(take(&mut budget, 1, 0, NOW), refused(3_500, 0));
    // An inheritance with less spending changes nothing.
    budget.inherit(Points::ZERO, seconds(1), NOW);
    assert_eq!(take(&mut budget, 1, 0, NOW), refused(3_500, 0));
}

fn points(range: std::ops::Range<u64>) -> impl Strategy<Value = Points> {
    range.prop_map(|thousandths| Points::new(thousandths as f64 / 1_000.0).unwrap())
}

/// The next step: the time since the last one, the cost, and the maximum wait.
fn steps() -> impl Strategy<Value = Vec<(u64, Points, Duration)>> {
    let step = (0..3_000_000u64, points(0..20_000), (0..5_000u64).prop_map(Duration::from_millis));
    proptest::collection::vec(step, 1..60)
}

fn limits() -> impl Strategy<Value = BudgetLimits> {
    (points(1_000..20_000), points(0..9_000))
        .prop_map(|(maximum, restore_per_second)| BudgetLimits { maximum, restore_per_second })
}

proptest! {
    #[test]
    fn no_window_exceeds_the_maximum_plus_what_was_restored(
        limits in limits(), steps in steps(), pauses in proptest::collection::vec(proptest::option::weighted(0.2, 0..9_000u64), 60),
    ) {
        let mut now = NOW;
        let mut budget = Budget::new(limits, now).unwrap();
        let mut spent: Vec<(Timestamp, i128)> = Vec::new();
        for ((later, cost, max_wait), pause) in steps.into_iter().zip(pauses) {
            now = now + Duration::from_micros(later);
            if let Some(millis) = pause {
                let retry_after = Some(Duration::from_millis(millis));
                budget.observe(&Observation { retry_after, ..Observation::default() }, now).unwrap();
            }
            if let Ok(BudgetDecision::Allowed { delay, .. }) = budget.acquire(cost, max_wait, now) {
                prop_assert!(delay <= max_wait);
                spent.push((now + delay, cost.signed()));
            }
        }
        prop_assert!(spent.is_sorted_by_key(|(at, _)| *at), "first come, first served");
        for (from, (start, _)) in spent.iter().enumerate() {
            let mut sum = 0;
            for (at, cost) in &spent[from..] {
                sum += cost;
                let window = i128::from(at.micros() - start.micros());
                let most = limits.maximum.signed() * 1_000_000 + limits.restore_per_second.signed() * window;
                prop_assert!(sum * 1_000_000 <= most, "{sum} spent within {window} us");
            }
        }
    }

    #[test]
    fn refusal_changes_nothing_and_its_retry_time_is_exact(limits in limits(), steps in steps()) {
        let mut now = NOW;
        let mut budget = Budget::new(limits, now).unwrap();
        for (later, cost, max_wait) in steps {
            now = now + Duration::from_micros(later);
            let before = budget.clone();
            match budget.acquire(cost, max_wait, now) {
                Ok(BudgetDecision::Allowed { .. }) => {}
                Ok(BudgetDecision::Refused { retry_after, remaining }) => {
                    prop_assert_eq!(&budget, &before);
                    prop_assert_eq!(remaining, before.available(now));
                    if let Some(wait) = retry_after {
                        prop_assert!(wait > max_wait);
                        let then = now + wait;
                        let again = budget.clone().try_acquire(cost, then).unwrap();
                        let is_allowed = matches!(again, BudgetDecision::Allowed { delay: Duration::ZERO, .. });
                        prop_assert!(is_allowed, "{:?}", again);
                        let early = budget.clone().try_acquire(cost, then.before(Duration::from_micros(1))).unwrap();
                        let is_refused = matches!(early, BudgetDecision::Refused { .. });
                        prop_assert!(is_refused, "{:?}", early);
                    }
                }
                Err(_) => {
                    prop_assert!(cost > limits.maximum);
                    prop_assert_eq!(&budget, &before);
                }
            }
        }
    }

    #[test]
    fn observation_keeps_unseen_bookings_ahead_of_new_requests(
        limits in limits(), before in steps(), reported in points(0..20_000), age_ms in 0..60_000u64, after in steps(),
    ) {
        let mut now = NOW;
        let mut budget = Budget::new(limits, now).unwrap();
        let mut booked: Vec<(Timestamp, i128)> = Vec::new();
        for (later, cost, max_wait) in before {
            now = now + Duration::from_micros(later);
            if let Ok(BudgetDecision::Allowed { delay, .. }) = budget.acquire(cost, max_wait, now) {
                booked.push((now + delay, cost.signed()));
            }
        }
        let (seen_at, age) = (now, Duration::from_millis(age_ms));
        budget.observe(&Observation { available: Some(reported), age, ..Observation::default() }, now).unwrap();
        let mut spent: i128 = booked.iter().filter(|(due, _)| *due > now.before(age)).map(|(_, cost)| cost).sum();
        for (later, cost, max_wait) in after {
            now = now + Duration::from_micros(later);
            if let Ok(BudgetDecision::Allowed { delay, .. }) = budget.acquire(cost, max_wait, now) {
                spent += cost.signed();
                let passed = i128::from((now + delay).micros() - seen_at.micros());
                let most = reported.signed() * 1_000_000 + limits.restore_per_second.signed() * passed;
                prop_assert!(spent * 1_000_000 <= most, "{spent} spent {passed} us after a report of {reported}");
            }
        }
    }
}
