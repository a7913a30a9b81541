//! Several token buckets that share one limit, with paused time. The shared window is the reference that the Redis
//! script is checked against.

use std::cell::RefCell;
use std::future::Future;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use guildhall_core::limit::SharingConfig;
use guildhall_core::limit::shared::{ReferenceWindow, ScriptCall, SharedLimitConfig};
use guildhall_core::response::RateLimitScope;
use guildhall_core::route::Route;
use tokio::task::LocalSet;
use tokio::time::{Instant, sleep};

use super::*;

const BOT: Credential = Credential::Application(42);
const LONG_WAIT: Duration = Duration::from_secs(3_600);
const SUCCESS: ResponseInfo = ResponseInfo { class: ResponseClass::Success, rate: None };

/// The shared window, and the connection of one process to it.
#[derive(Clone)]
struct FakeWindow {
    window: Arc<Mutex<ReferenceWindow>>,
    clock: Clock,
    is_cut: Arc<AtomicBool>,
}

impl SharedWindow for FakeWindow {
    fn call(&self, _: Credential, call: ScriptCall) -> SharedCallFuture {
        let connection = self.clone();
        Box::pin(async move {
            if connection.is_cut.load(Ordering::Relaxed) {
                sleep(Duration::from_millis(250)).await;
                return None;
            }
            sleep(Duration::from_millis(1)).await;
            let now = 1_000_000_000 + connection.clock.now().micros();
            let reply = connection.window.lock().unwrap().call(&call, &SharedLimitConfig::default(), "server", now);
            sleep(Duration::from_millis(1)).await;
            Some(reply)
        })
    }
}

struct Process {
    tokens: TokenBucketHandle,
    is_cut: Arc<AtomicBool>,
}

/// Runs a test with processes that share a limit and have joined it.
async fn with_processes<F: Future<Output = ()>>(count: usize, test: impl FnOnce(Vec<Process>) -> F) {
    let body = async {
        let clock = Clock::start();
        let window = Arc::new(Mutex::new(ReferenceWindow::empty()));
        let process = |number: usize| {
            let is_cut = Arc::new(AtomicBool::new(false));
            let connection = FakeWindow { window: Arc::clone(&window), clock, is_cut: Arc::clone(&is_cut) };
            let sharing =
                SharingConfig { rules: SharedLimitConfig::default(), member_id: format!("p{number}"), incarnation: 1 };
            let shared = SharedLimits { window: Arc::new(connection), sharing, credential: BOT };
            let bucket = TokenBucket::new(clock, LimitConfig::default()).with_shared_limits(shared);
            Process { tokens: TokenBucketHandle::new(bucket.run(), clock), is_cut }
        };
        let processes = (0..count).map(process).collect();
        sleep(Duration::from_secs(5)).await;
        test(processes).await;
    };
    LocalSet::new().run_until(body).await;
}

/// Times of the calls of a process.
type Log = Rc<RefCell<Vec<Instant>>>;

/// Lets a process make as many calls as it may, forever. Each call takes 20 ms.
fn keep_busy(tokens: &TokenBucketHandle) -> Log {
    let log = Log::default();
    for guild in 1..=20_u64 {
        let (tokens, log) = (tokens.clone(), Rc::clone(&log));
        tokio::task::spawn_local(async move {
            loop {
                let route = Route::parse("GET", &format!("/guilds/{guild}/roles"), 42, 0);
                let Ok(mut permit) = tokens.acquire(BOT, route, Lane::Operation, LONG_WAIT).await else { break };
                permit.sent();
                log.borrow_mut().push(Instant::now());
                sleep(Duration::from_millis(20)).await;
                permit.answered(SUCCESS);
            }
        });
    }
    log
}

fn max_in_a_second(logs: &[Log]) -> usize {
    let mut all: Vec<Instant> = logs.iter().flat_map(|log| log.borrow().clone()).collect();
    all.sort_unstable();
    let second = Duration::from_secs(1);
    (0..all.len())
        .map(|first| all[first..].iter().take_while(|then| **then < all[first] + second).count())
        .max()
        .unwrap()
}

fn since(log: &Log, then: Instant) -> usize {
    log.borrow().iter().filter(|at| **at >= then).count()
}

#[tokio::test(start_paused = true)]
async fn processes_share_a_limit_evenly_and_never_exceed_it() {
    with_processes(3, |processes| async move {
        let logs: Vec<Log> = processes.iter().map(|process| keep_busy(&process.tokens)).collect();
        sleep(Duration::from_secs(20)).await;
        assert!(max_in_a_second(&logs) <= 50);
        let total: usize = logs.iter().map(|log| log.borrow().len()).sum();
        assert!(total >= 20 * 45, "{total} in 20 s");
        for log in &logs {
            let part = log.borrow().len() * 100 / total;
            assert!((27..40).contains(&part), "{part} %");
        }
        let mut shares = 0;
        for process in &processes {
            let shared = process.tokens.observe().await.unwrap().credentials.remove(0).shared.unwrap();
            assert_eq!((shared.mode, shared.members), (SharingMode::Shared, 3));
            assert!((16..=17).contains(&shared.share), "{}", shared.share);
            shares += shared.share;
        }
        assert_eq!(shares, 50, "every part of the limit is assigned");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn disconnected_process_pauses_uses_its_share_and_rejoins() {
    with_processes(3, |processes| async move {
        let logs: Vec<Log> = processes.iter().map(|process| keep_busy(&process.tokens)).collect();
        sleep(Duration::from_secs(5)).await;
        processes[0].is_cut.store(true, Ordering::Relaxed);
        let disconnected = Instant::now();
        sleep(Duration::from_secs(1)).await;
        let silent = Instant::now();
        sleep(Duration::from_secs(4)).await;
        assert_eq!(since(&logs[0], silent), 0);
        sleep(Duration::from_secs(1)).await;
        assert!(since(&logs[0], disconnected + Duration::from_secs(5)) > 0, "its share starts within 6 s");
        let apart = Instant::now();
        sleep(Duration::from_secs(10)).await;
        assert!((140..=170).contains(&since(&logs[0], apart)), "{} in 10 s of 16/s", since(&logs[0], apart));
        let others = since(&logs[1], apart) + since(&logs[2], apart);
        assert!((300..=340).contains(&others), "{others} in 10 s of 33/s or 34/s");
        processes[0].is_cut.store(false, Ordering::Relaxed);
        sleep(Duration::from_secs(5)).await;
        let back = Instant::now();
        sleep(Duration::from_secs(10)).await;
        let all: usize = logs.iter().map(|log| since(log, back)).sum();
        assert!(all >= 450, "{all} in 10 s");
        assert!(max_in_a_second(&logs) <= 50);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn global_429_of_one_process_stops_all() {
    with_processes(2, |processes| async move {
        let route = Route::parse("GET", "/guilds/7/roles", 42, 0);
        let mut permit = processes[0].tokens.acquire(BOT, route, Lane::Operation, LONG_WAIT).await.unwrap();
        permit.sent();
        let class = ResponseClass::RateLimited { scope: RateLimitScope::Global, retry_after: Duration::from_secs(8) };
        permit.answered(ResponseInfo { class, rate: None });
        sleep(Duration::from_secs(1)).await;
        let (log, began) = (keep_busy(&processes[1].tokens), Instant::now());
        sleep(Duration::from_secs(9)).await;
        let first = *log.borrow().first().unwrap();
        assert!(first - began >= Duration::from_millis(6_990), "{:?}", first - began);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn global_429_of_an_exempt_call_stops_every_process_exempt_or_not() {
    with_processes(2, |processes| async move {
        let callback = |id: u64| Route::parse("POST", &format!("/interactions/{id}/t/callback"), 42, 0);
        let mut permit = processes[0].tokens.acquire(BOT, callback(1), Lane::Interactive, LONG_WAIT).await.unwrap();
        permit.sent();
        let class = ResponseClass::RateLimited { scope: RateLimitScope::Global, retry_after: Duration::from_secs(60) };
        permit.answered(ResponseInfo { class, rate: None });
        // After a heartbeat the other process knows of it without a notification.
        sleep(Duration::from_secs(2)).await;
        for process in &processes {
            for route in [callback(2), Route::parse("GET", "/guilds/7/roles", 42, 0)] {
                let wait = Duration::from_secs(5);
                let refused = process.tokens.acquire(BOT, route, Lane::Interactive, wait).await.unwrap_err();
                assert_eq!(refused.reason, "global_limit");
            }
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn leaving_process_frees_its_share_at_once() {
    with_processes(2, |mut processes| async move {
        let leaving = processes.remove(0);
        leaving.tokens.leave().await;
        let route = Route::parse("GET", "/guilds/7/roles", 42, 0);
        let refused = leaving.tokens.acquire(BOT, route, Lane::Operation, Duration::from_secs(5)).await.unwrap_err();
        assert_eq!(refused.reason, "global_limit");
        let view = processes[0].tokens.observe().await.unwrap().credentials.remove(0);
        let shared = view.shared.unwrap();
        assert_eq!((shared.members, shared.share), (1, 50));
    })
    .await;
}
