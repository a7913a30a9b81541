//! What each scope of a 429 closes: for calls under the global limit and exempt ones, known and unknown buckets, and
//! several credentials.

use proptest::prelude::*;

use super::*;
use crate::lane::Lane;
use crate::limit::CallerId;
use crate::limit::SharingConfig;
use crate::limit::shared::{LimitFallback, ReferenceWindow, SharedLimitConfig};
use crate::response::{RateHeaders, RateLimitScope};
use crate::route::Route;

const BOT: Credential = Credential::Application(1);
const OTHER: Credential = Credential::Application(2);
const CREDENTIALS: [Credential; 3] = [BOT, OTHER, Credential::Anonymous];

/// An interaction's own endpoint, its followup webhook, an ordinary webhook, and two routes under the global limit.
const PATHS: [&str; 5] = [
    "/interactions/{}/t/callback",
    "/webhooks/1/aW50ZXJhY3Rpb246{}",
    "/webhooks/{}/hook",
    "/channels/{}/messages",
    "/guilds/{}/roles",
];

const RETRY_AFTER_MS: u64 = 60_000;

fn at(ms: u64) -> Timestamp {
    Timestamp::from_millis(ms)
}

fn request(credential: Credential, path: &str, object: u64, deadline: Timestamp) -> PermitRequest {
    let route = Route::parse("POST", &path.replace("{}", &object.to_string()), 1, 0);
    PermitRequest { credential, route, lane: Lane::Interactive, caller: CallerId::NONE, deadline }
}

/// The earliest time at which a call could be granted.
fn earliest(limiter: &mut Limiter, request: PermitRequest, now: Timestamp) -> Timestamp {
    match limiter.try_acquire(request, now) {
        Ok(permit) => {
            limiter.refund(permit, now);
            now
        }
        Err(delay) => delay.until,
    }
}

fn limited(scope: RateLimitScope, retry_after_ms: u64) -> ResponseInfo {
    ResponseInfo {
        class: ResponseClass::RateLimited { scope, retry_after: Duration::from_millis(retry_after_ms) },
        rate: None,
    }
}

/// Makes the bucket of a route known, with slots left.
fn observe_bucket(limiter: &mut Limiter, request: PermitRequest, now: Timestamp) {
    let bucket = request.route.key.as_str().to_owned();
    let AcquireOutcome::Granted(permit) = limiter.acquire(request, now) else {
        panic!(
            "the first call is granted \
        immediately"
        )
    };
    let reset_after = Duration::from_secs(1);
    let rate = RateHeaders { bucket, limit: 50, remaining: 49, reset_ms: 9_000, reset_after };
    limiter.on_response(permit, &ResponseInfo { class: ResponseClass::Success, rate: Some(rate) }, now);
}

#[test]
fn global_429_stops_all_of_its_credential_and_other_scopes_one_resource() {
    for scope in [RateLimitScope::Global, RateLimitScope::User, RateLimitScope::Shared] {
        for (refused, path) in PATHS.into_iter().enumerate() {
            for is_known in [false, true] {
                for credential in CREDENTIALS {
                    let mut limiter = Limiter::new(LimitConfig::default(), at(0));
                    if is_known {
                        observe_bucket(&mut limiter, request(credential, path, 7, at(2_000)), at(2_000));
                    }
                    let AcquireOutcome::Granted(permit) =
                        limiter.acquire(request(credential, path, 7, at(2_100)), at(2_100))
                    else {
                        panic!("the call is granted immediately")
                    };
                    limiter.on_response(permit, &limited(scope, RETRY_AFTER_MS), at(2_200));
                    for other in CREDENTIALS {
                        for (place, path) in PATHS.into_iter().enumerate() {
                            for object in [7, 8] {
                                let is_same = other == credential && (place, object) == (refused, 7);
                                let is_closed = is_same || (scope == RateLimitScope::Global && other == credential);
                                let until = if is_closed { at(2_200 + RETRY_AFTER_MS) } else { at(5_000) };
                                let earliest = earliest(&mut limiter, request(other, path, object, at(0)), at(5_000));
                                let what = format!("{scope:?} at {refused}, {is_known}, {credential:?}");
                                assert_eq!(earliest, until, "{what}: {other:?} {path} {object}");
                            }
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn waiting_exempt_calls_are_granted_in_order_after_a_global_429() {
    let mut limiter = Limiter::new(LimitConfig::default(), at(0));
    let callback = |id: u64| request(BOT, PATHS[0], id, at(1_000_000));
    let AcquireOutcome::Granted(first) = limiter.acquire(callback(1), at(100)) else {
        panic!(
            "the call is granted \
        immediately"
        )
    };
    let tickets: Vec<Ticket> = (2..5)
        .map(|id| match limiter.acquire(callback(id), at(100)) {
            AcquireOutcome::Waiting(ticket) => ticket,
            other => panic!("an unknown route sends one probe: {other:?}"),
        })
        .collect();
    limiter.on_response(first, &limited(RateLimitScope::Global, RETRY_AFTER_MS), at(200));
    limiter.on_time(at(RETRY_AFTER_MS + 199));
    assert_eq!(limiter.take_effects().count(), 0);
    assert_eq!(limiter.next_wake(), Some(at(RETRY_AFTER_MS + 200)));
    let mut granted = Vec::new();
    for now in RETRY_AFTER_MS + 200..RETRY_AFTER_MS + 210 {
        limiter.on_time(at(now));
        let effects: Vec<LimiterEffect> = limiter.take_effects().collect();
        for effect in effects {
            let LimiterEffect::Grant { ticket, permit, .. } = effect else { panic!("{effect:?}") };
            granted.push(ticket);
            limiter.on_response(permit, &ResponseInfo { class: ResponseClass::Success, rate: None }, at(now));
        }
    }
    assert_eq!(granted, tickets);
}

/// Exchanges all pending calls and replies between a limiter and the shared window.
fn exchange(limiter: &mut Limiter, window: &mut ReferenceWindow, rules: &SharedLimitConfig, now: Timestamp) {
    for _ in 0..10 {
        let Some((credential, call)) = limiter.next_shared_call(now) else { break };
        // A credential that only one process uses has its own window, as it would in Redis.
        let reply = match credential {
            BOT => window.call(&call, rules, "server", 1_000_000_000 + now.micros()),
            _ => ReferenceWindow::empty().call(&call, rules, "server", 1_000_000_000 + now.micros()),
        };
        limiter.on_shared_reply(credential, Some(reply), now);
    }
}

#[test]
fn global_429_of_an_exempt_call_reaches_all_processes() {
    let rules = SharedLimitConfig::default();
    let mut window = ReferenceWindow::empty();
    let mut processes: Vec<Limiter> = (0..2)
        .map(|number| {
            let mut limiter = Limiter::new(LimitConfig::default(), at(0));
            limiter.share(SharingConfig { rules: rules.clone(), member_id: format!("p{number}"), incarnation: 1 }, BOT);
            limiter
        })
        .collect();
    for ms in (0..6_000).step_by(100) {
        processes.iter_mut().for_each(|limiter| exchange(limiter, &mut window, &rules, at(ms)));
    }
    let callback = |id: u64| request(BOT, PATHS[0], id, at(6_000));
    let AcquireOutcome::Granted(permit) = processes[0].acquire(callback(1), at(6_000)) else {
        panic!("the call is granted immediately")
    };
    processes[0].on_response(permit, &limited(RateLimitScope::Global, RETRY_AFTER_MS), at(6_000));
    for ms in (6_000..8_000).step_by(100) {
        processes.iter_mut().for_each(|limiter| exchange(limiter, &mut window, &rules, at(ms)));
    }
    for limiter in &mut processes {
        for path in PATHS {
            let until = earliest(limiter, request(BOT, path, 9, at(0)), at(8_000));
            let off = until.since(at(6_000 + RETRY_AFTER_MS)) + at(6_000 + RETRY_AFTER_MS).since(until);
            assert!(off <= Duration::from_secs(1), "{path} waits until {until:?}");
        }
        assert_eq!(earliest(limiter, request(OTHER, PATHS[0], 9, at(0)), at(8_000)), at(8_000));
    }
}

#[test]
fn too_few_tokens_at_a_join_do_not_stop_exempt_calls() {
    let rules = SharedLimitConfig { on_loss: LimitFallback::Open, ..SharedLimitConfig::default() };
    let mut window = ReferenceWindow::empty();
    let mut limiter = Limiter::new(LimitConfig::default(), at(0));
    limiter.share(SharingConfig { rules: rules.clone(), member_id: "p".into(), incarnation: 1 }, BOT);
    // Without Redis it uses the whole limit; then it joins with more calls in flight than it brings tokens for.
    for id in 0..20 {
        limiter.acquire(request(BOT, PATHS[3], id, at(1_000_000)), at(5_000));
    }
    assert!(limiter.in_flight() > 0);
    let mut is_short = false;
    for ms in (5_000..9_000).step_by(100) {
        exchange(&mut limiter, &mut window, &rules, at(ms));
        is_short |= limiter.snapshot(at(ms)).credentials[0].closed_ms > 0;
        assert_eq!(earliest(&mut limiter, request(BOT, PATHS[0], 9, at(0)), at(ms)), at(ms), "at {ms} ms");
    }
    assert!(is_short);
}

#[derive(Clone, Debug)]
struct Step {
    after_ms: u64,
    credential: usize,
    path: usize,
    object: u64,
    /// The scope and duration of a 429, or a success.
    limited: Option<(RateLimitScope, u64)>,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let scope = prop_oneof![Just(RateLimitScope::Global), Just(RateLimitScope::User), Just(RateLimitScope::Shared)];
    let limited = prop::option::weighted(0.3, (scope, 1..20_000u64));
    let step = (0..4_000u64, 0..CREDENTIALS.len(), 0..PATHS.len(), 1..4u64, limited);
    let step = step.prop_map(|(after_ms, credential, path, object, limited)| Step {
        after_ms,
        credential,
        path,
        object,
        limited,
    });
    prop::collection::vec(step, 1..60)
}

proptest! {
    #[test]
    fn no_call_of_a_credential_is_granted_during_its_global_429(steps in steps()) {
        let mut limiter = Limiter::new(LimitConfig::default(), at(0));
        let mut blocked = [0u64; CREDENTIALS.len()];
        let mut now = 2_000;
        for step in steps {
            now += step.after_ms;
            let credential = CREDENTIALS[step.credential];
            let call = request(credential, PATHS[step.path], step.object, at(now));
            match limiter.try_acquire(call, at(now)) {
                Ok(permit) => {
                    prop_assert!(blocked[step.credential] <= now, "{:?} at {} ms", step, now);
                    let answer = match step.limited {
                        Some((scope, ms)) => limited(scope, ms),
                        None => ResponseInfo { class: ResponseClass::Success, rate: None },
                    };
                    if let Some((RateLimitScope::Global, ms)) = step.limited {
                        blocked[step.credential] = now + ms;
                    }
                    limiter.on_response(permit, &answer, at(now));
                }
                Err(delay) => prop_assert!(delay.until >= at(blocked[step.credential])),
            }
        }
        // After the last block has ended, all calls are granted.
        let end = now + 60_000;
        limiter.on_time(at(end));
        for credential in CREDENTIALS {
            for path in PATHS {
                prop_assert_eq!(earliest(&mut limiter, request(credential, path, 1, at(0)), at(end)), at(end));
            }
        }
    }
}
