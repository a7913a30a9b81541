//! Properties that hold for any requests at any times.

use std::time::Duration;

use proptest::prelude::*;

use super::{Meter, Rate, RateOutcome};
use crate::time::Timestamp;

/// A request, `after` microseconds after the previous one.
#[derive(Clone, Copy, Debug)]
struct Request {
    caller: u8,
    after: u64,
    cost: u32,
    max_wait: Duration,
}

/// Maximum cost of a request in these tests.
const MAX_COST: u32 = 20;

fn rates() -> impl Strategy<Value = Rate> {
    (1..2_000_u32, 1..50_u32).prop_map(|(per_second, burst)| Rate::new(per_second, burst).expect("above 0"))
}

fn requests(callers: u8) -> impl Strategy<Value = Vec<Request>> {
    let after = prop_oneof![Just(0), 0..2_000_u64, 0..3_000_000_u64];
    let max_wait = prop_oneof![Just(0), Just(60_000_000), 0..2_000_000_u64].prop_map(Duration::from_micros);
    let request = (0..callers, after, 1..=MAX_COST, max_wait).prop_map(|(caller, after, cost, max_wait)| Request {
        caller,
        after,
        cost,
        max_wait,
    });
    prop::collection::vec(request, 1..100)
}

proptest! {
    #[test]
    fn a_callers_later_request_is_never_due_before_an_earlier_one(rate in rates(), requests in requests(3)) {
        let (mut meter, mut now) = (Meter::new(rate, 3), Timestamp::from_micros(1_000_000));
        let mut last = [now; 3];
        for Request { caller, after, .. } in requests {
            now = now + Duration::from_micros(after);
            let max_wait = Duration::from_secs(60);
            if let RateOutcome::Taken { delay } = meter.on_request(caller, 1, max_wait, now).decision.outcome {
                let last = &mut last[usize::from(caller)];
                prop_assert!(now + delay >= *last);
                *last = now + delay;
            }
        }
    }

    #[test]
    fn no_period_exceeds_the_burst_plus_what_was_restored(rate in rates(), requests in requests(1)) {
        let (mut meter, mut now) = (Meter::new(rate, 1), Timestamp::from_micros(1_000_000));
        let mut due = Vec::new();
        for Request { caller, after, cost, max_wait } in requests {
            now = now + Duration::from_micros(after);
            if let RateOutcome::Taken { delay } = meter.on_request(caller, cost, max_wait, now).decision.outcome {
                prop_assert!(delay <= max_wait);
                due.push((now + delay, cost));
            }
        }
        due.sort();
        for (first, (from, _)) in due.iter().enumerate() {
            let mut sum = 0;
            for (until, cost) in &due[first..] {
                sum += u128::from(*cost);
                let back = until.since(*from).as_micros() / rate.interval().as_micros();
                // All but the first token of the last request are a debt of later requests.
                let most = u128::from(rate.burst()) + back + u128::from(MAX_COST);
                prop_assert!(sum <= most, "{sum} within {:?}", until.since(*from));
            }
        }
    }

    #[test]
    fn refusal_changes_nothing_and_its_retry_time_is_exact(rate in rates(), requests in requests(1)) {
        let (mut meter, mut now) = (Meter::new(rate, 1), Timestamp::from_micros(1_000_000));
        for Request { caller, after, cost, max_wait } in requests {
            now = now + Duration::from_micros(after);
            let before = meter.peek(&caller, cost, max_wait, now);
            let judged = meter.on_request(caller, cost, max_wait, now);
            prop_assert_eq!(before, judged.decision);
            if let RateOutcome::Refused { retry_after } = judged.decision.outcome {
                prop_assert_eq!(meter.peek(&caller, cost, max_wait, now), judged.decision);
                let is_taken = |after: Duration| {
                    matches!(meter.peek(&caller, cost, max_wait, now + after).outcome, RateOutcome::Taken { .. })
                };
                prop_assert!(is_taken(retry_after));
                prop_assert!(!is_taken(retry_after.saturating_sub(Duration::from_micros(1))));
            }
        }
    }

    #[test]
    fn callers_are_bounded_and_eviction_changes_no_decision(
        rate in rates(),
        requests in requests(40),
    ) {
        let most = 8;
        let mut now = Timestamp::from_micros(1_000_000);
        // One meter for each caller, which removes none.
        let mut alone: Vec<_> = (0..40).map(|_| Meter::new(rate, 1)).collect();
        let mut meter = Meter::new(rate, most);
        for Request { caller, after, cost, max_wait } in requests {
            now = now + Duration::from_micros(after);
            let judged = meter.on_request(caller, cost, max_wait, now);
            prop_assert!(meter.caller_count() <= most);
            if judged.has_own_bucket {
                prop_assert_eq!(judged.decision, alone[usize::from(caller)].on_request(caller, cost, max_wait, now).decision);
            }
        }
    }

    #[test]
    fn processes_with_shared_state_count_as_one(rate in rates(), requests in requests(1)) {
        // The shared state, and the state that each of two processes has received.
        let (mut shared, mut local) = (Meter::new(rate, 1), [Meter::new(rate, 1), Meter::new(rate, 1)]);
        let mut now = Timestamp::from_micros(1_000_000);
        for (index, Request { caller, after, cost, max_wait }) in requests.into_iter().enumerate() {
            now = now + Duration::from_micros(after);
            let own = &mut local[index % 2];
            let expected = own.peek(&caller, cost, max_wait, now);
            let decision = shared.on_request(caller, cost, max_wait, now).decision;
            // The received state is never too strict: a request that it refuses is refused by the shared state.
            let is_refused = |outcome| matches!(outcome, RateOutcome::Refused { .. });
            prop_assert!(!is_refused(expected.outcome) || is_refused(decision.outcome));
            own.on_shared_state(caller, decision.full_in, now);
            prop_assert_eq!(own.peek(&caller, cost, max_wait, now), shared.peek(&caller, cost, max_wait, now));
        }
    }
}
