//! Inputs that ended processes. They are counted when a process ends, and read when a process starts.
//!
//! A crash is recorded over a connection of its own: the store's writer may be the part that panicked. If the store
//! cannot be reached at that moment, the crash is not counted, and its input is tried once more. Nothing is lost, and
//! nothing is replayed before the store can be reached.

use std::time::Duration;

use guildhall_actors::crash::{CRASHES_BEFORE_SET_ASIDE, Crash, CrashStore, CrashedInput, Input};
use guildhall_actors::ports::{InboxKey, StoreFuture};
use sea_orm::{
    ColumnTrait as _, ConnectionTrait, DatabaseConnection, EntityTrait as _, QueryFilter as _, SqliteTransactionMode,
    TransactionOptions, TransactionTrait as _,
};
use tokio::time::timeout;
use uuid::Uuid;

use super::sql;
use super::{
    OpenError, Store, close_connection,
    connect::{self, TransactionSetup},
    entities::crashed_inputs,
    error::EngineError,
    operation_row::count,
    rows::{query, query_scalar, without_nul},
    write::{crashes::ForgetCrashes, signed, timeout_error},
};
use crate::settings::StoreSettings as Settings;

/// Maximum number of stored inputs; beyond it, those with the oldest last crash are removed.
const MAX_STORED: i64 = 1_000;

pub(super) const OPERATION: &str = "operation";
const EVENT: &str = "event";
const INBOX: &str = "inbox";

/// Key of an input in the store.
#[derive(Debug)]
pub(super) struct CrashKey {
    pub(super) kind: &'static str,
    pub(super) operation: Uuid,
    pub(super) session: String,
    pub(super) seq: i64,
    pub(super) handler: String,
}

impl CrashKey {
    pub(super) fn of(input: &Input) -> Self {
        let key = |kind| Self { kind, operation: Uuid::nil(), session: String::new(), seq: 0, handler: String::new() };
        match input {
            Input::Operation(id) => Self { operation: id.uuid(), ..key(OPERATION) },
            Input::Event { session, seq } => Self { session: without_nul(session), seq: signed(*seq), ..key(EVENT) },
            Input::InboxEntry(InboxKey { session, seq, handler }) => {
                Self { session: without_nul(session), seq: signed(*seq), handler: without_nul(handler), ..key(INBOX) }
            }
        }
    }
}

impl Store {
    /// Records that this process ends because a part of it panicked on an input. Returns how often the input has ended
    /// a process. Does not use the writer of the store.
    ///
    /// # Errors
    ///
    /// When the store cannot be reached within this time, or fails.
    pub async fn record_crash(&self, crash: &Crash, time_limit: Duration) -> Result<u32, OpenError> {
        record_crash(&self.shared.settings, crash, time_limit).await
    }
}

/// Records that a process ends because a part of it panicked on an input. Returns how often the input has ended a
/// process. For a process that is ending: needs no running [`Store`].
///
/// # Errors
///
/// When the store cannot be reached within this time, or fails.
pub async fn record_crash(settings: &Settings, crash: &Crash, time_limit: Duration) -> Result<u32, OpenError> {
    let settings = Settings { timeout: time_limit, ..settings.clone() };
    let (connection, session) = connect::open_lease_connections(&settings).map_err(OpenError::engine)?;
    let recorded =
        timeout(time_limit, record(&connection, &session, crash)).await.unwrap_or_else(|_| Err(timeout_error()));
    // The process is about to end, so it does not wait for a slow server.
    drop(timeout(Duration::from_millis(50), close_connection(connection)).await);
    recorded.map_err(OpenError::from_engine_error)
}

async fn record(
    connection: &DatabaseConnection,
    session: &TransactionSetup,
    crash: &Crash,
) -> Result<u32, EngineError> {
    let options = TransactionOptions {
        // The first statement writes: a transaction that starts as a reader could end in a conflict that waiting does
        // not resolve.
        sqlite_transaction_mode: Some(SqliteTransactionMode::Immediate),
        ..TransactionOptions::default()
    };
    let on = connection.begin_with_options(options).await?;
    session.prepare(&on).await?;
    let key = CrashKey::of(&crash.input);
    let values = vec![
        key.kind.into(),
        key.operation.into(),
        key.session.into(),
        key.seq.into(),
        key.handler.into(),
        without_nul(&crash.part).into(),
        without_nul(&crash.cause).into(),
        signed(crash.at.millis()).into(),
    ];
    // In SQL, because SeaORM's upsert does not return what SQLite stores.
    let crashes = query_scalar(&on, sql::crashes::COUNT_CRASH, values).await?.map_or(Ok(1), count)?;
    query(&on, sql::crashes::TRIM_INPUTS, vec![(MAX_STORED - 1).into()]).await?;
    on.commit().await?;
    Ok(crashes)
}

async fn to_set_aside(on: &impl ConnectionTrait) -> Result<Vec<CrashedInput>, EngineError> {
    use crashed_inputs::Column::{Crashes, Kind};
    let select = crashed_inputs::Entity::find().filter(Kind.is_in([EVENT, INBOX]));
    let found = select.filter(Crashes.gte(i64::from(CRASHES_BEFORE_SET_ASIDE))).all(on).await?;
    found.into_iter().map(crashed_event).collect()
}

fn crashed_event(row: crashed_inputs::Model) -> Result<CrashedInput, EngineError> {
    let (session, seq) = (row.session.into(), row.seq.unsigned_abs());
    let input = if row.kind == INBOX {
        Input::InboxEntry(InboxKey { session, seq, handler: row.handler.into() })
    } else {
        Input::Event { session, seq }
    };
    Ok(CrashedInput { input, crashes: count(row.crashes)?, part: row.part, cause: row.cause })
}

impl CrashStore for Store {
    fn inputs_to_set_aside(&self) -> StoreFuture<'_, Vec<CrashedInput>> {
        Box::pin(self.read(to_set_aside(&self.shared.reading)))
    }

    fn forget_crashes(&self, inputs: Vec<Input>) -> StoreFuture<'_, ()> {
        Box::pin(self.write(ForgetCrashes(inputs)))
    }
}
