//! Test setup: a new store, and operations for it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use guildhall::settings;
use guildhall::store::Store;
use guildhall_actors::ports::{
    Attempt, Claim, ClaimFrom, DelayedBy, Fence, IdempotencyKey, IntentUpdate, NewOperation, OperationStore as _,
    OperationUpdate, Retention, SubmitError, SubmitResult, UpdateResult,
};
use guildhall_core::{
    access::{Bounds, Grant, ScopeSet},
    lane::Lane,
    operation::{OperationId, OperationKind, OperationState, Queue, QueueKey},
    time::UnixMs,
};
use guildhall_testkit::postgres;
use tempfile::TempDir;

/// The current time of all tests.
pub(crate) const NOW: u64 = 1_800_000_000_000;

/// A timeout that only a defect reaches; no test waits for it.
pub(crate) const TEST_TIMEOUT: Duration = Duration::from_secs(60);

pub(crate) const GUILD: u64 = 1_000_000_000_000_000_001;

pub(crate) fn at(after: u64) -> UnixMs {
    UnixMs::new(NOW + after)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Engine {
    Sqlite,
    Postgres,
}

/// Settings and URL of a store.
pub(crate) struct StoreLocation {
    pub(crate) settings: settings::StoreSettings,
    url: String,
    _folder: TempDir,
}

impl StoreLocation {
    pub(crate) async fn new(engine: Engine) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let url = match engine {
            Engine::Sqlite => format!("sqlite:{}/data/guildhall.db", folder.path().display()),
            Engine::Postgres => postgres::shared().create_database().await,
        };
        Self { settings: settings_for(&url), url, _folder: folder }
    }

    pub(crate) async fn open(&self) -> Store {
        Store::open(&self.settings).await.unwrap()
    }

    /// URL for a direct connection, to do what no store should do.
    pub(crate) fn raw_url(&self) -> String {
        self.url.clone()
    }
}

pub(crate) fn settings_for(url: &str) -> settings::StoreSettings {
    settings::StoreSettings {
        url: url.parse().unwrap(),
        direct_url: None,
        instance: None,
        lease: settings::LeaseSettings::default(),
        migrate: true,
        row_security: settings::RowSecuritySettings::default(),
        timeout: Duration::from_secs(20),
        lock_wait: Duration::from_millis(200),
        read_connections: 4,
        max_waiting: 10_000,
        max_queued: 1_000,
        max_bytes: 0,
        max_audit: 0,
        usage: guildhall_core::usage::UsageLimits::default(),
        idempotency_retention: Duration::from_secs(60),
    }
}

pub(crate) async fn open_new_store(engine: Engine) -> (Store, StoreLocation) {
    let location = StoreLocation::new(engine).await;
    (location.open().await, location)
}

/// A unique operation id. Later ids sort later.
pub(crate) fn new_id() -> OperationId {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let mut random = [0; 10];
    random[2..].copy_from_slice(&fastrand::u64(..).to_be_bytes());
    OperationId::new(NOW + COUNT.fetch_add(1, Ordering::Relaxed), random)
}

pub(crate) fn operation(queue: impl Into<QueueKey>) -> NewOperation {
    let queue = queue.into();
    let guild = match queue {
        QueueKey::Guild(id) => Some(id),
        QueueKey::Keyed { .. } | QueueKey::Existing(_) => None,
    };
    NewOperation {
        id: new_id(),
        tenant: Arc::from("default"),
        queue,
        guild,
        caller: Arc::from("admin"),
        bounds: Bounds::Anywhere,
        scopes: ScopeSet::of(&Grant::everything()),
        kind: OperationKind::AssignRole,
        payload: r#"{"user_id":"1","role_id":"2"}"#.to_owned(),
        payload_hash: [7; 32],
        lane: Lane::Operation,
        max_attempts: 3,
        eligible_at: at(0),
        delayed_by: DelayedBy::Caller,
        deadline_at: None,
        deployment: None,
        trace: None,
        reason: None,
        idempotency: None,
        refers_to: Vec::new(),
        redrive_of: None,
        created_at: at(0),
    }
}

/// Its queue in its tenant.
pub(crate) fn queue_of(operation: &NewOperation) -> Queue {
    operation.queue.queue(&operation.tenant)
}

/// The default tenant's queue of a user.
pub(crate) fn user_queue(id: u64) -> Queue {
    QueueKey::user(id).queue("default")
}

/// The store's result for an operation of the guild that got this sequence number.
pub(crate) fn accepted(seq: u64) -> SubmitResult {
    SubmitResult::Accepted { seq, queue: Queue::Guild(GUILD), state: OperationState::Queued }
}

pub(crate) fn guild_operation() -> NewOperation {
    operation(QueueKey::Guild(GUILD))
}

pub(crate) fn operation_with_key(key: &str) -> NewOperation {
    let key = IdempotencyKey { scope: Arc::from("caller"), key: key.to_owned() };
    NewOperation { idempotency: Some(key), ..guild_operation() }
}

pub(crate) fn operation_update(operation: &NewOperation, fence: Fence, state: OperationState) -> OperationUpdate {
    OperationUpdate {
        queue: queue_of(operation),
        fence,
        id: operation.id,
        guild: operation.guild,
        state,
        attempts: u32::from(state != OperationState::Running),
        delays: 0,
        eligible_at: at(0),
        parked: false,
        error: None,
        result: None,
        created: None,
        intent: IntentUpdate::Unchanged,
        progress: None,
        attempt: None,
        unknown_outcome: None,
        bind: Vec::new(),
        unbind: Vec::new(),
        at: at(10),
    }
}

pub(crate) fn new_attempt(n: u32) -> Attempt {
    Attempt { n, started_at: at(5), ended_at: at(9), status: Some(204), class: "succeeded".to_owned(), detail: None }
}

pub(crate) async fn submit(store: &Store, operation: &NewOperation) -> SubmitResult {
    store.submit(vec![operation.clone()]).await.unwrap().remove(0)
}

pub(crate) async fn submit_error(store: &Store, batch: Vec<NewOperation>) -> SubmitError {
    store.submit(batch).await.unwrap_err()
}

pub(crate) async fn claim(store: &Store, queue: Queue) -> Claim {
    store.claim(ClaimFrom::Queues(vec![queue])).await.unwrap().remove(0)
}

pub(crate) async fn record(store: &Store, update: OperationUpdate) -> UpdateResult {
    store.record(vec![update]).await.unwrap().remove(0)
}

/// Submits an operation and finishes it in this state.
pub(crate) async fn submit_and_finish(store: &Store, operation: &NewOperation, fence: Fence, state: OperationState) {
    submit(store, operation).await;
    assert_eq!(record(store, operation_update(operation, fence, state)).await, UpdateResult::Done);
}

pub(crate) async fn state_of(store: &Store, id: OperationId) -> OperationState {
    store.get(id).await.unwrap().unwrap().stored.state
}

pub(crate) const RETENTION: Retention = Retention {
    completed: Duration::from_secs(1),
    failed: Duration::from_secs(10),
    dead_letters: Duration::from_secs(100),
    idempotency: Duration::from_secs(60),
};

/// Runs each test on both engines.
macro_rules! on_both {
    ($($(#[$attribute:meta])* async fn $name:ident($engine:ident) $body:block)*) => {$(
        mod $name {
            #[allow(unused_imports, reason = "not every test needs all")]
            use super::*;

            $(#[$attribute])*
            async fn run($engine: crate::setup::Engine) $body

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn sqlite() {
                tokio::time::timeout(crate::setup::TEST_TIMEOUT, run(crate::setup::Engine::Sqlite)).await.unwrap();
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn postgres() {
                tokio::time::timeout(crate::setup::TEST_TIMEOUT, run(crate::setup::Engine::Postgres)).await.unwrap();
            }
        }
    )*};
}
pub(crate) use on_both;
