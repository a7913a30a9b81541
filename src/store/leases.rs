//! Leases in the store's database: the port of `guildhall_actors::ports::leases`, one row a name.
//!
//! Each call is one transaction over connections of its own, and its clock is the engine's: PostgreSQL's server tells the time
//! for all; SQLite has no server, so it is this machine's clock.
//!
//! A fence is the time in microseconds, or one more than the last if that is not less. So fences go on growing after a row was
//! removed, which happens a week after its end.

use std::time::Duration;

use guildhall_actors::ports::{Lease, LeaseError, LeaseFence, LeaseFuture, LeaseName, LeaseStore, LeaseToken};
use sea_orm::{
    ConnectionTrait as _, DatabaseConnection, DatabaseTransaction, DbBackend, DbErr, QueryResult, RuntimeErr,
    SqliteTransactionMode, TransactionOptions, TransactionTrait as _, Value,
};
use tokio::time::{Instant, timeout};

use super::{
    OpenError,
    connect::{self, TransactionSetup},
    error::EngineError,
    events::StoreFailed,
    rows::{kept, query},
};
use crate::{events::emit, random, settings::StoreSettings as Settings};

/// Who holds a lease is told in so many characters.
const HOLDER_LENGTH: usize = 200;

/// Takes a lease that nobody has. The end is one millisecond later than asked for, since the engine's time is rounded down.
const ACQUIRE: &str = "INSERT INTO leases (name, token, holder, fence, expires_at)
    VALUES ($1, $2, $3, {us}, {ms} + $4 + 1)
    ON CONFLICT (name) DO UPDATE SET token = excluded.token, holder = excluded.holder, expires_at = excluded.expires_at,
    fence = CASE WHEN leases.fence >= excluded.fence THEN leases.fence + 1 ELSE excluded.fence END
    WHERE leases.token IS NULL OR leases.expires_at <= {ms} RETURNING fence";

const RENEW: &str = "UPDATE leases SET expires_at = {ms} + $3 + 1
    WHERE name = $1 AND token = $2 AND expires_at > {ms} RETURNING fence";

const RELEASE: &str = "UPDATE leases SET token = NULL, holder = NULL, expires_at = {ms}
    WHERE name = $1 AND token = $2 AND expires_at > {ms} RETURNING fence";

/// Removes a few of those that ended a week ago. What another transaction has in its hands is left to it.
const SWEEP: &str = "DELETE FROM leases WHERE name IN (SELECT name FROM leases
    WHERE expires_at < {ms} - 604800000 ORDER BY expires_at LIMIT 16 {skip})";

/// Leases in SQL. Clones share their connections.
#[derive(Clone, Debug)]
pub struct SqlLeases {
    connection: DatabaseConnection,
    session: TransactionSetup,
    timeout: Duration,
}

impl SqlLeases {
    /// Leases in the database that these settings name. It is reached for with the first call, and has to be up to date by
    /// then: [`Store::open`](super::Store::open) sees to that.
    ///
    /// # Errors
    ///
    /// When the settings name no database.
    pub fn open(settings: &Settings) -> Result<Self, OpenError> {
        let (connection, session) = connect::leasing(settings).map_err(OpenError::engine)?;
        Ok(Self { connection, session, timeout: settings.timeout })
    }

    /// Leases over these connections. A call takes no longer than `timeout`.
    #[must_use]
    pub fn new(connection: DatabaseConnection, timeout: Duration) -> Self {
        Self { connection, session: TransactionSetup::plain(), timeout }
    }

    /// Lets go of the connections. Leases stay as they are.
    pub async fn close(&self) {
        // The server notices by itself if this comes to nothing.
        let _ = timeout(self.timeout, self.connection.clone().close()).await;
    }

    /// Runs a statement in a transaction of its own, within the time there is; the fence that it gives.
    async fn run(&self, what: LeaseAction, values: Vec<Value>) -> Result<Option<LeaseFence>, LeaseError> {
        let done = timeout(self.timeout, self.transact(what, values)).await.unwrap_or_else(|_| Err(late()));
        done.map_err(|trouble| {
            let says = trouble.tell().to_string();
            emit(StoreFailed { what: what.name(), why: trouble.meaning().name(), says: &says });
            LeaseError::Unreachable(trouble.says())
        })
    }

    async fn transact(&self, what: LeaseAction, values: Vec<Value>) -> Result<Option<LeaseFence>, EngineError> {
        let options = TransactionOptions {
            // It writes first: to begin as a reader could end in a conflict that no waiting solves.
            sqlite_transaction_mode: Some(SqliteTransactionMode::Immediate),
            ..TransactionOptions::default()
        };
        let transaction = self.connection.begin_with_options(options).await?;
        self.session.prepare(&transaction).await?;
        let rows = query(&transaction, &in_words_of(&transaction, what.statement()), values).await?;
        let fence = rows.first().map(fence_of).transpose()?;
        if what == LeaseAction::Acquire && fence.is_some() {
            query(&transaction, &in_words_of(&transaction, SWEEP), Vec::new()).await?;
        }
        transaction.commit().await?;
        Ok(fence)
    }
}

impl LeaseStore for SqlLeases {
    fn acquire<'a>(&'a self, name: &'a LeaseName, holder: &'a str, ttl: Duration) -> LeaseFuture<'a, Option<Lease>> {
        Box::pin(async move {
            let token = LeaseToken::new(random::bytes().map_err(|_| LeaseError::Chance)?);
            let ttl = Lease::given(ttl);
            let holder: String = kept(holder).chars().take(HOLDER_LENGTH).collect();
            let sent = Instant::now();
            let values = vec![name.as_str().into(), bytes(&token), holder.into(), millis(ttl)];
            let fence = self.run(LeaseAction::Acquire, values).await?;
            Ok(fence.map(|fence| Lease { name: name.clone(), token, fence, until: sent + ttl }))
        })
    }

    fn renew<'a>(&'a self, lease: &'a Lease, ttl: Duration) -> LeaseFuture<'a, Option<Lease>> {
        Box::pin(async move {
            let ttl = Lease::given(ttl);
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
    const fn name(self) -> &'static str {
        match self {
            Self::Acquire => "lease_acquire",
            Self::Renew => "lease_renew",
            Self::Release => "lease_release",
        }
    }

    const fn statement(self) -> &'static str {
        match self {
            Self::Acquire => ACQUIRE,
            Self::Renew => RENEW,
            Self::Release => RELEASE,
        }
    }
}

/// Writes a statement in the words of an engine: `{ms}` and `{us}` are what its clock shows now.
fn in_words_of(transaction: &DatabaseTransaction, statement: &str) -> String {
    let (ms, us, skip) = match transaction.get_database_backend() {
        DbBackend::Postgres => (
            "CAST(FLOOR(EXTRACT(EPOCH FROM clock_timestamp()) * 1000) AS BIGINT)",
            "CAST(FLOOR(EXTRACT(EPOCH FROM clock_timestamp()) * 1000000) AS BIGINT)",
            "FOR UPDATE SKIP LOCKED",
        ),
        _ => (
            "CAST(unixepoch('subsec') * 1000 AS INTEGER)",
            "CAST(unixepoch('subsec') * 1000 AS INTEGER) * 1000",
            // There is no other.
            "",
        ),
    };
    statement.replace("{ms}", ms).replace("{us}", us).replace("{skip}", skip)
}

fn fence_of(row: &QueryResult) -> Result<LeaseFence, EngineError> {
    let fence: i64 = row.try_get_by_index(0)?;
    u64::try_from(fence).map(LeaseFence).map_err(|_| EngineError::Corrupt(format!("a lease has the fence {fence}")))
}

fn bytes(token: &LeaseToken) -> Value {
    token.bits().to_vec().into()
}

fn millis(ttl: Duration) -> Value {
    i64::try_from(ttl.as_millis()).expect("invariant: a lease is given for a day at most").into()
}

fn late() -> EngineError {
    EngineError::Engine(DbErr::Conn(RuntimeErr::Internal("it did not answer within store.timeout_ms".to_owned())))
}
