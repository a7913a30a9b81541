//! The daemon ends and starts again under load: no limit of Discord is exceeded, and clients see only what they may
//! retry.

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::sleep,
    time::{Duration, Instant},
};

use guildhall_sim::{LimitConfig, RateLimitScore, SimHandle};
use guildhall_testkit::program::{RunningGuildhall, TEST_TIMEOUT};
use serde_json::json;
use tempfile::TempDir;
use tokio::task::block_in_place;

use crate::fixture::{Call, bot, daemon, header, start_sim, try_request, wait_until_listening};

const CLIENTS: usize = 24;

/// How the daemons end, one after the other.
const ENDS: [&str; 3] = ["KILL", "TERM", "KILL"];

/// Responses of Discord before a daemon ends: more than two seconds at full load, so that it has stored what it learned.
const RESPONSES: u64 = 130;

/// A client whose call would wait longer makes another one.
const DEADLINE: &str = "X-Guildhall-Deadline-Ms: 500\r\n";

/// Longest that a client waits before it tries again, whatever it was told.
const MAX_PAUSE: Duration = Duration::from_millis(300);

/// Clients that call until the test is over.
struct Load {
    address: Mutex<SocketAddr>,
    /// Calls, in the order in which each client makes them.
    calls: Vec<String>,
    is_over: AtomicBool,
    /// Responses of Discord.
    answered: AtomicU64,
    /// Connections that failed.
    cut: AtomicU64,
}

impl Load {
    fn new(address: SocketAddr, sim: &SimHandle) -> Self {
        let mut calls = Vec::new();
        for guild in sim.guilds() {
            let authorization = bot();
            let get =
                |path: &str| Call { path, authorization: &authorization, headers: DEADLINE, ..Call::default() }.text();
            let path = format!("/guilds/{guild}/channels");
            // It waits for the quiet first window.
            let patient = Call { path: &path, authorization: &authorization, ..Call::default() };
            let channels = try_request(address, &patient.text()).unwrap().json();
            calls.push(get(&format!("/guilds/{guild}")));
            calls.push(get(&format!("/guilds/{guild}/roles")));
            for channel in channels.as_array().unwrap().iter().filter(|channel| channel["type"] == 0) {
                let channel = channel["id"].as_str().unwrap();
                let post = |path: &str, body: &str| {
                    let call = Call { method: "POST", path, body, headers: DEADLINE, ..Call::default() };
                    Call { authorization: &authorization, ..call }.text()
                };
                calls.push(post(&format!("/channels/{channel}/messages"), &json!({"content": "hello"}).to_string()));
                calls.push(get(&format!("/channels/{channel}/messages")));
                // No limit but the global one.
                calls.push(post(&format!("/channels/{channel}/typing"), ""));
                calls.push(post(&format!("/channels/{channel}/typing"), ""));
            }
        }
        let (is_over, answered, cut) = (AtomicBool::default(), AtomicU64::default(), AtomicU64::default());
        Self { address: Mutex::new(address), calls, is_over, answered, cut }
    }

    /// One client. It knows nothing of the daemon's end but what it sees.
    fn run_client(&self, number: usize) {
        for call in self.calls.iter().cycle().skip(number) {
            if self.is_over.load(Ordering::Relaxed) {
                return;
            }
            let address = *self.address.lock().unwrap();
            let Ok(response) = try_request(address, call) else {
                self.cut.fetch_add(1, Ordering::Relaxed);
                sleep(Duration::from_millis(20));
                continue;
            };
            let is_own = header(&response, "generated-by-proxy") == Some("true");
            let why = header(&response, "x-guildhall-why").unwrap_or_default();
            let was_sent = header(&response, "x-guildhall-sent") == Some("1");
            match (response.status, is_own, why) {
                (200 | 204, false, _) => {
                    self.answered.fetch_add(1, Ordering::Relaxed);
                }
                (429, true, "route_limit" | "global_limit") | (503, true, "shutting_down" | "recalling") => {
                    assert!(!was_sent, "{}", response.head);
                    let told = header(&response, "retry-after").map_or(1, |seconds| seconds.parse().unwrap());
                    sleep(Duration::from_secs(told).min(MAX_PAUSE));
                }
                _ => panic!("{}\n{}", response.head, response.body),
            }
        }
    }

    /// Waits for so many more responses of Discord.
    fn wait_for_responses(&self, count: u64) {
        let enough = self.answered.load(Ordering::Relaxed) + count;
        let deadline = Instant::now() + TEST_TIMEOUT;
        while self.answered.load(Ordering::Relaxed) < enough {
            assert!(Instant::now() < deadline, "{enough} responses expected");
            sleep(Duration::from_millis(10));
        }
    }
}

/// Starts a daemon on this store. Returns the address of its REST proxy.
fn start(sim: &SimHandle, folder: &TempDir) -> (RunningGuildhall, SocketAddr) {
    let store = format!("sqlite:{}", folder.path().join("guildhall.db").display());
    let running = daemon(sim, &[("GUILDHALL__STORE__URL", &store)]).spawn();
    let (_, egress) = wait_until_listening(&running);
    (running, egress)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limits_hold_over_the_end_of_a_daemon_under_load() {
    let sim = start_sim(LimitConfig::default(), &[]).await;
    let folder = tempfile::tempdir().unwrap();
    block_in_place(|| {
        let (mut running, address) = start(&sim, &folder);
        let load = Arc::new(Load::new(address, &sim));
        let clients: Vec<_> = (0..CLIENTS)
            .map(|number| {
                let load = Arc::clone(&load);
                std::thread::spawn(move || load.run_client(number))
            })
            .collect();
        for signal in ENDS {
            load.wait_for_responses(RESPONSES);
            let cut = load.cut.load(Ordering::Relaxed);
            running.signal(signal);
            let exited = running.wait_for_exit();
            assert_eq!(exited.code, (signal == "TERM").then_some(0), "{}", exited.stderr);
            let (next, address) = start(&sim, &folder);
            running = next;
            *load.address.lock().unwrap() = address;
            assert!(load.cut.load(Ordering::Relaxed) > cut, "the clients noticed");
        }
        load.wait_for_responses(RESPONSES);
        load.is_over.store(true, Ordering::Relaxed);
        for client in clients {
            client.join().unwrap();
        }
        drop(running);
    });
    let score = sim.score();
    println!("{} arrived, at most {:?} in a second", score.requests, score.max_per_second);
    assert_eq!(score.rate_limited, RateLimitScore::default(), "{:?}", score.routes);
    assert_eq!(score.invalid_requests, 0);
    assert!(score.max_per_second.values().all(|most| *most <= 50), "{:?}", score.max_per_second);
}
