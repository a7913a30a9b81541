//! Compares a limiter with another that was restored from its saved state: the second never grants a call before the
//! first.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::lane::Lane;
use crate::limit::CallerId;
use crate::limit::SavedLimiter;
use crate::limit::bucket::Bucket;
use crate::limit::test_server::TestBucketServer;
use crate::response::{RateHeaders, RateLimitScope};
use crate::route::{Route, SublimitKind};
use crate::snapshot::{ShutdownKind, SnapshotAge, Urgency};
use crate::time::UnixMs;

const BOT: Credential = Credential::Application(1);

const HOUR_MS: u64 = 3_600_000;

fn at(ms: u64) -> Timestamp {
    Timestamp::from_millis(ms)
}

fn limiter(now: Timestamp) -> Limiter {
    Limiter::new(LimitConfig::default(), now)
}

fn request(method: &str, path: &str) -> PermitRequest {
    let route = Route::parse(method, path, 1, 0);
    PermitRequest { credential: BOT, route, lane: Lane::Interactive, caller: CallerId::NONE, deadline: Timestamp::ZERO }
}

fn rate(bucket: &str, limit: u32, remaining: u32, reset_after_ms: u64) -> RateHeaders {
    let reset_after = Duration::from_millis(reset_after_ms);
    RateHeaders { bucket: bucket.into(), limit, remaining, reset_ms: 1_000_000 + reset_after_ms, reset_after }
}

fn ok(rate: RateHeaders) -> ResponseInfo {
    ResponseInfo { class: ResponseClass::Success, rate: Some(rate) }
}

fn limited(scope: RateLimitScope, retry_after_ms: u64) -> ResponseInfo {
    ResponseInfo {
        class: ResponseClass::RateLimited { scope, retry_after: Duration::from_millis(retry_after_ms) },
        rate: None,
    }
}

/// Takes a permit if the call is permitted now.
fn take(limiter: &mut Limiter, request: &PermitRequest, now: Timestamp) -> Option<PermitId> {
    let request_now = PermitRequest { deadline: now + Duration::from_micros(1), ..request.clone() };
    match limiter.acquire(request_now, now) {
        AcquireOutcome::Granted(permit) => Some(permit),
        AcquireOutcome::Waiting(ticket) => {
            limiter.cancel(ticket, now);
            None
        }
        AcquireOutcome::Delay(_) => None,
    }
}

/// Whether a call is permitted now. Leaves the limiter unchanged.
fn is_permitted(limiter: &mut Limiter, request: &PermitRequest, now: Timestamp) -> bool {
    let permit = take(limiter, request, now);
    permit.inspect(|permit| limiter.refund(*permit, now)).is_some()
}

/// The saved state, serialized and parsed.
fn saved(limiter: &Limiter, now: Timestamp) -> SavedLimiter {
    let text = serde_json::to_string(&limiter.save(now)).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// Creates a limiter that starts at `now`, `after_ms` after another one was saved.
fn restored(saved: &SavedLimiter, after_ms: u64, now: Timestamp) -> Limiter {
    restored_after(ShutdownKind::Clean, saved, after_ms, now)
}

fn restored_after(ending: ShutdownKind, saved: &SavedLimiter, after_ms: u64, now: Timestamp) -> Limiter {
    let mut limiter = limiter(now);
    limiter.restore(saved, SnapshotAge::of(UnixMs::new(5_000), UnixMs::new(5_000 + after_ms)), ending, now);
    limiter
}

#[test]
fn global_block_survives_a_restart_and_ends_on_time() {
    let mut before = limiter(at(0));
    let permit = take(&mut before, &request("GET", "/guilds/1"), at(2_000)).unwrap();
    assert_eq!(before.take_unsaved(), None);
    before.on_response(permit, &limited(RateLimitScope::Global, 60_000), at(2_000));
    assert_eq!(before.take_unsaved(), Some(Urgency::Soon));
    let mut after = restored(&saved(&before, at(2_000)), 10_000, at(0));
    assert!(!is_permitted(&mut after, &request("GET", "/users/@me"), at(49_999)));
    assert!(is_permitted(&mut after, &request("GET", "/users/@me"), at(50_000)));
}

#[test]
fn global_block_of_an_exempt_call_survives_a_restart() {
    let callback = |id: u64| request("POST", &format!("/interactions/{id}/t/callback"));
    for (refused, case) in [(callback(1), "exempt"), (request("GET", "/guilds/1"), "under the global limit")] {
        let mut before = limiter(at(0));
        let permit = take(&mut before, &refused, at(2_000)).unwrap();
        before.on_response(permit, &limited(RateLimitScope::Global, 60_000), at(2_000));
        assert_eq!(before.take_unsaved(), Some(Urgency::Soon), "{case}");
        let mut after = restored(&saved(&before, at(2_000)), 10_000, at(0));
        let others = [callback(2), request("GET", "/users/@me")];
        for (now, may) in [(49_999, false), (50_000, true)] {
            for other in &others {
                assert_eq!(is_permitted(&mut after, other, at(now)), may, "{case}: {other:?} at {now}");
            }
        }
    }
}

#[test]
fn long_closed_bucket_survives_a_restart_and_blocks_no_other() {
    let mut before = limiter(at(0));
    let create = request("POST", "/guilds/1/roles");
    let permit = take(&mut before, &create, at(2_000)).unwrap();
    before.on_response(permit, &ok(rate("roles", 250, 0, 28 * HOUR_MS)), at(2_000));
    assert_eq!(before.take_unsaved(), Some(Urgency::Soon));
    let mut after = restored(&saved(&before, at(2_000)), HOUR_MS, at(0));
    assert!(!is_permitted(&mut after, &create, at(27 * HOUR_MS - 1)));
    assert!(
        is_permitted(&mut after, &request("POST", "/guilds/2/roles"), at(2_000)),
        "another guild has its own bucket"
    );
    assert!(
        is_permitted(&mut after, &request("POST", "/guilds/1/channels"), at(2_000)),
        "another route has its own bucket"
    );
    assert!(is_permitted(&mut after, &create, at(27 * HOUR_MS)));
}

#[test]
fn restored_hash_probes_each_object_while_old_calls_may_count() {
    let mut before = limiter(at(0));
    let send = |channel: u64| request("POST", &format!("/channels/{channel}/messages"));
    for now in [2_000, 2_100] {
        let permit = take(&mut before, &send(1), at(now)).unwrap();
        let left = if now == 2_000 { 4 } else { 3 };
        before.on_response(permit, &ok(rate("m", 5, left, 5_000)), at(now));
    }
    assert_eq!(before.take_unsaved(), Some(Urgency::Soon), "a route was learned");
    let snapshot = saved(&before, at(2_200));
    let mut after = restored(&snapshot, 0, at(0));
    // Objects do not wait for each other's responses, but the remaining slots of each are unknown.
    let first = take(&mut after, &send(1), at(2_000)).unwrap();
    assert!(is_permitted(&mut after, &send(2), at(2_000)));
    assert!(!is_permitted(&mut after, &send(1), at(2_000)));
    after.on_response(first, &ok(rate("m", 5, 2, 4_000)), at(2_050));
    assert_eq!(
        (0..5).filter_map(|_| take(&mut after, &send(1), at(2_060))).count(),
        2,
        "as many as the response \
        reported"
    );
    // Later, no call of the previous process can count.
    assert_eq!((0..9).filter_map(|_| take(&mut after, &send(3), at(8_000))).count(), 5);
}

#[test]
fn hash_that_was_not_saved_probes_each_object_as_well() {
    let mut after = restored(&SavedLimiter::default(), 0, at(0));
    let send = |channel: u64| request("POST", &format!("/channels/{channel}/messages"));
    let probe = take(&mut after, &send(1), at(2_000)).unwrap();
    after.on_response(probe, &ok(rate("m", 5, 4, 5_000)), at(2_050));
    // The previous process may have sent four calls to it.
    let first = take(&mut after, &send(2), at(2_060)).unwrap();
    assert!(!is_permitted(&mut after, &send(2), at(2_060)));
    after.on_response(first, &ok(rate("m", 5, 0, 3_000)), at(2_100));
    assert!(!is_permitted(&mut after, &send(2), at(2_100)));
}

#[test]
fn after_a_sudden_end_no_bucket_is_used_before_it_must_be_free() {
    let mut before = limiter(at(0));
    let fixed = |channel: u64| request("POST", &format!("/channels/{channel}/messages"));
    let leaky = |guild: u64| request("GET", &format!("/guilds/{guild}"));
    let long = |guild: u64| request("POST", &format!("/guilds/{guild}/roles"));
    let mut answer = |call: &PermitRequest, now: u64, rate: RateHeaders| {
        let permit = take(&mut before, call, at(now)).unwrap();
        before.on_response(permit, &ok(rate), at(now));
    };
    let with_reset = |bucket: &str, remaining: u32, now: u64, reset: u64| RateHeaders {
        reset_ms: 1_000_000 + reset,
        ..rate(bucket, 5, remaining, reset - now)
    };
    for (now, remaining) in [(2_000, 4), (2_300, 3)] {
        answer(&fixed(1), now, with_reset("fixed", remaining, now, 7_000));
        // Its reset moves with each call.
        answer(&leaky(1), now, with_reset("leaky", remaining, now, 3_000 + 1_000 * u64::from(4 - remaining)));
        answer(&long(1), now, with_reset("long", remaining, now, 100_000_000));
    }
    let snapshot = saved(&before, at(2_400));
    let starts = |ending: ShutdownKind, call: &PermitRequest| {
        let mut after = restored_after(ending, &snapshot, 0, at(0));
        (1_600..20_000).step_by(100).find(|now| is_permitted(&mut after, call, at(*now)))
    };
    // Its last call may have arrived 500 ms after the start.
    assert_eq!(starts(ShutdownKind::Sudden, &fixed(2)), Some(5_500));
    assert_eq!(starts(ShutdownKind::Sudden, &leaky(2)), Some(1_600), "a slot drains within the quiet first window");
    assert_eq!(starts(ShutdownKind::Sudden, &long(2)), Some(1_600), "one that is used up for so long is saved");
    for call in [fixed(2), leaky(2), long(2)] {
        assert_eq!(starts(ShutdownKind::Clean, &call), Some(1_600), "what is used up is saved");
    }
}

#[test]
fn after_a_sudden_end_one_rename_of_each_channel_may_be_missing() {
    let mut rename = request("PATCH", "/channels/1");
    rename.route = rename.route.with_sublimit(SublimitKind::ChannelName);
    for (ending, permitted) in [(ShutdownKind::Clean, 2), (ShutdownKind::Sudden, 1)] {
        let mut after = restored_after(ending, &SavedLimiter::default(), 0, at(0));
        let free = ResponseInfo { class: ResponseClass::Success, rate: None };
        let sent = (0..4).filter_map(|_| {
            take(&mut after, &rename, at(2_000)).map(|permit| after.on_response(permit, &free, at(2_000)))
        });
        assert_eq!(sent.count(), permitted, "{ending:?}");
        assert!(is_permitted(&mut after, &rename, at(602_000)));
    }
}

#[test]
fn channel_renames_count_across_a_restart_including_in_flight() {
    let mut before = limiter(at(0));
    let mut rename = request("PATCH", "/channels/1");
    rename.route.sub = Some(SublimitKind::ChannelName);
    let permit = take(&mut before, &rename, at(2_000)).unwrap();
    before.on_response(permit, &ok(rate("c", 5, 4, 1_000)), at(2_000));
    assert_eq!(before.take_unsaved(), Some(Urgency::Soon));
    let _under_way = take(&mut before, &rename, at(62_000)).unwrap();
    let mut after = restored(&saved(&before, at(62_000)), 0, at(0));
    assert!(is_permitted(&mut after, &request("PATCH", "/channels/1"), at(2_000)));
    assert!(!is_permitted(&mut after, &rename, at(539_999)));
    assert!(is_permitted(&mut after, &rename, at(540_000)));
}

#[test]
fn oldest_routes_are_left_out_when_there_are_too_many_to_save() {
    let config = LimitConfig { max_routes: 12_000, ..LimitConfig::default() };
    let mut before = Limiter::new(config, at(0));
    for number in 0..11_000_u64 {
        let name = format!("{number}");
        let hash =
            before.routes.intern_hash(&name, Bucket::from_headers(&rate(&name, 5, 4, 1_000), at(0)).spec()).unwrap();
        let route = crate::route::RouteKey::new(&format!("GET /{number}"));
        before.routes.observe(BOT, &route, RouteLimit::Hash(hash));
    }
    let snapshot = saved(&before, at(1_000));
    assert_eq!((snapshot.routes(), snapshot.hashes.len()), (10_000, 10_000));
    let mut names: Vec<u64> = snapshot.hashes.iter().map(|hash| hash.name.parse().unwrap()).collect();
    names.sort_unstable();
    assert_eq!(names[0], 1_000);
    let mut after = limiter(at(0));
    after.restore(&snapshot, SnapshotAge::of(UnixMs::new(0), UnixMs::new(0)), ShutdownKind::Clean, at(0));
    assert_eq!(after.routes.len(), 10_000);
    assert_eq!(after.save(at(0)).routes(), 10_000);
}

const ROUTES: [(&str, &str); 6] = [
    ("PUT", "/guilds/{}/members/5/roles/6"),
    ("DELETE", "/guilds/{}/members/5/roles/6"),
    ("POST", "/guilds/{}/channels"),
    ("GET", "/guilds/{}/roles"),
    ("POST", "/webhooks/{}/token"),
    ("PATCH", "/channels/{}"),
];

fn route_request(route: usize, object: u64) -> PermitRequest {
    let (method, path) = ROUTES[route];
    let mut request = request(method, &path.replace("{}", &object.to_string()));
    request.route.sub = (route == 5).then_some(SublimitKind::ChannelName);
    request
}

/// The server side of a route; PUT and DELETE share a bucket.
fn server(route: usize) -> (usize, TestBucketServer) {
    match route {
        0 | 1 => (0, TestBucketServer::named("a", 3, 9_000, false)),
        2 => (2, TestBucketServer::named("b", 4, 40_000, true)),
        3 => (3, TestBucketServer::named("c", 2, 4_000, true)),
        4 => (4, TestBucketServer::named("d", 2, 100_000, false)),
        _ => (5, TestBucketServer::named("e", 5, 3_000, false)),
    }
}

/// The response to a call: from its bucket, a 429 of the given scope for a number of seconds, or none.
#[derive(Clone, Copy, Debug)]
enum CannedResponse {
    Bucket,
    Limited(RateLimitScope, u64),
    Lost,
}

fn calls() -> impl Strategy<Value = Vec<(u64, usize, u64, CannedResponse)>> {
    let responses = prop_oneof![
        12 => Just(CannedResponse::Bucket),
        1 => (1_u64..120).prop_map(|seconds| CannedResponse::Limited(RateLimitScope::User, seconds)),
        1 => (1_u64..120).prop_map(|seconds| CannedResponse::Limited(RateLimitScope::Shared, seconds)),
        1 => (1_u64..40).prop_map(|seconds| CannedResponse::Limited(RateLimitScope::Global, seconds)),
        1 => Just(CannedResponse::Lost),
    ];
    prop::collection::vec((0_u64..2_000, 0..ROUTES.len(), 1_u64..3, responses), 1..80)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases / 4, ..ProptestConfig::default() })]

    #[test]
    fn refused_calls_stay_refused_for_as_long_after_a_restart(calls in calls(), late_ms in 0_u64..30_000) {
        let mut before = limiter(at(0));
        let mut servers: BTreeMap<(usize, u64), TestBucketServer> = BTreeMap::new();
        let mut now = 2_000;
        for (after, route, object, response) in calls {
            now += after;
            let Some(permit) = take(&mut before, &route_request(route, object), at(now)) else { continue };
            let (group, fresh) = server(route);
            let answer = match (response, servers.entry((group, object)).or_insert(fresh).arrive(now * 1_000)) {
                (CannedResponse::Lost, _) => {
                    before.mark_lost(permit, at(now));
                    continue;
                }
                (CannedResponse::Limited(scope, seconds), _) => limited(scope, seconds * 1_000),
                (CannedResponse::Bucket, Some(rate)) => ok(rate),
                (CannedResponse::Bucket, None) => limited(RateLimitScope::User, 3_000),
            };
            before.on_response(permit, &answer, at(now));
        }
        // Lost calls count until they can no longer arrive. This is not saved, because it is not a refusal by Discord.
        now += 16_000;
        before.on_time(at(now));
        let learned: Vec<usize> = (0..ROUTES.len())
            .filter(|route| matches!(before.routes.limit_of(BOT, &route_request(*route, 1).route.key, at(now)), RouteLimit::Hash(_)))
            .collect();

        // The restart takes some time, measured by another clock.
        let snapshot = saved(&before, at(now));
        let mut after = restored(&snapshot, late_ms, at(now + late_ms));
        let mut went = [[false; 2]; ROUTES.len()];
        // In small steps at first, then until the last name change has left its window of ten minutes.
        for wait in (0..60).map(|step| step * 500).chain((0..64).map(|step| 30_000 + step * 10_000)) {
            let then = at(now + late_ms + wait);
            for (route, went) in went.iter_mut().enumerate() {
                for (object, went) in (1..).zip(went) {
                    let request = route_request(route, object);
                    let permitted = is_permitted(&mut after, &request, then);
                    prop_assert!(!permitted || is_permitted(&mut before, &request, then), "{request:?} at {then:?}, {snapshot:?}");
                    *went |= permitted;
                }
            }
        }
        prop_assert!(went.iter().flatten().all(|went| *went), "no call is blocked forever: {went:?}");
        for route in learned {
            let route_limit = after.routes.limit_of(BOT, &route_request(route, 1).route.key, at(now));
            prop_assert!(matches!(route_limit, RouteLimit::Hash(_)), "a learned route needs no new probe");
        }
    }
}
