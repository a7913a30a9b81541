//! Tests the transport against faulty TCP servers, and against the simulator.

use std::{
    io::{Read as _, Write as _},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    thread::JoinHandle,
};

use futures_util::{StreamExt as _, stream};
use guildhall_core::response::{RateLimitScope, ResponseClass};
use guildhall_sim::{CloudflareForm, Fault, FaultAction, Sim, SimConfig, SimHandle};
use http::StatusCode;
use http_body_util::StreamBody;
use hyper::body::Frame;
use tokio::sync::oneshot;

use super::*;

const BOT: Credential = Credential::Application(1);
const TOKEN: &str = "a.secret-token";

/// Timeout that only a stuck test reaches.
const TEST_TIMEOUT: Duration = Duration::from_secs(60);
/// How long a call waits for a response that never comes.
const SHORT_TIMEOUT: Duration = Duration::from_secs(1);

fn config(api_url: String) -> TransportConfig {
    TransportConfig {
        api_url,
        token: SecretValue::new(TOKEN),
        connect_timeout: TEST_TIMEOUT,
        request_timeout: TEST_TIMEOUT,
        max_response_bytes: 4_096,
        pool_idle: TEST_TIMEOUT,
        traceparent: false,
        http2: false,
    }
}

fn transport_to(address: SocketAddr) -> HyperTransport {
    HyperTransport::new(config(format!("http://{address}/api/v10"))).unwrap()
}

fn listener() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

/// Runs a server on a thread of its own. The listener stays open until the server ends, so that a second connection is
/// seen.
fn server<T: Send + 'static>(
    serve: impl FnOnce(&TcpListener) -> T + Send + 'static,
) -> (SocketAddr, JoinHandle<(T, usize)>) {
    let (listener, address) = listener();
    let thread = std::thread::spawn(move || {
        let served = serve(&listener);
        // Counts connections beyond those that were served.
        listener.set_nonblocking(true).unwrap();
        (served, std::iter::from_fn(|| listener.accept().ok()).count())
    });
    (address, thread)
}

fn accept(listener: &TcpListener) -> TcpStream {
    let (stream, _) = listener.accept().unwrap();
    stream.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
    stream
}

/// Reads the head of a request. The rest is left to the caller.
fn read_head(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        assert_eq!(stream.read(&mut byte).unwrap(), 1, "the request ended early");
        head.push(byte[0]);
    }
    String::from_utf8(head).unwrap().to_lowercase()
}

fn respond(stream: &mut TcpStream, body: &str) {
    write!(stream, "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len()).unwrap();
}

fn call(method: Method) -> RestRequest {
    RestRequest::new(method, "/users/@me?x=1", BOT, LeaseGuard::always())
}

#[tokio::test]
async fn refused_connection_means_the_call_was_never_sent() {
    let (listener, address) = listener();
    drop(listener);
    let error = transport_to(address).exchange(call(Method::POST)).await.unwrap_err();
    assert!(matches!(&error, TransportError::Connect(reason) if reason.contains("refused")), "{error}");
    assert!(error.was_not_sent());
}

#[tokio::test]
async fn connect_timeout_means_the_call_was_never_sent() {
    // A TLS server that never sends its hello: connected, but not ready for a call.
    let (done, wait) = std::sync::mpsc::channel::<()>();
    let (address, thread) = server(move |listener| {
        let stream = accept(listener);
        let _ = wait.recv();
        stream
    });
    let transport = HyperTransport::new(TransportConfig {
        connect_timeout: SHORT_TIMEOUT,
        ..config(format!("https://{address}/api"))
    });
    let error = transport.unwrap().exchange(call(Method::POST)).await.unwrap_err();
    assert_eq!(error, TransportError::Connect("connection timed out".to_owned()));
    drop(done);
    thread.join().unwrap();
}

#[tokio::test]
async fn server_without_tls_receives_no_call() {
    let (address, thread) = server(|listener| {
        let mut stream = accept(listener);
        stream.write_all(b"this is not TLS\r\n\r\n").unwrap();
        let mut rest = Vec::new();
        // The connection may also be reset, when the peer has not read everything.
        drop(stream.read_to_end(&mut rest));
        rest
    });
    let transport = HyperTransport::new(config(format!("https://{address}/api"))).unwrap();
    let error = transport.exchange(call(Method::POST)).await.unwrap_err();
    assert!(matches!(error, TransportError::Connect(_)), "{error}");
    drop(transport);
    let (seen, _) = thread.join().unwrap();
    assert!(!seen.windows(TOKEN.len()).any(|window| window == TOKEN.as_bytes()));
}

#[tokio::test]
async fn connection_closed_before_the_call_was_read_is_not_retried() {
    let (address, thread) = server(|listener| drop(accept(listener)));
    let error = transport_to(address).exchange(call(Method::POST)).await.unwrap_err();
    // Which of the two depends on timing. Both are correct, and neither may lead to a second connection.
    assert!(matches!(error, TransportError::Connect(_) | TransportError::Broken(_)), "{error}");
    let ((), more) = thread.join().unwrap();
    assert_eq!(more, 0);
}

#[tokio::test]
async fn connection_closed_after_the_call_was_read_leaves_outcome_unknown() {
    let (address, thread) = server(|listener| read_head(&mut accept(listener)));
    let error = transport_to(address).exchange(call(Method::POST)).await.unwrap_err();
    assert!(matches!(error, TransportError::Broken(_)), "{error}");
    assert!(!error.was_not_sent());
    let (_, more) = thread.join().unwrap();
    assert_eq!(more, 0, "the call was sent again");
}

#[tokio::test]
async fn truncated_response_leaves_outcome_unknown() {
    for head in ["content-length: 10", "transfer-encoding: chunked"] {
        let (address, thread) = server(move |listener| {
            let mut stream = accept(listener);
            read_head(&mut stream);
            write!(stream, "HTTP/1.1 200 OK\r\n{head}\r\n\r\n4\r\n{{}}").unwrap();
        });
        let error = transport_to(address).exchange(call(Method::GET)).await.unwrap_err();
        assert!(matches!(error, TransportError::Broken(_)), "{error}");
        let ((), more) = thread.join().unwrap();
        assert_eq!(more, 0, "the call was sent again");
    }
}

#[tokio::test]
async fn missing_or_partial_response_times_out_with_unknown_outcome() {
    let halves = ["", "HTTP/1.1 200 OK\r\n", "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{}"];
    let cut_off = async |half: &'static str| {
        let (done, wait) = std::sync::mpsc::channel::<()>();
        let (address, thread) = server(move |listener| {
            let mut stream = accept(listener);
            read_head(&mut stream);
            stream.write_all(half.as_bytes()).unwrap();
            let _ = wait.recv();
        });
        let config = TransportConfig { request_timeout: SHORT_TIMEOUT, ..config(format!("http://{address}")) };
        let error = HyperTransport::new(config).unwrap().exchange(call(Method::GET)).await.unwrap_err();
        assert_eq!(error, TransportError::TimedOut, "{half:?}");
        assert!(!error.was_not_sent());
        drop(done);
        thread.join().unwrap();
    };
    futures_util::future::join_all(halves.map(cut_off)).await;
}

#[tokio::test]
async fn idle_connection_closed_by_the_server_loses_no_call() {
    let (closed, closed_rx) = oneshot::channel();
    let (address, thread) = server(|listener| {
        let mut stream = accept(listener);
        let first = read_head(&mut stream);
        respond(&mut stream, "1");
        stream.shutdown(Shutdown::Write).unwrap();
        // The peer has seen the shutdown once it has closed its side, too.
        assert_eq!(stream.read(&mut [0]).unwrap(), 0);
        closed.send(()).unwrap();
        let mut stream = accept(listener);
        let second = read_head(&mut stream);
        respond(&mut stream, "2");
        (first, second)
    });
    let transport = transport_to(address);
    assert_eq!(transport.exchange(call(Method::POST)).await.unwrap().body, "1");
    closed_rx.await.unwrap();
    assert_eq!(transport.exchange(call(Method::POST)).await.unwrap().body, "2");
    assert_eq!(thread.join().unwrap().1, 0);
}

#[tokio::test]
async fn call_on_a_reused_connection_that_breaks_is_not_retried() {
    let (address, thread) = server(|listener| {
        let mut stream = accept(listener);
        read_head(&mut stream);
        respond(&mut stream, "1");
        read_head(&mut stream)
    });
    let transport = transport_to(address);
    assert_eq!(transport.exchange(call(Method::POST)).await.unwrap().body, "1");
    let error = transport.exchange(call(Method::POST)).await.unwrap_err();
    assert!(matches!(error, TransportError::Broken(_)), "{error}");
    assert_eq!(thread.join().unwrap().1, 0, "the call was sent again");
}

#[tokio::test]
async fn oversized_response_is_rejected() {
    for head in ["content-length: 5000", "transfer-encoding: chunked"] {
        let (address, thread) = server(move |listener| {
            let mut stream = accept(listener);
            read_head(&mut stream);
            let chunk = if head.starts_with("transfer") { "1388\r\n" } else { "" };
            let text = "x".repeat(5_000);
            // The peer may close the connection before it has read everything.
            drop(write!(stream, "HTTP/1.1 200 OK\r\n{head}\r\n\r\n{chunk}{text}"));
        });
        let error = transport_to(address).exchange(call(Method::GET)).await.unwrap_err();
        assert!(matches!(&error, TransportError::Broken(reason) if reason.contains("4096")), "{error}");
        thread.join().unwrap();
    }
}

#[tokio::test]
async fn redirects_are_not_followed() {
    let (address, thread) = server(|listener| {
        let mut stream = accept(listener);
        let elsewhere = listener.local_addr().unwrap();
        read_head(&mut stream);
        write!(stream, "HTTP/1.1 307 Moved\r\nlocation: http://{elsewhere}/\r\ncontent-length: 0\r\n\r\n").unwrap();
    });
    let received = transport_to(address).exchange(call(Method::POST)).await.unwrap();
    assert_eq!((received.status, received.class), (StatusCode::TEMPORARY_REDIRECT, ResponseClass::Rejected));
    assert_eq!(thread.join().unwrap().1, 0);
}

#[tokio::test]
async fn only_bot_calls_carry_the_token_and_reserved_headers_are_removed() {
    let (address, thread) = server(|listener| {
        let mut stream = accept(listener);
        (0..2)
            .map(|_| {
                let head = read_head(&mut stream);
                respond(&mut stream, "{}");
                head
            })
            .collect::<Vec<_>>()
    });
    let transport = transport_to(address);
    for credential in [BOT, Credential::Anonymous] {
        let mut request = RestRequest::new(Method::POST, "/webhooks/1/t?wait=true", credential, LeaseGuard::always());
        for name in RESERVED_HEADERS {
            request.headers.insert(name, HeaderValue::from_static("theirs"));
        }
        request.headers.insert("x-audit-log-reason", HeaderValue::from_static("why"));
        transport.exchange(request).await.unwrap();
    }
    let (seen, _) = thread.join().unwrap();
    let agent = format!("user-agent: {}\r\n", USER_AGENT.to_lowercase());
    for head in &seen {
        assert!(head.starts_with("post /api/v10/webhooks/1/t?wait=true http/1.1\r\n"), "{head}");
        assert!(head.contains(&agent) && head.contains("x-audit-log-reason: why\r\n"), "{head}");
        assert!(head.contains("content-length: 0\r\n") && !head.contains("theirs"), "{head}");
    }
    assert!(seen[0].contains(&format!("authorization: bot {TOKEN}\r\n")));
    assert!(!seen[1].contains("authorization"));
    assert!(USER_AGENT.starts_with("DiscordBot (https://") && USER_AGENT.ends_with(')'));
}

#[tokio::test]
async fn user_agent_of_a_caller_is_kept_and_the_version_can_be_chosen() {
    let (address, thread) = server(|listener| {
        let mut stream = accept(listener);
        (0..3)
            .map(|_| {
                let head = read_head(&mut stream);
                respond(&mut stream, "{}");
                head
            })
            .collect::<Vec<_>>()
    });
    let transport = transport_to(address);
    for version in [ApiVersion::Number(9), ApiVersion::Unversioned, ApiVersion::Configured] {
        let mut request = RestRequest::new(Method::GET, "/users/@me", BOT, LeaseGuard::always());
        request.version = version;
        request.headers.insert(header::USER_AGENT, HeaderValue::from_static("DiscordBot (http://a, 1) b"));
        transport.exchange(request).await.unwrap();
    }
    let (seen, _) = thread.join().unwrap();
    for (head, path) in seen.iter().zip(["/api/v9/users/@me", "/api/users/@me", "/api/v10/users/@me"]) {
        assert!(head.starts_with(&format!("get {path} http/1.1\r\n")), "{head}");
        assert!(head.contains("user-agent: discordbot (http://a, 1) b\r\n"), "{head}");
        assert_eq!(head.matches("user-agent").count(), 1, "{head}");
    }
}

#[tokio::test]
async fn streaming_body_is_sent_in_chunks() {
    let (address, thread) = server(|listener| {
        let mut stream = accept(listener);
        let head = read_head(&mut stream);
        let mut body = Vec::new();
        while !body.ends_with(b"0\r\n\r\n") {
            let mut part = [0; 64];
            let read = stream.read(&mut part).unwrap();
            assert_ne!(read, 0, "the body ended early");
            body.extend_from_slice(&part[..read]);
        }
        respond(&mut stream, "{}");
        (head, String::from_utf8(body).unwrap())
    });
    let parts = ["first", "second"].map(|part| Ok(Frame::data(Bytes::from_static(part.as_bytes()))));
    let mut request = call(Method::POST);
    request.body = RequestBody::Stream(StreamBody::new(stream::iter(parts)).boxed_unsync());
    transport_to(address).exchange(request).await.unwrap();
    let ((head, body), _) = thread.join().unwrap();
    assert!(head.contains("transfer-encoding: chunked") && !head.contains("content-length"), "{head}");
    assert_eq!(body, "5\r\nfirst\r\n6\r\nsecond\r\n0\r\n\r\n");
}

#[tokio::test]
async fn aborted_streaming_body_leaves_outcome_unknown() {
    let (arrived, arrived_rx) = oneshot::channel();
    let (address, thread) = server(|listener| {
        let mut stream = accept(listener);
        read_head(&mut stream);
        let mut rest = vec![0; b"4\r\nhalf\r\n".len()];
        stream.read_exact(&mut rest).unwrap();
        arrived.send(()).unwrap();
        drop(stream.read_to_end(&mut rest));
        rest
    });
    let half = stream::iter([Ok(Frame::data(Bytes::from_static(b"half")))]);
    let end = stream::once(async {
        arrived_rx.await.unwrap();
        Err("the sender is gone".into())
    });
    let mut request = call(Method::POST);
    request.body = RequestBody::Stream(StreamBody::new(half.chain(end)).boxed_unsync());
    let error = transport_to(address).exchange(request).await.unwrap_err();
    assert!(matches!(error, TransportError::Aborted(_)), "{error}");
    let (rest, more) = thread.join().unwrap();
    assert!(!rest.ends_with(b"0\r\n\r\n"), "it must not look complete");
    assert_eq!(more, 0);
}

#[tokio::test]
async fn malformed_calls_and_configurations_are_rejected() {
    let (_listener, address) = listener();
    let transport = transport_to(address);
    for (method, path) in [(Method::GET, "users/@me"), (Method::GET, "/a b"), (Method::CONNECT, "/users/@me")] {
        let error = transport.exchange(RestRequest::new(method, path, BOT, LeaseGuard::always())).await.unwrap_err();
        assert!(matches!(error, TransportError::Malformed(_)) && error.was_not_sent(), "{path}: {error}");
    }
    for url in ["", "discord.com", "ftp://discord.com/", "http://", "https://discord.com/api?v=10"] {
        let error = HyperTransport::new(config(url.to_owned())).unwrap_err();
        assert_eq!(error, TransportConfigError::Url(url.to_owned()));
    }
    let config = TransportConfig { token: SecretValue::new("two\nlines"), ..config("http://127.0.0.1".to_owned()) };
    assert_eq!(HyperTransport::new(config).unwrap_err(), TransportConfigError::Token);
}

#[tokio::test]
async fn debug_and_error_texts_do_not_contain_the_token() {
    let (listener, address) = listener();
    drop(listener);
    let transport = transport_to(address);
    let error = transport.exchange(call(Method::GET)).await.unwrap_err();
    let text = format!("{transport:?} {error} {error:?} {:?} {:?}", config(String::new()), transport.authorization);
    assert!(!text.contains(TOKEN), "{text}");
}

#[test]
fn the_settings_reach_the_transport() {
    let loaded = crate::settings::load(crate::settings::SettingsSources {
        environment: [("CONNECT_TIMEOUT_MS", "7"), ("REQUEST_TIMEOUT_MS", "8"), ("POOL_IDLE_MS", "9")]
            .map(|(name, value)| (format!("GUILDHALL__REST__{name}").into(), value.into()))
            .to_vec(),
        ..crate::settings::SettingsSources::default()
    });
    let config = TransportConfig::new(&loaded.unwrap().settings, SecretValue::new("t"));
    let millis = [config.connect_timeout, config.request_timeout, config.pool_idle].map(|time| time.as_millis());
    assert_eq!(millis, [7, 8, 9]);
    assert_eq!(config.max_response_bytes, 16 * 1024 * 1024);
}

async fn sim() -> (SimHandle, HyperTransport) {
    let config_of_sim = SimConfig::default();
    let token = SecretValue::new(config_of_sim.bots[0].token.clone());
    let sim = Sim::start(config_of_sim).await.unwrap();
    let transport = HyperTransport::new(TransportConfig { token, ..config(sim.api_url()) }).unwrap();
    (sim, transport)
}

#[tokio::test]
async fn a_new_token_is_used_from_the_next_call_on() {
    let (sim, transport) = sim().await;
    let path = format!("/guilds/{}/roles", sim.guilds()[0]);
    let class = async || {
        transport.exchange(RestRequest::new(Method::GET, path.clone(), BOT, LeaseGuard::always())).await.unwrap().class
    };
    assert_eq!(class().await, ResponseClass::Success);
    transport.authorization().set(&SecretValue::new("wrong")).unwrap();
    assert_eq!(class().await, ResponseClass::Unauthorized);
    assert!(transport.authorization().set(&SecretValue::new("not\na token")).is_err());
    transport.authorization().set(&SecretValue::new(SimConfig::default().bots[0].token.clone())).unwrap();
    assert_eq!(class().await, ResponseClass::Success);
}

fn fault(route: &str, action: FaultAction) -> Fault {
    Fault { route: route.to_owned(), action, probability: 1.0, count: Some(1), skip: 0 }
}

#[tokio::test]
async fn simulator_response_has_its_class_and_bucket() {
    let (sim, transport) = sim().await;
    let guild = sim.guilds()[0];
    let received = transport
        .exchange(RestRequest::new(Method::GET, format!("/guilds/{guild}/roles"), BOT, LeaseGuard::always()))
        .await
        .unwrap();
    assert_eq!((received.status, received.class, received.code), (StatusCode::OK, ResponseClass::Success, None));
    assert!(received.rate.is_some_and(|rate| rate.remaining < rate.limit));
    assert!(received.body.starts_with(b"["));
    let missing =
        transport.exchange(RestRequest::new(Method::GET, "/guilds/1/roles", BOT, LeaseGuard::always())).await.unwrap();
    assert_eq!((missing.class, missing.code), (ResponseClass::NotFound, Some(10_004)));
    let anonymous = transport
        .exchange(RestRequest::new(Method::GET, "/users/@me", Credential::Anonymous, LeaseGuard::always()))
        .await
        .unwrap();
    assert_eq!(anonymous.status, StatusCode::UNAUTHORIZED);
}

#[tokio::test]
async fn simulator_errors_are_classified() {
    let (sim, transport) = sim().await;
    let limited = |scope| FaultAction::RateLimit { scope, retry_after_ms: 1_500 };
    let cloudflare = |form| FaultAction::Cloudflare { form, retry_after_ms: Some(60_000) };
    let wait = Duration::from_secs(2);
    let blocked = ResponseClass::Blocked { retry_after: Some(Duration::from_secs(60)) };
    let cases = [
        (
            limited(guildhall_sim::Scope::User),
            ResponseClass::RateLimited { scope: RateLimitScope::User, retry_after: wait },
        ),
        (
            limited(guildhall_sim::Scope::Shared),
            ResponseClass::RateLimited { scope: RateLimitScope::Shared, retry_after: wait },
        ),
        (
            limited(guildhall_sim::Scope::Global),
            ResponseClass::RateLimited { scope: RateLimitScope::Global, retry_after: wait },
        ),
        (cloudflare(CloudflareForm::Html), blocked),
        (cloudflare(CloudflareForm::Json), blocked),
        (FaultAction::Status { status: 503, code: 0 }, ResponseClass::ServerError),
        (FaultAction::Status { status: 403, code: 50_013 }, ResponseClass::Forbidden),
    ];
    for (guild, (action, class)) in (1..).zip(cases) {
        sim.add_fault(fault("*", action.clone())).unwrap();
        // Each has a bucket of its own, so that only the fault can reject it.
        let request = RestRequest::new(Method::GET, format!("/guilds/{guild}/roles"), BOT, LeaseGuard::always());
        let received = transport.exchange(request).await.unwrap();
        assert_eq!(received.class, class, "{action:?}");
    }
}

#[tokio::test]
async fn call_on_a_cut_connection_takes_effect_at_most_once() {
    let (sim, transport) = sim().await;
    let path = format!("/guilds/{}/roles", sim.guilds()[0]);
    let create = |name: &str| {
        let mut request = RestRequest::new(Method::POST, path.clone(), BOT, LeaseGuard::always());
        request.headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        request.body = RequestBody::Whole(format!(r#"{{"name":"{name}"}}"#).into());
        request
    };
    for (action, name, effects) in [(FaultAction::DropAfter, "after", 1), (FaultAction::DropBefore, "before", 0)] {
        // The first call opens a connection, so that the cut one reuses it: that is where a client is most likely to
        // retry.
        transport.exchange(RestRequest::new(Method::GET, path.clone(), BOT, LeaseGuard::always())).await.unwrap();
        sim.add_fault(fault("POST /guilds/{guild.id}/roles", action)).unwrap();
        let error = transport.exchange(create(name)).await.unwrap_err();
        assert!(matches!(error, TransportError::Broken(_)), "{error}");
        let roles = transport
            .exchange(RestRequest::new(Method::GET, path.clone(), BOT, LeaseGuard::always()))
            .await
            .unwrap()
            .body;
        let roles: Vec<serde_json::Value> = serde_json::from_slice(&roles).unwrap();
        assert_eq!(roles.iter().filter(|role| role["name"] == name).count(), effects, "{name}");
    }
}

/// A lease that has expired.
struct ExpiredLease;

impl guildhall_actors::lease_guard::LeaseCheck for ExpiredLease {
    fn holds(&self) -> bool {
        false
    }
}

#[tokio::test]
async fn call_with_an_expired_lease_is_not_written() {
    let (address, thread) = server(|listener| {
        let (mut leased, mut plain) = (accept(listener), accept(listener));
        let mut written = Vec::new();
        leased.read_to_end(&mut written).unwrap();
        read_head(&mut plain);
        respond(&mut plain, "{}");
        written
    });
    let expired = || LeaseGuard::while_held(Arc::new(ExpiredLease));
    let transport = transport_to(address).with_lease(expired());
    let error = transport.exchange(RestRequest { lease: expired(), ..call(Method::POST) }).await.unwrap_err();
    assert!(error.to_string().contains("the lease expired"), "{error}");
    // A call that depends on no lease continues to work.
    transport.exchange(call(Method::GET)).await.unwrap();
    assert_eq!(thread.join().unwrap(), (Vec::new(), 0));
}

#[tokio::test]
async fn large_error_response_keeps_its_status() {
    let body = "x".repeat(10_000);
    let sent = body.clone();
    let (address, thread) = server(move |listener| {
        let mut stream = accept(listener);
        read_head(&mut stream);
        write!(stream, "HTTP/1.1 404 Not Found\r\ncontent-length: {}\r\n\r\n{sent}", sent.len()).unwrap();
        stream
    });
    let mut request = call(Method::GET);
    request.response = ResponseMode::Streamed;
    let response = transport_to(address).exchange(request).await.unwrap();
    assert_eq!((response.status, response.class), (StatusCode::NOT_FOUND, ResponseClass::NotFound));
    assert_eq!(response.stream.unwrap().collect().await.unwrap().to_bytes(), body);
    thread.join().unwrap();
}

/// A server with HTTP/2 only. It answers each call as `answer` says; returns the paths that it has seen.
async fn http2_server(
    answer: impl Fn(usize, h2::server::SendResponse<Bytes>) + Send + Sync + 'static,
) -> (HyperTransport, tokio::sync::mpsc::UnboundedReceiver<String>) {
    let certified = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).unwrap();
    let (certificate, key) = (certified.cert.der().clone(), certified.key_pair.serialize_der());
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut server = rustls::ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.clone()], rustls::pki_types::PrivatePkcs8KeyDer::from(key).into())
        .unwrap();
    server.alpn_protocols = vec![b"h2".to_vec()];
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(server));
    let mut roots = rustls::RootCertStore::empty();
    roots.add(certificate).unwrap();
    let client = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (seen, paths) = tokio::sync::mpsc::unbounded_channel();
    let answer = Arc::new(answer);
    tokio::spawn(async move {
        let mut count = 0;
        while let Ok((stream, _)) = listener.accept().await {
            let stream = acceptor.accept(stream).await.unwrap();
            let mut connection = h2::server::handshake(stream).await.unwrap();
            while let Some(Ok((request, respond))) = connection.accept().await {
                seen.send(request.uri().path().to_owned()).unwrap();
                count += 1;
                answer(count, respond);
            }
        }
    });
    let config = TransportConfig { http2: true, ..config(format!("https://{address}/api/v10")) };
    (HyperTransport::trusting(config, client).unwrap(), paths)
}

#[tokio::test]
async fn http2_is_used_if_it_is_enabled_and_offered() {
    let (transport, mut paths) = http2_server(|_, mut respond| {
        let mut body = respond.send_response(http::Response::new(()), false).unwrap();
        body.send_data(Bytes::from_static(b"{}"), true).unwrap();
    })
    .await;
    for _ in 0..2 {
        let response = transport.exchange(call(Method::POST)).await.unwrap();
        assert_eq!((response.status, response.body), (StatusCode::OK, Bytes::from_static(b"{}")));
        assert_eq!(paths.recv().await.unwrap(), "/api/v10/users/@me");
    }
}

#[tokio::test]
async fn http2_stream_that_the_server_refuses_was_never_sent() {
    let (transport, mut paths) = http2_server(|count, mut respond| {
        respond.send_reset(if count == 1 { h2::Reason::REFUSED_STREAM } else { h2::Reason::INTERNAL_ERROR });
    })
    .await;
    let error = transport.exchange(call(Method::POST)).await.unwrap_err();
    assert!(matches!(error, TransportError::Connect(_)) && error.was_not_sent(), "{error}");
    let error = transport.exchange(call(Method::POST)).await.unwrap_err();
    assert!(matches!(error, TransportError::Broken(_)) && !error.was_not_sent(), "{error}");
    for _ in 0..2 {
        paths.recv().await.unwrap();
    }
    assert!(paths.try_recv().is_err(), "each call was made once");
}
