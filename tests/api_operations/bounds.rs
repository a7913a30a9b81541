//! Limits on connections and bodies: too many, too slow or malformed. Other callers are not affected.

use std::{net::SocketAddr, time::Duration};

use guildhall::api::{ControlConfig, EdgeConfig};
use guildhall_core::operation::OperationState;
use serde_json::json;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::{Instant, sleep, timeout},
};

use super::{Api, GUILD, KEY, Setup, call, raw, role, run, store::Fault, support::STUCK};

fn within(edge: EdgeConfig) -> Api {
    Setup { edge, ..Setup::default() }.start()
}

/// Reads until the server closes the connection.
async fn rest(stream: &mut TcpStream) -> String {
    let mut answer = Vec::new();
    let read = timeout(STUCK, stream.read_to_end(&mut answer)).await.expect("the connection was not closed");
    // A connection may be reset without a response.
    drop(read);
    String::from_utf8_lossy(&answer).into_owned()
}

/// Repeats a request until it has this status.
async fn until(address: SocketAddr, path: &str, status: u16) {
    let deadline = Instant::now() + STUCK;
    while call(address, "GET", path, &[], "").await.status != status {
        assert!(Instant::now() < deadline, "{path} never returned {status}");
        sleep(Duration::from_millis(10)).await;
    }
}

async fn idle(address: SocketAddr) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.unwrap();
    // The response shows that the connection is served. After it, the connection is idle.
    stream.write_all(b"GET /livez HTTP/1.1\r\nHost: test\r\n\r\n").await.unwrap();
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"HTTP/1.1 200");
    stream
}

#[test]
fn past_the_most_connections_only_health_is_answered_and_then_nothing() {
    run(async {
        let api = within(EdgeConfig { connections: 2, doorstep: 1, ..EdgeConfig::default() });
        let held = [idle(api.address()).await, idle(api.address()).await];
        let answer = api.get("/v1/operations").await;
        assert_eq!(answer.is_problem(503, "too-many-connections").header("retry-after").as_deref(), Some("1"));
        assert_eq!(answer.header("connection").as_deref(), Some("close"));
        for path in ["/livez", "/metrics"] {
            until(api.address(), path, 200).await;
        }
        // The overflow slots have room for one idle connection, for a short time.
        let mut waits = TcpStream::connect(api.address()).await.unwrap();
        rest(&mut waits).await;
        until(api.address(), "/livez", 200).await;
        drop(held);
        until(api.address(), "/v1/operations", 200).await;
    });
}

#[test]
fn whoever_does_not_finish_a_request_is_cut_also_after_the_first_one() {
    run(async {
        let edge = EdgeConfig { header_within: Duration::from_millis(200), ..EdgeConfig::default() };
        let api = within(edge);
        let mut first = TcpStream::connect(api.address()).await.unwrap();
        first.write_all(b"GET /livez HTTP/1.1\r\nHo").await.unwrap();
        assert!(rest(&mut first).await.starts_with("HTTP/1.1 408"));

        let mut second = idle(api.address()).await;
        let mut body = vec![0; 4096];
        let _ = second.read(&mut body).await.unwrap();
        // Sending a byte now and then does not help.
        for byte in b"GET /livez HTTP/1.1\r\nHost: a-long-name-that-takes-its-time".chunks(1).cycle() {
            if second.write_all(byte).await.is_err() {
                break;
            }
            sleep(Duration::from_millis(20)).await;
        }
        assert_eq!(api.get("/v1/operations").await.status, 200);
    });
}

#[test]
fn a_connection_that_is_kept_is_not_cut_for_being_idle_after_a_request() {
    run(async {
        let edge = EdgeConfig {
            header_within: Duration::from_millis(100),
            keep_alive: Duration::from_secs(60),
            ..EdgeConfig::default()
        };
        let api = within(edge);
        let mut kept = idle(api.address()).await;
        let mut answer = vec![0; 4096];
        let _ = kept.read(&mut answer).await.unwrap();
        // Longer than the header timeout. It does not apply before a request starts.
        sleep(Duration::from_millis(400)).await;
        kept.write_all(b"GET /livez HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n").await.unwrap();
        assert!(rest(&mut kept).await.starts_with("HTTP/1.1 200"));
    });
}

#[test]
fn whoever_does_not_read_the_answers_does_not_keep_the_connection() {
    run(async {
        let edge = EdgeConfig {
            connections: 1,
            doorstep: 0,
            write_within: Duration::from_millis(200),
            ..EdgeConfig::default()
        };
        let api = within(edge);
        let many: Vec<_> = (0..100).map(|n| role(&format!("{n:090}"))).collect();
        while api.store.count() < 400 {
            // The previous connection may still be open.
            api.post(&format!("/v1/guilds/{GUILD}/operations"), json!({ "operations": many })).await;
        }
        let mut deaf = TcpStream::connect(api.address()).await.unwrap();
        let asks = format!("GET /v1/operations?limit=400 HTTP/1.1\r\nHost: t\r\nAuthorization: Bearer {KEY}\r\n\r\n");
        // Requests more responses than the sockets can buffer, until the server closes the connection.
        let asking = async {
            while deaf.write_all(asks.as_bytes()).await.is_ok() {
                sleep(Duration::from_millis(1)).await;
            }
        };
        timeout(STUCK, asking).await.expect("the connection was not closed");
        until(api.address(), "/v1/operations", 200).await;
    });
}

#[test]
fn broken_bodies_are_told_what_is_wrong_with_them() {
    run(async {
        let api = Api::start();
        let path = format!("/v1/guilds/{GUILD}/operations");
        let head = |length: usize| {
            format!(
                "POST {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\nAuthorization: Bearer {KEY}\r\n\
                 Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
            )
        };
        let deep = [b"[".repeat(100_000), b"]".repeat(100_000)].concat();
        let deep_objects = [b"{\"a\":".repeat(50_000), b"1".to_vec(), b"}".repeat(50_000)].concat();
        let bodies: [(&str, Vec<u8>); 9] = [
            ("UTF-8", b"{\"kind\": \"create_role\", \"payload\": {\"name\": \"\xff\xfe\"}}".to_vec()),
            ("lone surrogate", b"{\"kind\": \"\\ud800\"}".to_vec()),
            ("deep", deep),
            ("deep objects", deep_objects),
            ("half", b"{\"kind\": \"create_role\", \"payl".to_vec()),
            ("two", b"{} {}".to_vec()),
            ("nothing", b" ".to_vec()),
            ("zeros", vec![0; 10_000]),
            ("huge number", [b"{\"kind\": ".to_vec(), b"9".repeat(100_000), b"}".to_vec()].concat()),
        ];
        for (what, body) in bodies {
            let request = [head(body.len()).into_bytes(), body].concat();
            let answer = raw(api.address(), &request).await;
            assert!((400..423).contains(&answer.status), "{what}: {answer:?}");
            let type_name = answer.json()["type"].as_str().unwrap().to_owned();
            assert!(
                type_name.ends_with(":bad-request") || type_name.ends_with(":invalid-operation"),
                "{what}: {answer:?}"
            );
            assert!(answer.body.len() < 4_096, "{what}: the response is as long as the request");
        }
        assert_eq!(api.store.count(), 0);
        assert_eq!(api.get("/v1/operations").await.status, 200);
    });
}

#[test]
fn requests_that_are_none_are_ended_and_nobody_else_notices() {
    run(async {
        let api = Api::start();
        let long_header = format!("GET /livez HTTP/1.1\r\nHost: t\r\nX-Long: {}\r\n\r\n", "x".repeat(1 << 20));
        let many_headers = format!("GET /livez HTTP/1.1\r\nHost: t\r\n{}\r\n", "X-A: b\r\n".repeat(1_000));
        let smuggled = "POST /v1/operations HTTP/1.1\r\nHost: t\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n";
        for broken in [
            "\x16\x03\x01\x02\x00\x01\x00",
            "GET\r\n\r\n",
            "\r\n\r\n\r\n",
            "GET /livez HTTP/9.9\r\nHost: t\r\n\r\n",
            "GET /\u{1}livez HTTP/1.1\r\nHost: t\r\n\r\n",
            &long_header,
            &many_headers,
            smuggled,
        ] {
            let mut stream = TcpStream::connect(api.address()).await.unwrap();
            drop(stream.write_all(broken.as_bytes()).await);
            drop(stream.shutdown().await);
            let answer = rest(&mut stream).await;
            let status = answer.split(' ').nth(1).unwrap_or("none").to_owned();
            assert!(["none", "400", "401", "431", "505"].contains(&status.as_str()), "{broken:.40}: {answer:.80}");
        }
        assert_eq!(api.get("/v1/operations").await.status, 200);
    });
}

#[test]
fn bodies_that_are_held_at_once_have_a_bound() {
    run(async {
        // The body is held for the whole test.
        let control = ControlConfig { bodies_most: 10_000, body_within: STUCK * 2, ..ControlConfig::default() };
        let api = Setup { control, ..Setup::default() }.start();
        let large = "x".repeat(9_000);
        let head = format!(
            "POST /v1/operations HTTP/1.1\r\nHost: test\r\nAuthorization: Bearer {KEY}\r\nContent-Type: application/json\r\n\
             Content-Length: 9001\r\n\r\n"
        );
        let mut holds = TcpStream::connect(api.address()).await.unwrap();
        holds.write_all(format!("{head}{large}").as_bytes()).await.unwrap();
        let deadline = Instant::now() + STUCK;
        loop {
            let answer = call(api.address(), "POST", "/v1/operations", &[], &large).await;
            if answer.status == 503 {
                answer.is_problem(503, "busy");
                break;
            }
            assert!(Instant::now() < deadline, "the limit is never reached: {answer:?}");
        }
        let small = call(api.address(), "POST", "/v1/operations", &[], "{}").await;
        small.is_problem(422, "invalid-operation");
        drop(holds);
        let deadline = Instant::now() + STUCK;
        while call(api.address(), "POST", "/v1/operations", &[], &large).await.status == 503 {
            assert!(Instant::now() < deadline, "the bytes are never released");
        }
    });
}

#[test]
fn while_it_drains_new_requests_are_told_so_and_those_under_way_are_answered() {
    run(async {
        let api = Api::start();
        let id = api.create_role("a").await;
        api.store.become_state(&id, OperationState::Succeeded);
        // In flight: its body is incomplete.
        let body = role("b").to_string();
        let mut under_way = TcpStream::connect(api.address()).await.unwrap();
        let head = format!(
            "POST /v1/guilds/{GUILD}/operations HTTP/1.1\r\nHost: test\r\nAuthorization: Bearer {KEY}\r\n\
             Content-Type: application/json\r\nExpect: 100-continue\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        under_way.write_all(head.as_bytes()).await.unwrap();
        let mut begun = [0; 25];
        under_way.read_exact(&mut begun).await.unwrap();
        assert_eq!(&begun, b"HTTP/1.1 100 Continue\r\n\r\n");
        let mut kept = idle(api.address()).await;

        api.control.drain();
        let refused = api.get("/v1/operations").await;
        assert_eq!(refused.is_problem(503, "draining").header("connection").as_deref(), Some("close"));
        assert_eq!(call(api.address(), "GET", "/livez", &[], "").await.status, 200);

        let address = api.address();
        let Api { listener, store, .. } = api;
        let stopping = tokio::spawn(listener.stop(STUCK));
        // Idle connections are closed; new ones are rejected.
        assert!(!rest(&mut kept).await.is_empty());
        let answer = raw(address, b"GET /livez HTTP/1.1\r\nHost: test\r\n\r\n").await;
        answer.is_problem(503, "draining");
        assert!(!stopping.is_finished());

        under_way.write_all(body.as_bytes()).await.unwrap();
        let answer = rest(&mut under_way).await;
        assert!(answer.starts_with("HTTP/1.1 202") && answer.contains("connection: close"), "{answer}");
        assert!(stopping.await.unwrap(), "everything was answered");
        assert_eq!(store.count(), 2);
        assert!(TcpStream::connect(address).await.is_err(), "the address is released");
    });
}

#[test]
fn a_request_that_never_ends_is_cut_when_the_time_is_up() {
    run(async {
        let api = Api::start();
        api.store.fail(Some(Fault::Silent));
        let mut waits = TcpStream::connect(api.address()).await.unwrap();
        let asks = format!("GET /v1/operations HTTP/1.1\r\nHost: t\r\nAuthorization: Bearer {KEY}\r\n\r\n");
        waits.write_all(asks.as_bytes()).await.unwrap();
        api.store.leaves_unanswered().await;
        let Api { listener, .. } = api;
        assert!(!listener.stop(Duration::from_millis(300)).await);
        assert_eq!(rest(&mut waits).await, "");
    });
}
