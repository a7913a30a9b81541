//! Leases in the store's database: implements the port of `guildhall_actors::leases`, with one row for each name.
//!
//! Each call is one transaction over connections of its own, with the clock of the engine. All processes of a
//! PostgreSQL use the clock of its server; SQLite has no server, so it is the clock of this machine.
//!
//! A fence is the time in microseconds, or the previous fence plus one if that is greater. So fences also increase
//! after a row was removed, which happens a week after the end of its lease.
//!
//! The statements are in SQL, since each compares and sets the clock of the engine.

use std::{sync::Arc, time::Duration};

use guildhall_actors::ports::{Lease, LeaseError, LeaseFence, LeaseFuture, LeaseName, LeaseStore, LeaseToken};
use sea_orm::{
    ConnectionTrait as _, DatabaseConnection, DatabaseTransaction, DbBackend, DbErr, RuntimeErr, SqliteTransactionMode,
    TransactionOptions, TransactionTrait as _, Value,
};
use tokio::time::{Instant, timeout};

use super::sql;
use super::{
    OpenError,
    connect::{self, TransactionSetup},
    error::EngineError,
    failures::{StoreAccess, StoreFailures},
    rows::{query, query_scalar, without_nul},
};
use crate::{random, settings::StoreSettings as Settings};

/// Maximum length of a stored holder, in characters.
const HOLDER_LENGTH: usize = 200;

/// Leases in SQL. Clones share their connections.
#[derive(Clone, Debug)]
pub struct SqlLeases {
    connection: DatabaseConnection,
    session: TransactionSetup,
    timeout: Duration,
    failures: Arc<StoreFailures>,
}

impl SqlLeases {
    /// Leases in the database that these settings name. The first call connects to it; by then it must be up to date,
    /// which [`Store::open`](super::Store::open) ensures.
    ///
    /// # Errors
    ///
    /// When the settings name no database.
    pub fn open(settings: &Settings) -> Result<Self, OpenError> {
        let (connection, session) = connect::open_lease_connections(settings).map_err(OpenError::engine)?;
        Ok(Self { connection, session, timeout: settings.timeout, failures: Arc::default() })
    }

    /// Leases over these connections. A call takes at most `timeout`.
    #[must_use]
    pub fn new(connection: DatabaseConnection, timeout: Duration) -> Self {
        Self { connection, session: TransactionSetup::plain(), timeout, failures: Arc::default() }
    }

    /// Closes the connections. Leases stay as they are.
    pub async fn close(&self) {
        // If this fails, the server notices by itself.
        let _ = timeout(self.timeout, self.connection.clone().close()).await;
    }

    /// Runs a statement in a transaction of its own, with the timeout. Returns the fence, if a row was changed.
    async fn run(&self, action: LeaseAction, values: Vec<Value>) -> Result<Option<LeaseFence>, LeaseError> {
        let done = timeout(self.timeout, self.transact(action, values)).await.unwrap_or_else(|_| Err(timeout_error()));
        if done.is_ok() {
            self.failures.on_success(action.access());
        }
        done.map_err(|error| {
            self.failures.on_failure(action.access(), &error);
            LeaseError::Unreachable(error.message())
        })
    }

    async fn transact(&self, action: LeaseAction, values: Vec<Value>) -> Result<Option<LeaseFence>, EngineError> {
        let options = TransactionOptions {
            // The first statement writes: a transaction that starts as a reader could end in a conflict that waiting
            // does not resolve.
            sqlite_transaction_mode: Some(SqliteTransactionMode::Immediate),
            ..TransactionOptions::default()
        };
        let transaction = self.connection.begin_with_options(options).await?;
        self.session.prepare(&transaction).await?;
        let fence = query_scalar(&transaction, &for_engine(&transaction, action.statement()), values).await?;
        let fence = fence.map(fence_of).transpose()?;
        if action == LeaseAction::Acquire && fence.is_some() {
            query(&transaction, &for_engine(&transaction, sql::leases::SWEEP), Vec::new()).await?;
        }
        transaction.commit().await?;
        Ok(fence)
    }
}

impl LeaseStore for SqlLeases {
    fn acquire<'a>(&'a self, name: &'a LeaseName, holder: &'a str, ttl: Duration) -> LeaseFuture<'a, Option<Lease>> {
        Box::pin(async move {
            let token = LeaseToken::new(random::bytes().map_err(|_| LeaseError::NoRandomBytes)?);
            let ttl = Lease::clamp_ttl(ttl);
            let holder: String = without_nul(holder).chars().take(HOLDER_LENGTH).collect();
            let sent = Instant::now();
            let values = vec![name.as_str().into(), bytes(&token), holder.into(), millis(ttl)];
            let fence = self.run(LeaseAction::Acquire, values).await?;
            Ok(fence.map(|fence| Lease { name: name.clone(), token, fence, until: sent + ttl }))
        })
    }

    fn renew<'a>(&'a self, lease: &'a Lease, ttl: Duration) -> LeaseFuture<'a, Option<Lease>> {
        Box::pin(async move {
            let ttl = Lease::clamp_ttl(ttl);
            let sent = Instant::now();
            let values = vec![lease.name.as_str().into(), bytes(&lease.token), millis(ttl)];
            let fence = self.run(LeaseAction::Renew, values).await?;
            Ok(fence.map(|fence| Lease { fence, until: sent + ttl, ..lease.clone() }))
        })
    }

    fn release<'a>(&'a self, lease: &'a Lease) -> LeaseFuture<'a, bool> {
        Box::pin(async move {
            let values = vec![lease.name.as_str().into(), bytes(&lease.token)];
            Ok(self.run(LeaseAction::Release, values).await?.is_some())
        })
    }
}

/// What a call does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LeaseAction {
    Acquire,
    Renew,
    Release,
}

impl LeaseAction {
    const fn access(self) -> StoreAccess {
        match self {
            Self::Acquire => StoreAccess::AcquireLease,
            Self::Renew => StoreAccess::RenewLease,
            Self::Release => StoreAccess::ReleaseLease,
        }
    }

    const fn statement(self) -> &'static str {
        match self {
            Self::Acquire => sql::leases::ACQUIRE,
            Self::Renew => sql::leases::RENEW,
            Self::Release => sql::leases::RELEASE,
        }
    }
}

/// Adapts a statement to an engine: `{ms}` and `{us}` become the present time of its clock.
fn for_engine(transaction: &DatabaseTransaction, statement: &str) -> String {
    let (ms, us, skip) = match transaction.get_database_backend() {
        DbBackend::Postgres => (
            "CAST(FLOOR(EXTRACT(EPOCH FROM clock_timestamp()) * 1000) AS BIGINT)",
            "CAST(FLOOR(EXTRACT(EPOCH FROM clock_timestamp()) * 1000000) AS BIGINT)",
            "FOR UPDATE SKIP LOCKED",
        ),
        _ => (
            "CAST(unixepoch('subsec') * 1000 AS INTEGER)",
            "CAST(unixepoch('subsec') * 1000 AS INTEGER) * 1000",
            // SQLite has only one writer.
            "",
        ),
    };
    statement.replace("{ms}", ms).replace("{us}", us).replace("{skip}", skip)
}

fn fence_of(fence: i64) -> Result<LeaseFence, EngineError> {
    u64::try_from(fence).map(LeaseFence).map_err(|_| EngineError::Corrupt(format!("invalid fence of a lease: {fence}")))
}

fn bytes(token: &LeaseToken) -> Value {
    token.bits().to_vec().into()
}

fn millis(ttl: Duration) -> Value {
    i64::try_from(ttl.as_millis()).expect("invariant: a lease lasts at most a day").into()
}

fn timeout_error() -> EngineError {
    EngineError::Engine(DbErr::Conn(RuntimeErr::Internal("no response within store.timeout_ms".to_owned())))
}
