//! Limits on connections and bodies: too many, too slow or malformed. Other callers are not affected.

use std::{net::SocketAddr, time::Duration};

use guildhall::api::{ControlConfig, EdgeConfig};
use guildhall_core::operation::OperationState;
use guildhall_testkit::program::TEST_TIMEOUT;
use serde_json::json;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::{Instant, sleep, timeout},
};

use super::{ApiSetup, GUILD, KEY, TestApi, call, memory_store::Fault, role, run, send_raw};

fn start_with(edge: EdgeConfig) -> TestApi {
    ApiSetup { edge, ..ApiSetup::default() }.start()
}

/// Reads until the server closes the connection.
async fn read_to_end(stream: &mut TcpStream) -> String {
    let mut response = Vec::new();
    let read = timeout(TEST_TIMEOUT, stream.read_to_end(&mut response)).await.expect("the connection was not closed");
    // A connection may be reset without a response.
    drop(read);
    String::from_utf8_lossy(&response).into_owned()
}

/// Repeats a request until it has this status.
async fn wait_for_status(address: SocketAddr, path: &str, status: u16) {
    let deadline = Instant::now() + TEST_TIMEOUT;
    while call(address, "GET", path, &[], "").await.status != status {
        assert!(Instant::now() < deadline, "{path} never returned {status}");
        sleep(Duration::from_millis(10)).await;
    }
}

async fn open_idle(address: SocketAddr) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.unwrap();
    // The response shows that the connection is served. After it, the connection is idle.
    stream.write_all(b"GET /livez HTTP/1.1\r\nHost: test\r\n\r\n").await.unwrap();
    let mut response = [0; 12];
    stream.read_exact(&mut response).await.unwrap();
    assert_eq!(&response, b"HTTP/1.1 200");
    stream
}

#[test]
fn beyond_the_connection_limit_only_health_is_served() {
    run(async {
        let api = start_with(EdgeConfig { connections: 2, health_connections: 1, ..EdgeConfig::default() });
        let held = [open_idle(api.address()).await, open_idle(api.address()).await];
        let response = api.get("/v1/operations").await;
        assert_eq!(response.assert_problem(503, "too-many-connections").header("retry-after").as_deref(), Some("1"));
        assert_eq!(response.header("connection").as_deref(), Some("close"));
        for path in ["/livez", "/metrics"] {
            wait_for_status(api.address(), path, 200).await;
        }
        // The overflow slots have room for one idle connection, for a short time.
        let mut idle_stream = TcpStream::connect(api.address()).await.unwrap();
        read_to_end(&mut idle_stream).await;
        wait_for_status(api.address(), "/livez", 200).await;
        drop(held);
        wait_for_status(api.address(), "/v1/operations", 200).await;
    });
}

#[test]
fn slow_requests_are_closed_also_after_the_first() {
    run(async {
        let edge = EdgeConfig { header_timeout: Duration::from_millis(200), ..EdgeConfig::default() };
        let api = start_with(edge);
        let mut first = TcpStream::connect(api.address()).await.unwrap();
        first.write_all(b"GET /livez HTTP/1.1\r\nHo").await.unwrap();
        assert!(read_to_end(&mut first).await.starts_with("HTTP/1.1 408"));

        let mut second = open_idle(api.address()).await;
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
fn idle_keep_alive_connection_is_not_closed_early() {
    run(async {
        let edge = EdgeConfig {
            header_timeout: Duration::from_millis(100),
            keep_alive: Duration::from_secs(60),
            ..EdgeConfig::default()
        };
        let api = start_with(edge);
        let mut connection = open_idle(api.address()).await;
        let mut response = vec![0; 4096];
        let _ = connection.read(&mut response).await.unwrap();
        // Longer than the header timeout. It does not apply before a request starts.
        sleep(Duration::from_millis(400)).await;
        connection.write_all(b"GET /livez HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n").await.unwrap();
        assert!(read_to_end(&mut connection).await.starts_with("HTTP/1.1 200"));
    });
}

#[test]
fn connection_that_does_not_read_is_closed() {
    run(async {
        let edge = EdgeConfig {
            connections: 1,
            health_connections: 0,
            write_timeout: Duration::from_millis(200),
            ..EdgeConfig::default()
        };
        let api = start_with(edge);
        let batch: Vec<_> = (0..100).map(|n| role(&format!("{n:090}"))).collect();
        while api.store.count() < 400 {
            // The previous connection may still be open.
            api.post(&format!("/v1/guilds/{GUILD}/operations"), json!({ "operations": batch })).await;
        }
        let mut stream = TcpStream::connect(api.address()).await.unwrap();
        let request =
            format!("GET /v1/operations?limit=400 HTTP/1.1\r\nHost: t\r\nAuthorization: Bearer {KEY}\r\n\r\n");
        // Requests more responses than the sockets can buffer, until the server closes the connection.
        let send_requests = async {
            while stream.write_all(request.as_bytes()).await.is_ok() {
                sleep(Duration::from_millis(1)).await;
            }
        };
        timeout(TEST_TIMEOUT, send_requests).await.expect("the connection was not closed");
        wait_for_status(api.address(), "/v1/operations", 200).await;
    });
}

#[test]
fn malformed_bodies_get_a_specific_error() {
    run(async {
        let api = TestApi::start();
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
        for (label, body) in bodies {
            let request = [head(body.len()).into_bytes(), body].concat();
            let response = send_raw(api.address(), &request).await;
            assert!((400..423).contains(&response.status), "{label}: {response:?}");
            let type_name = response.json()["type"].as_str().unwrap().to_owned();
            assert!(
                type_name.ends_with(":bad-request") || type_name.ends_with(":invalid-operation"),
                "{label}: {response:?}"
            );
            assert!(response.body.len() < 4_096, "{label}: the response is as long as the request");
        }
        assert_eq!(api.store.count(), 0);
        assert_eq!(api.get("/v1/operations").await.status, 200);
    });
}

#[test]
fn malformed_requests_do_not_affect_other_callers() {
    run(async {
        let api = TestApi::start();
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
            let response = read_to_end(&mut stream).await;
            let status = response.split(' ').nth(1).unwrap_or("none").to_owned();
            assert!(["none", "400", "401", "431", "505"].contains(&status.as_str()), "{broken:.40}: {response:.80}");
        }
        assert_eq!(api.get("/v1/operations").await.status, 200);
    });
}

#[test]
fn bodies_in_memory_are_limited() {
    run(async {
        // The body is held for the whole test.
        let control = ControlConfig { max_bodies: 10_000, body_timeout: TEST_TIMEOUT * 2, ..ControlConfig::default() };
        let api = ApiSetup { control, ..ApiSetup::default() }.start();
        let large = "x".repeat(9_000);
        let head = format!(
            "POST /v1/operations HTTP/1.1\r\nHost: test\r\nAuthorization: Bearer {KEY}\r\nContent-Type: application/json\r\n\
             Content-Length: 9001\r\n\r\n"
        );
        let hold_body = async || {
            let mut stream = TcpStream::connect(api.address()).await.unwrap();
            stream.write_all(format!("{head}{large}").as_bytes()).await.unwrap();
            stream
        };
        let mut held_stream = hold_body().await;
        let deadline = Instant::now() + TEST_TIMEOUT;
        loop {
            // A response means that its body was not held: there was no room because of the call below.
            if held_stream.try_read(&mut [0; 64]).is_ok() {
                held_stream = hold_body().await;
            }
            let response = call(api.address(), "POST", "/v1/operations", &[], &large).await;
            if response.status == 503 {
                response.assert_problem(503, "busy");
                break;
            }
            assert!(Instant::now() < deadline, "the limit is never reached: {response:?}");
        }
        let small = call(api.address(), "POST", "/v1/operations", &[], "{}").await;
        small.assert_problem(422, "invalid-operation");
        drop(held_stream);
        let deadline = Instant::now() + TEST_TIMEOUT;
        while call(api.address(), "POST", "/v1/operations", &[], &large).await.status == 503 {
            assert!(Instant::now() < deadline, "the bytes are never released");
        }
    });
}

#[test]
fn draining_rejects_new_requests_and_finishes_others() {
    run(async {
        let api = TestApi::start();
        let id = api.create_role("a").await;
        api.store.set_state(&id, OperationState::Succeeded);
        // In flight: its body is incomplete.
        let body = role("b").to_string();
        let mut in_flight = TcpStream::connect(api.address()).await.unwrap();
        let head = format!(
            "POST /v1/guilds/{GUILD}/operations HTTP/1.1\r\nHost: test\r\nAuthorization: Bearer {KEY}\r\n\
             Content-Type: application/json\r\nExpect: 100-continue\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        in_flight.write_all(head.as_bytes()).await.unwrap();
        let mut interim = [0; 25];
        in_flight.read_exact(&mut interim).await.unwrap();
        assert_eq!(&interim, b"HTTP/1.1 100 Continue\r\n\r\n");
        let mut idle_stream = open_idle(api.address()).await;

        api.control.drain();
        let refused = api.get("/v1/operations").await;
        assert_eq!(refused.assert_problem(503, "draining").header("connection").as_deref(), Some("close"));
        assert_eq!(call(api.address(), "GET", "/livez", &[], "").await.status, 200);

        let address = api.address();
        let TestApi { listener, store, .. } = api;
        let stopping = tokio::spawn(listener.stop(TEST_TIMEOUT));
        // Idle connections are closed; new ones are rejected.
        assert!(!read_to_end(&mut idle_stream).await.is_empty());
        let response = send_raw(address, b"GET /livez HTTP/1.1\r\nHost: test\r\n\r\n").await;
        response.assert_problem(503, "draining");
        assert!(!stopping.is_finished());

        in_flight.write_all(body.as_bytes()).await.unwrap();
        let response = read_to_end(&mut in_flight).await;
        assert!(response.starts_with("HTTP/1.1 202") && response.contains("connection: close"), "{response}");
        assert!(stopping.await.unwrap(), "everything was answered");
        assert_eq!(store.count(), 2);
        assert!(TcpStream::connect(address).await.is_err(), "the address is released");
    });
}

#[test]
fn stuck_request_is_closed_at_the_shutdown_timeout() {
    run(async {
        let api = TestApi::start();
        api.store.fail(Some(Fault::Silent));
        let mut stream = TcpStream::connect(api.address()).await.unwrap();
        let request = format!("GET /v1/operations HTTP/1.1\r\nHost: t\r\nAuthorization: Bearer {KEY}\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        api.store.wait_for_stuck_call().await;
        let TestApi { listener, .. } = api;
        assert!(!listener.stop(Duration::from_millis(300)).await);
        assert_eq!(read_to_end(&mut stream).await, "");
    });
}
