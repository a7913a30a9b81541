//! What the daemon reports while nothing can be sent or stored: one log line with advice, not one for each failure.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use guildhall_sim::{CloudflareForm, Fault, FaultAction, Sim, SimConfig, SimHandle};
use guildhall_testkit::{
    postgres::PostgresServer,
    program::{Guildhall, HttpResponse, RunningGuildhall, TEST_TIMEOUT, get, request},
};
use serde_json::{Value, json};

const KEY: &str = "gh_test_0123456789";

async fn simulator() -> SimHandle {
    Sim::start(SimConfig { guilds: 1, members: 1, channels: 1, ..SimConfig::default() }).await.unwrap()
}

fn program(sim: &SimHandle) -> Guildhall {
    Guildhall::serve(&sim.gateway_url())
        .env("GUILDHALL__DISCORD__TOKEN", "sim-bot-token")
        .env("GUILDHALL__DISCORD__API_URL", &sim.api_url())
        .env("GUILDHALL__API__ADMIN_KEY", KEY)
}

fn start(program: Guildhall) -> (RunningGuildhall, SocketAddr) {
    tokio::task::block_in_place(|| {
        let daemon = program.spawn();
        let address = daemon.address();
        daemon.wait_for_log_line("\"part is ready\",\"part\":\"gateway\"");
        (daemon, address)
    })
}

fn add_fault(sim: &SimHandle, route: &str, action: FaultAction) {
    sim.add_fault(Fault { route: route.to_owned(), action, probability: 1.0, count: None, skip: 0 }).unwrap();
}

fn post(address: SocketAddr, path: &str, body: &Value) -> HttpResponse {
    let (body, length) = (body.to_string(), body.to_string().len());
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\nAuthorization: Bearer {KEY}\r\n\
         Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
    );
    tokio::task::block_in_place(|| request(address, &head))
}

/// Submits a read of a path.
fn submit_read(address: SocketAddr, path: &str) {
    let response = post(address, "/v1/operations", &json!({"kind": "read", "payload": {"path": path}}));
    assert_eq!(response.status, 202, "{}", response.body);
}

/// Why the gate is not ready.
fn gate_reason(address: SocketAddr) -> String {
    let report = tokio::task::block_in_place(|| get(address, "/readyz"));
    assert_eq!(report.status, 503, "{}", report.body);
    report.json()["parts"]["gate"]["reason"].as_str().unwrap_or_else(|| panic!("{}", report.body)).to_owned()
}

/// A row of the doctor's report about this daemon: its verdict, what was seen, and the advice. It has no token, so it
/// calls nothing.
fn doctor_check(address: SocketAddr, name: &str) -> (String, String, String) {
    let doctor = Guildhall::new(&["doctor", "-o", "json"])
        .env("GUILDHALL__API__BIND", &address.to_string())
        .env("GUILDHALL__API__ADMIN_KEY", KEY);
    let output = tokio::task::block_in_place(|| doctor.output());
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let checks = report["checks"].as_array().unwrap();
    let found = checks.iter().find(|check| check["check"] == name).unwrap_or_else(|| panic!("no {name}: {report}"));
    let text = |field: &str| found[field].as_str().unwrap_or_default().to_owned();
    (text("verdict"), text("seen"), text("advice"))
}

#[tokio::test(flavor = "multi_thread")]
async fn refused_token_makes_the_gate_not_ready_until_a_reset() {
    let sim = simulator().await;
    let (daemon, address) = start(program(&sim));
    add_fault(&sim, "GET /guilds/*", FaultAction::Status { status: 401, code: 0 });
    submit_read(address, &format!("/guilds/{}", sim.guilds()[0]));
    let line: Value = serde_json::from_str(&daemon.wait_for_log_line("no call can be sent to Discord")).unwrap();
    assert_eq!((&line["level"], &line["cause"]), (&json!("ERROR"), &json!("unauthorized")), "{line}");
    assert!(line["advice"].as_str().unwrap().contains("set discord.token"), "{line}");
    daemon.wait_for_log_line("\"part is not ready\",\"part\":\"gate\"");
    assert_eq!(gate_reason(address), "nothing is sent: Discord rejected the token of the bot (401)");

    let (verdict, seen, advice) = doctor_check(address, "breakers");
    assert!(verdict == "warn" && seen.contains("forced_open (unauthorized)"), "{verdict}: {seen}");
    assert!(advice.contains("discord.token"), "{advice}");
    let (verdict, seen, _) = doctor_check(address, "daemon");
    assert!(verdict == "warn" && seen.contains("gate: nothing is sent"), "{verdict}: {seen}");

    sim.remove_faults(None);
    let key = seen_breaker(address);
    let reset = post(address, "/v1/breakers/reset", &json!({ "key": key }));
    assert_eq!(reset.status, 200, "{}", reset.body);
    daemon.wait_for_log_line("calls can be sent to Discord again");
    daemon.wait_for_log_line("\"part is ready\",\"part\":\"gate\"");
    assert_eq!(tokio::task::block_in_place(|| get(address, "/readyz")).status, 200);
    assert_eq!(doctor_check(address, "breakers").0, "ok");
}

/// The key of the breaker that is forced open.
fn seen_breaker(address: SocketAddr) -> String {
    let head =
        format!("GET /v1/breakers HTTP/1.1\r\nHost: test\r\nConnection: close\r\nAuthorization: Bearer {KEY}\r\n\r\n");
    let all = tokio::task::block_in_place(|| request(address, &head)).json();
    let breakers = all["breakers"].as_array().unwrap();
    breakers.iter().find(|one| one["state"] == "forced_open").unwrap()["key"].as_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn ban_is_reported_with_its_end_and_who_spent_the_budget() {
    let sim = simulator().await;
    let (daemon, address) = start(program(&sim));
    let guild = sim.guilds()[0];
    add_fault(&sim, "GET /guilds/*", FaultAction::Status { status: 403, code: 50_001 });
    submit_read(address, &format!("/guilds/{guild}"));
    daemon.wait_for_log_line("\"operation failed\"");
    let ban = FaultAction::Cloudflare { form: CloudflareForm::Html, retry_after_ms: Some(2_000) };
    let fault = Fault { route: "GET /channels/*".to_owned(), action: ban, probability: 1.0, count: Some(1), skip: 0 };
    sim.add_fault(fault).unwrap();
    submit_read(address, &format!("/channels/{guild}"));
    let line: Value = serde_json::from_str(&daemon.wait_for_log_line("no call can be sent to Discord")).unwrap();
    assert_eq!(line["cause"], "blocked", "{line}");
    let reason = line["reason"].as_str().unwrap();
    assert!(reason.starts_with("nothing is sent: Cloudflare has banned this address, until 2"), "{line}");
    assert!(line["spent_by"].as_str().unwrap().starts_with("GET /guilds/"), "{line}");
    assert!(
        line["advice"].as_str().unwrap().contains("wait") && line["advice"].as_str().unwrap().contains("limits top")
    );
    daemon.wait_for_log_line("\"part is not ready\",\"part\":\"gate\"");
    let ended: Value = serde_json::from_str(&daemon.wait_for_log_line("calls can be sent to Discord again")).unwrap();
    assert!(ended["blocked_s"].as_u64().unwrap() >= 1, "{ended}");
    daemon.wait_for_log_line("\"part is ready\",\"part\":\"gate\"");
    assert_eq!(tokio::task::block_in_place(|| get(address, "/readyz")).status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn banned_daemon_is_not_ready_and_says_until_when() {
    let sim = simulator().await;
    let (daemon, address) = start(program(&sim));
    // It does not end during the test.
    let ban = FaultAction::Cloudflare { form: CloudflareForm::Html, retry_after_ms: Some(3_600_000) };
    let fault = Fault { route: "GET /guilds/*".to_owned(), action: ban, probability: 1.0, count: Some(1), skip: 0 };
    sim.add_fault(fault).unwrap();
    submit_read(address, &format!("/guilds/{}", sim.guilds()[0]));
    daemon.wait_for_log_line("\"part is not ready\",\"part\":\"gate\"");
    let reason = gate_reason(address);
    assert!(reason.starts_with("nothing is sent: Cloudflare has banned this address, until 2"), "{reason}");
}

/// The number of failed accesses to the store.
fn store_errors(address: SocketAddr) -> u64 {
    let metrics = tokio::task::block_in_place(|| get(address, "/metrics")).body;
    let samples = metrics.lines().filter(|line| line.starts_with("guildhall_store_errors_total{"));
    samples.map(|line| line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap()).sum()
}

#[tokio::test(flavor = "multi_thread")]
async fn outage_of_postgresql_is_summarised_in_the_log() {
    const FAILURES: u64 = 60;
    let mut server = tokio::task::block_in_place(PostgresServer::start);
    let url = server.create_database().await;
    let sim = simulator().await;
    let program = program(&sim)
        .env("GUILDHALL__STORE__URL", &url)
        .env("GUILDHALL__STORE__TIMEOUT_MS", "1000")
        .env("GUILDHALL__OPERATIONS__POLL_MS", "100")
        .env("GUILDHALL__OPERATIONS__HEARTBEAT_MS", "200");
    let (daemon, address) = start(program);
    tokio::task::block_in_place(|| server.kill());
    daemon.wait_for_log_line("store access failed");
    let deadline = Instant::now() + TEST_TIMEOUT;
    while store_errors(address) < FAILURES {
        assert!(Instant::now() < deadline, "{} failures", store_errors(address));
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    tokio::task::block_in_place(|| server.start_again());
    let recovered: Value = serde_json::from_str(&daemon.wait_for_log_line("store accessible again")).unwrap();
    assert!(recovered["failures"].as_u64().unwrap() >= FAILURES / 2, "{recovered}");
    assert!(recovered["failed_for_s"].is_u64(), "{recovered}");
    daemon.signal("TERM");
    let log = daemon.wait_for_exit().stderr;
    let lines: Vec<Value> = log.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let failures: Vec<&Value> =
        lines.iter().filter(|line| line["level"] == "WARN" || line["level"] == "ERROR").collect();
    assert!(failures.len() <= 15, "{} lines for {FAILURES} failures: {failures:#?}", failures.len());
    // It claims its shards again when its lease is renewed, not before.
    let lost = failures.iter().filter(|line| line["message"].as_str().unwrap_or_default().starts_with("shards lost"));
    assert!(lost.count() <= 1, "{failures:#?}");
    let first = failures.iter().filter(|line| line["message"] == "store access failed").count();
    assert!((1..=3).contains(&first), "the first failure at once, then one line every 30 s: {failures:#?}");
    for line in &lines {
        let fields = line.as_object().unwrap().values().filter_map(Value::as_str);
        for text in fields {
            let is_debug_text =
                ["Some(", "None", "Err(", "Error(", "Error {", "Os {", "kind:"].iter().any(|part| text.contains(part));
            assert!(!is_debug_text, "Rust Debug text in {line}");
        }
    }
}
