//! Tests of bad input: clear errors, no panic, bounded memory.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Stdio};
use std::time::Duration;

use bytes::Bytes;
use guildhall_sim::SimConfig;
use http::{Method, Request};
use http_body_util::Full;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::common::{AGENT, Fixture, TOKEN, send};

#[tokio::test]
async fn invalid_and_oversized_bodies_have_their_error() {
    let fixture = Fixture::start(SimConfig { max_body: 1_000, ..SimConfig::default() }).await;
    let post = |body: Vec<u8>| {
        let request = Request::post(format!("/api/v10/channels/{}/messages", fixture.channel))
            .header("host", "sim")
            .header("user-agent", AGENT)
            .header("authorization", TOKEN)
            .header("content-type", "application/json")
            .body(Full::new(Bytes::from(body)))
            .unwrap();
        send(fixture.sim.address(), request)
    };
    assert_eq!(post(b"{\"content\": ".to_vec()).await.unwrap().json()["code"], 50109);
    assert_eq!(post(vec![0xff; 900]).await.unwrap().json()["code"], 50109);
    assert_eq!(post(b"[1]".to_vec()).await.unwrap().json()["code"], 50035);
    // Nested lists must not overflow the stack.
    assert_eq!(post(vec![b'['; 999]).await.unwrap().json()["code"], 50109);
    let large = post(vec![b' '; 2_000]).await.unwrap();
    assert_eq!((large.status, large.json()["code"].as_u64()), (413, Some(40005)));
    assert_eq!(fixture.api(Method::GET, "/gateway", None).await.status, 200, "the simulator continues to respond");
}

#[tokio::test]
async fn chunked_body_is_accepted_and_an_endless_one_is_cut() {
    let fixture = Fixture::start(SimConfig { max_body: 64 * 1024, ..SimConfig::default() }).await;
    let head = format!(
        "POST /api/v10/channels/{}/messages HTTP/1.1\r\nhost: sim\r\nuser-agent: {AGENT}\r\nauthorization: {TOKEN}\r\n\
         content-type: application/json\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n",
        fixture.channel
    );
    let mut socket = tokio::net::TcpStream::connect(fixture.sim.address()).await.unwrap();
    let body = "10\r\n{\"content\": \"in \r\n8\r\npieces\"}\r\n0\r\n\r\n";
    socket.write_all(format!("{head}{body}").as_bytes()).await.unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("in pieces"), "{answer}");

    let mut socket = tokio::net::TcpStream::connect(fixture.sim.address()).await.unwrap();
    socket.write_all(head.as_bytes()).await.unwrap();
    let chunk = format!("1000\r\n{}\r\n", " ".repeat(4096));
    let mut sent = 0_usize;
    while sent < 64 * 1024 * 1024 && socket.write_all(chunk.as_bytes()).await.is_ok() {
        sent += 4096;
    }
    assert!(sent < 64 * 1024 * 1024, "the connection was closed during the upload");
}

#[tokio::test]
async fn invalid_control_requests_explain_the_error() {
    let fixture = Fixture::start(SimConfig::default()).await;
    let cases = [
        (Method::GET, "/sim/nothing", None, 404, "GET /sim lists"),
        (Method::POST, "/sim/faults", Some(json!({ "do": { "kind": "explode" } })), 400, "unknown variant `explode`"),
        (Method::POST, "/sim/faults", Some(json!({ "do": { "kind": "status", "status": 200 } })), 400, "400 to 599"),
        (
            Method::POST,
            "/sim/faults",
            Some(json!({ "route": "POST /no/such", "do": { "kind": "drop_after" } })),
            400,
            "no route matches",
        ),
        (
            Method::POST,
            "/sim/faults",
            Some(json!({ "do": { "kind": "drop_after" }, "probability": 2 })),
            400,
            "from 0 to 1",
        ),
        (Method::POST, "/sim/gateway/faults", Some(json!({ "kind": "explode" })), 400, "unknown variant `explode`"),
        (Method::POST, "/sim/guilds", Some(json!({ "count": 0 })), 400, "`count` must be from 1"),
        (Method::POST, "/sim/guilds", Some(json!({ "cuont": 1 })), 400, "unknown field `cuont`"),
        (Method::POST, "/sim/guilds/1/members", Some(json!({})), 404, "unknown guild 1"),
        (Method::POST, "/sim/guilds/x/members", Some(json!({})), 400, "is not an id"),
        (
            Method::PUT,
            "/sim/limits/routes",
            Some(json!({ "method": "GET", "path": "/nope", "limit": 1, "per_ms": 1, "algorithm": "fixed" })),
            404,
            "GET /sim/routes",
        ),
        (
            Method::PUT,
            "/sim/limits",
            Some(json!({ "global": { "limit": 0, "per_ms": 1, "algorithm": "sliding" } })),
            400,
            "global",
        ),
        (Method::PUT, "/sim/snapshot", Some(json!({ "world": 1 })), 400, "invalid body"),
        (Method::POST, "/sim/commands", Some(json!([])), 400, "invalid body"),
    ];
    for (method, path, body, status, expected) in cases {
        let answer = fixture.control(method.clone(), path, body.clone()).await;
        let error = answer.json()["error"].as_str().unwrap_or_default().to_owned();
        assert!(
            answer.status == status && error.contains(expected),
            "{method} {path} {body:?}: {} {}",
            answer.status,
            answer.text
        );
    }
    let large = fixture.control(Method::POST, "/sim/guilds", Some(json!({ "name": "x".repeat(2_000_000) }))).await;
    assert_eq!(large.status, 413, "{}", large.text);
}

/// The environment variable that tells a test that it has a process of its own.
const ALONE: &str = "GUILDHALL_SIM_TEST_ALONE";

/// Opens connections and sends nothing on them until its standard input ends; run by the next test in a second process.
#[test]
fn helper_that_holds_idle_sockets() {
    let Ok(address) = std::env::var("GUILDHALL_SIM_IDLE_TARGET") else { return };
    let address: SocketAddr = address.parse().unwrap();
    rlimit::increase_nofile_limit(8_192).unwrap();
    let sockets: Vec<_> = (0..5_000).map(|_| TcpStream::connect(address).unwrap()).collect();
    println!("holding {}", sockets.len());
    std::io::stdout().flush().unwrap();
    let _ = std::io::stdin().read(&mut [0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_connections_are_limited_and_do_not_block_others() {
    // It measures its memory, so nothing else may run in its process.
    if std::env::var_os(ALONE).is_none() {
        let alone = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "hostile::idle_connections_are_limited_and_do_not_block_others"])
            .env(ALONE, "1")
            .output();
        let alone = alone.unwrap();
        assert!(alone.status.success(), "{}", String::from_utf8_lossy(&alone.stdout));
        return;
    }
    rlimit::increase_nofile_limit(8_192).unwrap();
    let config = SimConfig { max_connections: 4_000, idle_timeout: Duration::from_secs(600), ..SimConfig::default() };
    let fixture = Fixture::start(config).await;
    // A connection from before the flood is still served.
    let (mut sender, connection) = {
        let socket = tokio::net::TcpStream::connect(fixture.sim.address()).await.unwrap();
        hyper::client::conn::http1::handshake(hyper_util::rt::TokioIo::new(socket)).await.unwrap()
    };
    tokio::spawn(connection);
    let before = resident_kib();
    let mut flood = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "hostile::helper_that_holds_idle_sockets", "--nocapture"])
        .env("GUILDHALL_SIM_IDLE_TARGET", fixture.sim.address().to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let stdout = flood.stdout.take().unwrap();
    let holding = tokio::task::spawn_blocking(move || {
        use std::io::BufRead;
        let mut lines = std::io::BufReader::new(stdout).lines().map_while(Result::ok);
        (lines.any(|line| line.contains("holding 5000")), lines)
    });
    let (holding, lines) = holding.await.unwrap();
    assert!(holding, "the second process holds its sockets");

    let request = Request::get("/api/v10/gateway").header("host", "sim").header("user-agent", AGENT);
    let answer = sender.send_request(request.body(Full::new(Bytes::new())).unwrap()).await.unwrap();
    assert_eq!(answer.status(), 200);
    let mut late = tokio::net::TcpStream::connect(fixture.sim.address()).await.unwrap();
    let mut response = String::new();
    late.read_to_string(&mut response).await.unwrap();
    assert!(response.starts_with("HTTP/1.1 503"), "beyond the connection limit, callers get a 503: {response}");
    let grown = resident_kib().saturating_sub(before);
    assert!(grown < 128 * 1024, "4,000 idle connections took {grown} KiB");
    drop(flood.stdin.take());
    // Its last output must be read, or it blocks.
    lines.for_each(drop);
    flood.wait().unwrap();
}

/// Resident memory of this process.
fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap_or_default();
    line.split_whitespace().nth(1).and_then(|number| number.parse().ok()).unwrap_or_default()
}
