//! Tests the limiter against a simulated Discord that counts arrivals independently, by window, route and object.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::lane::Lane;
use crate::limit::CallerId;
use crate::limit::test_server::TestBucketServer;
use crate::response::{RateHeaders, RateLimitScope};
use crate::route::{Route, SublimitKind};

const BOT: Credential = Credential::Application(1);

fn at(ms: u64) -> Timestamp {
    Timestamp::from_millis(ms)
}

fn request(method: &str, path: &str, lane: Lane, deadline: Timestamp) -> PermitRequest {
    PermitRequest { credential: BOT, route: Route::parse(method, path, 1, 0), lane, caller: CallerId::NONE, deadline }
}

fn operation(path: &str) -> PermitRequest {
    request("POST", path, Lane::Operation, at(10_000_000))
}

/// A limiter whose quiet first window has ended at 2,000 ms.
fn limiter() -> Limiter {
    Limiter::new(LimitConfig::default(), at(0))
}

fn rate(bucket: &str, limit: u32, remaining: u32, reset_ms: u64, reset_after_ms: u64) -> RateHeaders {
    let reset_after = Duration::from_millis(reset_after_ms);
    RateHeaders { bucket: bucket.into(), limit, remaining, reset_ms, reset_after }
}

fn ok(rate: RateHeaders) -> ResponseInfo {
    ResponseInfo { class: ResponseClass::Success, rate: Some(rate) }
}

fn granted(acquired: AcquireOutcome) -> PermitId {
    match acquired {
        AcquireOutcome::Granted(permit) => permit,
        other => panic!("expected a grant, got {other:?}"),
    }
}

fn waiting(acquired: AcquireOutcome) -> Ticket {
    match acquired {
        AcquireOutcome::Waiting(ticket) => ticket,
        other => panic!("expected to wait, got {other:?}"),
    }
}

fn grants(limiter: &mut Limiter) -> Vec<Ticket> {
    limiter
        .take_effects()
        .filter_map(|effect| match effect {
            LimiterEffect::Grant { ticket, .. } => Some(ticket),
            LimiterEffect::Expire { .. } => None,
        })
        .collect()
}

/// Each call has its own route, because an unknown route sends a single probe.
fn interactive(n: usize) -> PermitRequest {
    let path = ["/guilds/1", "/channels/2", "/users/@me", "/gateway/bot", "/guilds/1/roles"][n];
    request("GET", path, Lane::Interactive, at(10_000_000))
}

fn share(share: u32) -> DivisionView {
    DivisionView { members: 2, share }
}

#[test]
fn a_smaller_share_grants_nothing_until_enough_tokens_are_back() {
    let mut limiter = limiter();
    limiter.set_share(share(3), at(0));
    let permits: Vec<PermitId> = (1..=3).map(|n| granted(limiter.acquire(interactive(n), at(2_000)))).collect();
    let next = waiting(limiter.acquire(interactive(4), at(2_000)));
    limiter.set_share(share(1), at(2_000));
    assert!(!limiter.is_within_share(at(2_000)));
    for (permit, ms) in permits.into_iter().zip([2_010, 2_020, 2_030]) {
        limiter.on_response(permit, &ResponseInfo { class: ResponseClass::Success, rate: None }, at(ms));
    }
    // A window and its margin after the second response, one token is in use.
    assert_eq!(limiter.next_wake(), Some(at(3_020)));
    limiter.on_time(at(3_029));
    assert!(!limiter.is_within_share(at(3_029)));
    limiter.on_time(at(3_030));
    assert!(limiter.is_within_share(at(3_030)));
    assert_eq!(grants(&mut limiter), []);
    limiter.on_time(at(3_040));
    assert_eq!(grants(&mut limiter), [next]);
}

#[test]
fn calls_without_a_share_wait_until_there_is_one() {
    let mut limiter = limiter();
    limiter.set_share(share(0), at(0));
    let refused = limiter.try_acquire(interactive(1), at(2_000)).unwrap_err();
    assert_eq!((refused.until, refused.reason), (at(3_010), DelayReason::Global));
    let first = waiting(limiter.acquire(interactive(1), at(2_000)));
    limiter.on_time(at(5_000));
    assert_eq!(grants(&mut limiter), []);
    limiter.set_share(share(1), at(5_000));
    assert_eq!(grants(&mut limiter), [first]);
}

#[test]
fn unknown_route_sends_one_probe_and_the_rest_follow_in_order() {
    let mut limiter = limiter();
    let first = granted(limiter.acquire(operation("/channels/1/messages"), at(2_000)));
    let tickets: Vec<Ticket> = ["/channels/1/messages", "/channels/2/messages", "/channels/1/messages"]
        .into_iter()
        .map(|path| waiting(limiter.acquire(operation(path), at(2_000))))
        .collect();
    limiter.on_response(first, &ok(rate("h", 5, 4, 9_000, 5_000)), at(2_050));
    assert_eq!(grants(&mut limiter), tickets, "another object starts from the hash's limit");
}

#[test]
fn route_without_headers_is_not_limited() {
    let mut limiter = limiter();
    let first = granted(limiter.acquire(operation("/channels/1/typing"), at(2_000)));
    let tickets: Vec<_> =
        (0..4).map(|_| waiting(limiter.acquire(operation("/channels/1/typing"), at(2_000)))).collect();
    limiter.on_response(first, &ResponseInfo { class: ResponseClass::Success, rate: None }, at(2_050));
    assert_eq!(grants(&mut limiter), tickets);
}

#[test]
fn unmeetable_deadline_is_reported_at_once_without_effect() {
    let mut limiter = limiter();
    let first = granted(limiter.acquire(operation("/channels/1/messages"), at(2_000)));
    limiter.on_response(first, &ok(rate("h", 1, 0, 9_000, 60_000)), at(2_050));
    let hasty = request("POST", "/channels/1/messages", Lane::Operation, at(7_000));
    let AcquireOutcome::Delay(delay) = limiter.acquire(hasty.clone(), at(2_100)) else {
        panic!(
            "the deadline cannot be \
        met"
        )
    };
    assert_eq!((delay.until, delay.reason), (at(62_050), DelayReason::Route));
    assert_eq!(limiter.waiting(), 0);
    let patient = PermitRequest { deadline: at(100_000), ..hasty };
    let ticket = waiting(limiter.acquire(patient, at(2_100)));
    limiter.on_time(at(62_050));
    assert_eq!(grants(&mut limiter), [ticket]);
}

#[test]
fn waiting_call_expires_at_its_deadline_with_a_retry_time() {
    let mut limiter = limiter();
    let first = granted(limiter.acquire(operation("/channels/1/messages"), at(2_000)));
    let hasty = request("POST", "/channels/1/messages", Lane::Operation, at(3_000));
    let ticket = waiting(limiter.acquire(hasty, at(2_000)));
    assert_eq!(limiter.next_wake(), Some(at(3_000)));
    limiter.on_time(at(3_000));
    let effects: Vec<_> = limiter.take_effects().collect();
    assert!(matches!(effects[..], [LimiterEffect::Expire { ticket: gone, .. }] if gone == ticket), "{effects:?}");
    limiter.on_response(first, &ok(rate("h", 5, 4, 9_000, 5_000)), at(3_100));
    assert_eq!(grants(&mut limiter), []);
}

#[test]
fn third_channel_rename_waits_ten_minutes_and_delays_no_other_call() {
    let mut limiter = limiter();
    let patch = |sub: Option<SublimitKind>| {
        let mut request = request("PATCH", "/channels/1", Lane::Operation, at(10_000_000));
        request.route.sub = sub;
        request
    };
    let mut now = 2_000;
    for _ in 0..2 {
        let permit = granted(limiter.acquire(patch(Some(SublimitKind::ChannelName)), at(now)));
        limiter.on_response(permit, &ok(rate("h", 5, 4, now + 9_000, 15_000)), at(now + 10));
        now += 20_000;
    }
    let third = waiting(limiter.acquire(patch(Some(SublimitKind::ChannelName)), at(now)));
    let other = granted(limiter.acquire(patch(None), at(now)));
    limiter.on_response(other, &ok(rate("h", 5, 4, now + 9_000, 15_000)), at(now + 10));
    granted(limiter.acquire(request("PATCH", "/channels/2", Lane::Operation, at(10_000_000)), at(now + 1_000)));
    assert_eq!(grants(&mut limiter), []);
    limiter.on_time(at(602_010));
    assert_eq!(grants(&mut limiter), [third]);
}

#[test]
fn a_shared_429_closes_its_resource_alone_and_a_global_one_everything() {
    let mut limiter = limiter();
    let first = granted(limiter.acquire(operation("/channels/1/messages"), at(2_000)));
    let limited = |scope, retry_after_ms| ResponseInfo {
        class: ResponseClass::RateLimited { scope, retry_after: Duration::from_millis(retry_after_ms) },
        rate: Some(rate("h", 5, 3, 9_000, 5_000)),
    };
    limiter.on_response(first, &limited(RateLimitScope::Shared, 60_000), at(2_050));
    let closed = waiting(limiter.acquire(operation("/channels/1/messages"), at(2_100)));
    let permit = granted(limiter.acquire(operation("/channels/2/messages"), at(2_100)));
    let mut limited = limited(RateLimitScope::Global, 30_000);
    limited.rate = None;
    limiter.on_response(permit, &limited, at(2_150));
    let other = waiting(limiter.acquire(operation("/channels/3/messages"), at(2_200)));
    limiter.on_time(at(32_150));
    assert_eq!(grants(&mut limiter), [other]);
    limiter.on_time(at(62_050));
    assert_eq!(grants(&mut limiter), [closed]);
}

#[test]
fn refunded_permit_goes_to_the_next_uncancelled_caller() {
    let config = LimitConfig { global: 1, ..LimitConfig::default() };
    let mut limiter = Limiter::new(config, at(0));
    let first = granted(limiter.acquire(operation("/a"), at(2_000)));
    let second = waiting(limiter.acquire(operation("/b"), at(2_000)));
    let third = waiting(limiter.acquire(operation("/c"), at(2_000)));
    limiter.cancel(second, at(2_100));
    limiter.refund(first, at(2_100));
    assert_eq!(grants(&mut limiter), [third]);
}

#[test]
fn interaction_endpoints_are_exempt_from_the_global_limit_only() {
    let config = LimitConfig { global: 1, ..LimitConfig::default() };
    let mut limiter = Limiter::new(config, at(0));
    let callback =
        |id: u64| request("POST", &format!("/interactions/{id}/t/callback"), Lane::Interactive, at(10_000_000));
    granted(limiter.acquire(callback(1), at(1)));
    waiting(limiter.acquire(callback(2), at(1)));
}

#[test]
fn urgent_lane_passes_waiting_calls_of_the_same_bucket() {
    let mut limiter = limiter();
    let first = granted(limiter.acquire(operation("/channels/1/messages"), at(2_000)));
    let slow = waiting(limiter.acquire(operation("/channels/1/messages"), at(2_000)));
    let urgent = request("POST", "/channels/1/messages", Lane::Interactive, at(10_000_000));
    let urgent = waiting(limiter.acquire(urgent, at(2_001)));
    limiter.on_response(first, &ok(rate("h", 2, 1, 9_000, 5_000)), at(2_050));
    assert_eq!(grants(&mut limiter), [urgent]);
    limiter.on_time(at(60_000));
    assert_eq!(grants(&mut limiter), [slow]);
}

#[test]
fn a_million_objects_stay_bounded_and_evictions_are_counted() {
    let config = LimitConfig { max_buckets: 1_000, ..LimitConfig::default() };
    let mut limiter = Limiter::new(config, at(0));
    let first = granted(limiter.acquire(operation("/webhooks/1/t"), at(2_000)));
    limiter.on_response(first, &ok(rate("h", 5, 4, 9_000, 100)), at(2_001));
    let mut delayed = 0;
    for id in 0..1_000_000u64 {
        let now = at(3_000 + id);
        let request = PermitRequest { deadline: now, ..operation(&format!("/webhooks/{id}/t")) };
        match limiter.acquire(request, now) {
            AcquireOutcome::Granted(permit) => limiter.on_response(permit, &ok(rate("h", 5, 4, 9_000 + id, 100)), now),
            AcquireOutcome::Delay(_) => delayed += 1,
            AcquireOutcome::Waiting(ticket) => limiter.cancel(ticket, now),
        }
    }
    let view = limiter.snapshot(at(2_000_000));
    assert!(view.buckets <= 1_000 && view.buckets_evicted > 10_000, "{view:?}");
    assert!(delayed > 0);
}

#[test]
fn unused_long_deadlines_leave_no_timers_behind() {
    let config = LimitConfig { global: 1, ..LimitConfig::default() };
    let mut limiter = Limiter::new(config, at(0));
    let mut now = 2_000;
    for _ in 0..10_000 {
        let first = granted(limiter.acquire(request("POST", "/a", Lane::Operation, at(now + 36_000_000)), at(now)));
        let second = waiting(limiter.acquire(request("POST", "/a", Lane::Operation, at(now + 36_000_000)), at(now)));
        limiter.on_response(first, &ResponseInfo { class: ResponseClass::Success, rate: None }, at(now));
        now += 1_010;
        limiter.on_time(at(now));
        let effects: Vec<_> = limiter.take_effects().collect();
        let [LimiterEffect::Grant { ticket, permit, .. }] = effects[..] else {
            panic!("expected a grant: {effects:?}")
        };
        assert_eq!(ticket, second);
        limiter.on_response(permit, &ResponseInfo { class: ResponseClass::Success, rate: None }, at(now));
        now += 1_010;
    }
    assert!(limiter.timers.len() <= MIN_TIMERS, "{} timers are stored", limiter.timers.len());
    limiter.on_time(at(now));
    assert_eq!(limiter.next_wake(), None);
}

#[test]
fn calls_waiting_for_a_probe_continue_when_queues_are_full() {
    let mut limiter = Limiter::new(LimitConfig { max_buckets: 3, ..LimitConfig::default() }, at(0));
    let other = granted(limiter.acquire(operation("/a"), at(2_000)));
    limiter.on_response(other, &ResponseInfo { class: ResponseClass::Success, rate: None }, at(2_010));
    let first = granted(limiter.acquire(operation("/guilds/1/channels"), at(2_020)));
    let second = waiting(limiter.acquire(operation("/guilds/2/channels"), at(2_020)));
    limiter.on_response(first, &ok(rate("h", 5, 4, 9_000, 0)), at(2_050));
    assert_eq!(grants(&mut limiter), [second]);
}

#[test]
fn related_bucket_does_not_evict_the_queue_of_a_probe() {
    let mut limiter = Limiter::new(LimitConfig { max_buckets: 2, ..LimitConfig::default() }, at(0));
    let first = granted(limiter.acquire(operation("/guilds/1/channels"), at(2_000)));
    limiter.on_response(first, &ok(rate("h", 5, 4, 9_000, 0)), at(2_050));
    let patch = |id: u64| request("PATCH", &format!("/guilds/{id}/channels"), Lane::Operation, at(10_000_000));
    granted(limiter.acquire(patch(9), at(9_000)));
    waiting(limiter.acquire(patch(10), at(9_000)));
}

/// One caller of the property test.
#[derive(Clone, Debug)]
struct Caller {
    after: u64,
    route: usize,
    object: u64,
    lane: usize,
    there: u64,
    back: u64,
    /// 0 to 1: lost; 2: refunded; 3: cancelled while it waits; else succeeds.
    outcome_code: u8,
    timeout_ms: u64,
}

const ROUTES: [(&str, &str); 5] = [
    ("PUT", "/guilds/{}/members/5/roles/6"),
    ("DELETE", "/guilds/{}/members/5/roles/6"),
    ("POST", "/guilds/{}/channels"),
    ("GET", "/guilds/{}/roles"),
    ("POST", "/guilds/{}/nothing"),
];

fn callers() -> impl Strategy<Value = Vec<Caller>> {
    let time = || prop_oneof![4 => 0u64..40_000, 1 => 0u64..900_000];
    let caller = (0u64..60_000, 0usize..5, 1u64..4, 0usize..3, time(), time(), 0u8..40, 1u64..60_000).prop_map(
        |(after, route, object, lane, there, back, outcome, patience_ms)| Caller {
            after: if after < 20_000 { 0 } else { after },
            route,
            object,
            lane,
            there,
            back,
            outcome_code: outcome,
            timeout_ms: patience_ms,
        },
    );
    prop::collection::vec(caller, 10..160)
}

/// A simulated Discord with independent counters.
struct Discord {
    buckets: BTreeMap<(usize, u64), TestBucketServer>,
    arrivals: Vec<u64>,
    refused: u32,
}

impl Discord {
    fn arrive(&mut self, caller: &Caller, now: u64) -> ResponseInfo {
        self.arrivals.push(now);
        // PUT and DELETE share a bucket; the last route has none.
        let (group, limit, per_ms, leaky) = match caller.route {
            0 | 1 => (0, 3, 400, false),
            2 => (2, 4, 600, true),
            3 => (3, 6, 300, true),
            _ => return ResponseInfo { class: ResponseClass::Success, rate: None },
        };
        let server = self
            .buckets
            .entry((group, caller.object))
            .or_insert_with(|| TestBucketServer::named(&format!("hash{group}"), limit, per_ms, leaky));
        match server.arrive(now) {
            Some(rate) => ok(rate),
            None => {
                self.refused += 1;
                let class =
                    ResponseClass::RateLimited { scope: RateLimitScope::User, retry_after: Duration::from_secs(1) };
                ResponseInfo { class, rate: None }
            }
        }
    }

    fn max_in(&self, window: u64) -> usize {
        let mut sorted = self.arrivals.clone();
        sorted.sort_unstable();
        (0..sorted.len())
            .map(|from| sorted[from..].iter().take_while(|then| **then < sorted[from] + window).count())
            .max()
            .unwrap_or(0)
    }
}

enum Event {
    Request(usize),
    Cancel(usize),
    Arrive(usize, PermitId),
    Answer(PermitId, ResponseInfo),
    Lost(PermitId),
    Refund(PermitId),
}

proptest! {
    #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases.max(300), ..ProptestConfig::default() })]

    #[test]
    fn no_call_is_refused_lost_or_reordered_at_any_latency(callers in callers()) {
        const WINDOW_MS: u64 = 200;
        let config = LimitConfig {
            global: 5,
            window: Duration::from_millis(WINDOW_MS),
            margin: Duration::ZERO,
            burst: 3,
            request_timeout: Duration::from_secs(2),
            ..LimitConfig::default()
        };
        let mut limiter = Limiter::new(config, Timestamp::ZERO);
        let mut discord = Discord { buckets: BTreeMap::new(), arrivals: Vec::new(), refused: 0 };
        let mut events: BTreeMap<(u64, u64), Event> = BTreeMap::new();
        let mut order = 0u64;
        let mut start = 1_000_000;
        for (index, caller) in callers.iter().enumerate() {
            start += caller.after;
            order += 1;
            events.insert((start, order), Event::Request(index));
        }
        let mut tickets: BTreeMap<Ticket, usize> = BTreeMap::new();
        let mut results = vec![0u32; callers.len()];
        // The order of grants by lane, route and object.
        let mut granted: BTreeMap<(usize, usize, u64), Vec<usize>> = BTreeMap::new();
        let mut steps = 0;
        while !events.is_empty() || limiter.waiting() > 0 {
            steps += 1;
            prop_assert!(steps < 200_000, "the simulation must end");
            let wake = limiter.next_wake().map(|then| (then.micros(), 0));
            let next = events.keys().next().copied();
            let Some((now, _)) = [wake, next].into_iter().flatten().min() else {
                prop_assert!(false, "a call waits, but no event is due: {:?}", limiter.snapshot(at(0)));
                break;
            };
            let time = Timestamp::from_micros(now);
            let mut ready: Vec<(usize, PermitId)> = Vec::new();
            let due = next.filter(|(then, _)| *then <= now).and_then(|key| events.remove(&key));
            match due {
                None => limiter.on_time(time),
                Some(Event::Request(index)) => {
                    let caller = &callers[index];
                    let (method, path) = ROUTES[caller.route];
                    let path = path.replace("{}", &caller.object.to_string());
                    let deadline = time + Duration::from_millis(caller.timeout_ms);
                    match limiter.acquire(request(method, &path, Lane::ALL[caller.lane], deadline), time) {
                        AcquireOutcome::Granted(permit) => ready.push((index, permit)),
                        AcquireOutcome::Delay(delay) => {
                            prop_assert!(delay.until > deadline || delay.reason == DelayReason::Full);
                            results[index] += 1;
                        }
                        AcquireOutcome::Waiting(ticket) => {
                            tickets.insert(ticket, index);
                            if caller.outcome_code == 3 {
                                order += 1;
                                events.insert((now + caller.there, order), Event::Cancel(index));
                            }
                        }
                    }
                }
                Some(Event::Cancel(index)) => {
                    if let Some((&ticket, _)) = tickets.iter().find(|(_, other)| **other == index) {
                        tickets.remove(&ticket);
                        results[index] += 1;
                        limiter.cancel(ticket, time);
                    }
                }
                Some(Event::Arrive(index, permit)) => {
                    let caller = &callers[index];
                    let answer = discord.arrive(caller, now);
                    order += 1;
                    let event = if caller.outcome_code < 2 { Event::Lost(permit) } else { Event::Answer(permit, answer) };
                    events.insert((now + caller.back, order), event);
                }
                Some(Event::Answer(permit, answer)) => limiter.on_response(permit, &answer, time),
                Some(Event::Lost(permit)) => limiter.mark_lost(permit, time),
                Some(Event::Refund(permit)) => limiter.refund(permit, time),
            }
            for effect in limiter.take_effects() {
                match effect {
                    LimiterEffect::Grant { ticket, permit, .. } => {
                        let index = tickets.remove(&ticket).expect("a grant is for a waiting call");
                        ready.push((index, permit));
                    }
                    LimiterEffect::Expire { ticket, .. } => {
                        let index = tickets.remove(&ticket).expect("only a waiting call can expire");
                        results[index] += 1;
                    }
                }
            }
            for (index, permit) in ready {
                let caller = &callers[index];
                results[index] += 1;
                granted.entry((caller.lane, caller.route, caller.object)).or_default().push(index);
                order += 1;
                if caller.outcome_code == 2 {
                    events.insert((now + caller.there, order), Event::Refund(permit));
                } else {
                    events.insert((now + caller.there, order), Event::Arrive(index, permit));
                }
            }
        }
        prop_assert_eq!(discord.refused, 0, "no route got more calls than its limit");
        prop_assert!(discord.max_in(WINDOW_MS * 1_000) <= 5, "{} in one window", discord.max_in(WINDOW_MS * 1_000));
        prop_assert!(results.iter().all(|count| *count == 1), "each caller gets one result: {:?}", results);
        prop_assert_eq!(limiter.in_flight(), 0, "no permit is lost");
        for (queue, order) in granted {
            prop_assert!(order.windows(2).all(|pair| pair[0] < pair[1]), "{:?} granted as {:?}", queue, order);
        }
    }
}
