//! The API on a production store with a change feed: SQLite in a file, or PostgreSQL.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use guildhall::api::{Control, ControlConfig, Listener, Services};
use guildhall::settings;
use guildhall::store::Store;
use guildhall_actors::ports::{
    ClaimFrom, Fence, IntentUpdate, OperationDetails, OperationStore as _, OperationUpdate, UpdateResult,
};
use guildhall_actors::submission::SubmissionConfig;
use guildhall_core::{
    operation::{Failure, FailureClass, OperationState, Queue},
    time::UnixMs,
};
use guildhall_testkit::postgres;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::service_fixture::ServiceFixture;
use super::{GUILD, KEY, RecordingNotifier, Response, START_MS, call, listen, new_control, new_service, role};

/// Location of a store.
pub(crate) struct StoreLocation {
    url: String,
    /// Timeout of calls to the database.
    timeout: Duration,
    folder: Arc<TempDir>,
}

/// Default timeout of calls to the database.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Short, so that processes soon see each other.
const LEASE: settings::LeaseSettings = settings::LeaseSettings {
    heartbeat: Duration::from_millis(500),
    duration: Duration::from_millis(10_000),
    margin: Duration::from_millis(1_000),
};

impl StoreLocation {
    pub(crate) fn file() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let url = format!("sqlite:{}/guildhall.db", folder.path().display());
        Self { url, timeout: TIMEOUT, folder: Arc::new(folder) }
    }

    pub(crate) async fn postgres() -> Self {
        Self::new_at(postgres::shared().create_database().await)
    }

    /// The same location with another database timeout.
    pub(crate) fn with_timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    pub(crate) fn new_at(url: String) -> Self {
        Self { url, timeout: TIMEOUT, folder: Arc::new(tempfile::tempdir().unwrap()) }
    }
}

/// One process: the API and its store.
pub(crate) struct ApiProcess {
    pub(crate) store: Store,
    pub(crate) control: Control,
    listener: Listener,
    _folder: Arc<TempDir>,
}

impl ApiProcess {
    pub(crate) async fn open(location: &StoreLocation) -> Self {
        Self::with(location, ControlConfig::default()).await
    }

    pub(crate) async fn with(location: &StoreLocation, config: ControlConfig) -> Self {
        let (store, control, services) = Self::prepare(location, config).await;
        control.publish(services);
        Self { store, listener: listen(control.clone()), control, _folder: Arc::clone(&location.folder) }
    }

    /// The same with a gate, shards and budgets.
    pub(crate) async fn with_hall(location: &StoreLocation, config: ControlConfig) -> (Self, ServiceFixture) {
        let (store, control, services) = Self::prepare(location, config).await;
        let (hall, control) = ServiceFixture::open(control, &store, services).await;
        (Self { store, listener: listen(control.clone()), control, _folder: Arc::clone(&location.folder) }, hall)
    }

    async fn prepare(location: &StoreLocation, config: ControlConfig) -> (Store, Control, Services) {
        let settings = settings::StoreSettings {
            url: location.url.parse().unwrap(),
            direct_url: None,
            instance: None,
            lease: LEASE,
            migrate: true,
            row_security: settings::RowSecuritySettings::default(),
            timeout: location.timeout,
            lock_wait: Duration::from_secs(20),
            read_connections: 4,
            max_waiting: 10_000,
            max_queued: 100_000,
            max_bytes: 0,
            max_audit: 0,
            usage: guildhall_core::usage::UsageLimits::default(),
            idempotency_retention: Duration::from_secs(3_600),
        };
        let store = Store::open(&settings).await.unwrap();
        let service = SubmissionConfig { store_timeout: Duration::from_secs(60), ..SubmissionConfig::default() };
        let service = new_service(Arc::new(store.clone()), Arc::new(RecordingNotifier::default()), None, service);
        let control = new_control(config).with_keys(Arc::new(store.clone())).with_erasure(Arc::new(store.clone()));
        let services =
            Services { operations: Some(Arc::new(service)), changes: Some(Arc::new(store.clone())), budgets: None };
        (store, control, services)
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.listener.address()
    }

    pub(crate) async fn request(&self, method: &str, path: &str, body: Value) -> Response {
        self.request_as(KEY, method, path, body).await
    }

    pub(crate) async fn request_as(&self, key: &str, method: &str, path: &str, body: Value) -> Response {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let authorization = format!("Bearer {key}");
        call(self.address(), method, path, &[("Authorization", &authorization)], &body).await
    }

    /// Submits the creation of a role. Returns the id of the operation.
    pub(crate) async fn create_role(&self, guild: &str, name: &str) -> String {
        let response = self.request("POST", &format!("/v1/guilds/{guild}/operations"), role(name)).await;
        assert_eq!(response.status, 202, "{response:?}");
        response.text("id")
    }

    /// Creates a key. Returns the key and its id.
    pub(crate) async fn create_key(&self, tenant: &str, scopes: &[&str]) -> (String, String) {
        let body = json!({"name": "a test", "tenant": tenant, "scopes": scopes});
        let created = self.request("POST", "/v1/keys", body).await;
        assert_eq!(created.status, 201, "{created:?}");
        (created.text("key"), created.text("id"))
    }

    /// Sets the state of an operation, as the actor of its guild would.
    pub(crate) async fn set_state(&self, id: &str, state: OperationState) {
        let details = self.store.get(id.parse().unwrap()).await.unwrap().unwrap();
        let queue = queue_of(&details);
        let claim = self.store.claim(ClaimFrom::Queues(vec![queue])).await.unwrap().remove(0);
        let results = self.store.record(vec![update(&details, claim.fence, state)]).await.unwrap();
        assert_eq!(results, [UpdateResult::Done]);
        assert!(self.store.release(queue, claim.fence).await.unwrap());
    }
}

/// The queue of an operation.
fn queue_of(details: &OperationDetails) -> Queue {
    let operation = &details.stored.operation;
    operation.queue.queue(&operation.tenant)
}

/// An update of an operation, as the actor of its guild would record it.
pub(crate) fn update(details: &OperationDetails, fence: Fence, state: OperationState) -> OperationUpdate {
    let operation = &details.stored.operation;
    let error = Failure::new(FailureClass::Forbidden, "Missing Permissions");
    OperationUpdate {
        queue: queue_of(details),
        fence,
        id: operation.id,
        guild: operation.guild,
        state,
        attempts: 1,
        delays: 0,
        eligible_at: UnixMs::new(START_MS),
        parked: false,
        error: (state == OperationState::Dead).then_some(error),
        result: (state == OperationState::Succeeded).then(|| "{\"role_id\":\"77\"}".to_owned()),
        created: None,
        intent: IntentUpdate::Unchanged,
        progress: None,
        attempt: None,
        unknown_outcome: None,
        bind: Vec::new(),
        unbind: Vec::new(),
        at: UnixMs::new(START_MS + 5),
    }
}

/// Executes the operations of a queue until the task is stopped. Each of them succeeds.
pub(crate) async fn execute_queue(store: Store, queue: Queue) {
    let claim = loop {
        // Another process may own the queue for a moment, or this one may not yet know that it should.
        match store.claim(ClaimFrom::Queues(vec![queue])).await.unwrap().pop() {
            Some(claim) => break claim,
            None => tokio::time::sleep(Duration::from_millis(5)).await,
        }
    };
    loop {
        let waiting = store.load(queue, 0, 20).await.unwrap().operations;
        for stored in waiting {
            let details = store.get(stored.operation.id).await.unwrap().unwrap();
            for state in [OperationState::Running, OperationState::Succeeded] {
                store.record(vec![update(&details, claim.fence, state)]).await.unwrap();
            }
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// The test guild, as a number.
pub(crate) fn guild_number() -> u64 {
    GUILD.parse().unwrap()
}
