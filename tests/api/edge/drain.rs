//! SIGTERM under load: accepted operations are stored, requests in flight get a response, and new ones are rejected.

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use guildhall_sim::{BotConfig, Sim, SimConfig, SimHandle, Snowflake};
use guildhall_testkit::program::{CANARY, Guildhall, RunningGuildhall, TEST_TIMEOUT};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::time::{Instant, sleep, timeout};

use super::{
    KEY,
    http::{Connection, send_request},
};

/// Callers that submit without a pause.
const CALLERS: usize = 48;

async fn simulator() -> SimHandle {
    let bots = vec![BotConfig { token: CANARY.to_owned(), ..BotConfig::default() }];
    Sim::start(SimConfig { bots, ..SimConfig::default() }).await.unwrap()
}

/// A daemon whose store outlives it.
fn start(sim: &SimHandle, folder: &TempDir, delay_ms: &str) -> (RunningGuildhall, SocketAddr) {
    let running = Guildhall::serve(&sim.gateway_url())
        .env("GUILDHALL__DISCORD__TOKEN", CANARY)
        .env("GUILDHALL__DISCORD__API_URL", &sim.api_url())
        .env("GUILDHALL__STORE__URL", &format!("sqlite:{}/guildhall.db", folder.path().display()))
        .env("GUILDHALL__API__ADMIN_KEY", KEY)
        .env("GUILDHALL__API__POLICIES__HEAVY_PER_SECOND", "0")
        .env("GUILDHALL__API__POLICIES__LIGHT_PER_SECOND", "0")
        .env("GUILDHALL__API__BODY_TIMEOUT_MS", "60000")
        .env("GUILDHALL__SHUTDOWN__TIMEOUT_MS", "60000")
        .env("GUILDHALL__SHUTDOWN__DELAY_MS", delay_ms)
        .spawn();
    let address = running.address();
    running.wait_for_log_line("\"part is ready\",\"part\":\"operations\"");
    (running, address)
}

fn operations_path(guild: Snowflake) -> String {
    format!("/v1/guilds/{guild}/operations")
}

fn role(name: &str) -> Value {
    json!({"kind": "create_role", "payload": {"name": name}})
}

/// Responses to all callers.
#[derive(Default)]
struct CallerResults {
    accepted: Mutex<Vec<String>>,
    draining: Mutex<usize>,
    draining_started: AtomicBool,
}

/// Submits on one connection after the other, until the daemon drains or is gone.
async fn keep_submitting(address: SocketAddr, path: String, caller: usize, results: Arc<CallerResults>) {
    let mut n = 0;
    let mut connection = None;
    loop {
        let mut open = match connection.take() {
            Some(open) => open,
            None => match Connection::open(address).await {
                Ok(open) => open,
                Err(error) => {
                    assert!(results.draining_started.load(Ordering::SeqCst), "cannot connect: {error}");
                    return;
                }
            },
        };
        n += 1;
        match open.send_request("POST", &path, &role(&format!("role {caller}-{n}"))).await {
            Ok(response) if response.status == 202 => {
                results.accepted.lock().unwrap().push(response.json()["id"].as_str().unwrap().to_owned());
                connection = (!response.is_last()).then_some(open);
            }
            Ok(response) => {
                assert!(results.draining_started.load(Ordering::SeqCst), "{response:?}");
                assert_eq!(response.status, 503, "{response:?}");
                assert_eq!(response.json()["type"], "urn:guildhall:problem:draining", "{response:?}");
                assert!(response.is_last(), "{response:?}");
                *results.draining.lock().unwrap() += 1;
                return;
            }
            // No response: a retry with the same key would tell the outcome.
            Err(error) => assert!(results.draining_started.load(Ordering::SeqCst), "{error}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn operations_accepted_under_load_survive_a_sigterm() {
    let sim = simulator().await;
    let folder = tempfile::tempdir().unwrap();
    let path = operations_path(sim.guilds()[0]);
    let (daemon, address) = start(&sim, &folder, "0");
    let results = Arc::new(CallerResults::default());
    let callers: Vec<_> = (0..CALLERS)
        .map(|caller| tokio::spawn(keep_submitting(address, path.clone(), caller, Arc::clone(&results))))
        .collect();
    let deadline = Instant::now() + TEST_TIMEOUT;
    while results.accepted.lock().unwrap().len() < 1_000 {
        assert!(Instant::now() < deadline, "nothing is accepted");
        sleep(Duration::from_millis(5)).await;
    }
    results.draining_started.store(true, Ordering::SeqCst);
    daemon.signal("TERM");
    for caller in callers {
        timeout(TEST_TIMEOUT, caller).await.expect("a caller never got a response").unwrap();
    }
    let exit = tokio::task::block_in_place(|| daemon.wait_for_exit());
    assert_eq!(exit.code, Some(0), "{}", exit.stderr);
    assert!(exit.stderr.contains("\"shut down\""), "{}", exit.stderr);

    let (daemon, address) = start(&sim, &folder, "0");
    let accepted = std::mem::take(&mut *results.accepted.lock().unwrap());
    let mut connection = Connection::open(address).await.unwrap();
    for id in &accepted {
        let response = connection.send_request("GET", &format!("/v1/operations/{id}"), &Value::Null).await.unwrap();
        assert_eq!(response.status, 200, "{id} of {} was accepted and is gone: {response:?}", accepted.len());
    }
    daemon.signal("TERM");
    assert_eq!(tokio::task::block_in_place(|| daemon.wait_for_exit()).code, Some(0));
    println!("{} accepted, {} rejected because it drains", accepted.len(), results.draining.lock().unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn request_in_flight_is_answered_during_shutdown() {
    let sim = simulator().await;
    let folder = tempfile::tempdir().unwrap();
    let path = operations_path(sim.guilds()[0]);
    let (daemon, address) = start(&sim, &folder, "0");
    assert_eq!(send_request(address, "POST", &path, &role("first")).await.unwrap().status, 202);

    let body = role("second").to_string();
    let mut in_flight = Connection::open(address).await.unwrap();
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: test\r\nAuthorization: Bearer {KEY}\r\nContent-Type: application/json\r\n\
         Expect: 100-continue\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    in_flight.send(head.as_bytes()).await.unwrap();
    assert_eq!(in_flight.read_response().await.unwrap().status, 100);
    daemon.signal("TERM");
    daemon.wait_for_log_line("\"shutting down\"");
    // The API responds until the last request is answered.
    let ready = send_request(address, "GET", "/readyz", &Value::Null).await.unwrap();
    assert_eq!(ready.status, 503, "{ready:?}");
    let refused = send_request(address, "POST", &path, &role("third")).await.unwrap();
    assert_eq!(refused.json()["type"], "urn:guildhall:problem:draining", "{refused:?}");

    in_flight.send(body.as_bytes()).await.unwrap();
    let response = in_flight.read_response().await.unwrap();
    assert_eq!(response.status, 202, "{response:?}");
    assert!(response.is_last(), "{response:?}");
    let exit = tokio::task::block_in_place(|| daemon.wait_for_exit());
    assert_eq!(exit.code, Some(0), "{}", exit.stderr);

    let (daemon, address) = start(&sim, &folder, "0");
    let href = response.json()["href"].as_str().unwrap().to_owned();
    assert_eq!(send_request(address, "GET", &href, &Value::Null).await.unwrap().status, 200);
    daemon.signal("TERM");
    assert_eq!(tokio::task::block_in_place(|| daemon.wait_for_exit()).code, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn shutdown_delay_lets_load_balancers_react() {
    let sim = simulator().await;
    let folder = tempfile::tempdir().unwrap();
    let path = operations_path(sim.guilds()[0]);
    let (daemon, address) = start(&sim, &folder, "4000");
    daemon.wait_for_log_line("\"part is ready\",\"part\":\"gateway\"");
    daemon.signal("TERM");
    daemon.wait_for_log_line("\"shutting down\"");
    let ready = send_request(address, "GET", "/readyz", &Value::Null).await.unwrap();
    assert_eq!((ready.status, &ready.json()["stopping"]), (503, &true.into()));
    let accepted = send_request(address, "POST", &path, &role("late")).await.unwrap();
    assert_eq!(accepted.status, 202, "{accepted:?}");
    let exit = tokio::task::block_in_place(|| daemon.wait_for_exit());
    assert_eq!(exit.code, Some(0), "{}", exit.stderr);
}

#[tokio::test(flavor = "multi_thread")]
async fn starting_daemon_answers_accepted_requests() {
    let sim = simulator().await;
    let folder = tempfile::tempdir().unwrap();
    // Accepts connections and never responds. The daemon waits for Discord, and accepts operations meanwhile.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let discord = format!("http://{}", silent.local_addr().unwrap());
    let daemon = Guildhall::serve(&sim.gateway_url())
        .env("GUILDHALL__DISCORD__API_URL", &discord)
        .env("GUILDHALL__STORE__URL", &format!("sqlite:{}/guildhall.db", folder.path().display()))
        .env("GUILDHALL__API__ADMIN_KEY", KEY)
        .env("GUILDHALL__API__BODY_TIMEOUT_MS", "60000")
        .spawn();
    let address = daemon.address();
    let mut in_flight = Connection::open(address).await.unwrap();
    let head = format!(
        "POST /v1/operations HTTP/1.1\r\nHost: test\r\nAuthorization: Bearer {KEY}\r\nContent-Type: application/json\r\n\
         Expect: 100-continue\r\nContent-Length: 2\r\n\r\n"
    );
    in_flight.send(head.as_bytes()).await.unwrap();
    assert_eq!(in_flight.read_response().await.unwrap().status, 100);
    daemon.signal("TERM");
    daemon.wait_for_log_line("\"shutting down\"");
    let refused = send_request(address, "GET", "/v1/operations", &Value::Null).await.unwrap();
    assert_eq!(refused.json()["type"], "urn:guildhall:problem:draining", "{refused:?}");
    in_flight.send(b"{}").await.unwrap();
    // Either response is fine, but there must be one.
    let response = in_flight.read_response().await.unwrap();
    assert!([422, 503].contains(&response.status), "{response:?}");
    let exit = tokio::task::block_in_place(|| daemon.wait_for_exit());
    assert_eq!(exit.code, Some(0), "{}", exit.stderr);
}
