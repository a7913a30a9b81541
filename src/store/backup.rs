//! Backups of an SQLite file: a consistent copy while a daemon uses it, and its way back.
//!
//! PostgreSQL has its own tools, `pg_dump` and `pg_restore`.

use std::{
    ffi::OsString,
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use sea_orm::{
    ColumnTrait as _, DatabaseConnection, EntityTrait as _, PaginatorTrait as _, QueryFilter as _, QuerySelect as _,
};

use super::{
    OpenError, close_connection, connect,
    entities::operations,
    error::EngineError,
    lock_file, migrate, restored,
    restored::RestoredStore,
    rows::{query, query_scalar},
};
use crate::{
    private_files,
    settings::{StoreSettings as Settings, StoreUrl},
};

/// Files that belong to an SQLite file, by what is appended to its name.
const COMPANIONS: [&str; 2] = ["-wal", "-shm"];

/// Why a backup cannot be made or restored.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    /// The store is not an SQLite file.
    #[error(
        "the store is {0}, and this command is for SQLite files; use pg_dump and pg_restore, and start the restored store with \
         `guildhall serve --restored` (docs/operating.md)"
    )]
    NotAFile(String),
    /// There is no store.
    #[error("there is no store at {0}; check store.url")]
    NoStore(PathBuf),
    /// The target exists.
    #[error("{0} exists; choose another path, or remove it")]
    Exists(PathBuf),
    /// The backup cannot be used.
    #[error("{path} is not a usable backup: {reason}")]
    Unusable {
        /// Path of the backup.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A file cannot be read or written.
    #[error("cannot {action} {path}: {error}")]
    Io {
        /// What failed.
        action: &'static str,
        /// Path of the file.
        path: PathBuf,
        /// Error of the operating system.
        error: io::Error,
    },
    /// The engine failed.
    #[error("cannot copy the store: {0}")]
    Engine(String),
    /// The store cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
}

impl From<EngineError> for BackupError {
    fn from(error: EngineError) -> Self {
        Self::Engine(error.message())
    }
}

impl From<sea_orm::DbErr> for BackupError {
    fn from(error: sea_orm::DbErr) -> Self {
        EngineError::from(error).into()
    }
}

/// A backup that was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backup {
    /// Size in bytes.
    pub bytes: u64,
    /// Operations in it that are not finished.
    pub unfinished: u64,
}

/// A backup that was restored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Restored {
    /// What was unfinished in it.
    pub store: RestoredStore,
    /// Where the replaced file is now, if there was one.
    pub replaced: Option<PathBuf>,
}

/// Copies the store to a new file, which is complete and checked when it has its name. A daemon may use the store meanwhile.
///
/// # Errors
///
/// When the store is not an SQLite file, or the copy cannot be made. Nothing is left behind.
pub async fn create(settings: &Settings, to: &Path) -> Result<Backup, BackupError> {
    let from = file_of(settings)?;
    if !from.exists() {
        return Err(BackupError::NoStore(from.to_owned()));
    }
    if to.exists() {
        return Err(BackupError::Exists(to.to_owned()));
    }
    let copy = TemporaryFile::create(with_suffix(to, ".partial"))?;
    let reading = connect::open_file(from).await?;
    let copied = vacuum_into(&reading, &copy.path).await;
    close_connection(reading).await;
    copied?;
    let unfinished = check(&copy.path, to).await?;
    copy.sync()?;
    let bytes = fs::metadata(&copy.path).map_err(io_error("read", &copy.path))?.len();
    copy.rename(to)?;
    Ok(Backup { bytes, unfinished })
}

/// SQLite writes to an existing file if it is empty, and then keeps its mode.
async fn vacuum_into(reading: &DatabaseConnection, to: &Path) -> Result<(), BackupError> {
    let path = to.to_str().ok_or_else(|| BackupError::Engine(format!("{} is not valid UTF-8", to.display())))?;
    query(reading, "VACUUM INTO $1", vec![path.into()]).await?;
    Ok(())
}

/// Puts a backup in the place of the store, and prepares it: what was unfinished in it is checked before anything is sent. The
/// replaced file is kept.
///
/// # Errors
///
/// When the store is not an SQLite file, a process uses it, or the backup is not usable. The store is then unchanged.
pub async fn restore(settings: &Settings, from: &Path, settle: Duration) -> Result<Restored, BackupError> {
    let target = file_of(settings)?;
    let _lock = lock_file(settings)?;
    let copy = TemporaryFile::create(with_suffix(target, ".restoring"))?;
    fs::copy(from, &copy.path).map_err(io_error("read", from))?;
    check(&copy.path, from).await?;
    let settings_of_copy = Settings { url: StoreUrl::Sqlite(copy.path.clone()), ..settings.clone() };
    let store = restored::prepare_locked(&settings_of_copy, settle).await?;
    copy.sync()?;
    let replaced = keep_replaced(target, store.at.millis())?;
    copy.rename(target)?;
    Ok(Restored { store, replaced })
}

/// Gives the current file a second name, and moves the files that belong to it there. The store always has a file.
fn keep_replaced(target: &Path, number: u64) -> Result<Option<PathBuf>, BackupError> {
    let kept = with_suffix(target, &format!(".replaced-{number}"));
    let is_empty = fs::metadata(target).map_err(io_error("read", target))?.len() == 0;
    if is_empty {
        // Created with the lock.
        return Ok(None);
    }
    fs::hard_link(target, &kept).map_err(io_error("create", &kept))?;
    for companion in COMPANIONS {
        let (file, kept) = (with_suffix(target, companion), with_suffix(&kept, companion));
        match fs::rename(&file, &kept) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(io_error("move", &file)(error)),
            _ => {}
        }
    }
    Ok(Some(kept))
}

/// Checks that a file is intact and is a store that this program can use. Returns its number of unfinished operations.
async fn check(path: &Path, shown: &Path) -> Result<u64, BackupError> {
    let unusable = |reason: String| BackupError::Unusable { path: shown.to_owned(), reason };
    let on = connect::open_file(path).await.map_err(|error| unusable(EngineError::from(error).message()))?;
    let checked = check_content(&on).await;
    close_connection(on).await;
    checked.map_err(unusable)
}

async fn check_content(on: &DatabaseConnection) -> Result<u64, String> {
    let text = |error: sea_orm::DbErr| EngineError::from(error).message();
    let found: Option<String> = query_scalar(on, "PRAGMA quick_check(1)", Vec::new()).await.map_err(text)?;
    match found.as_deref() {
        Some("ok") => {}
        problem => return Err(format!("it is damaged: {}", problem.unwrap_or("it cannot be checked"))),
    }
    let migrations = migrate::read_status(on).await.map_err(|error| error.to_string())?;
    if !migrations.iter().any(|migration| migration.applied) {
        return Err("it is not a store of Guildhall".to_owned());
    }
    if let Some(error) = migrations.iter().find_map(migrate::MigrationStatus::to_open_error) {
        return Err(error.to_string());
    }
    // A store of an older program may lack other columns.
    let unfinished = operations::Entity::find()
        .select_only()
        .column(operations::Column::Id)
        .filter(operations::Column::FinishedAt.is_null());
    unfinished.count(on).await.map_err(text)
}

fn file_of(settings: &Settings) -> Result<&Path, BackupError> {
    match &settings.url {
        StoreUrl::Sqlite(path) => Ok(path),
        url @ StoreUrl::Postgres { .. } => Err(BackupError::NotAFile(url.to_string())),
    }
}

/// A private file that is removed on drop unless it was renamed. One of an earlier process that was killed is replaced.
struct TemporaryFile {
    path: PathBuf,
}

impl TemporaryFile {
    fn create(path: PathBuf) -> Result<Self, BackupError> {
        let file = Self { path };
        file.remove();
        private_files::create_new(&file.path).map_err(io_error("create", &file.path))?;
        Ok(file)
    }

    /// Writes its content to disk.
    fn sync(&self) -> Result<(), BackupError> {
        let synced = File::open(&self.path).and_then(|file| file.sync_all());
        synced.map_err(io_error("write", &self.path))
    }

    /// Gives it its final name, also on disk.
    fn rename(self, to: &Path) -> Result<(), BackupError> {
        fs::rename(&self.path, to).map_err(io_error("rename", &self.path))?;
        let folder = to.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or_else(|| Path::new("."));
        File::open(folder).and_then(|folder| folder.sync_all()).map_err(io_error("write", folder))
    }

    fn remove(&self) {
        for suffix in ["", COMPANIONS[0], COMPANIONS[1]] {
            // Usually they do not exist.
            let _ = fs::remove_file(with_suffix(&self.path, suffix));
        }
    }
}

impl Drop for TemporaryFile {
    fn drop(&mut self) {
        self.remove();
    }
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name: OsString = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

fn io_error<'a>(action: &'static str, path: &'a Path) -> impl Fn(io::Error) -> BackupError + 'a {
    move |error| BackupError::Io { action, path: path.to_owned(), error }
}
