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
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::time::{Instant, sleep, timeout};

use crate::{
    KEY,
    http::{Connection, ask},
    support::{CANARY, Guildhall, Running, STUCK},
};

/// Callers that submit without a pause.
const CALLERS: usize = 48;

async fn simulator() -> SimHandle {
    let bots = vec![BotConfig { token: CANARY.to_owned(), ..BotConfig::default() }];
    Sim::start(SimConfig { bots, ..SimConfig::default() }).await.unwrap()
}

/// A daemon whose store outlives it.
fn start(sim: &SimHandle, folder: &TempDir, delay_ms: &str) -> (Running, SocketAddr) {
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
    running.line_with("\"part is ready\",\"part\":\"operations\"");
    (running, address)
}

fn place(guild: Snowflake) -> String {
    format!("/v1/guilds/{guild}/operations")
}

fn role(name: &str) -> Value {
    json!({"kind": "create_role", "payload": {"name": name}})
}

/// Responses to all callers.
#[derive(Default)]
struct Heard {
    accepted: Mutex<Vec<String>>,
    draining: Mutex<usize>,
    over: AtomicBool,
}

/// Submits on one connection after the other, until the daemon drains or is gone.
async fn keep_submitting(address: SocketAddr, path: String, caller: usize, heard: Arc<Heard>) {
    let mut n = 0;
    let mut connection = None;
    loop {
        let mut open = match connection.take() {
            Some(open) => open,
            None => match Connection::open(address).await {
                Ok(open) => open,
                Err(error) => {
                    assert!(heard.over.load(Ordering::SeqCst), "cannot connect: {error}");
                    return;
                }
            },
        };
        n += 1;
        match open.ask("POST", &path, &role(&format!("role {caller}-{n}"))).await {
            Ok(answer) if answer.status == 202 => {
                heard.accepted.lock().unwrap().push(answer.json()["id"].as_str().unwrap().to_owned());
                connection = (!answer.is_last()).then_some(open);
            }
            Ok(answer) => {
                assert!(heard.over.load(Ordering::SeqCst), "{answer:?}");
                assert_eq!(answer.status, 503, "{answer:?}");
                assert_eq!(answer.json()["type"], "urn:guildhall:problem:draining", "{answer:?}");
                assert!(answer.is_last(), "{answer:?}");
                *heard.draining.lock().unwrap() += 1;
                return;
            }
            // No response: a retry with the same key would tell the outcome.
            Err(error) => assert!(heard.over.load(Ordering::SeqCst), "{error}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_that_was_accepted_under_load_is_there_after_a_sigterm() {
    let sim = simulator().await;
    let folder = tempfile::tempdir().unwrap();
    let path = place(sim.guilds()[0]);
    let (daemon, address) = start(&sim, &folder, "0");
    let heard = Arc::new(Heard::default());
    let callers: Vec<_> = (0..CALLERS)
        .map(|caller| tokio::spawn(keep_submitting(address, path.clone(), caller, Arc::clone(&heard))))
        .collect();
    let deadline = Instant::now() + STUCK;
    while heard.accepted.lock().unwrap().len() < 1_000 {
        assert!(Instant::now() < deadline, "nothing is accepted");
        sleep(Duration::from_millis(5)).await;
    }
    heard.over.store(true, Ordering::SeqCst);
    daemon.signal("TERM");
    for caller in callers {
        timeout(STUCK, caller).await.expect("a caller never got a response").unwrap();
    }
    let ended = tokio::task::block_in_place(|| daemon.end());
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert!(ended.stderr.contains("\"shut down\""), "{}", ended.stderr);

    let (daemon, address) = start(&sim, &folder, "0");
    let accepted = std::mem::take(&mut *heard.accepted.lock().unwrap());
    let mut connection = Connection::open(address).await.unwrap();
    for id in &accepted {
        let shown = connection.ask("GET", &format!("/v1/operations/{id}"), &Value::Null).await.unwrap();
        assert_eq!(shown.status, 200, "{id} of {} was accepted and is gone: {shown:?}", accepted.len());
    }
    daemon.signal("TERM");
    assert_eq!(tokio::task::block_in_place(|| daemon.end()).code, Some(0));
    println!("{} accepted, {} rejected because it drains", accepted.len(), heard.draining.lock().unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_under_way_is_answered_and_meanwhile_nothing_is_ready() {
    let sim = simulator().await;
    let folder = tempfile::tempdir().unwrap();
    let path = place(sim.guilds()[0]);
    let (daemon, address) = start(&sim, &folder, "0");
    assert_eq!(ask(address, "POST", &path, &role("first")).await.unwrap().status, 202);

    let body = role("second").to_string();
    let mut under_way = Connection::open(address).await.unwrap();
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: test\r\nAuthorization: Bearer {KEY}\r\nContent-Type: application/json\r\n\
         Expect: 100-continue\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    under_way.send(head.as_bytes()).await.unwrap();
    assert_eq!(under_way.answer().await.unwrap().status, 100);
    daemon.signal("TERM");
    daemon.line_with("\"shutting down\"");
    // The API responds until the last request is answered.
    let ready = ask(address, "GET", "/readyz", &Value::Null).await.unwrap();
    assert_eq!(ready.status, 503, "{ready:?}");
    let refused = ask(address, "POST", &path, &role("third")).await.unwrap();
    assert_eq!(refused.json()["type"], "urn:guildhall:problem:draining", "{refused:?}");

    under_way.send(body.as_bytes()).await.unwrap();
    let answer = under_way.answer().await.unwrap();
    assert_eq!(answer.status, 202, "{answer:?}");
    assert!(answer.is_last(), "{answer:?}");
    let ended = tokio::task::block_in_place(|| daemon.end());
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);

    let (daemon, address) = start(&sim, &folder, "0");
    let href = answer.json()["href"].as_str().unwrap().to_owned();
    assert_eq!(ask(address, "GET", &href, &Value::Null).await.unwrap().status, 200);
    daemon.signal("TERM");
    assert_eq!(tokio::task::block_in_place(|| daemon.end()).code, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_load_balancer_has_time_to_notice_if_it_is_given_any() {
    let sim = simulator().await;
    let folder = tempfile::tempdir().unwrap();
    let path = place(sim.guilds()[0]);
    let (daemon, address) = start(&sim, &folder, "4000");
    daemon.line_with("\"part is ready\",\"part\":\"gateway\"");
    daemon.signal("TERM");
    daemon.line_with("\"shutting down\"");
    let ready = ask(address, "GET", "/readyz", &Value::Null).await.unwrap();
    assert_eq!((ready.status, &ready.json()["stopping"]), (503, &true.into()));
    let accepted = ask(address, "POST", &path, &role("late")).await.unwrap();
    assert_eq!(accepted.status, 202, "{accepted:?}");
    let ended = tokio::task::block_in_place(|| daemon.end());
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_that_has_not_even_started_answers_what_it_has_taken() {
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
    let mut under_way = Connection::open(address).await.unwrap();
    let head = format!(
        "POST /v1/operations HTTP/1.1\r\nHost: test\r\nAuthorization: Bearer {KEY}\r\nContent-Type: application/json\r\n\
         Expect: 100-continue\r\nContent-Length: 2\r\n\r\n"
    );
    under_way.send(head.as_bytes()).await.unwrap();
    assert_eq!(under_way.answer().await.unwrap().status, 100);
    daemon.signal("TERM");
    daemon.line_with("\"shutting down\"");
    let refused = ask(address, "GET", "/v1/operations", &Value::Null).await.unwrap();
    assert_eq!(refused.json()["type"], "urn:guildhall:problem:draining", "{refused:?}");
    under_way.send(b"{}").await.unwrap();
    // Either response is fine, but there must be one.
    let answer = under_way.answer().await.unwrap();
    assert!([422, 503].contains(&answer.status), "{answer:?}");
    let ended = tokio::task::block_in_place(|| daemon.end());
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
}
