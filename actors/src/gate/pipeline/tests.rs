//! The whole gate in one local set, with paused time, and a Discord with latency.

use std::collections::HashMap;
use std::future::Future;
use std::sync::Mutex;

use futures_util::future::join_all;
use guildhall_core::breaker::{BreakerKey, BreakerState};
use guildhall_core::operation::GateCondition;
use guildhall_core::response::{RateHeaders, RateLimitScope, ResponseClass};
use http::{HeaderMap, StatusCode};
use tokio::task::LocalSet;
use tokio::time::{advance, sleep, sleep_until, timeout};

use super::*;
use crate::circuit_breaker::SubscribeBreakerChanges;
use crate::gate::transport::{RawResponse, SendFuture};
use crate::gate::{BeforeSend, CommitFuture};

const BOT: Credential = Credential::Application(42);

/// A fake Discord.
#[derive(Default)]
struct Discord {
    /// Latency of a response.
    latency: Duration,
    /// Limit for each method and first two path segments: calls, and length of the window in seconds. `None`: no rate
    /// limit headers.
    limit: Option<(u32, u64)>,
    windows: Mutex<HashMap<String, (Instant, u32)>>,
    /// Path and time of each call.
    sent: Mutex<Vec<(String, Instant)>>,
    /// Status to return instead of 200.
    status: Mutex<Option<StatusCode>>,
    /// Number of rate-limited calls.
    refused: Mutex<u32>,
}

impl Discord {
    fn count(&self, object: String, origin: Instant) -> Option<Result<RateHeaders, ()>> {
        let (limit, per) = self.limit?;
        let now = Instant::now();
        let mut windows = self.windows.lock().unwrap();
        let (until, used) = windows.entry(object).or_insert((now, 0));
        if *until <= now {
            (*until, *used) = (now + Duration::from_secs(per), 0);
        }
        if *used == limit {
            return Some(Err(()));
        }
        *used += 1;
        let reset_ms = u64::try_from((*until - origin).as_millis()).unwrap() + 1_000_000;
        let bucket = "hash".to_owned();
        Some(Ok(RateHeaders { bucket, limit, remaining: limit - *used, reset_ms, reset_after: *until - now }))
    }
}

/// Transport to a fake Discord that the test controls.
struct FakeTransport(Arc<Discord>, Instant);

impl Transport for FakeTransport {
    fn send(&self, call: ClearedRequest) -> SendFuture<'_> {
        let Self(discord, origin) = self;
        Box::pin(async move {
            let request = call.into_request();
            discord.sent.lock().unwrap().push((request.path.clone(), Instant::now()));
            sleep(discord.latency / 2).await;
            let object: Vec<&str> = request.path.splitn(4, '/').take(3).collect();
            let counted = discord.count(format!("{} {}", request.method, object.join("/")), *origin);
            sleep(discord.latency / 2).await;
            let refused = matches!(counted, Some(Err(())));
            *discord.refused.lock().unwrap() += u32::from(refused);
            let status = discord.status.lock().unwrap().unwrap_or(StatusCode::OK);
            let class = match status {
                StatusCode::FORBIDDEN => ResponseClass::Forbidden,
                StatusCode::UNAUTHORIZED => ResponseClass::Unauthorized,
                StatusCode::TOO_MANY_REQUESTS => {
                    ResponseClass::RateLimited { scope: RateLimitScope::Global, retry_after: Duration::from_secs(60) }
                }
                status if status.is_success() => ResponseClass::Success,
                _ => ResponseClass::ServerError,
            };
            let (headers, body) = (HeaderMap::new(), bytes::Bytes::new());
            let rate = counted.and_then(Result::ok);
            Ok(RawResponse { status, headers, body, stream: None, upload: Duration::ZERO, class, code: None, rate })
        })
    }
}

async fn with_gate<F: Future<Output = ()>>(
    discord: Discord,
    config: GateConfig,
    test: impl FnOnce(Arc<Gate>, Arc<Discord>) -> F,
) {
    with_leased_gate(discord, config, LeaseGuard::always(), test).await;
}

async fn with_leased_gate<F: Future<Output = ()>>(
    discord: Discord,
    config: GateConfig,
    lease: LeaseGuard,
    test: impl FnOnce(Arc<Gate>, Arc<Discord>) -> F,
) {
    let discord = Arc::new(discord);
    let body = async {
        let gate = Gate::start(FakeTransport(Arc::clone(&discord), Instant::now()), config, lease);
        test(gate, Arc::clone(&discord)).await;
    };
    LocalSet::new().run_until(body).await;
}

fn read(path: String, lane: Lane, max_wait: Duration) -> RestRequest {
    let mut request = RestRequest::new(Method::GET, path, BOT, LeaseGuard::always());
    (request.lane, request.max_wait) = (lane, max_wait);
    request
}

/// Wait times of interactive calls while the operation lane is saturated, sorted.
async fn waits_beside_operations(discord: Discord) -> Vec<Duration> {
    let waits = Arc::new(Mutex::new(Vec::new()));
    let found = Arc::clone(&waits);
    with_gate(discord, GateConfig::default(), |gate, discord| async move {
        let began = Instant::now();
        let operation = |number: u64| {
            let path = format!("/guilds/{}/roles", number % 300);
            gate.call(read(path, Lane::Operation, Duration::from_secs(60)))
        };
        let operations = join_all((0..1_500).map(operation));
        let urgent = |number: u64| {
            let gate = Arc::clone(&gate);
            async move {
                // Ten a second, at irregular times, after the gate has measured the latency.
                let at = began + Duration::from_millis(4_000 + number * 97 + (number * number * 31) % 83);
                sleep_until(at).await;
                let path = format!("/channels/{number}");
                let outcome = gate.call(read(path.clone(), Lane::Interactive, Duration::from_secs(5))).await;
                assert!(matches!(outcome, CallOutcome::Answered(_)), "{outcome:?}");
                (path, at)
            }
        };
        // So that the limits of their route are known.
        let first = gate.call(read("/channels/0".into(), Lane::Interactive, Duration::from_secs(5)));
        let urgent = async {
            drop(first.await);
            join_all((1..200).map(urgent)).await
        };
        tokio::pin!(operations);
        let urgent = tokio::select! {
            urgent = urgent => urgent,
            _ = &mut operations => panic!("the operation lane was not saturated"),
        };
        assert_eq!(*discord.refused.lock().unwrap(), 0, "no bucket was exceeded");
        let sent: HashMap<String, Instant> = discord.sent.lock().unwrap().iter().cloned().collect();
        *found.lock().unwrap() = urgent.into_iter().map(|(path, at)| sent[&path] - at).collect();
    })
    .await;
    let mut waits = std::mem::take(&mut *waits.lock().unwrap());
    waits.sort_unstable();
    waits
}

#[tokio::test(start_paused = true)]
async fn interactive_calls_hardly_wait_while_the_operation_lane_is_saturated() {
    for (limit, latency_ms) in [(None, 20), (None, 250), (Some((5, 1)), 20), (Some((10, 10)), 250)] {
        let latency = Duration::from_millis(latency_ms);
        let waits = waits_beside_operations(Discord { limit, latency, ..Discord::default() }).await;
        let p99 = waits[waits.len() * 99 / 100];
        println!("{limit:?}, {latency:?}: {} waits, median {:?}, p99 {p99:?}", waits.len(), waits[waits.len() / 2]);
        assert!(p99 < Duration::from_millis(100), "{limit:?}, {latency:?}: {p99:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn call_dropped_while_it_waits_leaves_nothing_behind() {
    with_gate(Discord::default(), GateConfig::default(), |gate, discord| async move {
        let mut calls: Vec<_> = (0..50)
            .map(|guild| Box::pin(gate.call(read(format!("/guilds/{guild}"), Lane::Operation, Duration::MAX / 4))))
            .collect();
        // All are admitted and wait for the end of the gate's first quiet window.
        assert!(timeout(Duration::from_millis(500), join_all(calls.iter_mut())).await.is_err());
        let view = gate.observe().await.unwrap();
        assert_eq!((view.limits.waiting, view.breakers.invalid_requests.in_flight), (50, 50));
        drop(calls);
        let view = gate.observe().await.unwrap();
        assert_eq!((view.limits.waiting, view.limits.under_way), (0, 0));
        assert_eq!(view.breakers.invalid_requests.in_flight, 0);
        sleep(Duration::from_secs(10)).await;
        assert!(discord.sent.lock().unwrap().is_empty());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn calls_before_the_actors_have_run_are_all_accepted() {
    with_gate(Discord::default(), GateConfig::default(), |gate, _| async move {
        let calls = (0..1_000)
            .map(|guild| gate.call(read(format!("/guilds/{guild}"), Lane::Operation, Duration::from_secs(90))));
        let outcomes = join_all(calls).await;
        assert!(outcomes.iter().all(|outcome| matches!(outcome, CallOutcome::Answered(_))), "{:?}", outcomes[20]);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn sent_call_counts_although_its_caller_is_gone() {
    let status = Mutex::new(Some(StatusCode::FORBIDDEN));
    let discord = Discord { latency: Duration::from_secs(2), status, ..Discord::default() };
    with_gate(discord, GateConfig::default(), |gate, discord| async move {
        let call = gate.call(read("/guilds/1".into(), Lane::Operation, Duration::from_secs(5)));
        // Sent after the first quiet window, and not answered yet.
        assert!(timeout(Duration::from_secs(3), call).await.is_err());
        assert_eq!(discord.sent.lock().unwrap().len(), 1);
        sleep(Duration::from_secs(2)).await;
        let view = gate.observe().await.unwrap();
        assert_eq!((view.breakers.invalid_requests.used, view.breakers.invalid_requests.in_flight), (1, 0));
        assert_eq!(view.limits.under_way, 0);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn call_without_a_permit_in_time_returns_retry_after() {
    let discord = Discord { limit: Some((2, 60)), ..Discord::default() };
    with_gate(discord, GateConfig::default(), |gate, discord| async move {
        sleep(Duration::from_secs(3)).await;
        for _ in 0..2 {
            drop(gate.call(read("/guilds/1".into(), Lane::Operation, Duration::from_secs(90))).await);
        }
        let began = Instant::now();
        let outcome = gate.call(read("/guilds/1".into(), Lane::Interactive, Duration::from_secs(5))).await;
        let CallOutcome::NotSent(refused) = outcome else { panic!("{outcome:?}") };
        assert_eq!((began.elapsed(), refused.reason), (Duration::ZERO, "route_limit"));
        let wait = refused.retry_after.unwrap();
        assert!(wait > Duration::from_secs(50) && wait <= Duration::from_secs(61), "{wait:?}");
        sleep(wait).await;
        let again = gate.call(read("/guilds/1".into(), Lane::Interactive, Duration::from_secs(5))).await;
        assert!(matches!(again, CallOutcome::Answered(_)), "{again:?}");
        assert_eq!(*discord.refused.lock().unwrap(), 0);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn waiting_call_is_not_sent_after_a_breaker_opened() {
    let breakers = BreakerConfig { jitter_percent: 0, ..BreakerConfig::default() };
    let config = GateConfig { breakers, ..GateConfig::default() };
    with_gate(Discord::default(), config, |gate, discord| async move {
        *discord.status.lock().unwrap() = Some(StatusCode::SERVICE_UNAVAILABLE);
        let call = |number: u64| {
            let path =
                format!("/guilds/{}/{}", number / 2, ["roles", "channels"][usize::from(number.is_multiple_of(2))]);
            gate.call(read(path, Lane::Operation, Duration::from_secs(30)))
        };
        let outcomes = join_all((0..200).map(call)).await;
        let sent = outcomes.iter().filter(|outcome| matches!(outcome, CallOutcome::Answered(_))).count();
        assert!(sent < 20, "{sent}");
        assert_eq!(discord.sent.lock().unwrap().len(), sent);
        let view = gate.observe().await.unwrap();
        assert_eq!((view.limits.waiting, view.limits.under_way, view.breakers.invalid_requests.in_flight), (0, 0, 0));
        sleep(Duration::from_secs(2)).await;
        assert_eq!(gate.observe().await.unwrap().limits.credentials[0].available, 50);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn breaker_closes_by_its_own_probes_within_their_limit() {
    let breakers = BreakerConfig { jitter_percent: 0, ..BreakerConfig::default() };
    // As low as the limit of `GET /gateway/bot`: fewer calls in a window than a breaker needs probes.
    let discord = Discord { limit: Some((2, 5)), ..Discord::default() };
    with_gate(discord, GateConfig { breakers, ..GateConfig::default() }, |gate, discord| async move {
        *discord.status.lock().unwrap() = Some(StatusCode::BAD_GATEWAY);
        let mut changes = gate.breaker().send(SubscribeBreakerChanges).await.unwrap();
        let create = |guild: u64| {
            let mut request =
                RestRequest::new(Method::POST, format!("/guilds/{guild}/roles"), BOT, LeaseGuard::always());
            request.max_wait = Duration::from_secs(60);
            gate.call(request)
        };
        for _ in 0..5 {
            drop(create(1).await);
        }
        let opened = changes.recv().await.unwrap();
        assert!(matches!((&opened.key, opened.to), (BreakerKey::Pair(..), BreakerState::Open { .. })), "{opened:?}");
        *discord.status.lock().unwrap() = None;
        let closed = timeout(Duration::from_secs(120), async {
            loop {
                let change = changes.recv().await.unwrap();
                if change.key == opened.key && change.to == BreakerState::Closed {
                    return;
                }
            }
        });
        closed.await.expect("it closes");
        assert_eq!(*discord.refused.lock().unwrap(), 0, "the probes respect their own limit");
        advance(Duration::from_secs(10)).await;
        assert!(matches!(create(1).await, CallOutcome::Answered(_)));
    })
    .await;
}

/// A caller whose commit takes some time, or fails.
#[derive(Default)]
struct Committer {
    duration: Duration,
    fails: bool,
    waits: Mutex<u32>,
    commits: Mutex<Vec<Instant>>,
}

impl BeforeSend for Committer {
    fn on_wait(&self) {
        *self.waits.lock().unwrap() += 1;
    }

    fn commit(&self) -> CommitFuture<'_> {
        Box::pin(async move {
            sleep(self.duration).await;
            self.commits.lock().unwrap().push(Instant::now());
            if self.fails {
                return Err(NotSent {
                    retry_after: None,
                    message: "cancelled".into(),
                    reason: "withdrawn",
                    bucket: None,
                });
            }
            Ok(())
        })
    }
}

fn committed_by(committer: &Arc<Committer>, path: &str) -> RestRequest {
    let mut request = RestRequest::new(Method::PUT, path, BOT, LeaseGuard::always());
    request.before_send = CommitHook::new(Arc::clone(committer) as Arc<dyn BeforeSend>);
    request
}

#[tokio::test(start_paused = true)]
async fn call_is_committed_after_its_permit_and_before_it_is_sent() {
    with_gate(Discord::default(), GateConfig::default(), |gate, discord| async move {
        let began = Instant::now();
        let committer = Arc::new(Committer { duration: Duration::from_millis(5), ..Committer::default() });
        let outcome = gate.call(committed_by(&committer, "/guilds/1")).await;
        assert!(matches!(outcome, CallOutcome::Answered(_)), "{outcome:?}");
        // A new gate grants nothing in its first window: the call had to wait.
        let (committed, sent) = (committer.commits.lock().unwrap().clone(), discord.sent.lock().unwrap()[0].1);
        assert_eq!((committed.len(), *committer.waits.lock().unwrap()), (1, 1));
        assert!(committed[0] - began >= Duration::from_secs(1) && committed[0] <= sent);
        drop(gate.call(committed_by(&committer, "/guilds/1")).await);
        assert_eq!(*committer.waits.lock().unwrap(), 1, "the second permit is granted at once");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn call_with_a_failed_commit_is_not_sent_and_releases_everything() {
    with_gate(Discord::default(), GateConfig::default(), |gate, discord| async move {
        let committer = Arc::new(Committer { fails: true, ..Committer::default() });
        let outcome = gate.call(committed_by(&committer, "/guilds/1")).await;
        assert!(matches!(&outcome, CallOutcome::NotSent(refused) if refused.reason == "withdrawn"), "{outcome:?}");
        assert!(discord.sent.lock().unwrap().is_empty());
        let view = gate.observe().await.unwrap();
        assert_eq!((view.limits.under_way, view.breakers.invalid_requests.in_flight), (0, 0));
        assert_eq!(view.limits.credentials[0].available, 50);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn permit_of_a_slow_commit_is_released_to_others() {
    with_gate(Discord::default(), GateConfig::default(), |gate, discord| async move {
        sleep(Duration::from_secs(3)).await;
        // A route with unknown limits has one call in flight at a time.
        drop(gate.call(committed_by(&Arc::default(), "/guilds/0")).await);
        let committer = Arc::new(Committer { duration: Duration::from_secs(20), ..Committer::default() });
        let slow = (0..50).map(|guild| gate.call(committed_by(&committer, &format!("/guilds/{guild}"))));
        let mut slow = Box::pin(join_all(slow));
        assert!(timeout(Duration::from_secs(3), &mut slow).await.is_err());
        let other = gate.call(read("/channels/1".into(), Lane::Operation, Duration::ZERO)).await;
        assert!(matches!(other, CallOutcome::Answered(_)), "{other:?}");
        let outcomes = slow.await;
        assert!(outcomes.iter().all(|outcome| matches!(outcome, CallOutcome::Answered(_))), "{:?}", outcomes[0]);
        let (commits, sent) = (committer.commits.lock().unwrap(), discord.sent.lock().unwrap());
        assert_eq!((commits.len(), sent.len()), (50, 52), "each is committed once and sent once");
        assert!(sent[2..].iter().all(|(_, at)| *at >= commits[0]));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn call_is_not_sent_if_a_breaker_opens_during_its_commit() {
    let config = GateConfig { breakers: BreakerConfig::default(), ..GateConfig::default() };
    with_gate(Discord::default(), config, |gate, discord| async move {
        sleep(Duration::from_secs(3)).await;
        let committer = Arc::new(Committer { duration: Duration::from_millis(990), ..Committer::default() });
        let call = gate.call(committed_by(&committer, "/guilds/1/roles"));
        let opens = async {
            *discord.status.lock().unwrap() = Some(StatusCode::BAD_GATEWAY);
            for number in 0..40 {
                let path = format!("/guilds/{}/{}", number / 2, ["roles", "channels"][number % 2]);
                drop(gate.call(read(path, Lane::Operation, Duration::from_secs(5))).await);
            }
            discord.sent.lock().unwrap().len()
        };
        let (outcome, sent) = tokio::join!(call, opens);
        assert!(matches!(&outcome, CallOutcome::NotSent(refused) if refused.reason == "breaker_open"), "{outcome:?}");
        assert_eq!(discord.sent.lock().unwrap().len(), sent);
        assert_eq!(committer.commits.lock().unwrap().len(), 1);
    })
    .await;
}

/// A lease that the test ends.
struct FakeLease(std::sync::atomic::AtomicBool);

impl crate::lease_guard::LeaseCheck for FakeLease {
    fn holds(&self) -> bool {
        self.0.load(std::sync::atomic::Ordering::SeqCst)
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_is_sent_without_the_lease_of_the_process() {
    let lease = Arc::new(FakeLease(true.into()));
    let guard = LeaseGuard::while_held(Arc::clone(&lease) as Arc<_>);
    with_leased_gate(Discord::default(), GateConfig::default(), guard, |gate, discord| async move {
        let call = || RestRequest::new(Method::GET, "/gateway/bot".to_owned(), BOT, LeaseGuard::always());
        assert!(matches!(gate.call(call()).await, CallOutcome::Answered(_)));
        lease.0.store(false, std::sync::atomic::Ordering::SeqCst);
        // It belongs to no queue, and so has no lease of its own.
        let CallOutcome::NotSent(refused) = gate.call(call()).await else { panic!("it was sent") };
        assert_eq!(refused.reason, "lease_lost");
        assert_eq!(discord.sent.lock().unwrap().len(), 1);
        lease.0.store(true, std::sync::atomic::Ordering::SeqCst);
        assert!(matches!(gate.call(call()).await, CallOutcome::Answered(_)));
    })
    .await;
}

/// Conditions that the gate has released, in order.
type Released = Arc<Mutex<Vec<GateCondition>>>;

fn listen(gate: &Gate) -> Released {
    let released = Released::default();
    let recorded = Arc::clone(&released);
    gate.on_release(Arc::new(move |condition| recorded.lock().unwrap().push(condition)));
    released
}

fn take_released(released: &Released) -> Vec<GateCondition> {
    std::mem::take(&mut *released.lock().unwrap())
}

async fn call(gate: &Gate) -> CallOutcome {
    gate.call(read("/guilds/1".into(), Lane::Operation, Duration::from_secs(5))).await
}

#[tokio::test(start_paused = true)]
async fn listener_is_notified_of_a_reset_or_cooled_down_breaker() {
    with_gate(Discord::default(), GateConfig::default(), |gate, _| async move {
        let released = listen(&gate);
        let (key, minute) = (BreakerKey::Discord(BOT), Duration::from_secs(60));
        gate.force(key.clone(), None).await.unwrap().unwrap();
        assert_eq!(take_released(&released), []);
        gate.reset(key.clone()).await.unwrap();
        let expected = GateCondition::released_by(&key);
        assert_eq!(take_released(&released), expected);
        gate.force(key.clone(), Some(minute)).await.unwrap().unwrap();
        sleep(minute).await;
        sleep(Duration::from_millis(1)).await;
        assert_eq!(take_released(&released), expected, "half-open: calls may probe it");
        sleep(minute).await;
        assert_eq!(take_released(&released), expected, "closed by its own probes");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn new_token_releases_calls_and_notifies_the_listener() {
    with_gate(Discord::default(), GateConfig::default(), |gate, discord| async move {
        let released = listen(&gate);
        sleep(Duration::from_secs(5)).await;
        *discord.status.lock().unwrap() = Some(StatusCode::UNAUTHORIZED);
        assert!(matches!(call(&gate).await, CallOutcome::Answered(_)));
        *discord.status.lock().unwrap() = None;
        let refused = call(&gate).await;
        assert!(matches!(&refused, CallOutcome::NotSent(NotSent { reason: "unauthorized", .. })), "{refused:?}");
        assert_eq!(take_released(&released), []);
        gate.token_changed(BOT, "another".to_owned()).await.unwrap();
        assert!(take_released(&released).contains(&GateCondition::Token));
        assert!(matches!(call(&gate).await, CallOutcome::Answered(_)));
        // The previous token was valid: nothing was delayed.
        gate.token_changed(BOT, "a third".to_owned()).await.unwrap();
        assert_eq!(take_released(&released), []);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn listener_is_notified_when_a_global_block_ends() {
    with_gate(Discord::default(), GateConfig::default(), |gate, discord| async move {
        let released = listen(&gate);
        sleep(Duration::from_secs(5)).await;
        *discord.status.lock().unwrap() = Some(StatusCode::TOO_MANY_REQUESTS);
        assert!(matches!(call(&gate).await, CallOutcome::Answered(_)));
        sleep(Duration::from_secs(59)).await;
        assert_eq!(take_released(&released), []);
        sleep(Duration::from_secs(2)).await;
        assert_eq!(take_released(&released), [GateCondition::GlobalLimit]);
    })
    .await;
}
