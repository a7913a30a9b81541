//! Callers of one lane take turns, within a bucket and under the global limit.

use proptest::prelude::*;

use super::*;
use crate::lane::Lane;
use crate::limit::CallerId;
use crate::response::RateHeaders;
use crate::route::Route;

fn at(ms: u64) -> Timestamp {
    Timestamp::from_millis(ms)
}

fn call(credential: Credential, path: &str, caller: &str, deadline: u64) -> PermitRequest {
    let route = Route::parse("POST", path, 1, 0);
    PermitRequest { credential, route, lane: Lane::Operation, caller: CallerId::of(caller), deadline: at(deadline) }
}

const BOT: Credential = Credential::Application(1);

fn answer(bucket: &str, limit: u32, remaining: u32, now: Timestamp) -> ResponseInfo {
    let reset_after = Duration::from_secs(1);
    let reset_ms = now.micros() / 1_000 + 1_000;
    let rate = RateHeaders { bucket: bucket.to_owned(), limit, remaining, reset_ms, reset_after };
    ResponseInfo { class: ResponseClass::Success, rate: Some(rate) }
}

/// Runs the limiter, which answers every call at once, until no call waits. Returns the tickets in the order of grants.
fn drain(limiter: &mut Limiter, bucket: impl Fn(Ticket) -> String, limit: u32, from: Timestamp) -> Vec<Ticket> {
    let mut granted = Vec::new();
    let mut now = from;
    while limiter.waiting() > 0 {
        now = limiter.next_wake().expect("a waiting call has a time").max(now);
        limiter.on_time(now);
        loop {
            let effects: Vec<LimiterEffect> = limiter.take_effects().collect();
            if effects.is_empty() {
                break;
            }
            for effect in effects {
                if let LimiterEffect::Grant { ticket, permit, .. } = effect {
                    granted.push(ticket);
                    limiter.on_response(permit, &answer(&bucket(ticket), limit, limit - 1, now), now);
                }
            }
        }
    }
    granted
}

#[test]
fn caller_with_many_waiting_calls_delays_another_by_one_call_each() {
    let mut limiter = Limiter::new(LimitConfig::default(), at(0));
    let AcquireOutcome::Granted(probe) = limiter.acquire(call(BOT, "/channels/1/messages", "busy", 100_000), at(2_000))
    else {
        panic!("the probe is granted")
    };
    limiter.on_response(probe, &answer("b", 5, 0, at(2_000)), at(2_000));
    let mut callers = HashMap::new();
    let mut wait = |limiter: &mut Limiter, caller: &'static str, deadline: u64| match limiter
        .acquire(call(BOT, "/channels/1/messages", caller, deadline), at(2_000))
    {
        AcquireOutcome::Waiting(ticket) => {
            callers.insert(ticket, caller);
        }
        other => panic!("{caller}: {other:?}"),
    };
    (0..100).for_each(|_| wait(&mut limiter, "busy", 1_000_000));
    // It is not refused because of the calls of the other, which would last for 20 seconds.
    (0..3).for_each(|_| wait(&mut limiter, "other", 5_000));
    let order = drain(&mut limiter, |_| "b".to_owned(), 5, at(2_000));
    let names: Vec<&str> = order.iter().map(|ticket| callers[ticket]).collect();
    assert_eq!(names[..6], ["busy", "other", "busy", "other", "busy", "other"]);
    assert_eq!(names.len(), 103);
}

#[test]
fn state_of_unused_tokens_is_replaced_and_never_that_of_one_in_use() {
    let config = LimitConfig { max_token_domains: 2, ..LimitConfig::default() };
    let mut limiter = Limiter::new(config, at(0));
    let token = |number: u64, ms: u64| call(Credential::Token(number), "/channels/1/messages", "one", ms);
    let AcquireOutcome::Granted(first) = limiter.acquire(token(1, 2_000), at(2_000)) else { panic!("granted") };
    let AcquireOutcome::Granted(second) = limiter.acquire(token(2, 2_000), at(2_000)) else { panic!("granted") };
    let refused = |limiter: &mut Limiter, number, ms| {
        let outcome = limiter.acquire(token(number, ms), at(ms));
        assert!(matches!(outcome, AcquireOutcome::Delay(Delay { reason: DelayReason::Full, .. })), "{outcome:?}");
    };
    refused(&mut limiter, 3, 2_000);
    limiter.on_response(second, &answer("b", 1, 0, at(2_000)), at(2_000));
    refused(&mut limiter, 3, 10_000);
    // The first has a call in flight, however long.
    let AcquireOutcome::Granted(third) = limiter.acquire(token(3, 100_000), at(100_000)) else { panic!("granted") };
    refused(&mut limiter, 4, 100_000);
    assert_eq!(limiter.domains.len(), 2);
    assert_eq!(
        limiter.domains.iter().map(|domain| domain.credential).collect::<Vec<_>>(),
        [1, 3].map(Credential::Token)
    );
    limiter.on_response(third, &answer("b", 1, 0, at(100_000)), at(100_000));
    limiter.on_response(first, &answer("b", 1, 0, at(100_000)), at(100_000));
    // What one token has used does not count for the next.
    let AcquireOutcome::Granted(_) = limiter.acquire(token(4, 200_000), at(200_000)) else { panic!("granted") };
    assert_eq!(limiter.routes.credential_id(Credential::Token(9)).map(|_| limiter.domains.len()), Some(2));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// Callers with many calls in many channels, all ready: between two grants of a caller that has calls left, every
    /// other caller with calls has at most two.
    #[test]
    fn grants_alternate_between_callers_under_the_global_limit(
        counts in prop::collection::vec(1usize..30, 2..5),
    ) {
        let mut limiter = Limiter::new(LimitConfig::default(), at(0));
        // Learns the bucket, so that each channel has five slots.
        let AcquireOutcome::Granted(probe) = limiter.acquire(call(BOT, "/channels/1/messages", "x", 2_000), at(2_000)) else {
            panic!("the probe is granted")
        };
        limiter.on_response(probe, &answer("b", 5, 4, at(2_000)), at(2_000));
        // A global 429: everything waits.
        let AcquireOutcome::Granted(blocked) = limiter.acquire(call(BOT, "/channels/1/messages", "x", 2_500), at(2_500)) else {
            panic!("granted")
        };
        let class = ResponseClass::RateLimited {
            scope: crate::response::RateLimitScope::Global, retry_after: Duration::from_secs(1),
        };
        limiter.on_response(blocked, &ResponseInfo { class, rate: None }, at(2_500));
        let mut callers = HashMap::new();
        let mut channel = 100;
        for (caller, count) in counts.iter().enumerate() {
            for _ in 0..*count {
                channel += 1;
                let request = call(BOT, &format!("/channels/{channel}/messages"), &format!("caller {caller}"), 10_000_000);
                match limiter.acquire(request, at(2_600)) {
                    AcquireOutcome::Waiting(ticket) => {
            callers.insert(ticket, caller);
        }
                    other => panic!("{other:?}"),
                }
            }
        }
        let order = drain(&mut limiter, |_| "b".to_owned(), 5, at(2_600));
        prop_assert_eq!(order.len(), counts.iter().sum::<usize>());
        let mut left = counts.clone();
        let mut since: Vec<Vec<usize>> = vec![vec![0; counts.len()]; counts.len()];
        for ticket in order {
            let granted = callers[&ticket];
            left[granted] -= 1;
            for waiting in (0..counts.len()).filter(|waiting| *waiting != granted && left[*waiting] > 0) {
                since[waiting][granted] += 1;
                prop_assert!(since[waiting][granted] <= 2, "{waiting} waits while {granted} is served");
            }
            since[granted] = vec![0; counts.len()];
        }
    }
}

#[test]
fn lanes_of_one_wait_queue_are_all_served() {
    let mut limiter = Limiter::new(LimitConfig::default(), at(0));
    let on = |lane: Lane| PermitRequest { lane, ..call(BOT, "/channels/1/typing", "bot", 1_000_000) };
    let free = ResponseInfo { class: ResponseClass::Success, rate: None };
    let AcquireOutcome::Granted(probe) = limiter.acquire(on(Lane::Interactive), at(2_000)) else {
        panic!("the probe is granted")
    };
    limiter.on_response(probe, &free, at(2_000));
    let (mut lanes, mut grants) = (HashMap::new(), [0; 3]);
    for lane in Lane::ALL {
        for _ in 0..400 {
            match limiter.acquire(on(lane), at(2_000)) {
                AcquireOutcome::Waiting(ticket) => drop(lanes.insert(ticket, lane)),
                AcquireOutcome::Granted(permit) => limiter.on_response(permit, &free, at(2_000)),
                AcquireOutcome::Delay(delay) => panic!("{delay:?}"),
            }
        }
    }
    let mut now = at(2_000);
    while grants.iter().sum::<usize>() < 300 {
        now = limiter.next_wake().expect("a waiting call has a time").max(now);
        limiter.on_time(now);
        let effects: Vec<LimiterEffect> = limiter.take_effects().collect();
        for effect in effects {
            if let LimiterEffect::Grant { ticket, permit, .. } = effect {
                grants[lanes[&ticket].index()] += 1;
                limiter.on_response(permit, &free, now);
            }
        }
    }
    // All tokens of a window come back at once here, so the spacing of grants leaves the others less than one in twenty.
    let [interactive, operation, background] = grants;
    assert!(background >= 5 && operation >= 1 && interactive >= 250, "{grants:?}");
}
