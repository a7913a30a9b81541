//! Where operations are kept: a file of SQLite, or a database of PostgreSQL.
//!
//! ```text
//!  submit, record, claim … ──▶ bounded queue ──▶ writer: one transaction for all that wait ──▶ engine
//!        ▲                                          │ commit
//!        └──────────────── answers ─────────────────┘
//!  load, show, list … ───────▶ a few connections that only read ──────────────────────────────▶ engine
//! ```
//!
//! One process writes: SQLite's file has a lock beside it, and on PostgreSQL the connection that writes holds an advisory
//! lock, so that a connection that is lost takes the right to write with it.

mod connect;
mod events;
mod file_lock;
mod leases;
pub mod migrate;
mod operation_row;
#[cfg(test)]
mod plans;
mod port;
mod read;
mod rows;
mod trouble;
mod write;

use std::{sync::Arc, time::Duration};

use sea_orm::{DatabaseConnection, DbErr};
use tokio::{
    sync::{mpsc, watch},
    task::JoinHandle,
    time::{Instant, sleep, timeout},
};

use self::{
    connect::{ADVISORY_LOCK, Writing},
    file_lock::{FileLock, LockError},
    rows::query,
    trouble::{Meaning, Trouble},
    write::{Request, Writer},
};
use crate::settings::{Store as Settings, StoreUrl};

pub use self::leases::SqlLeases;

/// How often a lock that somebody else still holds is asked for again.
const ASK_AGAIN: Duration = Duration::from_millis(50);

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
    #[error("another process{} uses {path}; one store serves one process, so stop that one or name another with store.url", named(*.pid))]
    InUse {
        /// Which store.
        path: String,
        /// The process, if it is known.
        pid: Option<u32>,
    },
    /// The store is newer than this program.
    #[error(
        "the store has the migration {unknown}, which this version of guildhall does not know; run the version that \
         made it, or a newer one"
    )]
    Newer {
        /// What is not known.
        unknown: String,
    },
    /// The store is older than this program, which may not bring it up to date.
    #[error("the store lacks {missing}; run `guildhall migrate up`, or set store.migrate = true")]
    Older {
        /// What it lacks.
        missing: String,
    },
    /// A migration failed.
    #[error("cannot migrate the store: {0}")]
    Migration(String),
    /// The engine does not let us in, or fails.
    #[error(
        "cannot open the store: {0}; check store.url (GUILDHALL__STORE__URL), and that what it names is there and lets \
         this process in"
    )]
    Engine(String),
}

fn named(pid: Option<u32>) -> String {
    pid.map_or_else(String::new, |pid| format!(" (process {pid})"))
}

impl OpenError {
    fn engine(error: DbErr) -> Self {
        Self::Engine(Trouble::Engine(error).says())
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
}

#[derive(Debug)]
struct Shared {
    requests: mpsc::Sender<Request>,
    reading: DatabaseConnection,
    timeout: Duration,
    health: watch::Receiver<Health>,
    writer: std::sync::Mutex<Option<JoinHandle<()>>>,
    stop: watch::Sender<bool>,
}

impl Store {
    /// Opens a store, brings it up to date if it may, and takes every queue from processes that are gone.
    ///
    /// # Errors
    ///
    /// When it cannot be reached, is in use, or does not fit this program.
    pub async fn open(settings: &Settings) -> Result<Self, OpenError> {
        let holder = Holder::take(settings).await?;
        migrate::prepare(&holder.writing.connection, settings.migrate).await?;
        let reading = connect::reading(settings).map_err(OpenError::engine)?;
        let (requests, waiting) = mpsc::channel(settings.max_waiting);
        let (tell, health) = watch::channel(Health::Up);
        let (stop, stopped) = watch::channel(false);
        let writer = Writer::attach(settings.clone(), holder, tell)
            .await
            .map_err(|trouble| OpenError::Engine(trouble.says()))?;
        let task = tokio::spawn(writer.run(waiting, stopped));
        let shared = Shared {
            requests,
            reading,
            timeout: settings.timeout,
            health,
            writer: std::sync::Mutex::new(Some(task)),
            stop,
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Whether it can be written to, now and from now on.
    #[must_use]
    pub fn watch(&self) -> watch::Receiver<Health> {
        self.shared.health.clone()
    }

    /// Writes what waits, then lets go of the store. What is asked after that is not available.
    pub async fn close(&self) {
        self.shared.stop.send_replace(true);
        let writer = self.shared.writer.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take();
        if let Some(writer) = writer {
            // A panic of the writer has been told of already.
            let _ = writer.await;
        }
        let _ = self.shared.reading.clone().close().await;
    }
}

/// The right to write, and the connection that does.
#[derive(Debug)]
pub(crate) struct Holder {
    file: Option<Arc<FileLock>>,
    writing: Writing,
}

impl Holder {
    /// Takes the right to write; waits a while for a PostgreSQL that has not yet noticed that the last process is gone.
    async fn take(settings: &Settings) -> Result<Self, OpenError> {
        let file = match &settings.url {
            StoreUrl::Sqlite(path) => {
                let folder_error = |error: std::io::Error| OpenError::Folder {
                    path: path.display().to_string(),
                    says: error.to_string(),
                };
                if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
                    std::fs::create_dir_all(folder).map_err(folder_error)?;
                }
                let lock = FileLock::take(path).map_err(|error| match error {
                    LockError::Held(pid) => OpenError::InUse { path: settings.url.to_string(), pid },
                    LockError::Io(error) => folder_error(error),
                })?;
                Some(Arc::new(lock))
            }
            StoreUrl::Postgres { .. } => None,
        };
        let patience = Instant::now() + settings.lock_wait;
        loop {
            let writing = Writing::connect(settings).await.map_err(OpenError::engine)?;
            let holder = Self { file: file.clone(), writing };
            if holder.locks(settings.timeout).await.map_err(OpenError::engine)? {
                return Ok(holder);
            }
            if Instant::now() >= patience {
                return Err(OpenError::InUse { path: settings.url.to_string(), pid: None });
            }
            holder.let_go().await;
            sleep(ASK_AGAIN).await;
        }
    }

    /// Makes the connection anew, and takes the lock with it, at once or not at all.
    async fn again(settings: &Settings, file: Option<Arc<FileLock>>) -> Result<Self, Trouble> {
        let writing = Writing::connect(settings).await?;
        let holder = Self { file, writing };
        if holder.locks(settings.timeout).await? {
            return Ok(holder);
        }
        holder.let_go().await;
        Err(DbErr::Conn(sea_orm::RuntimeErr::Internal("another process uses this store now".to_owned())).into())
    }

    async fn locks(&self, within: Duration) -> Result<bool, DbErr> {
        if self.file.is_some() {
            return Ok(true);
        }
        let asked = query(&self.writing.connection, "SELECT pg_try_advisory_lock($1)", vec![ADVISORY_LOCK.into()]);
        let late = || DbErr::Conn(sea_orm::RuntimeErr::Internal("it does not answer in time".to_owned()));
        let rows = timeout(within, asked).await.map_err(|_| late())??;
        rows.first().map_or(Ok(false), |row| row.try_get_by_index(0))
    }

    async fn let_go(self) {
        // The server notices by itself if this comes to nothing.
        let _ = timeout(Duration::from_secs(1), self.writing.connection.close()).await;
    }
}
