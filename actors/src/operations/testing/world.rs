//! Everything that operations need, under time that stands still.

use std::cell::Cell;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use guildhall_core::access::{Bounds, Grant, ScopeSet};
use guildhall_core::lane::Lane;
use guildhall_core::operation::{Backoff, Kind, OperationId, QueueKey, State};
use guildhall_core::time::UnixMs;
use serde_json::{Value, json};
use tokio::task::LocalSet;
use tokio::time::sleep;

use super::chaos::Chaos;
use super::discord::Discord;
use super::store::Memory;
use crate::operations::{DelayedBy, NewOperation, Operations, OperationsConfig, WallClock};

/// Runs a test under time that stands still.
pub(in crate::operations) fn paused(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    LocalSet::new().block_on(&runtime, test);
}

/// A store, a Discord, and the settings of the processes between them.
pub(in crate::operations) struct World {
    pub(in crate::operations) store: Memory,
    pub(in crate::operations) discord: Arc<Discord>,
    pub(in crate::operations) chaos: Arc<Chaos>,
    pub(in crate::operations) clock: WallClock,
    pub(in crate::operations) config: OperationsConfig,
    ids: Cell<u64>,
    processes: Cell<u32>,
}

impl World {
    pub(in crate::operations) fn new() -> Self {
        let chaos = Arc::new(Chaos::default());
        let exact = |base| Backoff { base, cap: Duration::from_secs(20), jitter: 0.0 };
        let config = OperationsConfig {
            backoff: exact(Duration::from_secs(1)),
            reference_backoff: exact(Duration::from_secs(1)),
            store_backoff: exact(Duration::from_millis(100)),
            ..OperationsConfig::default()
        };
        Self {
            store: Memory::new(Arc::clone(&chaos)),
            discord: Arc::new(Discord::new(Arc::clone(&chaos))),
            chaos,
            clock: WallClock::anchored(UnixMs::new(1_700_000_000_000)),
            config,
            ids: Cell::new(0),
            processes: Cell::new(0),
        }
    }

    /// A process begins.
    pub(in crate::operations) fn start(&self) -> Operations {
        self.processes.set(self.processes.get() + 1);
        let store = Arc::new(self.store.process(self.processes.get()));
        let perform = Arc::clone(&self.discord);
        let spawn = Box::new(super::super::Seat::run);
        Operations::start(store, perform, self.clock.clone(), self.config.clone(), spawn)
    }

    /// An operation that is yet to be submitted.
    pub(in crate::operations) fn operation(&self, guild: u64, kind: Kind, payload: &Value) -> NewOperation {
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

    pub(in crate::operations) fn submit(&self, operation: NewOperation) -> OperationId {
        let id = operation.id;
        self.store.accept(operation);
        id
    }

    /// One that makes something: it must not be done twice.
    pub(in crate::operations) fn create(&self, guild: u64) -> OperationId {
        self.submit(self.operation(guild, Kind::CreateRole, &json!({ "name": "Mods" })))
    }

    /// One that may be done again.
    pub(in crate::operations) fn assign(&self, guild: u64, user: u64, role: u64) -> OperationId {
        let payload = json!({ "user_id": user.to_string(), "role_id": role.to_string() });
        self.submit(self.operation(guild, Kind::AssignRole, &payload))
    }

    pub(in crate::operations) fn state(&self, id: OperationId) -> State {
        self.store.state(id)
    }

    /// Waits until it is so; a test that waits for what never comes fails after an hour of its own time.
    pub(in crate::operations) async fn until(&self, what: &str, mut is_so: impl FnMut() -> bool) {
        for _ in 0..36_000 {
            if is_so() {
                return;
            }
            sleep(Duration::from_millis(100)).await;
        }
        panic!("it never came to pass: {what}");
    }

    pub(in crate::operations) async fn until_state(&self, id: OperationId, state: State) {
        self.until(state.name(), || self.state(id) == state).await;
    }

    pub(in crate::operations) async fn until_done(&self) {
        self.until("everything is done", || self.store.unfinished() == 0).await;
    }
}
