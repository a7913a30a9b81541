//! The store of operations and of handled events: an SQLite file or a PostgreSQL database.
//!
//! ```text
//!  submit, record, commit … ─▶ bounded queue ──▶ writer: one transaction for all pending jobs ──▶ engine
//!        ▲                                          │ commit
//!        └──────────────── results ─────────────────┘
//!  load, show, list … ───────▶ a few read-only connections ─────────────────────────────────────▶ engine
//! ```
//!
//! An SQLite file belongs to one process, which locks a file next to it. Several processes can share a PostgreSQL
//! database: each has a lease that it renews ([`cluster`]), each queue has one owner and a fence, and every write first
//! locks the queues that it changes.

mod admin_key;
pub mod backup;
mod cluster;
mod connect;
mod crashes;
mod entities;
mod error;
mod events;
mod failures;
mod file_bound;
mod file_lock;
mod leases;
pub mod migrate;
mod operation_row;
mod ports;
mod probe;
mod process_ends;
#[cfg(test)]
mod query_plan_tests;
mod read;
mod restored;
mod row_security;
mod rows;
mod sql;
#[cfg(test)]
mod tenant_isolation_tests;
mod write;

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use guildhall_actors::access::AuditRecord;
use guildhall_actors::ports::{OperationStore, StoreError};
use guildhall_actors::supervision;
use guildhall_actors::supervision::{Part, PartEnd};
use guildhall_core::time::UnixMs;
use guildhall_core::usage::UsageLimits;
use sea_orm::{DatabaseConnection, DbErr};
use tokio::{
    sync::{broadcast, mpsc, watch},
    task::JoinHandle,
    time::timeout,
};

use self::events::FileBoundSet;
pub use self::{
    admin_key::{AdminKeyClaim, claim as claim_admin_key},
    cluster::{ClusterEvent, DivisionRequest, LimitDivision},
    crashes::record_crash,
    file_bound::{FileBound, file_bound},
    leases::SqlLeases,
    probe::{DeadCount, StoreProbe, is_in_use, probe_store},
    process_ends::ProcessEnd,
    restored::{RestoreProgress, RestoredStore, prepare_restored},
    row_security::RowSecurityStatus,
};
use self::{
    cluster::{ClusterMember, HeartbeatTask, MemberPhase},
    connect::{ReadView, Reader, TransactionSetup},
    error::{EngineError, ErrorClass},
    file_lock::{FileLock, LockError},
    row_security::{RepairMode, TenantRole},
    rows::query_scalar,
    write::{JobRequest, Writer},
};
use crate::{
    clock::{ClockRecord, Clocks, SystemTimeSource, TimeSource},
    events::emit,
    private_files,
    settings::{StoreSettings as Settings, StoreUrl},
};

/// Number of attempts to open a store when its connection is lost or it is busy.
const OPEN_ATTEMPTS: u32 = 5;

/// Maximum lifetime of stored data that expires, unless idempotency keys are stored for longer.
const MAX_RETENTION: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// State key of the record that the clocks of this process continue from.
const CLOCK_KEY: &str = "guildhall:clock";

/// Reason why a store cannot be opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// The folder of the file cannot be created, or its lock file cannot be opened.
    #[error("cannot use {path}: {reason}; set store.url to another file, or give this user write access to it")]
    Folder {
        /// Path of the file.
        path: String,
        /// Error of the operating system.
        reason: String,
    },
    /// Another process uses the file.
    #[error(
        "another process{} uses {path}; an SQLite file serves only one process: stop that process, set store.url to \
         another file, or share a PostgreSQL database", process_hint(*.pid)
    )]
    InUse {
        /// URL of the store.
        path: String,
        /// ID of the process, if known.
        pid: Option<u32>,
    },
    /// The store is too new for this program.
    #[error(
        "the store has migration {unknown}, which this version of guildhall does not know{}; run the version that \
         applied it, or a newer one", required_migration_hint(*.needs)
    )]
    Newer {
        /// Name of the unknown migration.
        unknown: String,
        /// Migration that a program must know to use the store, if recorded.
        needs: Option<u32>,
    },
    /// An applied migration differs from the one in this program.
    #[error(
        "migration {name} has changed since it was applied: the hash of its SQL is {stored} in the store and {expected} \
         in this version of guildhall; run the version that applied it. Never edit an applied migration: revert the \
         edit and add a new migration"
    )]
    Changed {
        /// Name of the migration.
        name: String,
        /// Hash of the SQL that was applied.
        stored: String,
        /// Hash of the SQL in this program.
        expected: String,
    },
    /// The store is older than this program, and `store.migrate` is off.
    #[error("the store lacks {missing}; run `guildhall migrate up`, or set store.migrate = true")]
    Older {
        /// Names of the missing migrations.
        missing: String,
    },
    /// Other processes use the store.
    #[error("{count} processes use this store; stop them first")]
    Alive {
        /// Number of processes.
        count: u64,
    },
    /// Another process holds the migration lock.
    #[error("another process is migrating this store; wait for it to finish, or raise store.lock_wait_ms")]
    Migrating,
    /// A migration failed.
    #[error("cannot migrate the store: {0}")]
    Migration(String),
    /// Another user owns the tables, and their policies hide all rows from this user.
    #[error(
        "the tables belong to {owner}, and {user} from store.url cannot see their rows; as a superuser run: GRANT \
         \"{owner}\" TO \"{user}\"; or use the owner in store.url"
    )]
    NotTheOwner {
        /// User of this process.
        user: String,
        /// Owner of the tables.
        owner: String,
    },
    /// Row-level security is required, but cannot be used.
    #[error("store.row_security is \"required\", but row-level security cannot be used: {0}")]
    RowSecurity(String),
    /// The connection cannot be made, or was lost.
    #[error(
        "cannot open the store: {0}; check store.url (GUILDHALL__STORE__URL), and that the database or file exists and \
         this process has access to it"
    )]
    Lost(String),
    /// A lock is held by another session or program.
    #[error(
        "the store is busy: {0}; another program or a stalled process holds a lock on it; try again, or find and stop \
         that program"
    )]
    Busy(String),
    /// The engine refused access or failed.
    #[error(
        "cannot open the store: {0}; check store.url (GUILDHALL__STORE__URL), and that the database or file exists and \
         this process has access to it"
    )]
    Engine(String),
}

fn required_migration_hint(migration: Option<u32>) -> String {
    migration.map_or_else(String::new, |number| format!(" (it needs a version that has migration {number:04})"))
}

fn process_hint(pid: Option<u32>) -> String {
    pid.map_or_else(String::new, |pid| format!(" (process {pid})"))
}

impl OpenError {
    fn engine(error: DbErr) -> Self {
        Self::from_engine_error(EngineError::Engine(error))
    }

    #[expect(clippy::needless_pass_by_value, reason = "consumes the error")]
    fn from_engine_error(error: EngineError) -> Self {
        match error.class() {
            ErrorClass::Lost => Self::Lost(error.message()),
            ErrorClass::Busy | ErrorClass::Raced => Self::Busy(error.message()),
            ErrorClass::Full | ErrorClass::Refused | ErrorClass::Corrupt => Self::Engine(error.message()),
        }
    }

    #[expect(clippy::needless_pass_by_value, reason = "consumes the error")]
    fn migration(error: DbErr) -> Self {
        Self::Migration(error.to_string())
    }
}

/// Whether the store accepts writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    /// Writes succeed.
    Up,
    /// Writes fail, for this reason.
    Down(String),
}

/// The store. Clones share one store.
#[derive(Clone, Debug)]
pub struct Store {
    shared: Arc<Shared>,
    /// Audit record that the first change stores, if any.
    audit_record: Option<Arc<Mutex<Option<AuditRecord>>>>,
    /// Tenant whose rows are visible; all rows if `None`.
    tenant: Option<Arc<str>>,
}

#[derive(Debug)]
struct Shared {
    settings: Settings,
    /// Notification channel of the processes that share the store.
    notification_channel: String,
    requests: mpsc::Sender<JobRequest>,
    reading: Reader,
    row_security: Option<TenantRole>,
    members: Arc<ClusterMember>,
    clocks: Clocks,
    /// Storage limits of each caller.
    limits: UsageLimits,
    /// Maximum size of the file in bytes; 0 means no limit.
    max_bytes: u64,
    timeout: Duration,
    health: watch::Receiver<Health>,
    /// The writer and the heartbeat task, in this order.
    tasks: Mutex<Vec<JoinHandle<()>>>,
    listener_task: Option<JoinHandle<()>>,
    stop: watch::Sender<bool>,
    /// Set when the writer has released everything: the heartbeat task can then stop.
    stop_heartbeat: watch::Sender<bool>,
}

impl Store {
    /// Opens a store, migrates it if `store.migrate` is on, and releases the queues of processes that have ended.
    ///
    /// # Errors
    ///
    /// When the store cannot be reached, is in use, or does not fit this program.
    pub async fn open(settings: &Settings) -> Result<Self, OpenError> {
        Self::open_as(settings, MemberPhase::Active, Arc::new(SystemTimeSource)).await
    }

    /// Like [`Self::open`], with the given clocks.
    ///
    /// # Errors
    ///
    /// As [`Self::open`].
    pub async fn open_with_clocks(settings: &Settings, source: Arc<dyn TimeSource>) -> Result<Self, OpenError> {
        Self::open_as(settings, MemberPhase::Active, source).await
    }

    /// Like [`Self::open`], but this process takes no work until it has [arrived](Self::arrive).
    ///
    /// # Errors
    ///
    /// As [`Self::open`].
    pub async fn open_arriving(settings: &Settings) -> Result<Self, OpenError> {
        Self::open_as(settings, MemberPhase::Arriving, Arc::new(SystemTimeSource)).await
    }

    async fn open_as(settings: &Settings, phase: MemberPhase, source: Arc<dyn TimeSource>) -> Result<Self, OpenError> {
        let file = lock_file(settings)?.map(Arc::new);
        let bound = file_bound(settings);
        if let Some(bound) = bound {
            emit(FileBoundSet { bound });
        }
        let settings = &Settings { max_bytes: bound.map_or(0, |bound| bound.bytes), ..settings.clone() };
        let mut attempts = 1;
        loop {
            match Self::open_once(settings, file.clone(), phase, &source).await {
                // The connection may be lost because this process or the server stalled for a moment. Or another
                // process stalls inside a transaction, which the server soon ends.
                Err(OpenError::Lost(_) | OpenError::Busy(_)) if attempts < OPEN_ATTEMPTS => attempts += 1,
                opened => return opened,
            }
        }
    }

    async fn open_once(
        settings: &Settings,
        file: Option<Arc<FileLock>>,
        phase: MemberPhase,
        source: &Arc<dyn TimeSource>,
    ) -> Result<Self, OpenError> {
        migrate::prepare(settings).await?;
        let repair = if settings.migrate { RepairMode::Yes } else { RepairMode::No };
        let row_security = row_security::prepare(settings, repair).await?;
        let to_open_error = OpenError::from_engine_error;
        let reading = connect::open_reader(settings).map_err(OpenError::engine)?;
        let (requests, waiting) = mpsc::channel(settings.max_waiting);
        let (health_sender, health) = watch::channel(Health::Up);
        let (stop, stopped) = watch::channel(false);
        let (stop_heartbeat, heartbeat_stop) = watch::channel(false);
        let channel = notification_channel(&reading).await.map_err(to_open_error)?;
        let max_retention = settings.idempotency_retention.max(MAX_RETENTION);
        let clocks = clocks(settings, Arc::clone(source), max_retention).await.map_err(to_open_error)?;
        let members = if file.is_some() { ClusterMember::alone() } else { ClusterMember::among_others(phase) };
        let listening = connect::listener_pool(settings).map_err(OpenError::engine)?;
        let heartbeat = match &listening {
            Some(_) => {
                let connection = connect::open_writer(settings).await.map_err(OpenError::engine)?;
                let (members, session) = (Arc::clone(&members), TransactionSetup::of(settings));
                let start =
                    HeartbeatTask::start(settings, members, clocks.clone(), connection, session, channel.clone()).await;
                Some(start.map_err(to_open_error)?)
            }
            None => None,
        };
        let writer = Writer::attach(
            settings.clone(),
            file,
            Arc::clone(&members),
            clocks.clone(),
            channel.clone(),
            row_security.clone(),
            health_sender,
        );
        let writer = writer.await.map_err(to_open_error)?.run(waiting, stopped);
        let mut tasks = vec![supervision::spawn(Part::StoreWriter, writer)];
        tasks.extend(heartbeat.map(|heartbeat| supervision::spawn(Part::Heartbeat, heartbeat.run(heartbeat_stop))));
        let listener_task = listening.map(|pool| {
            let listening = cluster::listen(Arc::clone(&members), pool, channel.clone(), settings.timeout);
            supervision::spawn(Part::StoreListener, listening)
        });
        let (timeout, tasks) = (settings.timeout, Mutex::new(tasks));
        let limits = settings.usage.for_file(settings.max_bytes);
        let max_bytes = settings.max_bytes;
        let shared = Shared {
            settings: settings.clone(),
            notification_channel: channel,
            requests,
            reading,
            row_security,
            members,
            clocks,
            limits,
            max_bytes,
            timeout,
            health,
            tasks,
            listener_task,
            stop,
            stop_heartbeat,
        };
        Ok(Self { shared: Arc::new(shared), audit_record: None, tenant: None })
    }

    /// The same store; its first change stores this audit record.
    fn with_audit_record(&self, note: AuditRecord) -> Self {
        Self { audit_record: Some(Arc::new(Mutex::new(Some(note)))), ..self.clone() }
    }

    /// The same store, limited to the rows of this tenant.
    fn scoped_to_tenant(&self, tenant: Arc<str>) -> Self {
        Self { tenant: Some(tenant), ..self.clone() }
    }

    /// The view to read from: all rows, or the rows that PostgreSQL shows to the tenant.
    async fn view(&self) -> Result<ReadView, EngineError> {
        Ok(self.shared.reading.view(self.shared.row_security.as_ref(), self.tenant.as_deref()).await?)
    }

    /// Store time. All durable timestamps and expiry times use it.
    #[must_use]
    pub fn clocks(&self) -> &Clocks {
        &self.shared.clocks
    }

    /// Time to compare expiry times with, given the caller's `now`.
    fn expiry(&self, now: UnixMs) -> UnixMs {
        now.before(self.shared.clocks.expiry_lag())
    }

    /// Stores the clock record for the next process.
    ///
    /// # Errors
    ///
    /// When the store cannot be read or written.
    pub async fn save_clocks(&self) -> Result<(), StoreError> {
        let stored = OperationStore::state(self, CLOCK_KEY).await?;
        let record = self.shared.clocks.record(&clock_record(stored.as_deref()));
        let text = serde_json::to_string(&record).map_err(|error| StoreError::Corrupt(error.to_string()))?;
        self.set_state(CLOCK_KEY, Some(text), None).await
    }

    /// Watches whether the store accepts writes.
    #[must_use]
    pub fn watch_health(&self) -> watch::Receiver<Health> {
        self.shared.health.clone()
    }

    /// Subscribes to events of the other processes that share the store.
    #[must_use]
    pub fn cluster_events(&self) -> broadcast::Receiver<ClusterEvent> {
        self.shared.members.events()
    }

    /// Whether other processes use the store, or did until a moment ago.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        self.shared.members.has_others()
    }

    /// Divides a rate limit among the processes that share this store. `None` if the store cannot be shared: then this
    /// process has the whole limit.
    #[must_use]
    pub fn divide_limit(&self, request: DivisionRequest) -> Option<LimitDivision> {
        let members = &self.shared.members;
        self.shared.listener_task.is_some().then(|| LimitDivision::join(Arc::clone(members), request))
    }

    /// Takes this process's part of the work from now on. Idempotent.
    pub fn arrive(&self) {
        self.shared.members.arrive();
    }

    /// Notifies the other processes that this one is about to release its queues.
    pub async fn leave(&self) {
        self.shared.members.leave(self.shared.timeout).await;
    }

    /// Releases everything that this process owns, for a process that must end at once. Does not use the writer or the
    /// heartbeat task, since one of them may have failed. Afterwards the process sends and writes nothing except the
    /// reason for its end. Whatever cannot be released becomes free when its lease expires.
    pub async fn release_all(&self, end: &PartEnd) {
        let Shared { settings, notification_channel: channel, members, clocks, .. } = &*self.shared;
        members.stop_writes().await;
        match settings.url {
            // The operating system releases the file lock when the process ends.
            StoreUrl::Sqlite(_) => {}
            StoreUrl::Postgres { .. } => {
                HeartbeatTask::leave_at_once(settings, Arc::clone(members), clocks.clone(), channel.clone()).await;
            }
        }
        process_ends::record(settings, end, clocks.now()).await;
    }

    /// Since when the operation waits that waits longest in each state that waits, if there is one.
    ///
    /// # Errors
    ///
    /// When the store does not respond.
    pub async fn oldest_waiting(&self) -> Result<BTreeMap<&'static str, Option<UnixMs>>, StoreError> {
        self.read(read::totals::oldest_waiting(&self.shared.reading)).await
    }

    /// Processes of this store that ended because a part failed, newest first.
    ///
    /// # Errors
    ///
    /// When the store does not respond.
    pub async fn process_ends(&self) -> Result<Vec<ProcessEnd>, StoreError> {
        self.read(process_ends::read(&self.shared.reading)).await
    }

    /// The fence of a guild's queue: that of its last claim. `None` if the guild has no queue.
    ///
    /// # Errors
    ///
    /// When the store cannot be reached.
    pub async fn queue_fence(&self, guild: u64) -> Result<Option<u64>, StoreError> {
        self.read(read::guilds::queue_fence(&self.shared.reading, guild)).await
    }

    /// Writes all pending jobs, then closes the store. Later requests fail as unavailable.
    pub async fn close(&self) {
        self.shared.stop.send_replace(true);
        if let Some(ear) = &self.shared.listener_task {
            ear.abort();
        }
        let tasks = std::mem::take(&mut *self.shared.tasks.lock().unwrap_or_else(std::sync::PoisonError::into_inner));
        for (index, task) in tasks.into_iter().enumerate() {
            // A panic of a task has already been reported.
            let _ = task.await;
            if index == 0 {
                self.shared.stop_heartbeat.send_replace(true);
            }
        }
        self.shared.reading.clone().close().await;
    }
}

/// Takes the lock of an SQLite file, and creates the file if it does not exist: SQLite gives its WAL and its shared
/// memory the mode of the file.
fn lock_file(settings: &Settings) -> Result<Option<FileLock>, OpenError> {
    let path = match &settings.url {
        StoreUrl::Sqlite(path) => path,
        StoreUrl::Postgres { .. } => return Ok(None),
    };
    let folder_error =
        |error: std::io::Error| OpenError::Folder { path: path.display().to_string(), reason: error.to_string() };
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        private_files::create_folder(folder).map_err(folder_error)?;
    }
    let lock = FileLock::acquire(path).map_err(|error| match error {
        LockError::Held(pid) => OpenError::InUse { path: settings.url.to_string(), pid },
        LockError::Io(error) => folder_error(error),
    })?;
    // An existing file is not opened: closing it would drop the locks of connections of this process.
    if !path.try_exists().map_err(folder_error)? {
        private_files::open_or_create(path).map_err(folder_error)?;
    }
    Ok(Some(lock))
}

/// Notification channel of the processes of one store. PostgreSQL's channels belong to the whole database, so the name
/// contains the schema.
async fn notification_channel(reading: &Reader) -> Result<String, EngineError> {
    use sea_orm::{ConnectionTrait as _, DbBackend};
    if reading.get_database_backend() != DbBackend::Postgres {
        return Ok(String::new());
    }
    Ok(query_scalar(reading, sql::cluster::CHANNEL, Vec::new()).await?.unwrap_or_default())
}

/// Clocks of a store, continued from the record of earlier processes.
async fn clocks(
    settings: &Settings,
    source: Arc<dyn TimeSource>,
    max_retention: Duration,
) -> Result<Clocks, EngineError> {
    // Not a read-only connection: the last connection of a file that closes must be able to write.
    let on = connect::open_writer(settings).await?;
    let read =
        timeout(settings.timeout, read_clocks(&on, &TransactionSetup::of(settings), source, max_retention)).await;
    close_connection(on).await;
    read.unwrap_or_else(|_| Err(write::timeout_error()))
}

async fn read_clocks(
    on: &DatabaseConnection,
    session: &TransactionSetup,
    source: Arc<dyn TimeSource>,
    max_retention: Duration,
) -> Result<Clocks, EngineError> {
    use sea_orm::{ConnectionTrait as _, DbBackend, TransactionTrait as _};
    // PgBouncer runs a transaction on one server.
    let on = on.begin().await?;
    session.prepare(&on).await?;
    let clocks = if on.get_database_backend() == DbBackend::Postgres {
        let sent = source.monotonic();
        let database_now: Option<i64> = query_scalar(&on, &sql::cluster::now(), Vec::new()).await?;
        Clocks::of_database(source, max_retention, operation_row::time(database_now.unwrap_or_default()), sent)
    } else {
        Clocks::of_machine(source, max_retention)
    };
    let stored = read::totals::state(&on, CLOCK_KEY, clocks.now()).await?;
    on.commit().await?;
    clocks.resume(clock_record(stored.as_deref()));
    Ok(clocks)
}

/// Returns the default if the record cannot be read: the clocks are then measured again.
fn clock_record(stored: Option<&str>) -> ClockRecord {
    stored.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
}

/// Closes a connection. If that fails, the server notices by itself.
async fn close_connection(connection: DatabaseConnection) {
    let _ = timeout(Duration::from_secs(1), connection.close()).await;
}
