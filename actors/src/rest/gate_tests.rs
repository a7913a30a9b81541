//! The whole gate in one local set, under paused time, with a Discord that answers after a while.

use std::collections::HashMap;
use std::future::Future;
use std::sync::Mutex;

use futures_util::future::join_all;
use guildhall_core::answer::{Class, RateHeaders};
use guildhall_core::breaker::{BreakerKey, State};
use http::{HeaderMap, StatusCode};
use tokio::task::LocalSet;
use tokio::time::{advance, sleep, sleep_until, timeout};

use super::*;
use crate::circuit_breaker::Subscribe;
use crate::rest::{Received, SendFuture};

const BOT: Credential = Credential::Application(42);

/// Answers every call after a while.
#[derive(Default)]
struct Discord {
    /// How long an answer takes.
    latency: Duration,
    /// By the first two parts of a path and method: so many in a window of so many seconds. Without, no headers.
    limit: Option<(u32, u64)>,
    windows: Mutex<HashMap<String, (Instant, u32)>>,
    /// When each call was sent, by its path.
    sent: Mutex<Vec<(String, Instant)>>,
    /// What is answered instead of a 200.
    status: Mutex<Option<StatusCode>>,
    /// Calls that were refused.
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

/// A Discord that a test keeps a hand on.
struct Line(Arc<Discord>, Instant);

impl Transport for Line {
    fn send(&self, call: Cleared) -> SendFuture<'_> {
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
                StatusCode::FORBIDDEN => Class::Forbidden,
                status if status.is_success() => Class::Success,
                _ => Class::ServerError,
            };
            let (headers, body) = (HeaderMap::new(), bytes::Bytes::new());
            Ok(Received { status, headers, body, class, code: None, rate: counted.and_then(Result::ok) })
        })
    }
}

async fn with_gate<F: Future<Output = ()>>(
    discord: Discord,
    config: GateConfig,
    test: impl FnOnce(Arc<Gate>, Arc<Discord>) -> F,
) {
    let discord = Arc::new(discord);
    let body = async {
        let gate = Gate::start(Line(Arc::clone(&discord), Instant::now()), config);
        test(gate, Arc::clone(&discord)).await;
    };
    LocalSet::new().run_until(body).await;
}

fn read(path: String, lane: Lane, max_wait: Duration) -> Request {
    let mut request = Request::new(Method::GET, path, BOT);
    (request.lane, request.max_wait) = (lane, max_wait);
    request
}

/// How long calls of the interactive lane waited before they were sent, the longest last, while the operations did.
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
                // Ten a second, at no even times, once the gate has seen how long answers take.
                let at = began + Duration::from_millis(4_000 + number * 97 + (number * number * 31) % 83);
                sleep_until(at).await;
                let path = format!("/channels/{number}");
                let outcome = gate.call(read(path.clone(), Lane::Interactive, Duration::from_secs(5))).await;
                assert!(matches!(outcome, Outcome::Answered(_)), "{outcome:?}");
                (path, at)
            }
        };
        // Their route is known.
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
        assert_eq!(*discord.refused.lock().unwrap(), 0, "no bucket was passed");
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
        println!(
            "{limit:?}, {latency:?}: of {} the middle waited {:?}, p99 {p99:?}",
            waits.len(),
            waits[waits.len() / 2]
        );
        assert!(p99 < Duration::from_millis(100), "{limit:?}, {latency:?}: {p99:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_dropped_while_it_waits_leaves_nothing_behind() {
    with_gate(Discord::default(), GateConfig::default(), |gate, discord| async move {
        let mut calls: Vec<_> = (0..50)
            .map(|guild| Box::pin(gate.call(read(format!("/guilds/{guild}"), Lane::Operation, Duration::MAX / 4))))
            .collect();
        // All are admitted and wait for the gate's first quiet window to end.
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
async fn a_thousand_calls_that_come_before_the_actors_have_run_are_all_taken() {
    with_gate(Discord::default(), GateConfig::default(), |gate, _| async move {
        let calls = (0..1_000)
            .map(|guild| gate.call(read(format!("/guilds/{guild}"), Lane::Operation, Duration::from_secs(90))));
        let outcomes = join_all(calls).await;
        assert!(outcomes.iter().all(|outcome| matches!(outcome, Outcome::Answered(_))), "{:?}", outcomes[20]);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_call_whose_caller_hangs_up_after_it_was_sent_is_counted_like_any_other() {
    let status = Mutex::new(Some(StatusCode::FORBIDDEN));
    let discord = Discord { latency: Duration::from_secs(2), status, ..Discord::default() };
    with_gate(discord, GateConfig::default(), |gate, discord| async move {
        let call = gate.call(read("/guilds/1".into(), Lane::Operation, Duration::from_secs(5)));
        // Sent when the quiet first window is over, and not answered yet.
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
async fn a_call_that_cannot_go_in_time_is_not_sent_and_says_when_it_could() {
    let discord = Discord { limit: Some((2, 60)), ..Discord::default() };
    with_gate(discord, GateConfig::default(), |gate, discord| async move {
        sleep(Duration::from_secs(3)).await;
        for _ in 0..2 {
            drop(gate.call(read("/guilds/1".into(), Lane::Operation, Duration::from_secs(90))).await);
        }
        let began = Instant::now();
        let outcome = gate.call(read("/guilds/1".into(), Lane::Interactive, Duration::from_secs(5))).await;
        let Outcome::NotSent(refused) = outcome else { panic!("{outcome:?}") };
        assert_eq!((began.elapsed(), refused.reason), (Duration::ZERO, "route_limit"));
        let wait = refused.retry_after.unwrap();
        assert!(wait > Duration::from_secs(50) && wait <= Duration::from_secs(61), "{wait:?}");
        sleep(wait).await;
        let again = gate.call(read("/guilds/1".into(), Lane::Interactive, Duration::from_secs(5))).await;
        assert!(matches!(again, Outcome::Answered(_)), "{again:?}");
        assert_eq!(*discord.refused.lock().unwrap(), 0);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn whoever_waited_while_a_breaker_opened_is_not_sent_and_gives_its_token_back() {
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
        let sent = outcomes.iter().filter(|outcome| matches!(outcome, Outcome::Answered(_))).count();
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
async fn a_breaker_that_nobody_else_can_probe_closes_under_the_narrow_limit_of_its_own_probes() {
    let breakers = BreakerConfig { jitter_percent: 0, ..BreakerConfig::default() };
    // As narrow as that of `GET /gateway/bot`: fewer in a window than a breaker wants probes.
    let discord = Discord { limit: Some((2, 5)), ..Discord::default() };
    with_gate(discord, GateConfig { breakers, ..GateConfig::default() }, |gate, discord| async move {
        *discord.status.lock().unwrap() = Some(StatusCode::BAD_GATEWAY);
        let mut changes = gate.breaker().send(Subscribe).await.unwrap();
        let create = |guild: u64| {
            let mut request = Request::new(Method::POST, format!("/guilds/{guild}/roles"), BOT);
            request.max_wait = Duration::from_secs(60);
            gate.call(request)
        };
        for _ in 0..5 {
            drop(create(1).await);
        }
        let opened = changes.recv().await.unwrap();
        assert!(matches!((&opened.key, opened.to), (BreakerKey::Pair(..), State::Open { .. })), "{opened:?}");
        *discord.status.lock().unwrap() = None;
        let closed = timeout(Duration::from_secs(120), async {
            loop {
                let change = changes.recv().await.unwrap();
                if change.key == opened.key && change.to == State::Closed {
                    return;
                }
            }
        });
        closed.await.expect("it closes");
        assert_eq!(*discord.refused.lock().unwrap(), 0, "its probes keep to their own limit");
        advance(Duration::from_secs(10)).await;
        assert!(matches!(create(1).await, Outcome::Answered(_)));
    })
    .await;
}
