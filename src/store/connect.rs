//! Connections to both engines. They are configured so that committed data is durable.

use std::{path::Path, str::FromStr as _, sync::Arc, time::Duration};

use sea_orm::{
    ConnectionTrait, DatabaseConnection, DatabaseTransaction, DbBackend, DbErr, ExecResult, QueryResult, RuntimeErr,
    SqlxPostgresConnector, SqlxSqliteConnector, Statement, TransactionTrait as _,
    sqlx::{
        self, ConnectOptions as _, Connection as _, PgPool,
        pool::PoolOptions,
        postgres::{PgConnectOptions, PgPoolOptions},
        sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous},
    },
};

use super::row_security::TenantRole;
use crate::settings::{StoreSettings as Settings, StoreUrl};

/// Key of the PostgreSQL advisory lock that is held during a migration.
pub(super) const ADVISORY_LOCK: i64 = 0x6775_696c_6468_616c;

/// Timeout for opening a file that is read as a whole.
const OPEN_FILE_TIMEOUT: Duration = Duration::from_secs(30);

/// Number of connections for leases. Their calls are few and short.
const LEASE_CONNECTIONS: u32 = 2;

/// Session settings of every PostgreSQL connection: commits are durable, and no statement waits forever.
fn session_settings(timeout: Duration) -> Vec<(&'static str, String)> {
    let millis = engine_timeout(timeout).as_millis().to_string();
    let mut settings = vec![
        ("synchronous_commit", "on".to_owned()),
        ("statement_timeout", millis.clone()),
        ("idle_in_transaction_session_timeout", millis),
    ];
    // Every statement finds rows by key. A plan that was made while a table was empty must not scan it after it has
    // grown.
    let plans = ["enable_seqscan", "enable_hashjoin", "enable_mergejoin", "enable_bitmapscan", "jit"];
    settings.extend(plans.map(|name| (name, "off".to_owned())));
    // Each execution is planned for the tables as they are now, not as they were at the first execution.
    settings.push(("plan_cache_mode", "force_custom_plan".to_owned()));
    settings
}

/// How a transaction starts. Behind PgBouncer in transaction mode no session setting outlives a transaction, so each
/// transaction sets all of them again.
#[derive(Clone, Debug)]
pub(super) struct TransactionSetup(Option<Arc<str>>);

impl TransactionSetup {
    pub(super) fn of(settings: &Settings) -> Self {
        let sql = settings.direct_url.as_ref().map(|_| {
            let set = |(name, value)| format!("SET LOCAL {name} = '{value}'");
            let all: Vec<String> = session_settings(settings.timeout).into_iter().map(set).collect();
            Arc::from(all.join("; "))
        });
        Self(sql)
    }

    /// For connections without a pooler in front of the server.
    pub(super) const fn plain() -> Self {
        Self(None)
    }

    pub(super) fn is_pooled(&self) -> bool {
        self.0.is_some()
    }

    /// Applies the settings to a transaction that has just started.
    pub(super) async fn prepare(&self, on: &DatabaseTransaction) -> Result<(), DbErr> {
        match &self.0 {
            Some(sql) => on.execute_unprepared(sql).await.map(drop),
            None => Ok(()),
        }
    }
}

/// Opens the connection for writes.
pub(super) async fn open_writer(settings: &Settings) -> Result<DatabaseConnection, DbErr> {
    match &settings.url {
        StoreUrl::Sqlite(path) => {
            let options = with_max_size(sqlite(path, settings.timeout).create_if_missing(true), settings.max_bytes);
            let pool = single_connection(SqlitePoolOptions::new(), settings.timeout).connect_with(options);
            Ok(SqlxSqliteConnector::from_sqlx_sqlite_pool(pool.await.map_err(conn_error)?))
        }
        StoreUrl::Postgres { url, .. } => {
            let options = postgres(url.expose(), settings.timeout, settings.direct_url.is_some())?;
            connect_postgres(options, settings.timeout).await
        }
    }
}

/// Opens one connection to PostgreSQL itself, not through a pooler.
pub(super) async fn open_direct(settings: &Settings) -> Result<DatabaseConnection, DbErr> {
    match settings.direct_url.as_ref() {
        Some(StoreUrl::Postgres { url, .. }) => {
            connect_postgres(postgres(url.expose(), settings.timeout, false)?, settings.timeout).await
        }
        Some(StoreUrl::Sqlite(_)) | None => open_writer(settings).await,
    }
}

/// Connection to listen on, opened on first use. `None` if the store is a file.
pub(super) fn listener_pool(settings: &Settings) -> Result<Option<PgPool>, DbErr> {
    let StoreUrl::Postgres { url, .. } = settings.direct_url.as_ref().unwrap_or(&settings.url) else { return Ok(None) };
    let options = postgres(url.expose(), settings.timeout, false)?;
    Ok(Some(single_connection(PgPoolOptions::new(), settings.timeout).connect_lazy_with(options)))
}

/// Opens a read-only connection to a file, for a backup.
pub(super) async fn open_file(path: &Path) -> Result<DatabaseConnection, DbErr> {
    let options = SqliteConnectOptions::new().filename(path).read_only(true).disable_statement_logging();
    let pool = single_connection(SqlitePoolOptions::new(), OPEN_FILE_TIMEOUT).connect_with(options);
    Ok(SqlxSqliteConnector::from_sqlx_sqlite_pool(pool.await.map_err(conn_error)?))
}

/// Opens the read-only connections.
pub(super) fn open_reader(settings: &Settings) -> Result<Reader, DbErr> {
    let connection = match &settings.url {
        StoreUrl::Sqlite(path) => {
            let options = sqlite(path, settings.timeout).read_only(true);
            let pool = read_pool(SqlitePoolOptions::new(), settings).connect_lazy_with(options);
            SqlxSqliteConnector::from_sqlx_sqlite_pool(pool)
        }
        StoreUrl::Postgres { url, .. } => {
            let options = postgres(url.expose(), settings.timeout, settings.direct_url.is_some())?;
            let pool = read_pool(PgPoolOptions::new(), settings).connect_lazy_with(options);
            SqlxPostgresConnector::from_sqlx_postgres_pool(pool)
        }
    };
    Ok(Reader { connection, session: TransactionSetup::of(settings) })
}

/// Read-only connections. Behind PgBouncer each query is a transaction of its own, since its parts could otherwise
/// reach different servers.
#[derive(Clone, Debug)]
pub(super) struct Reader {
    connection: DatabaseConnection,
    session: TransactionSetup,
}

impl Reader {
    pub(super) async fn close(self) {
        // The connection was only read from, so an error here loses nothing.
        let _ = self.connection.close().await;
    }

    /// The rows of a tenant, in a transaction of its own, if row-level security is on; otherwise all rows.
    pub(super) async fn view(&self, security: Option<&TenantRole>, tenant: Option<&str>) -> Result<ReadView, DbErr> {
        let Some((security, tenant)) = security.zip(tenant) else { return Ok(ReadView::All(self.clone())) };
        let on = self.connection.begin().await?;
        let confine = security.confine(tenant);
        let sql = self.session.0.as_ref().map_or_else(|| confine.clone(), |sql| format!("{sql}; {confine}"));
        on.execute_unprepared(&sql).await?;
        Ok(ReadView::Tenant(on))
    }

    async fn begin(&self) -> Result<DatabaseTransaction, DbErr> {
        let on = self.connection.begin().await?;
        self.session.prepare(&on).await?;
        Ok(on)
    }
}

#[async_trait::async_trait]
impl ConnectionTrait for Reader {
    fn get_database_backend(&self) -> DbBackend {
        self.connection.get_database_backend()
    }

    async fn execute_raw(&self, statement: Statement) -> Result<ExecResult, DbErr> {
        if !self.session.is_pooled() {
            return self.connection.execute_raw(statement).await;
        }
        let on = self.begin().await?;
        let done = on.execute_raw(statement).await?;
        on.commit().await?;
        Ok(done)
    }

    async fn execute_unprepared(&self, sql: &str) -> Result<ExecResult, DbErr> {
        self.connection.execute_unprepared(sql).await
    }

    async fn query_one_raw(&self, statement: Statement) -> Result<Option<QueryResult>, DbErr> {
        Ok(self.query_all_raw(statement).await?.into_iter().next())
    }

    async fn query_all_raw(&self, statement: Statement) -> Result<Vec<QueryResult>, DbErr> {
        if !self.session.is_pooled() {
            return self.connection.query_all_raw(statement).await;
        }
        let on = self.begin().await?;
        let rows = on.query_all_raw(statement).await?;
        on.commit().await?;
        Ok(rows)
    }
}

/// A view for reads.
#[derive(Debug)]
pub(super) enum ReadView {
    /// All rows.
    All(Reader),
    /// The rows of one tenant.
    Tenant(DatabaseTransaction),
}

impl ReadView {
    /// Ends the view. A view that is dropped instead is rolled back, which has no effect on reads.
    pub(super) async fn end(self) -> Result<(), DbErr> {
        match self {
            Self::All(_) => Ok(()),
            Self::Tenant(on) => on.commit().await,
        }
    }
}

#[async_trait::async_trait]
impl ConnectionTrait for ReadView {
    fn get_database_backend(&self) -> DbBackend {
        match self {
            Self::All(reader) => reader.get_database_backend(),
            Self::Tenant(on) => on.get_database_backend(),
        }
    }

    async fn execute_raw(&self, statement: Statement) -> Result<ExecResult, DbErr> {
        match self {
            Self::All(reader) => reader.execute_raw(statement).await,
            Self::Tenant(on) => on.execute_raw(statement).await,
        }
    }

    async fn execute_unprepared(&self, sql: &str) -> Result<ExecResult, DbErr> {
        match self {
            Self::All(reader) => reader.execute_unprepared(sql).await,
            Self::Tenant(on) => on.execute_unprepared(sql).await,
        }
    }

    async fn query_one_raw(&self, statement: Statement) -> Result<Option<QueryResult>, DbErr> {
        match self {
            Self::All(reader) => reader.query_one_raw(statement).await,
            Self::Tenant(on) => on.query_one_raw(statement).await,
        }
    }

    async fn query_all_raw(&self, statement: Statement) -> Result<Vec<QueryResult>, DbErr> {
        match self {
            Self::All(reader) => reader.query_all_raw(statement).await,
            Self::Tenant(on) => on.query_all_raw(statement).await,
        }
    }
}

async fn connect_postgres(options: PgConnectOptions, timeout: Duration) -> Result<DatabaseConnection, DbErr> {
    check_server(&options, timeout).await?;
    let pool = single_connection(PgPoolOptions::new(), timeout).connect_with(options);
    Ok(SqlxPostgresConnector::from_sqlx_postgres_pool(pool.await.map_err(conn_error)?))
}

/// Opens the connections for leases. Also returns how their transactions start.
pub(super) fn open_lease_connections(settings: &Settings) -> Result<(DatabaseConnection, TransactionSetup), DbErr> {
    let connection = match &settings.url {
        StoreUrl::Sqlite(path) => {
            let options = sqlite(path, settings.timeout);
            let pool = lease_pool(SqlitePoolOptions::new(), settings).connect_lazy_with(options);
            SqlxSqliteConnector::from_sqlx_sqlite_pool(pool)
        }
        StoreUrl::Postgres { url, .. } => {
            let options = postgres(url.expose(), settings.timeout, settings.direct_url.is_some())?;
            let pool = lease_pool(PgPoolOptions::new(), settings).connect_lazy_with(options);
            SqlxPostgresConnector::from_sqlx_postgres_pool(pool)
        }
    };
    Ok((connection, TransactionSetup::of(settings)))
}

/// Options for a pool of one connection.
fn single_connection<DB: sqlx::Database>(options: PoolOptions<DB>, timeout: Duration) -> PoolOptions<DB> {
    options.max_connections(1).acquire_timeout(timeout).idle_timeout(None).max_lifetime(None).test_before_acquire(false)
}

fn read_pool<DB: sqlx::Database>(options: PoolOptions<DB>, settings: &Settings) -> PoolOptions<DB> {
    options.max_connections(settings.read_connections).acquire_timeout(settings.timeout)
}

fn lease_pool<DB: sqlx::Database>(options: PoolOptions<DB>, settings: &Settings) -> PoolOptions<DB> {
    options.max_connections(LEASE_CONNECTIONS).acquire_timeout(settings.timeout)
}

fn sqlite(path: &Path, timeout: Duration) -> SqliteConnectOptions {
    SqliteConnectOptions::new()
        .filename(path)
        .journal_mode(SqliteJournalMode::Wal)
        // In WAL mode a lower level can lose committed data on a power failure.
        .synchronous(SqliteSynchronous::Full)
        .busy_timeout(engine_timeout(timeout))
        .foreign_keys(false)
        .pragma("cache_size", "-65536")
        // A WAL of 32 MiB before a checkpoint: pages that change often are written to the file once, and commits seldom
        // wait for a checkpoint. After a crash up to this much must be read again.
        .pragma("wal_autocheckpoint", "8000")
        .pragma("temp_store", "memory")
        // Each statement has one text for every size of its row list.
        .statement_cache_capacity(512)
        .row_buffer_size(1_024)
        .disable_statement_logging()
}

fn with_max_size(options: SqliteConnectOptions, max_bytes: u64) -> SqliteConnectOptions {
    const PAGE: u64 = 4_096;
    match max_bytes {
        0 => options,
        bytes => options.page_size(4_096).pragma("max_page_count", (bytes / PAGE).max(1).to_string()),
    }
}

/// Timeout that is given to the engine. It is shorter than ours, so that the engine reports the reason for a delay
/// before we stop waiting.
fn engine_timeout(timeout: Duration) -> Duration {
    timeout * 3 / 4
}

fn postgres(url: &str, timeout: Duration, is_pooled: bool) -> Result<PgConnectOptions, DbErr> {
    let options = PgConnectOptions::from_str(url).map_err(conn_error)?;
    let options = options.application_name("guildhall").disable_statement_logging();
    if is_pooled {
        // PgBouncer accepts no settings at connect, and drops prepared statements when a transaction ends.
        return Ok(options.statement_cache_capacity(0).extra_float_digits(None));
    }
    // Locks of a client that disappears without closing its connection are soon released.
    let alive = [("tcp_keepalives_idle", "5"), ("tcp_keepalives_interval", "2"), ("tcp_keepalives_count", "3")];
    Ok(options
        .options([("default_transaction_isolation", "read committed")])
        .options(session_settings(timeout))
        .options(alive))
}

/// Reports at once if no server is reachable: a pool would keep waiting for it.
async fn check_server(options: &PgConnectOptions, timeout: Duration) -> Result<(), DbErr> {
    let connected = tokio::time::timeout(timeout, options.connect()).await;
    let connection = connected.map_err(|_| conn_error(sqlx::Error::PoolTimedOut))?.map_err(conn_error)?;
    drop(tokio::time::timeout(timeout, connection.close()).await);
    Ok(())
}

fn conn_error(error: sqlx::Error) -> DbErr {
    DbErr::Conn(RuntimeErr::SqlxError(error.into()))
}
