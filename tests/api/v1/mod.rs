//! The API under `/v1`, over real sockets: a listener, the operation service, and a store behind its port.

mod access;
mod admin_actions;
mod admin_key;
mod budgets;
mod bulk;
mod connection_limits;
mod dead_letters;
mod description;
mod docs;
mod erase;
mod fuzz;
mod idempotency;
mod invalid_keys;
mod limits;
mod memory_store;
mod middleware;
mod policies;
mod prefer_wait;
mod process_fixture;
mod queries;
mod schema_validator;
mod service_fixture;
mod shards;
mod sqlite_fixture;
mod sse;
mod store_faults;
mod stream;
mod submit;

use std::{
    future::Future,
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use guildhall::api;
use guildhall::api::admin_key::AdminKey;
use guildhall::api::{Control, ControlConfig, EdgeConfig, Listener, Readiness, Services, TrustedProxies};
use guildhall::settings::SecretValue;
use guildhall_actors::ports::{IdempotencyCache, OperationStore, PauseTarget};
use guildhall_actors::submission::{OperationService, QueueNotifier, SubmissionConfig};
use guildhall_core::{
    operation::{OperationId, Queue},
    time::UnixMs,
};
use memory_store::MemoryStore;
use metrics_exporter_prometheus::PrometheusBuilder;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

pub(crate) const KEY: &str = "gh_admin_of-these-tests";
/// Guild id used by these tests.
pub(crate) const GUILD: &str = "1571715189416398849";
pub(crate) const GUILD_QUEUE: Queue = Queue::Guild(1_571_715_189_416_398_849);
/// Time at which the test clock starts. Each read of the clock advances it by a millisecond.
pub(crate) const START_MS: u64 = 1_700_000_000_000;

/// Runs a test on a runtime that can serve a listener.
pub(crate) fn run<T>(test: impl Future<Output = T>) -> T {
    guildhall::daemon::block_on(test).unwrap()
}

/// Notification that the supervisor would receive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Notification {
    Wake(Queue),
    Cancelled(OperationId, Queue),
    Expedited(OperationId, Queue),
    Paused(PauseTarget, bool),
}

#[derive(Default)]
struct RecordingNotifier(Mutex<Vec<Notification>>);

impl RecordingNotifier {
    fn record(&self, notification: Notification) {
        self.0.lock().unwrap().push(notification);
    }
}

impl QueueNotifier for RecordingNotifier {
    fn wake(&self, queue: Queue) {
        self.record(Notification::Wake(queue));
    }

    fn cancelled(&self, id: OperationId, queue: Queue) {
        self.record(Notification::Cancelled(id, queue));
    }

    fn expedited(&self, id: OperationId, queue: Queue) {
        self.record(Notification::Expedited(id, queue));
    }

    fn paused(&self, what: PauseTarget, paused: bool) {
        self.record(Notification::Paused(what, paused));
    }
}

/// The API and everything behind it.
pub(crate) struct TestApi {
    pub(crate) store: Arc<MemoryStore>,
    pub(crate) service: Arc<OperationService>,
    pub(crate) control: Control,
    notifier: Arc<RecordingNotifier>,
    pub(crate) listener: Listener,
}

/// Configuration of the API under test.
pub(crate) struct ApiSetup {
    pub(crate) max_operations: u64,
    pub(crate) submission: SubmissionConfig,
    pub(crate) control: ControlConfig,
    pub(crate) cache: Option<Arc<dyn IdempotencyCache>>,
    pub(crate) edge: EdgeConfig,
    pub(crate) proxies: TrustedProxies,
}

impl Default for ApiSetup {
    fn default() -> Self {
        let submission = SubmissionConfig { store_timeout: Duration::from_secs(60), ..SubmissionConfig::default() };
        Self {
            max_operations: 1_000,
            submission,
            control: ControlConfig::default(),
            cache: None,
            edge: EdgeConfig::default(),
            proxies: TrustedProxies::default(),
        }
    }
}

impl ApiSetup {
    pub(crate) fn start(self) -> TestApi {
        let Self { max_operations, submission, control, cache, edge, proxies } = self;
        let (store, notifier) = (MemoryStore::new(max_operations), Arc::new(RecordingNotifier::default()));
        let submission = Arc::new(new_service(store.clone(), notifier.clone(), cache, submission));
        let control = new_control(control).with_proxies(proxies);
        control.publish(Services { operations: Some(submission.clone()), ..Services::default() });
        TestApi { store, service: submission, notifier, listener: listen_with(control.clone(), edge), control }
    }
}

pub(crate) fn new_service(
    store: Arc<dyn OperationStore>,
    notifier: Arc<dyn QueueNotifier>,
    cache: Option<Arc<dyn IdempotencyCache>>,
    config: SubmissionConfig,
) -> OperationService {
    let time = AtomicU64::new(START_MS);
    OperationService::new(
        store,
        notifier,
        cache,
        config,
        Arc::new(move || UnixMs::new(time.fetch_add(1, Ordering::Relaxed))),
    )
}

pub(crate) fn new_control(config: ControlConfig) -> Control {
    Control::new(AdminKey::new(&SecretValue::new(KEY)), config)
}

pub(crate) fn listen(control: Control) -> Listener {
    listen_with(control, EdgeConfig::default())
}

pub(crate) fn listen_with(control: Control, edge: EdgeConfig) -> Listener {
    let metrics = PrometheusBuilder::new().build_recorder().handle();
    let bound = api::bind(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap().with_limits(edge);
    bound.serve(Readiness::default(), metrics, Some(control)).unwrap()
}

impl TestApi {
    pub(crate) fn start() -> Self {
        ApiSetup::default().start()
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.listener.address()
    }

    /// Returns the notifications that were sent since the last call.
    pub(crate) fn take_notifications(&self) -> Vec<Notification> {
        std::mem::take(&mut self.notifier.0.lock().unwrap())
    }

    pub(crate) async fn get(&self, path: &str) -> Response {
        call(self.address(), "GET", path, &[], "").await
    }

    pub(crate) async fn post(&self, path: &str, body: Value) -> Response {
        self.post_with(path, &[], body).await
    }

    pub(crate) async fn post_with(&self, path: &str, headers: &[(&str, &str)], body: Value) -> Response {
        call(self.address(), "POST", path, headers, &body.to_string()).await
    }

    pub(crate) async fn delete(&self, path: &str) -> Response {
        call(self.address(), "DELETE", path, &[], "").await
    }

    /// Submits the creation of a role in the test guild. Returns the id of the operation.
    pub(crate) async fn create_role(&self, name: &str) -> String {
        let response = self.post(&format!("/v1/guilds/{GUILD}/operations"), role(name)).await;
        assert_eq!(response.status, 202, "{response:?}");
        response.text("id")
    }
}

/// An operation that creates a role.
pub(crate) fn role(name: &str) -> Value {
    json!({"kind": "create_role", "payload": {"name": name}})
}

/// Response to a request.
#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) status: u16,
    head: String,
    pub(crate) body: String,
}

impl Response {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    pub(crate) fn text(&self, field: &str) -> String {
        self.json()[field].as_str().unwrap_or_else(|| panic!("no {field}: {self:?}")).to_owned()
    }

    pub(crate) fn header(&self, name: &str) -> Option<String> {
        self.head.lines().find_map(|line| {
            let (field, value) = line.split_once(':')?;
            field.eq_ignore_ascii_case(name).then(|| value.trim().to_owned())
        })
    }

    /// Asserts that it is a problem of this type, as RFC 9457 defines it.
    #[track_caller]
    pub(crate) fn assert_problem(&self, status: u16, name: &str) -> &Self {
        assert_eq!(self.header("content-type").as_deref(), Some("application/problem+json"), "{self:?}");
        let body = self.json();
        assert_eq!((self.status, &body["status"]), (status, &status.into()), "{self:?}");
        assert_eq!(body["type"], format!("urn:guildhall:problem:{name}"), "{self:?}");
        assert!(body["title"].is_string() && body["detail"].is_string(), "{self:?}");
        self
    }

    /// Names of the fields that it reports as invalid.
    pub(crate) fn invalid_fields(&self) -> Vec<String> {
        let errors = self.json()["errors"].as_array().unwrap_or_else(|| panic!("no errors: {self:?}")).clone();
        errors.iter().map(|error| error["field"].as_str().unwrap().to_owned()).collect()
    }
}

/// Sends one request with the key on its own connection. A body is JSON unless a header says otherwise. Asserts that
/// the response is one that the API description lists.
pub(crate) async fn call(
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> Response {
    let mut head = format!("{method} {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n");
    let has_header = |name: &str| headers.iter().any(|(field, _)| field.eq_ignore_ascii_case(name));
    if !has_header("authorization") {
        head += &format!("Authorization: Bearer {KEY}\r\n");
    }
    if !body.is_empty() {
        head += &format!("Content-Length: {}\r\n", body.len());
        if !has_header("content-type") {
            head += "Content-Type: application/json\r\n";
        }
    }
    for (name, value) in headers {
        head += &format!("{name}: {value}\r\n");
    }
    let response = send_raw(address, format!("{head}\r\n{body}").as_bytes()).await;
    description::check_response(method, path, &response);
    response
}

/// Sends bytes and reads until the server closes the connection.
pub(crate) async fn send_raw(address: SocketAddr, bytes: &[u8]) -> Response {
    let mut stream = TcpStream::connect(address).await.unwrap();
    // The server may respond and close before it has read everything.
    drop(stream.write_all(bytes).await);
    let mut response = Vec::new();
    drop(stream.read_to_end(&mut response).await);
    let response = String::from_utf8(response).unwrap();
    let (head, body) = response.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no response: {response:?}"));
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    Response { status, head: head.to_owned(), body: body.to_owned() }
}
