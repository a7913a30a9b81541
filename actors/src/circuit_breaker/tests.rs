//! The actor in one local set, with paused time.

use std::collections::HashMap;
use std::future::Future;
use std::sync::{Arc, Mutex};

use actix::Addr;
use futures_util::FutureExt;
use guildhall_core::breaker::{BreakerReason, BreakerState};
use guildhall_core::invalid::Submitter;
use guildhall_core::response::ResponseClass;
use guildhall_core::route::TopLevelId;
use metrics::{Counter, CounterFn, Gauge, GaugeFn, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};
use tokio::sync::mpsc;
use tokio::task::LocalSet;
use tokio::time::{Instant, advance, sleep};

use super::*;

const BOT: Credential = Credential::Application(42);
const QUICK: Duration = Duration::from_millis(50);
const SUCCESS: CallResult = CallResult::Answered(ResponseClass::Success);
const SERVER_ERROR: CallResult = CallResult::Answered(ResponseClass::ServerError);
const CREATE: &str = "POST /guilds/{id}/roles";
const READ: &str = "GET /guilds/{id}/roles";

async fn with_breaker<F: Future<Output = ()>>(test: impl FnOnce(Addr<CircuitBreaker>) -> F) {
    with_limit(InvalidConfig::default(), test).await;
}

async fn with_limit<F: Future<Output = ()>>(invalid: InvalidConfig, test: impl FnOnce(Addr<CircuitBreaker>) -> F) {
    let local = LocalSet::new();
    let body = async {
        let config = BreakerConfig { jitter_percent: 0, ..BreakerConfig::default() };
        test(CircuitBreaker::new(Clock::start(), config, invalid, 1).start()).await;
    };
    local.run_until(body).await;
}

fn call(route: &str, id: u64) -> CallInfo {
    CallInfo {
        credential: BOT,
        route: RouteKey::new(route),
        major: TopLevelId::of(id),
        lane: Lane::Operation,
        guild: Some(id),
        submitter: Submitter::default(),
        may_probe: !route.starts_with("POST"),
    }
}

fn pair(route: &str, id: u64) -> BreakerKey {
    BreakerKey::Pair(BOT, RouteKey::new(route), TopLevelId::of(id))
}

async fn admit(breaker: &Addr<CircuitBreaker>, call: CallInfo) -> Result<Pass, CallRejection> {
    breaker.send(Admit(call)).await.unwrap()
}

async fn run(breaker: &Addr<CircuitBreaker>, call: CallInfo, result: CallResult) -> Attempt {
    admit(breaker, call).await.unwrap().report(result, QUICK).attempt().await
}

async fn observe(breaker: &Addr<CircuitBreaker>) -> CircuitBreakerSnapshot {
    breaker.send(ObserveCircuitBreaker).await.unwrap()
}

async fn state(breaker: &Addr<CircuitBreaker>, key: &BreakerKey) -> &'static str {
    let breakers = observe(breaker).await.breakers.breakers;
    breakers.iter().find(|breakers| breakers.key == *key).map_or("closed", |breakers| breakers.state)
}

#[tokio::test(start_paused = true)]
async fn failing_object_is_not_called_until_its_probes_succeed() {
    with_breaker(|breaker| async move {
        let mut attempts = Vec::new();
        for _ in 0..5 {
            attempts.push(run(&breaker, call(READ, 7), SERVER_ERROR).await);
        }
        assert_eq!(attempts.last(), Some(&Attempt::Free));
        assert_eq!(admit(&breaker, call(READ, 7)).await.unwrap_err().reason, "breaker_open");
        assert_eq!(run(&breaker, call(READ, 8), SUCCESS).await, Attempt::Used);

        sleep(Duration::from_secs(30)).await;
        for _ in 0..3 {
            let pass = admit(&breaker, call(READ, 7)).await.unwrap();
            assert!(pass.is_probe());
            pass.report(SUCCESS, QUICK).attempt().await;
        }
        assert!(!admit(&breaker, call(READ, 7)).await.unwrap().is_probe());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn subscribers_receive_every_transition_when_it_happens() {
    with_breaker(|breaker| async move {
        let mut events = breaker.send(SubscribeBreakerChanges).await.unwrap();
        let began = Instant::now();
        for _ in 0..5 {
            run(&breaker, call(READ, 7), CallResult::TimedOut).await;
        }
        let opened = events.recv().await.unwrap();
        assert_eq!((opened.key, opened.to.name(), opened.why), (pair(READ, 7), "open", BreakerReason::FailuresInRow));
        assert_eq!(opened.retry_after_ms, Some(30_000));
        // Without any further message: its own timer changes the state.
        let turned = events.recv().await.unwrap();
        assert_eq!((turned.to, turned.why), (BreakerState::HalfOpen, BreakerReason::CooledDown));
        assert_eq!(began.elapsed(), Duration::from_secs(30));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn breaker_sends_its_own_probes_when_only_creates_wait() {
    with_breaker(|breaker| async move {
        let (requests, mut probes) = mpsc::unbounded_channel();
        let prober: Prober = Arc::new(move |request| requests.send(request).unwrap());
        breaker.send(SetProber(prober)).await.unwrap();
        for _ in 0..5 {
            run(&breaker, call(CREATE, 7), SERVER_ERROR).await;
        }
        // The first probe is lost, which costs only time.
        drop(probes.recv().await.unwrap());
        for _ in 0..3 {
            assert_eq!(admit(&breaker, call(CREATE, 7)).await.unwrap_err().reason, "breaker_half_open");
            let probe = probes.recv().await.unwrap();
            assert_eq!((probe.key.clone(), probe.credential, probe.path()), (pair(CREATE, 7), BOT, "/gateway/bot"));
            probe.pass.report(SUCCESS, QUICK).attempt().await;
        }
        assert_eq!(run(&breaker, call(CREATE, 7), SUCCESS).await, Attempt::Used);
        let snapshot = observe(&breaker).await;
        assert_eq!(snapshot.invalid_requests.in_flight, 0);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn breaker_without_a_prober_retries_until_it_has_one() {
    with_breaker(|breaker| async move {
        for _ in 0..5 {
            run(&breaker, call(CREATE, 7), SERVER_ERROR).await;
        }
        sleep(Duration::from_secs(120)).await;
        assert_eq!(state(&breaker, &pair(CREATE, 7)).await, "half_open");
        let (requests, mut probes) = mpsc::unbounded_channel();
        let prober: Prober = Arc::new(move |request| requests.send(request).unwrap());
        breaker.send(SetProber(prober)).await.unwrap();
        let prober_set = Instant::now();
        let probe = probes.recv().await.unwrap();
        assert!(prober_set.elapsed() <= Duration::from_secs(1));
        assert!(probe.pass.is_probe());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn dropped_pass_releases_its_places() {
    with_breaker(|breaker| async move {
        for _ in 0..5 {
            run(&breaker, call(READ, 7), SERVER_ERROR).await;
        }
        sleep(Duration::from_secs(30)).await;
        for _ in 0..10 {
            drop(admit(&breaker, call(READ, 7)).await.unwrap());
        }
        let held: Vec<Pass> = vec![admit(&breaker, call(READ, 7)).await.unwrap()];
        assert_eq!(observe(&breaker).await.invalid_requests.in_flight, 1);
        drop(held);
        assert_eq!(observe(&breaker).await.invalid_requests.in_flight, 0);
        assert_eq!(state(&breaker, &pair(READ, 7)).await, "half_open");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn cancelled_admission_leaves_nothing_behind() {
    with_breaker(|breaker| async move {
        let mut request = Box::pin(breaker.send(Admit(call(READ, 7))));
        // After one poll the message is in the mailbox. Then the sender is dropped.
        assert!(request.as_mut().now_or_never().is_none());
        drop(request);
        tokio::task::yield_now().await;
        assert_eq!(observe(&breaker).await.invalid_requests.in_flight, 0);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn invalid_responses_stop_lanes_until_they_expire() {
    let invalid = InvalidConfig { limit: 10, share_percent: 100, ..InvalidConfig::default() };
    with_limit(invalid, |breaker| async move {
        let lane = |lane| CallInfo { lane, ..call(READ, 7) };
        for _ in 0..5 {
            run(&breaker, lane(Lane::Operation), CallResult::Answered(ResponseClass::Forbidden)).await;
        }
        let refused = admit(&breaker, lane(Lane::Background)).await.unwrap_err();
        assert_eq!(refused.reason, "invalid_requests");
        // With three calls in flight, the next threshold could be reached.
        let mut held = Vec::new();
        for _ in 0..3 {
            held.push(admit(&breaker, lane(Lane::Operation)).await.unwrap());
        }
        assert_eq!(admit(&breaker, lane(Lane::Operation)).await.unwrap_err().reason, "invalid_requests");
        assert_eq!(run(&breaker, lane(Lane::Interactive), SUCCESS).await, Attempt::Used);
        drop(held);

        let snapshot = observe(&breaker).await.invalid_requests;
        assert_eq!((snapshot.used, snapshot.ratio), (5, 0.5));
        assert_eq!((snapshot.top_spenders[0].guild, snapshot.top_spenders[0].count), (Some(7), 5));
        advance(Duration::from_secs(605)).await;
        assert_eq!(observe(&breaker).await.invalid_requests.used, 0);
        assert!(admit(&breaker, lane(Lane::Background)).await.is_ok());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn caller_over_its_share_waits_alone() {
    let invalid = InvalidConfig { limit: 40, ..InvalidConfig::default() };
    with_limit(invalid, |breaker| async move {
        let of = |key: &str, tenant: &str, guild| CallInfo {
            guild: Some(guild),
            submitter: Submitter::of(&key.into(), &tenant.into()),
            ..call(READ, guild)
        };
        for guild in [1, 2] {
            for _ in 0..4 {
                run(&breaker, of("greedy", "acme", guild), CallResult::Answered(ResponseClass::Forbidden)).await;
            }
        }
        // One more is in flight, and one more is admitted.
        let held = admit(&breaker, of("greedy", "acme", 1)).await.unwrap();
        run(&breaker, of("greedy", "acme", 3), CallResult::Answered(ResponseClass::Forbidden)).await;
        let refused = admit(&breaker, of("greedy", "acme", 3)).await.unwrap_err();
        assert_eq!(refused.reason, "invalid_requests_key_share");
        let text = refused.to_string();
        let expected = "key greedy has used 10 of the 10 invalid requests that one key may use in 10 minutes; retry in 1 \
            s: ";
        assert!(text.starts_with(expected), "{text}");
        for (key, reason) in [("second", "invalid_requests_tenant_share")] {
            assert_eq!(admit(&breaker, of(key, "acme", 3)).await.unwrap_err().reason, reason);
        }
        // Other callers are not affected, in the same guilds or elsewhere.
        for other in [of("calm", "rival", 3), of("admin", "acme", 1), of("handler:greet", "acme", 2)] {
            assert_eq!(run(&breaker, other, SUCCESS).await, Attempt::Used);
        }
        let share = observe(&breaker).await.invalid_requests.share;
        assert_eq!((share.cap, share.held, share.capped), (10, 2, 2));
        // A call with any other result releases its place.
        drop(held);
        assert_eq!(run(&breaker, of("greedy", "acme", 3), SUCCESS).await, Attempt::Used);
        run(&breaker, of("greedy", "acme", 3), CallResult::Answered(ResponseClass::Forbidden)).await;
        let refused = admit(&breaker, of("greedy", "acme", 3)).await.unwrap_err();
        assert!(refused.until.is_some());
        advance(Duration::from_secs(606)).await;
        assert_eq!(run(&breaker, of("greedy", "acme", 3), SUCCESS).await, Attempt::Used);
        assert_eq!(observe(&breaker).await.invalid_requests.share.holders, []);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn invalid_token_stops_the_bot_until_it_is_replaced() {
    with_breaker(|breaker| async move {
        assert_eq!(
            run(&breaker, call(READ, 7), CallResult::Answered(ResponseClass::Unauthorized)).await,
            Attempt::Free
        );
        sleep(Duration::from_secs(86_400)).await;
        let refused = admit(&breaker, call(READ, 7)).await.unwrap_err();
        assert_eq!((refused.reason, refused.until), ("unauthorized", None));
        breaker.send(TokenChanged(BOT)).await.unwrap();
        assert_eq!(run(&breaker, call(READ, 7), SUCCESS).await, Attempt::Used);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn forced_breaker_stops_all_calls_until_its_reset() {
    with_breaker(|breaker| async move {
        breaker.send(ForceOpen(BreakerKey::Address)).await.unwrap().unwrap();
        assert_eq!(admit(&breaker, call(READ, 7)).await.unwrap_err().reason, "breaker_forced_open");
        breaker.send(ResetBreaker(BreakerKey::Address)).await.unwrap();
        assert_eq!(run(&breaker, call(READ, 7), SUCCESS).await, Attempt::Used);
    })
    .await;
}

#[test]
fn passes_and_probes_are_send() {
    fn carried<T: Send + 'static>() {}
    carried::<Pass>();
    carried::<ProbeRequest>();
    carried::<ReportReceipt>();
}

#[derive(Debug, thiserror::Error)]
#[error("no such host")]
struct NoHost;

#[tokio::test(start_paused = true)]
async fn target_breaker_opens_on_failures_and_closes_after_cooldown() {
    with_breaker(|breaker| async move {
        let limit = Duration::from_secs(10);
        for _ in 0..5 {
            let failed = CircuitBreaker::call(&breaker, "crm", limit, async { Err::<(), _>(NoHost) }).await;
            assert!(matches!(failed, Err(CallError::Failed(NoHost))));
        }
        let mut made = false;
        let refused = CircuitBreaker::call(&breaker, "crm", limit, async {
            made = true;
            Ok::<_, NoHost>(())
        });
        match refused.await {
            Err(CallError::Open { retry_after, reason, key }) => {
                assert_eq!(retry_after, Some(Duration::from_secs(30)));
                assert_eq!((reason, key.as_str()), ("breaker_open", "target:crm"));
            }
            other => panic!("{other:?}"),
        }
        assert!(!made);
        let other = CircuitBreaker::call(&breaker, "billing", limit, async { Ok::<_, NoHost>(1) }).await;
        assert!(matches!(other, Ok(1)));

        sleep(Duration::from_secs(30)).await;
        for _ in 0..4 {
            assert!(CircuitBreaker::call(&breaker, "crm", limit, async { Ok::<_, NoHost>(()) }).await.is_ok());
        }
        assert_eq!(state(&breaker, &BreakerKey::Target("crm".to_owned())).await, "closed");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn timed_out_call_counts_as_a_failure() {
    with_breaker(|breaker| async move {
        let limit = Duration::from_secs(2);
        for _ in 0..5 {
            let began = Instant::now();
            let forever = std::future::pending::<Result<(), NoHost>>();
            assert!(matches!(CircuitBreaker::call(&breaker, "crm", limit, forever).await, Err(CallError::TimedOut)));
            assert_eq!(began.elapsed(), limit);
        }
        assert_eq!(state(&breaker, &BreakerKey::Target("crm".to_owned())).await, "open");
    })
    .await;
}

/// Stores the last value of each series, by name and labels.
#[derive(Clone, Default)]
struct Series(Arc<Mutex<HashMap<String, f64>>>);

struct Cell(Series, String);

impl Cell {
    fn change(&self, by: impl FnOnce(f64) -> f64) {
        let mut all = self.0.0.lock().unwrap();
        let value = all.entry(self.1.clone()).or_default();
        *value = by(*value);
    }
}

impl CounterFn for Cell {
    fn increment(&self, by: u64) {
        self.change(|value| value + by as f64);
    }

    fn absolute(&self, to: u64) {
        self.change(|_| to as f64);
    }
}

impl GaugeFn for Cell {
    fn increment(&self, by: f64) {
        self.change(|value| value + by);
    }

    fn decrement(&self, by: f64) {
        self.change(|value| value - by);
    }

    fn set(&self, to: f64) {
        self.change(|_| to);
    }
}

impl Recorder for Series {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(Arc::new(self.cell(key)))
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(Arc::new(self.cell(key)))
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}

impl Series {
    fn cell(&self, key: &Key) -> Cell {
        let labels: Vec<String> = key.labels().map(|label| format!("{}={}", label.key(), label.value())).collect();
        Cell(self.clone(), format!("{}{{{}}}", key.name(), labels.join(",")))
    }

    fn get(&self, series: &str) -> Option<f64> {
        self.0.lock().unwrap().get(series).copied()
    }

    fn names(&self) -> Vec<String> {
        self.0.lock().unwrap().keys().cloned().collect()
    }
}

#[tokio::test(start_paused = true)]
async fn metrics_of_breakers_contain_no_ids() {
    let series = Series::default();
    let _guard = metrics::set_default_local_recorder(&series);
    with_limit(InvalidConfig { limit: 100, ..InvalidConfig::default() }, |breaker| async move {
        for (route, id) in [(READ, 777), ("GET /channels/{id}", 888)] {
            for _ in 0..5 {
                run(&breaker, call(route, id), SERVER_ERROR).await;
                run(&breaker, call("GET /users/@me", 0), CallResult::Answered(ResponseClass::Forbidden)).await;
            }
        }
        admit(&breaker, call(READ, 777)).await.unwrap_err();
        breaker.send(ForceOpen(BreakerKey::Discord(BOT))).await.unwrap().unwrap();
        for number in 0..100 {
            breaker.send(ForceOpen(BreakerKey::Target(format!("hook-{number}")))).await.unwrap().unwrap();
        }
    })
    .await;
    assert_eq!(series.get("guildhall_breaker_state{key=discord}"), Some(0.0));
    assert_eq!(series.get("guildhall_breaker_state{key=discord:42}"), Some(3.0));
    assert_eq!(series.get("guildhall_breaker_state{key=pair}"), Some(2.0));
    assert_eq!(series.get("guildhall_breaker_transitions_total{key=pair,to=open}"), Some(2.0));
    assert_eq!(series.get("guildhall_rest_refused_total{reason=breaker_open}"), Some(1.0));
    assert_eq!(series.get("guildhall_invalid_requests_used_ratio{}"), Some(0.1));
    let names = series.names();
    assert!(names.iter().all(|name| !name.contains("777") && !name.contains("888")), "{names:?}");
    assert!(names.iter().filter(|name| name.starts_with("guildhall_breaker_state{key=target")).count() <= 65);
}
