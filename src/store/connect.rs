//! Connections to either engine, set up so that what is committed stays.

use std::{
    path::Path,
    str::FromStr as _,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use sea_orm::{
    DatabaseConnection, DbErr, RuntimeErr, SqlxPostgresConnector, SqlxSqliteConnector,
    sqlx::{
        self, ConnectOptions as _, Connection as _,
        pool::PoolOptions,
        postgres::{PgConnectOptions, PgPoolOptions},
        sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous},
    },
};

use crate::settings::{Store as Settings, StoreUrl};

/// Names the lock that one Guildhall holds in a database of PostgreSQL.
pub(super) const ADVISORY_LOCK: i64 = 0x6775_696c_6468_616c;

/// How many connections leases are kept over. There are few calls, and short ones.
const LEASING: u32 = 2;

/// The connection that writes.
#[derive(Debug)]
pub(super) struct Writing {
    pub(super) connection: DatabaseConnection,
    /// How many connections were made: a second one is not the one that holds the lock.
    made: Arc<AtomicU32>,
}

impl Writing {
    pub(super) async fn connect(settings: &Settings) -> Result<Self, DbErr> {
        let made = Arc::new(AtomicU32::new(0));
        let connection = match &settings.url {
            StoreUrl::Sqlite(path) => {
                let options = limited(sqlite(path, settings.timeout).create_if_missing(true), settings.max_bytes);
                let pool = single(SqlitePoolOptions::new(), settings.timeout, &made).connect_with(options);
                SqlxSqliteConnector::from_sqlx_sqlite_pool(pool.await.map_err(conn_error)?)
            }
            StoreUrl::Postgres { url, .. } => {
                let options = postgres(url.expose(), settings.timeout).map_err(conn_error)?;
                knock(&options, settings.timeout).await?;
                let pool = single(PgPoolOptions::new(), settings.timeout, &made).connect_with(options);
                SqlxPostgresConnector::from_sqlx_postgres_pool(pool.await.map_err(conn_error)?)
            }
        };
        Ok(Self { connection, made })
    }

    /// Whether it is still the first connection, which holds the lock.
    pub(super) fn is_the_first(&self) -> bool {
        self.made.load(Ordering::Acquire) == 1
    }
}

/// The connections that read.
pub(super) fn reading(settings: &Settings) -> Result<DatabaseConnection, DbErr> {
    match &settings.url {
        StoreUrl::Sqlite(path) => {
            let options = sqlite(path, settings.timeout).read_only(true);
            let pool = several(SqlitePoolOptions::new(), settings).connect_lazy_with(options);
            Ok(SqlxSqliteConnector::from_sqlx_sqlite_pool(pool))
        }
        StoreUrl::Postgres { url, .. } => {
            let options = postgres(url.expose(), settings.timeout).map_err(conn_error)?;
            let pool = several(PgPoolOptions::new(), settings).connect_lazy_with(options);
            Ok(SqlxPostgresConnector::from_sqlx_postgres_pool(pool))
        }
    }
}

/// The connections that leases are kept over.
pub(super) fn leasing(settings: &Settings) -> Result<DatabaseConnection, DbErr> {
    match &settings.url {
        StoreUrl::Sqlite(path) => {
            let options = sqlite(path, settings.timeout);
            let pool = few(SqlitePoolOptions::new(), settings).connect_lazy_with(options);
            Ok(SqlxSqliteConnector::from_sqlx_sqlite_pool(pool))
        }
        StoreUrl::Postgres { url, .. } => {
            let options = postgres(url.expose(), settings.timeout).map_err(conn_error)?;
            let pool = few(PgPoolOptions::new(), settings).connect_lazy_with(options);
            Ok(SqlxPostgresConnector::from_sqlx_postgres_pool(pool))
        }
    }
}

/// A pool of one that never replaces its connection unseen.
fn single<DB: sqlx::Database>(options: PoolOptions<DB>, timeout: Duration, made: &Arc<AtomicU32>) -> PoolOptions<DB> {
    let made = Arc::clone(made);
    options
        .max_connections(1)
        .acquire_timeout(timeout)
        .idle_timeout(None)
        .max_lifetime(None)
        .test_before_acquire(false)
        .after_connect(move |_, _| {
            made.fetch_add(1, Ordering::AcqRel);
            Box::pin(async { Ok(()) })
        })
}

fn several<DB: sqlx::Database>(options: PoolOptions<DB>, settings: &Settings) -> PoolOptions<DB> {
    options.max_connections(settings.read_connections).acquire_timeout(settings.timeout)
}

fn few<DB: sqlx::Database>(options: PoolOptions<DB>, settings: &Settings) -> PoolOptions<DB> {
    options.max_connections(LEASING).acquire_timeout(settings.timeout)
}

fn sqlite(path: &Path, timeout: Duration) -> SqliteConnectOptions {
    SqliteConnectOptions::new()
        .filename(path)
        .journal_mode(SqliteJournalMode::Wal)
        // In WAL mode anything less may lose what was committed when the power goes.
        .synchronous(SqliteSynchronous::Full)
        .busy_timeout(its_own(timeout))
        .foreign_keys(false)
        .pragma("cache_size", "-65536")
        // 32 MiB of log before it goes into the file: pages that change again and again go there once, and commits seldom
        // wait for it. After a crash so much has to be read again.
        .pragma("wal_autocheckpoint", "8000")
        .pragma("temp_store", "memory")
        .disable_statement_logging()
}

fn limited(options: SqliteConnectOptions, max_bytes: u64) -> SqliteConnectOptions {
    const PAGE: u64 = 4_096;
    match max_bytes {
        0 => options,
        bytes => options.page_size(4_096).pragma("max_page_count", (bytes / PAGE).max(1).to_string()),
    }
}

/// What the engine is given, so that it says by itself why it is late before it is given up.
fn its_own(timeout: Duration) -> Duration {
    timeout * 3 / 4
}

fn postgres(url: &str, timeout: Duration) -> Result<PgConnectOptions, sqlx::Error> {
    let millis = its_own(timeout).as_millis().to_string();
    Ok(PgConnectOptions::from_str(url)?
        .application_name("guildhall")
        .options([
            ("synchronous_commit", "on"),
            ("default_transaction_isolation", "read committed"),
            ("statement_timeout", &millis),
            ("idle_in_transaction_session_timeout", &millis),
            // What dies without a word lets go of its lock soon.
            ("tcp_keepalives_idle", "5"),
            ("tcp_keepalives_interval", "2"),
            ("tcp_keepalives_count", "3"),
            // Every statement looks rows up by their keys. A plan made while a table was still empty must not scan it when
            // it has grown.
            ("enable_seqscan", "off"),
            ("enable_hashjoin", "off"),
            ("enable_mergejoin", "off"),
            ("enable_bitmapscan", "off"),
            ("jit", "off"),
        ])
        .disable_statement_logging())
}

/// Finds out at once whether there is a server: a pool would wait for one that is not there.
async fn knock(options: &PgConnectOptions, timeout: Duration) -> Result<(), DbErr> {
    let connected = tokio::time::timeout(timeout, options.connect()).await;
    let connection = connected.map_err(|_| conn_error(sqlx::Error::PoolTimedOut))?.map_err(conn_error)?;
    drop(tokio::time::timeout(timeout, connection.close()).await);
    Ok(())
}

fn conn_error(error: sqlx::Error) -> DbErr {
    DbErr::Conn(RuntimeErr::SqlxError(error.into()))
}
