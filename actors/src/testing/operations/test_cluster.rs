//! Everything that operations need, with paused time.

use std::cell::Cell;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use guildhall_core::access::{Bounds, Grant, ScopeSet};
use guildhall_core::backoff::Backoff;
use guildhall_core::lane::Lane;
use guildhall_core::operation::{OperationId, OperationKind, OperationState, QueueKey};
use guildhall_core::time::UnixMs;
use serde_json::{Value, json};
use tokio::task::LocalSet;
use tokio::time::sleep;

use super::fake_discord::FakeDiscord;
use super::fault_injector::FaultInjector;
use super::memory_store::MemoryStore;
use crate::ports::{DelayedBy, NewOperation};
use crate::supervisor::{OperationsConfig, OperationsHandle};
use crate::wall_clock::WallClock;

/// Runs a test with paused time.
pub(crate) fn paused(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    LocalSet::new().block_on(&runtime, test);
}

/// A store, a Discord, and the settings of the processes between them.
pub(crate) struct TestCluster {
    pub(crate) store: MemoryStore,
    pub(crate) discord: Arc<FakeDiscord>,
    pub(crate) faults: Arc<FaultInjector>,
    pub(crate) clock: WallClock,
    pub(crate) config: OperationsConfig,
    ids: Cell<u64>,
    processes: Cell<u32>,
}

impl TestCluster {
    pub(crate) fn new() -> Self {
        let faults = Arc::new(FaultInjector::default());
        let exact = |base| Backoff { base, cap: Duration::from_secs(20), jitter: 0.0 };
        let config = OperationsConfig {
            backoff: exact(Duration::from_secs(1)),
            reference_backoff: exact(Duration::from_secs(1)),
            store_backoff: exact(Duration::from_millis(100)),
            ..OperationsConfig::default()
        };
        Self {
            store: MemoryStore::new(Arc::clone(&faults)),
            discord: Arc::new(FakeDiscord::new(Arc::clone(&faults))),
            faults,
            clock: WallClock::anchored(UnixMs::new(1_700_000_000_000)),
            config,
            ids: Cell::new(0),
            processes: Cell::new(0),
        }
    }

    /// Starts a process.
    pub(crate) fn start(&self) -> OperationsHandle {
        self.processes.set(self.processes.get() + 1);
        let store = Arc::new(self.store.process(self.processes.get()));
        let executor = Arc::clone(&self.discord);
        let spawn = Box::new(crate::guild::GuildSpec::run);
        OperationsHandle::start(store, executor, self.clock.clone(), self.config.clone(), spawn)
    }

    /// Creates an operation without submitting it.
    pub(crate) fn operation(&self, guild: u64, kind: OperationKind, payload: &Value) -> NewOperation {
        let n = self.ids.get() + 1;
        self.ids.set(n);
        let mut random = [0; 10];
        random[2..].copy_from_slice(&(n << 8).to_be_bytes());
        let now = self.clock.now();
        NewOperation {
            id: OperationId::new(now.millis(), random),
            tenant: "default".into(),
            queue: QueueKey::Guild(guild),
            guild: Some(guild),
            caller: Arc::from("admin"),
            bounds: Bounds::Anywhere,
            scopes: ScopeSet::of(&Grant::everything()),
            kind,
            payload: payload.to_string(),
            payload_hash: [0; 32],
            lane: Lane::Operation,
            max_attempts: 3,
            eligible_at: now,
            delayed_by: DelayedBy::Caller,
            deadline_at: None,
            deployment: None,
            trace: None,
            reason: None,
            idempotency: None,
            refers_to: Vec::new(),
            redrive_of: None,
            created_at: now,
        }
    }

    pub(crate) fn submit(&self, operation: NewOperation) -> OperationId {
        let id = operation.id;
        self.store.accept(operation);
        id
    }

    /// Submits an operation that creates something: it must not be repeated.
    pub(crate) fn create(&self, guild: u64) -> OperationId {
        self.submit(self.operation(guild, OperationKind::CreateRole, &json!({ "name": "Mods" })))
    }

    /// Submits an operation that may be repeated.
    pub(crate) fn assign(&self, guild: u64, user: u64, role: u64) -> OperationId {
        let payload = json!({ "user_id": user.to_string(), "role_id": role.to_string() });
        self.submit(self.operation(guild, OperationKind::AssignRole, &payload))
    }

    pub(crate) fn state(&self, id: OperationId) -> OperationState {
        self.store.state(id)
    }

    /// Waits for a condition; fails after an hour of paused time.
    pub(crate) async fn until(&self, condition: &str, mut is_true: impl FnMut() -> bool) {
        for _ in 0..36_000 {
            if is_true() {
                return;
            }
            sleep(Duration::from_millis(100)).await;
        }
        panic!("condition never became true: {condition}");
    }

    pub(crate) async fn until_state(&self, id: OperationId, state: OperationState) {
        self.until(state.name(), || self.state(id) == state).await;
    }

    pub(crate) async fn until_done(&self) {
        self.until("all operations are finished", || self.store.unfinished() == 0).await;
    }
}
