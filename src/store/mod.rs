//! Where operations are kept, and what was done with which event: a file of SQLite, or a database of PostgreSQL.
//!
//! ```text
//!  submit, record, commit … ─▶ bounded queue ──▶ writer: one transaction for all that wait ──▶ engine
//!        ▲                                          │ commit
//!        └──────────────── answers ─────────────────┘
//!  load, show, list … ───────▶ a few connections that only read ──────────────────────────────▶ engine
//! ```
//!
//! A file of SQLite belongs to one process, by a lock beside it. A PostgreSQL may be shared by several: each has a lease that
//! it renews ([`cluster`]), each queue one owner and a fence, and every write locks the queues that it is about first.

mod access_port;
mod admin_key;
mod budgets_port;
mod changes_port;
mod cluster;
mod connect;
mod crashes;
mod error;
mod events;
mod events_port;
mod file_bound;
mod file_lock;
mod leases;
pub mod migrate;
mod operation_row;
mod operations_port;
mod probe;
mod process_ends;
#[cfg(test)]
mod query_plan_tests;
mod read;
mod row_security;
mod rows;
#[cfg(test)]
mod tenant_isolation_tests;
mod write;

use std::{
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
    probe::{StoreProbe, is_in_use, look},
    process_ends::ProcessEnd,
};
use self::{
    cluster::{ClusterMember, HeartbeatTask, MemberPhase},
    connect::{ReadView, Reader, TransactionSetup},
    error::{EngineError, ErrorClass},
    file_lock::{FileLock, LockError},
    row_security::{RepairMode, TenantRole},
    rows::query,
    write::{JobRequest, Writer},
};
use crate::{
    clock::{ClockRecord, Clocks, SystemTimeSource, TimeSource},
    events::emit,
    private_files,
    settings::{StoreSettings as Settings, StoreUrl},
};

/// How often it is tried to open a store whose connection is lost meanwhile.
const TRIES: u32 = 5;

/// Nothing that expires is stored for longer than this, or than idempotency keys are.
const LONGEST_KEPT: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// The key of the value that the clocks of this process continue from.
const CLOCK_KEY: &str = "guildhall:clock";

/// Why a store cannot be opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// The folder of a file cannot be made, or its lock not be opened.
    #[error("cannot use {path}: {says}; name another file with store.url, or let this user write there")]
    Folder {
        /// Which file.
        path: String,
        /// Why.
        says: String,
    },
    /// Another process has the file.
    #[error(
        "another process{} uses {path}; one file serves one process, so stop that one, name another with store.url, or let \
         them share a PostgreSQL", named(*.pid)
    )]
    InUse {
        /// Which store.
        path: String,
        /// The process, if it is known.
        pid: Option<u32>,
    },
    /// The store is newer than this program can work with.
    #[error(
        "the store has the migration {unknown}, which this version of guildhall does not know{}; run the version that \
         made it, or a newer one", knows(*.needs)
    )]
    Newer {
        /// What is not known.
        unknown: String,
        /// The migration that a program has to know to work with it, if that is recorded.
        needs: Option<u32>,
    },
    /// A migration that the store has is not the one that this program has.
    #[error(
        "the migration {name} has changed since it was applied: the store has SQL with the hash {stored}, this version of \
         guildhall {known}; run the version that applied it. A migration is never edited: undo the edit, and make the change \
         in a new one"
    )]
    Changed {
        /// Which.
        name: String,
        /// The hash of the SQL that was run.
        stored: String,
        /// The hash of the SQL that this program has.
        known: String,
    },
    /// The store is older than this program, which may not bring it up to date.
    #[error("the store lacks {missing}; run `guildhall migrate up`, or set store.migrate = true")]
    Older {
        /// What it lacks.
        missing: String,
    },
    /// Processes are at work with it.
    #[error("{count} processes use this store; stop them first")]
    Alive {
        /// How many.
        count: u64,
    },
    /// Another process migrates it, and takes its time.
    #[error("another process migrates this store; wait for it, or raise store.lock_wait_ms")]
    Migrating,
    /// A migration failed.
    #[error("cannot migrate the store: {0}")]
    Migration(String),
    /// The tables are somebody else's, and what is in them is kept from this user.
    #[error(
        "the tables belong to {owner}, and {user} of store.url sees no row of them; as a superuser run: GRANT \"{owner}\" TO \
         \"{user}\"; or name the owner in store.url"
    )]
    NotTheOwner {
        /// As whom this process is there.
        user: String,
        /// Whose the tables are.
        owner: String,
    },
    /// Tenants cannot be kept apart by PostgreSQL, and have to be.
    #[error("store.row_security is \"required\", and cannot be had: {0}")]
    RowSecurity(String),
    /// The connection cannot be made, or was lost.
    #[error(
        "cannot open the store: {0}; check store.url (GUILDHALL__STORE__URL), and that what it names is there and lets \
         this process in"
    )]
    Lost(String),
    /// Somebody else holds what is needed.
    #[error(
        "the store is busy: {0}; another program, or a process that stands still, holds it; try again, or look what it is"
    )]
    Busy(String),
    /// The engine does not let us in, or fails.
    #[error(
        "cannot open the store: {0}; check store.url (GUILDHALL__STORE__URL), and that what it names is there and lets \
         this process in"
    )]
    Engine(String),
}

fn knows(migration: Option<u32>) -> String {
    migration.map_or_else(String::new, |number| format!(" (it needs a version that knows migration {number:04})"))
}

fn named(pid: Option<u32>) -> String {
    pid.map_or_else(String::new, |pid| format!(" (process {pid})"))
}

impl OpenError {
    fn engine(error: DbErr) -> Self {
        Self::trouble(EngineError::Engine(error))
    }

    #[expect(clippy::needless_pass_by_value, reason = "it is the end of the error")]
    fn trouble(trouble: EngineError) -> Self {
        match trouble.meaning() {
            ErrorClass::Lost => Self::Lost(trouble.says()),
            ErrorClass::Busy | ErrorClass::Raced => Self::Busy(trouble.says()),
            ErrorClass::Full | ErrorClass::Refused | ErrorClass::Corrupt => Self::Engine(trouble.says()),
        }
    }

    #[expect(clippy::needless_pass_by_value, reason = "it is the end of the error")]
    fn migration(error: DbErr) -> Self {
        Self::Migration(error.to_string())
    }
}

/// Whether the store can be written to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    /// It can.
    Up,
    /// It cannot, and this is why.
    Down(String),
}

/// The store. Clones are the same store.
#[derive(Clone, Debug)]
pub struct Store {
    shared: Arc<Shared>,
    /// What the first change is to leave, on an errand of somebody.
    note: Option<Arc<Mutex<Option<AuditRecord>>>>,
    /// Whose rows it is about, if not everybody's.
    tenant: Option<Arc<str>>,
}

#[derive(Debug)]
struct Shared {
    settings: Settings,
    /// What the processes of the store speak on.
    channel: String,
    requests: mpsc::Sender<JobRequest>,
    reading: Reader,
    row_security: Option<TenantRole>,
    members: Arc<ClusterMember>,
    clocks: Clocks,
    /// What each caller may store.
    limits: UsageLimits,
    /// How large a file may grow; 0 is no bound.
    max_bytes: u64,
    timeout: Duration,
    health: watch::Receiver<Health>,
    /// The writer, and who says that this process lives.
    tasks: Mutex<Vec<JoinHandle<()>>>,
    ear: Option<JoinHandle<()>>,
    stop: watch::Sender<bool>,
    /// The writer has let go of everything: nothing is left to live for.
    end: watch::Sender<bool>,
}

impl Store {
    /// Opens a store, brings it up to date if it may, and takes every queue from processes that are gone.
    ///
    /// # Errors
    ///
    /// When it cannot be reached, is in use, or does not fit this program.
    pub async fn open(settings: &Settings) -> Result<Self, OpenError> {
        Self::open_as(settings, MemberPhase::Here, Arc::new(SystemTimeSource)).await
    }

    /// Opens it as [`Self::open`] does, on a machine with these clocks.
    ///
    /// # Errors
    ///
    /// As [`Self::open`].
    pub async fn open_with_clocks(settings: &Settings, source: Arc<dyn TimeSource>) -> Result<Self, OpenError> {
        Self::open_as(settings, MemberPhase::Here, source).await
    }

    /// Opens it as [`Self::open`] does, but leaves the work to the other processes until this one has
    /// [arrived](Self::arrive).
    ///
    /// # Errors
    ///
    /// As [`Self::open`].
    pub async fn approach(settings: &Settings) -> Result<Self, OpenError> {
        Self::open_as(settings, MemberPhase::Arriving, Arc::new(SystemTimeSource)).await
    }

    async fn open_as(
        settings: &Settings,
        standing: MemberPhase,
        source: Arc<dyn TimeSource>,
    ) -> Result<Self, OpenError> {
        let file = lock_file(settings)?.map(Arc::new);
        let bound = file_bound(settings);
        if let Some(bound) = bound {
            emit(FileBoundSet { bound });
        }
        let settings = &Settings { max_bytes: bound.map_or(0, |bound| bound.bytes), ..settings.clone() };
        let mut tried = 1;
        loop {
            match Self::open_once(settings, file.clone(), standing, &source).await {
                // It may have been lost because this process, or the server, stood still for a moment; or another process
                // stands still in the middle of something, which the server ends soon.
                Err(OpenError::Lost(_) | OpenError::Busy(_)) if tried < TRIES => tried += 1,
                opened => return opened,
            }
        }
    }

    async fn open_once(
        settings: &Settings,
        file: Option<Arc<FileLock>>,
        standing: MemberPhase,
        source: &Arc<dyn TimeSource>,
    ) -> Result<Self, OpenError> {
        migrate::prepare(settings).await?;
        let mend = if settings.migrate { RepairMode::Yes } else { RepairMode::No };
        let row_security = row_security::prepare(settings, mend).await?;
        let trouble = OpenError::trouble;
        let reading = connect::reading(settings).map_err(OpenError::engine)?;
        let (requests, waiting) = mpsc::channel(settings.max_waiting);
        let (tell, health) = watch::channel(Health::Up);
        let (stop, stopped) = watch::channel(false);
        let (end, ended) = watch::channel(false);
        let channel = channel(&reading).await.map_err(trouble)?;
        let longest = settings.keep_keys.max(LONGEST_KEPT);
        let clocks = clocks(settings, Arc::clone(source), longest).await.map_err(trouble)?;
        let members = if file.is_some() { ClusterMember::alone() } else { ClusterMember::among_others(standing) };
        let listening = connect::listening(settings).map_err(OpenError::engine)?;
        let keeper = match &listening {
            Some(_) => {
                let connection = connect::writing(settings).await.map_err(OpenError::engine)?;
                let (members, session) = (Arc::clone(&members), TransactionSetup::of(settings));
                let start =
                    HeartbeatTask::start(settings, members, clocks.clone(), connection, session, channel.clone()).await;
                Some(start.map_err(trouble)?)
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
            tell,
        );
        let writer = writer.await.map_err(trouble)?.run(waiting, stopped);
        let mut tasks = vec![supervision::spawn(Part::StoreWriter, writer)];
        tasks.extend(keeper.map(|keeper| supervision::spawn(Part::Heartbeat, keeper.run(ended))));
        let ear = listening.map(|pool| {
            let listening = cluster::listen(Arc::clone(&members), pool, channel.clone(), settings.timeout);
            supervision::spawn(Part::StoreListener, listening)
        });
        let (timeout, tasks) = (settings.timeout, Mutex::new(tasks));
        let limits = settings.usage.within_file(settings.max_bytes);
        let max_bytes = settings.max_bytes;
        let shared = Shared {
            settings: settings.clone(),
            channel,
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
            ear,
            stop,
            end,
        };
        Ok(Self { shared: Arc::new(shared), note: None, tenant: None })
    }

    /// The same store for one errand: its first change leaves this note.
    fn with_note(&self, note: AuditRecord) -> Self {
        Self { note: Some(Arc::new(Mutex::new(Some(note)))), ..self.clone() }
    }

    /// The same store as this tenant sees it.
    fn of_tenant(&self, tenant: Arc<str>) -> Self {
        Self { tenant: Some(tenant), ..self.clone() }
    }

    /// What it is read through: everything, or what PostgreSQL shows of it to the tenant.
    async fn view(&self) -> Result<ReadView, EngineError> {
        Ok(self.shared.reading.view(self.shared.row_security.as_ref(), self.tenant.as_deref()).await?)
    }

    /// Store time, by which everything durable is written and expires.
    #[must_use]
    pub fn clocks(&self) -> &Clocks {
        &self.shared.clocks
    }

    /// The time that may be compared with when something expires, if the caller says that it is `now`.
    fn expiry(&self, now: UnixMs) -> UnixMs {
        now.before(self.shared.clocks.expiry_lag())
    }

    /// Stores what the next process needs to know of the clocks.
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

    /// Whether it can be written to, now and from now on.
    #[must_use]
    pub fn watch(&self) -> watch::Receiver<Health> {
        self.shared.health.clone()
    }

    /// What the other processes do that share it, from now on.
    #[must_use]
    pub fn notices(&self) -> broadcast::Receiver<ClusterEvent> {
        self.shared.members.notices()
    }

    /// Whether other processes use it, too, or did a moment ago.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        self.shared.members.has_others()
    }

    /// Divides a rate limit among the processes that share this store. Nothing if no other process can: then all of it is
    /// this one's.
    #[must_use]
    pub fn divide_limit(&self, request: DivisionRequest) -> Option<LimitDivision> {
        let members = &self.shared.members;
        self.shared.ear.is_some().then(|| LimitDivision::join(Arc::clone(members), request))
    }

    /// Takes this process's part of the work from now on. To say so twice is as good as once.
    pub fn arrive(&self) {
        self.shared.members.arrive();
    }

    /// Tells the others that this process is about to give its queues back.
    pub async fn leave(&self) {
        self.shared.members.leave(self.shared.timeout).await;
    }

    /// Gives back everything that this process has, for a process that has to end at once: without its writer and its
    /// heartbeat, which may be what has failed. Nothing is sent or written by it from now on but why it ends. What cannot be
    /// given back is free when its lease ends.
    pub async fn give_up(&self, end: &PartEnd) {
        let Shared { settings, channel, members, clocks, .. } = &*self.shared;
        members.give_up().await;
        match settings.url {
            // The lock of a file ends with the process.
            StoreUrl::Sqlite(_) => {}
            StoreUrl::Postgres { .. } => {
                HeartbeatTask::leave_at_once(settings, Arc::clone(members), clocks.clone(), channel.clone()).await;
            }
        }
        process_ends::record(settings, end, clocks.now()).await;
    }

    /// The processes of this store that a part has ended, newest first.
    ///
    /// # Errors
    ///
    /// When the store does not answer.
    pub async fn process_ends(&self) -> Result<Vec<ProcessEnd>, StoreError> {
        self.read(process_ends::read(&self.shared.reading)).await
    }

    /// Writes what waits, then lets go of the store. What is asked after that is not available.
    pub async fn close(&self) {
        self.shared.stop.send_replace(true);
        if let Some(ear) = &self.shared.ear {
            ear.abort();
        }
        let tasks = std::mem::take(&mut *self.shared.tasks.lock().unwrap_or_else(std::sync::PoisonError::into_inner));
        for (place, task) in tasks.into_iter().enumerate() {
            // A panic of one of them has been told of already.
            let _ = task.await;
            if place == 0 {
                self.shared.end.send_replace(true);
            }
        }
        self.shared.reading.clone().close().await;
    }
}

/// Takes the lock of a file of SQLite, and creates the file if it does not exist: SQLite gives its WAL and its shared memory
/// the mode of the file.
fn lock_file(settings: &Settings) -> Result<Option<FileLock>, OpenError> {
    let path = match &settings.url {
        StoreUrl::Sqlite(path) => path,
        StoreUrl::Postgres { .. } => return Ok(None),
    };
    let folder_error =
        |error: std::io::Error| OpenError::Folder { path: path.display().to_string(), says: error.to_string() };
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        private_files::create_folder(folder).map_err(folder_error)?;
    }
    let lock = FileLock::take(path).map_err(|error| match error {
        LockError::Held(pid) => OpenError::InUse { path: settings.url.to_string(), pid },
        LockError::Io(error) => folder_error(error),
    })?;
    // An existing file is not opened: closing it would drop the locks of connections of this process.
    if !path.try_exists().map_err(folder_error)? {
        private_files::open_or_create(path).map_err(folder_error)?;
    }
    Ok(Some(lock))
}

/// What the processes of one store speak on: PostgreSQL's channels are a whole database's.
async fn channel(reading: &Reader) -> Result<String, EngineError> {
    use sea_orm::{ConnectionTrait as _, DbBackend};
    if reading.get_database_backend() != DbBackend::Postgres {
        return Ok(String::new());
    }
    let rows = query(reading, "SELECT left('guildhall_' || current_schema(), 63)", Vec::new()).await?;
    Ok(rows.first().map_or(Ok(String::new()), |row| row.try_get_by_index(0))?)
}

/// The clocks of a store, as earlier processes left them.
async fn clocks(settings: &Settings, source: Arc<dyn TimeSource>, longest: Duration) -> Result<Clocks, EngineError> {
    // Not one of those that read: whichever of a file's connections is closed last has to be able to write.
    let on = connect::writing(settings).await?;
    let read = timeout(settings.timeout, read_clocks(&on, &TransactionSetup::of(settings), source, longest)).await;
    let_go(on).await;
    read.unwrap_or_else(|_| Err(write::late()))
}

async fn read_clocks(
    on: &DatabaseConnection,
    session: &TransactionSetup,
    source: Arc<dyn TimeSource>,
    longest: Duration,
) -> Result<Clocks, EngineError> {
    use sea_orm::{ConnectionTrait as _, DbBackend, TransactionTrait as _};
    // PgBouncer gives a transaction one server.
    let on = on.begin().await?;
    session.prepare(&on).await?;
    let clocks = if on.get_database_backend() == DbBackend::Postgres {
        let sent = source.monotonic();
        let rows = query(&on, &format!("SELECT {}", cluster::NOW), Vec::new()).await?;
        let shown: i64 = rows.first().map_or(Ok(0), |row| row.try_get_by_index(0))?;
        Clocks::of_database(source, longest, operation_row::time(shown), sent)
    } else {
        Clocks::of_machine(source, longest)
    };
    let stored = read::totals::state(&on, CLOCK_KEY, clocks.now()).await?;
    on.commit().await?;
    clocks.resume(clock_record(stored.as_deref()));
    Ok(clocks)
}

/// A record that cannot be read is as good as none: the clocks are measured again.
fn clock_record(stored: Option<&str>) -> ClockRecord {
    stored.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
}

/// Lets go of a connection. The server notices by itself if this comes to nothing.
async fn let_go(connection: DatabaseConnection) {
    let _ = timeout(Duration::from_secs(1), connection.close()).await;
}
