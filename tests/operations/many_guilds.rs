//! Ten thousand guilds with ten operations each: they stay in the store, and only a limited part is in memory.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use guildhall::api::Readiness;
use guildhall::daemon::OperationsComponent;
use guildhall::settings;
use guildhall::store::Store;
use guildhall_actors::access::{RoleCache, RoleCacheConfig};
use guildhall_actors::ports::{
    DelayedBy, Execution, ExecutionOutput, ExecutionResult, ExecutorFuture, NewOperation, OperationExecutor,
    OperationStore as _, ReconcileResult,
};
use guildhall_core::{
    access::{Bounds, Grant, ScopeSet},
    lane::Lane,
    operation::{OperationId, OperationKind, QueueKey},
    time::UnixMs,
};
use guildhall_testkit::program::run_in_its_own_process;
use tokio::sync::{Notify, Semaphore};

const GUILDS: u64 = 10_000;
const OPERATIONS_PER_GUILD: u64 = 10;
const MAX_ACTIVE: usize = 200;
/// Operations that are executed.
const PERMITTED: usize = 1_000;
/// All payloads together exceed a hundred megabytes.
const PAYLOAD_SIZE: usize = 1_000;
const MAX_GROWTH: usize = 60 << 20;

/// Executes as many operations as it has permits, and blocks the others.
struct GatedExecutor {
    permits: Semaphore,
    running: AtomicUsize,
    max_running: AtomicUsize,
    done: AtomicUsize,
    changed: Notify,
}

impl OperationExecutor for GatedExecutor {
    fn execute(&self, _: Execution) -> ExecutorFuture<'_, ExecutionResult> {
        Box::pin(async move {
            let running = self.running.fetch_add(1, Ordering::SeqCst) + 1;
            self.max_running.fetch_max(running, Ordering::SeqCst);
            self.changed.notify_waiters();
            self.permits.acquire().await.unwrap().forget();
            self.running.fetch_sub(1, Ordering::SeqCst);
            self.done.fetch_add(1, Ordering::SeqCst);
            self.changed.notify_waiters();
            ExecutionResult::Done(ExecutionOutput::default())
        })
    }

    fn reconcile(&self, _: Execution) -> ExecutorFuture<'_, ReconcileResult> {
        Box::pin(async { ReconcileResult::Absent })
    }

    fn verify(&self, _: Execution) -> ExecutorFuture<'_, ReconcileResult> {
        Box::pin(async { ReconcileResult::Absent })
    }
}

impl GatedExecutor {
    async fn until(&self, is_satisfied: impl Fn(&Self) -> bool) {
        loop {
            let changed = self.changed.notified();
            if is_satisfied(self) {
                return;
            }
            changed.await;
        }
    }
}

/// Memory of this process, in bytes.
fn resident() -> usize {
    let pages: usize = std::fs::read_to_string("/proc/self/statm").unwrap().split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4_096
}

fn operation(guild: u64, n: u64, at: u64) -> NewOperation {
    let mut random = [0; 10];
    random[2..].copy_from_slice(&(guild * OPERATIONS_PER_GUILD + n).to_be_bytes());
    let content = "x".repeat(PAYLOAD_SIZE);
    NewOperation {
        id: OperationId::new(at, random),
        tenant: Arc::from("default"),
        queue: QueueKey::Guild(guild),
        guild: Some(guild),
        caller: Arc::from("admin"),
        bounds: Bounds::Anywhere,
        scopes: ScopeSet::of(&Grant::everything()),
        kind: OperationKind::SendMessage,
        payload: format!(r#"{{"channel_id":"{}","content":"{content}"}}"#, guild + 1),
        payload_hash: [0; 32],
        lane: Lane::Operation,
        max_attempts: 3,
        eligible_at: UnixMs::new(at),
        delayed_by: DelayedBy::Caller,
        deadline_at: None,
        deployment: None,
        trace: None,
        reason: None,
        idempotency: None,
        refers_to: Vec::new(),
        redrive_of: None,
        created_at: UnixMs::new(at),
    }
}

#[test]
fn pending_operations_stay_in_the_store() {
    run_in_its_own_process("many_guilds::memory_of_a_process_with_many_guilds");
}

#[test]
#[ignore = "measures its whole process, so another test starts one for it"]
fn memory_of_a_process_with_many_guilds() {
    guildhall::daemon::block_on(async {
        let folder = tempfile::tempdir().unwrap();
        let environment = [
            ("GUILDHALL__STORE__URL", format!("sqlite:{}/guildhall.db", folder.path().display())),
            ("GUILDHALL__OPERATIONS__ACTIVE_GUILDS", MAX_ACTIVE.to_string()),
        ];
        let environment = environment.map(|(name, value)| (name.into(), value.into())).to_vec();
        let sources = settings::SettingsSources { environment, ..settings::SettingsSources::default() };
        let settings = settings::load(sources).unwrap().settings;
        let store = Store::open(&settings.store).await.unwrap();
        for guilds in (1..=GUILDS).collect::<Vec<_>>().chunks(200) {
            let batch = guilds
                .iter()
                .flat_map(|&guild| (0..OPERATIONS_PER_GUILD).map(move |n| operation(guild, n, 1_700_000_000_000)));
            store.submit(batch.collect()).await.unwrap();
        }
        let before = resident();

        let executor = Arc::new(GatedExecutor {
            permits: Semaphore::new(0),
            running: AtomicUsize::new(0),
            max_running: AtomicUsize::new(0),
            done: AtomicUsize::new(0),
            changed: Notify::new(),
        });
        let part = Readiness::default().register("store");
        let roles = Arc::new(RoleCache::new(RoleCacheConfig::default()));
        let operations = OperationsComponent::start(&settings, 1, store.clone(), executor.clone(), None, roles, part);
        let wait_for_progress = async {
            executor.until(|executor| executor.running.load(Ordering::SeqCst) == MAX_ACTIVE).await;
            executor.permits.add_permits(PERMITTED);
            executor.until(|executor| executor.done.load(Ordering::SeqCst) == PERMITTED).await;
            executor.until(|executor| executor.running.load(Ordering::SeqCst) == MAX_ACTIVE).await;
        };
        tokio::time::timeout(Duration::from_secs(120), wait_for_progress).await.expect("timed out");
        let grown = resident().saturating_sub(before);
        assert_eq!(executor.max_running.load(Ordering::SeqCst), MAX_ACTIVE, "no more guilds than may be active");
        assert!(grown < MAX_GROWTH, "{grown} bytes for {MAX_ACTIVE} guilds of {GUILDS}");
        let depths = store.depths().await.unwrap();
        let pending: u64 = depths.values().sum();
        assert_eq!(pending, GUILDS * OPERATIONS_PER_GUILD - PERMITTED as u64, "{depths:?}");
        executor.permits.add_permits(MAX_ACTIVE);
        operations.drain(Duration::from_secs(60)).await;
        operations.close().await;
    })
    .unwrap();
}
