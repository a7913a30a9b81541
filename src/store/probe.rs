//! Reads the status of a store without opening it: changes nothing, and takes no lock.

use std::time::{Duration, Instant};

use guildhall_actors::ports::GeneratedAdminKey;
use guildhall_core::{clock::Offset, time::UnixMs};
use sea_orm::{ConnectionTrait as _, DbBackend, FromQueryResult};
use tokio::time::timeout;

use super::{
    OpenError, ProcessEnd, RestoreProgress, RestoredStore, admin_key,
    connect::{self, Reader},
    error::EngineError,
    file_lock::FileLock,
    migrate::{self, MigrationStatus},
    operation_row::time,
    process_ends,
    read::{instances, totals},
    restored,
    row_security::{self, RowSecurityStatus},
    rows::{query_as, query_scalar},
    sql,
};
use crate::{
    clock::{SystemTimeSource, TimeSource as _},
    settings::{StoreSettings as Settings, StoreUrl},
};

/// Status of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreProbe {
    /// Engine and version, for display.
    pub engine: String,
    /// All migrations that this program knows or the store has.
    pub migrations: Vec<MigrationStatus>,
    /// Time until the first response.
    pub elapsed: Duration,
    /// Value that is stored under the requested state key.
    pub stored_value: Option<String>,
    /// Processes that ended because a part failed, newest first.
    pub process_ends: Vec<ProcessEnd>,
    /// The last restore of the store, and what became of the operations that were due then.
    pub restored: Option<(RestoredStore, RestoreProgress)>,
    /// The generated admin key that the processes of the store accept.
    pub admin_key: Option<GeneratedAdminKey>,
    /// Minimum number of milliseconds by which the clock of this machine is ahead of the database's; negative if it is
    /// behind.
    pub clock_ahead_ms: i64,
    /// Dead letters that were not redriven; `None` if the store has no table for them yet.
    pub dead_letters: Option<DeadCount>,
    /// Events that failed finally for a handler.
    pub dead_events: Option<DeadCount>,
    /// Whether row-level security isolates tenants. `None` if the store does not have it.
    pub row_security: Option<RowSecurityStatus>,
}

/// Number and age of what failed finally.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeadCount {
    /// How many.
    pub count: u64,
    /// When the oldest of them failed.
    pub oldest: Option<UnixMs>,
}

#[derive(FromQueryResult)]
struct DeadRow {
    count: i64,
    oldest: Option<i64>,
}

/// Reads the status of a store, and the value under a state key. `None` if its file does not exist yet.
///
/// # Errors
///
/// When the store cannot be read.
pub async fn probe_store(settings: &Settings, key: &str) -> Result<Option<StoreProbe>, OpenError> {
    if let StoreUrl::Sqlite(path) = &settings.url
        && !path.exists()
    {
        return Ok(None);
    }
    let time_limit = settings.timeout;
    let reading = connect::open_reader(settings).map_err(OpenError::engine)?;
    let probed = timeout(time_limit, read(&reading, key, settings)).await;
    // The connections were only read from, so there is no need to wait longer.
    drop(timeout(time_limit, reading.close()).await);
    probed
        .unwrap_or_else(|_| Err(OpenError::Lost(format!("no response within {} ms", time_limit.as_millis()))))
        .map(Some)
}

async fn read(reading: &Reader, key: &str, settings: &Settings) -> Result<StoreProbe, OpenError> {
    let started = Instant::now();
    let (name, version) = match reading.get_database_backend() {
        DbBackend::Postgres => ("PostgreSQL", "SELECT current_setting('server_version')"),
        _ => ("SQLite", "SELECT sqlite_version()"),
    };
    let version: Option<String> = query_scalar(reading, version, Vec::new()).await.map_err(OpenError::engine)?;
    let (elapsed, version) = (started.elapsed(), version.unwrap_or_default());
    let migrations = migrate::read_status(reading).await?;
    // A store without the table has no value.
    let stored_value = totals::state(reading, key, SystemTimeSource.wall()).await.unwrap_or(None);
    let admin_key = admin_key::read(reading).await.unwrap_or(None);
    let clock_ahead_ms = match reading.get_database_backend() {
        DbBackend::Postgres => clock_ahead(reading).await.map_err(OpenError::from_engine_error)?,
        _ => 0,
    };
    let process_ends = process_ends::read(reading).await.unwrap_or_default();
    let restored = restored(reading).await.unwrap_or(None);
    let engine = format!("{name} {version}").trim_end().to_owned();
    let is_current = migrations.iter().all(|migration| migration.applied);
    Ok(StoreProbe {
        engine,
        migrations,
        elapsed,
        stored_value,
        process_ends,
        restored,
        admin_key,
        clock_ahead_ms,
        dead_letters: count_dead(reading, "dead_letters WHERE redriven_as IS NULL").await,
        dead_events: count_dead(reading, "inbox WHERE dead IS NOT NULL").await,
        // Its check reads all tables.
        row_security: if is_current { row_security::status(settings).await? } else { None },
    })
}

async fn restored(reading: &Reader) -> Result<Option<(RestoredStore, RestoreProgress)>, EngineError> {
    match restored::read(reading, SystemTimeSource.wall()).await? {
        None => Ok(None),
        Some(restored) => Ok(Some((restored, restored::read_progress(reading).await?))),
    }
}

/// Counts what failed finally. `None` if there is no such table.
async fn count_dead(reading: &Reader, rows: &str) -> Option<DeadCount> {
    let select = format!("SELECT COUNT(*) AS count, MIN(died_at) AS oldest FROM {rows}");
    let found: Vec<DeadRow> = query_as(reading, &select, Vec::new()).await.ok()?;
    let DeadRow { count, oldest } = found.into_iter().next()?;
    Some(DeadCount { count: count.unsigned_abs(), oldest: oldest.map(time) })
}

/// Distance of the wall clock from the range that the exchange with the database allows.
async fn clock_ahead(reading: &Reader) -> Result<i64, EngineError> {
    let source = SystemTimeSource;
    let sent = source.monotonic();
    let database_now: Option<i64> = query_scalar(reading, &sql::cluster::now(), Vec::new()).await?;
    let (received, database_now) = (source.monotonic(), database_now.unwrap_or_default());
    let database = Offset::measured(time(database_now), Duration::from_millis(1), sent, received);
    let (before, wall, after) = (source.monotonic(), source.wall(), source.monotonic());
    Ok(database.distance(Offset::measured(wall, Duration::ZERO, before, after).mid()))
}

/// Whether a process uses a store: it holds the lock of the file, or has a lease in the database.
///
/// # Errors
///
/// When the store cannot be read.
pub async fn is_in_use(settings: &Settings) -> Result<bool, OpenError> {
    match &settings.url {
        StoreUrl::Sqlite(path) => Ok(FileLock::is_held(path)),
        StoreUrl::Postgres { .. } => {
            let time_limit = settings.timeout;
            let reading = connect::open_reader(settings).map_err(OpenError::engine)?;
            let counted = timeout(time_limit, instances::count_live(&reading)).await;
            drop(timeout(time_limit, reading.close()).await);
            let late = OpenError::Lost(format!("no response within {} ms", time_limit.as_millis()));
            // A database without the table has never been used.
            Ok(counted.map_err(|_| late)?.is_ok_and(|count| count > 0))
        }
    }
}
