//! The API under `/v1`, over real sockets: a listener, the operation service, and a store behind its port.

#![expect(clippy::unwrap_used, reason = "tests")]

mod access;
mod bounds;
mod budgets;
mod bulk;
mod description;
mod docs;
mod entry;
mod erase;
mod faults;
mod fuzz;
mod hall;
mod idempotency;
mod letters;
mod limits;
mod look;
mod people;
mod policies;
#[path = "../support/postgres.rs"]
mod postgres;
mod process;
mod real;
#[path = "../support/redis.rs"]
mod redis_server;
mod schema;
mod shards;
mod sqlite;
mod sse;
mod store;
mod stream;
mod submit;
#[path = "../support/mod.rs"]
mod support;
mod wait;
mod wrong_keys;

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
use metrics_exporter_prometheus::PrometheusBuilder;
use serde_json::{Value, json};
use store::Memory;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

pub(crate) const KEY: &str = "gh_admin_of-these-tests";
/// Guild id used by these tests.
pub(crate) const GUILD: &str = "1571715189416398849";
pub(crate) const GUILD_QUEUE: Queue = Queue::Guild(1_571_715_189_416_398_849);
/// Time at which the test clock starts. Each read of the clock advances it by a millisecond.
pub(crate) const BEGIN: u64 = 1_700_000_000_000;

/// Runs a test on a runtime that can serve a listener.
pub(crate) fn run<T>(test: impl Future<Output = T>) -> T {
    guildhall::daemon::block_on(test).unwrap()
}

/// Notification that the supervisor would receive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Heard {
    Wake(Queue),
    Cancelled(OperationId, Queue),
    Hastened(OperationId, Queue),
    Paused(PauseTarget, bool),
}

#[derive(Default)]
struct Ear(Mutex<Vec<Heard>>);

impl Ear {
    fn hear(&self, heard: Heard) {
        self.0.lock().unwrap().push(heard);
    }
}

impl QueueNotifier for Ear {
    fn wake(&self, queue: Queue) {
        self.hear(Heard::Wake(queue));
    }

    fn cancelled(&self, id: OperationId, queue: Queue) {
        self.hear(Heard::Cancelled(id, queue));
    }

    fn hastened(&self, id: OperationId, queue: Queue) {
        self.hear(Heard::Hastened(id, queue));
    }

    fn paused(&self, what: PauseTarget, paused: bool) {
        self.hear(Heard::Paused(what, paused));
    }
}

/// The API and everything behind it.
pub(crate) struct Api {
    pub(crate) store: Arc<Memory>,
    pub(crate) desk: Arc<OperationService>,
    pub(crate) control: Control,
    ear: Arc<Ear>,
    pub(crate) listener: Listener,
}

/// Configuration of the API under test.
pub(crate) struct Setup {
    pub(crate) most: u64,
    pub(crate) desk: SubmissionConfig,
    pub(crate) control: ControlConfig,
    pub(crate) cache: Option<Arc<dyn IdempotencyCache>>,
    pub(crate) edge: EdgeConfig,
    pub(crate) proxies: TrustedProxies,
}

impl Default for Setup {
    fn default() -> Self {
        let desk = SubmissionConfig { store_within: Duration::from_secs(60), ..SubmissionConfig::default() };
        Self {
            most: 1_000,
            desk,
            control: ControlConfig::default(),
            cache: None,
            edge: EdgeConfig::default(),
            proxies: TrustedProxies::default(),
        }
    }
}

impl Setup {
    pub(crate) fn start(self) -> Api {
        let Self { most, desk, control, cache, edge, proxies } = self;
        let (store, ear) = (Memory::new(most), Arc::new(Ear::default()));
        let desk = Arc::new(new_desk(store.clone(), ear.clone(), cache, desk));
        let control = new_control(control).behind(proxies);
        control.publish(Services { operations: Some(desk.clone()), ..Services::default() });
        Api { store, desk, ear, listener: listen_within(control.clone(), edge), control }
    }
}

pub(crate) fn new_desk(
    store: Arc<dyn OperationStore>,
    hears: Arc<dyn QueueNotifier>,
    cache: Option<Arc<dyn IdempotencyCache>>,
    config: SubmissionConfig,
) -> OperationService {
    let time = AtomicU64::new(BEGIN);
    OperationService::new(
        store,
        hears,
        cache,
        config,
        Arc::new(move || UnixMs::new(time.fetch_add(1, Ordering::Relaxed))),
    )
}

pub(crate) fn new_control(config: ControlConfig) -> Control {
    Control::new(AdminKey::new(&SecretValue::new(KEY)), config)
}

pub(crate) fn listen(control: Control) -> Listener {
    listen_within(control, EdgeConfig::default())
}

pub(crate) fn listen_within(control: Control, edge: EdgeConfig) -> Listener {
    let metrics = PrometheusBuilder::new().build_recorder().handle();
    let bound = api::bind(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap().within(edge);
    bound.serve(Readiness::default(), metrics, Some(control)).unwrap()
}

impl Api {
    pub(crate) fn start() -> Self {
        Setup::default().start()
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.listener.address()
    }

    /// Returns the notifications that were sent since the last call.
    pub(crate) fn heard(&self) -> Vec<Heard> {
        std::mem::take(&mut self.ear.0.lock().unwrap())
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        call(self.address(), "GET", path, &[], "").await
    }

    pub(crate) async fn post(&self, path: &str, body: Value) -> Answer {
        self.post_with(path, &[], body).await
    }

    pub(crate) async fn post_with(&self, path: &str, headers: &[(&str, &str)], body: Value) -> Answer {
        call(self.address(), "POST", path, headers, &body.to_string()).await
    }

    pub(crate) async fn delete(&self, path: &str) -> Answer {
        call(self.address(), "DELETE", path, &[], "").await
    }

    /// Submits the creation of a role in the test guild. Returns the id of the operation.
    pub(crate) async fn create_role(&self, name: &str) -> String {
        let answer = self.post(&format!("/v1/guilds/{GUILD}/operations"), role(name)).await;
        assert_eq!(answer.status, 202, "{answer:?}");
        answer.text("id")
    }
}

/// An operation that creates a role.
pub(crate) fn role(name: &str) -> Value {
    json!({"kind": "create_role", "payload": {"name": name}})
}

/// Response to a request.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    head: String,
    pub(crate) body: String,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    pub(crate) fn text(&self, field: &str) -> String {
        self.json()[field].as_str().unwrap_or_else(|| panic!("no {field}: {self:?}")).to_owned()
    }

    pub(crate) fn header(&self, name: &str) -> Option<String> {
        self.head.lines().find_map(|line| {
            let (given, value) = line.split_once(':')?;
            given.eq_ignore_ascii_case(name).then(|| value.trim().to_owned())
        })
    }

    /// Asserts that it is a problem of this type, as RFC 9457 defines it.
    #[track_caller]
    pub(crate) fn is_problem(&self, status: u16, name: &str) -> &Self {
        assert_eq!(self.header("content-type").as_deref(), Some("application/problem+json"), "{self:?}");
        let body = self.json();
        assert_eq!((self.status, &body["status"]), (status, &status.into()), "{self:?}");
        assert_eq!(body["type"], format!("urn:guildhall:problem:{name}"), "{self:?}");
        assert!(body["title"].is_string() && body["detail"].is_string(), "{self:?}");
        self
    }

    /// Names of the fields that it reports as invalid.
    pub(crate) fn wrong(&self) -> Vec<String> {
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
) -> Answer {
    let mut head = format!("{method} {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n");
    let has = |name: &str| headers.iter().any(|(given, _)| given.eq_ignore_ascii_case(name));
    if !has("authorization") {
        head += &format!("Authorization: Bearer {KEY}\r\n");
    }
    if !body.is_empty() {
        head += &format!("Content-Length: {}\r\n", body.len());
        if !has("content-type") {
            head += "Content-Type: application/json\r\n";
        }
    }
    for (name, value) in headers {
        head += &format!("{name}: {value}\r\n");
    }
    let answer = raw(address, format!("{head}\r\n{body}").as_bytes()).await;
    description::hold(method, path, &answer);
    answer
}

/// Sends bytes and reads until the server closes the connection.
pub(crate) async fn raw(address: SocketAddr, bytes: &[u8]) -> Answer {
    let mut stream = TcpStream::connect(address).await.unwrap();
    // The server may respond and close before it has read everything.
    drop(stream.write_all(bytes).await);
    let mut answer = Vec::new();
    drop(stream.read_to_end(&mut answer).await);
    let answer = String::from_utf8(answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no response: {answer:?}"));
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    Answer { status, head: head.to_owned(), body: body.to_owned() }
}
