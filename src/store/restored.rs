//! Prepares a store that was restored from a backup.
//!
//! What was unfinished in the backup may have been finished since. So a process must not continue a restored store as after a
//! crash, when only the last call of each queue is in doubt:
//!
//! | in the restored store | what becomes of it |
//! |---|---|
//! | operations that are due | the outcome of each is unknown since it was accepted: it is checked in Discord, and never sent |
//! | operations scheduled for later | they stay scheduled, and are checked before they are sent |
//! | events that wait for a handler | dead events |
//! | sessions of shards, and which of their events were handled | removed: Discord would repeat events that were handled since |
//!
//! All of this is one transaction, and operations are marked one by one, so that a process that starts without preparing the
//! store again is as careful.

use std::time::Duration;
use std::{sync::Arc, time::Instant};

use guildhall_actors::ports::{OperationStore as _, StoreError};
use guildhall_core::{operation::FailureClass, time::UnixMs};
use sea_orm::{
    ActiveValue::Set,
    ColumnTrait as _, ConnectionTrait, DatabaseConnection, DatabaseTransaction, EntityTrait as _, PaginatorTrait as _,
    QueryFilter as _, SqliteTransactionMode, Statement, TransactionOptions, TransactionTrait as _, Value,
    sea_query::{Expr, OnConflict},
};
use serde::{Deserialize, Serialize};
use tokio::time::sleep;

use super::sql;
use super::{
    MAX_RETENTION, OpenError, Store, clocks, close_connection,
    entities::{dead_letters, handled, inbox, operations, sessions, state},
    error::EngineError,
    lock_file, migrate,
    read::totals,
    write::signed,
};
use crate::{clock::SystemTimeSource, settings::StoreSettings as Settings};

/// State key of [`RestoredStore`].
const RESTORED_KEY: &str = "guildhall:restored";

/// How often to check whether the leases of earlier processes have expired.
const LEASE_POLL: Duration = Duration::from_millis(100);

/// Why an event is dead.
const DEAD_EVENT: &str = "the store was restored from a backup, and the event may have been handled since that backup; revive it \
    if its handler has not received it";

/// Part of the text of operations that were due.
const DUE: &str = "%\"restored\":\"due\"%";

/// States of operations that are not finished.
const UNFINISHED: [&str; 6] = ["scheduled", "queued", "delayed", "retrying", "running", "reconciling"];

/// What was unfinished in a restored store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RestoredStore {
    /// When the store was prepared.
    pub at: UnixMs,
    /// Operations that were due: they are checked, and not sent.
    pub due: u64,
    /// Operations that are scheduled for later.
    pub scheduled: u64,
    /// Events that waited for a handler.
    pub events: u64,
    /// Sessions of shards.
    pub sessions: u64,
    /// Set when every operation that was due is finished.
    #[serde(default)]
    pub checked_at: Option<UnixMs>,
}

/// What became of the operations that were due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RestoreProgress {
    /// Operations whose outcome is not known yet.
    pub unchecked: u64,
    /// Operations without an effect that are dead letters and not redriven.
    pub not_sent: u64,
    /// Operations that need review.
    pub needs_review: u64,
}

/// Prepares a store that was restored from a backup, before anything uses it. `settle` is the maximum duration of a call to
/// Discord: outcomes are checked after that time. A repeat changes only what was accepted since.
///
/// # Errors
///
/// When the store cannot be opened or migrated, or a process uses it.
pub async fn prepare_restored(settings: &Settings, settle: Duration) -> Result<RestoredStore, OpenError> {
    let _file = lock_file(settings)?;
    prepare_locked(settings, settle).await
}

/// Like [`prepare_restored`], for a file that no other process can open.
pub(super) async fn prepare_locked(settings: &Settings, settle: Duration) -> Result<RestoredStore, OpenError> {
    migrate::prepare(settings).await?;
    let clocks = clocks(settings, Arc::new(SystemTimeSource), MAX_RETENTION);
    let now = clocks.await.map_err(OpenError::from_engine_error)?.now();
    let on = migrate::migration_connection(settings).await?;
    let prepared = match wait_until_unused(&on, settings.lock_wait).await {
        Ok(()) => prepare(&on, now, settle).await.map_err(OpenError::from_engine_error),
        Err(error) => Err(error),
    };
    close_connection(on).await;
    prepared
}

/// The backup may have been made while processes used the store: waits until their leases have expired.
async fn wait_until_unused(on: &DatabaseConnection, limit: Duration) -> Result<(), OpenError> {
    let started = Instant::now();
    loop {
        match migrate::refuse_if_in_use(on).await {
            Err(OpenError::Alive { .. }) if started.elapsed() < limit => sleep(LEASE_POLL).await,
            result => return result,
        }
    }
}

async fn prepare(on: &DatabaseConnection, now: UnixMs, settle: Duration) -> Result<RestoredStore, EngineError> {
    let options = TransactionOptions {
        sqlite_transaction_mode: Some(SqliteTransactionMode::Immediate),
        ..TransactionOptions::default()
    };
    let on = on.begin_with_options(options).await?;
    let (at, checked_from) = (signed(now.millis()), signed((now + settle).millis()));
    let held = execute(&on, sql::restored::HOLD, vec![at.into(), checked_from.into()]).await?;
    let later = operations::Entity::find().filter(operations::Column::JoinsAt.gt(at)).count(&on).await?;
    let events = inbox::Entity::update_many()
        .col_expr(inbox::Column::Dead, Expr::value(DEAD_EVENT))
        .col_expr(inbox::Column::Why, Expr::value(DEAD_EVENT))
        .col_expr(inbox::Column::DiedAt, Expr::value(at))
        .filter(inbox::Column::Dead.is_null())
        .exec(&on)
        .await?
        .rows_affected;
    let sessions = sessions::Entity::delete_many().exec(&on).await?.rows_affected;
    handled::Entity::delete_many().exec(&on).await?;
    let restored = RestoredStore {
        at: now,
        due: held.saturating_sub(later),
        scheduled: later,
        events,
        sessions,
        checked_at: None,
    };
    write_record(&on, &restored).await?;
    on.commit().await?;
    Ok(restored)
}

async fn execute(on: &DatabaseTransaction, sql: &str, values: Vec<Value>) -> Result<u64, EngineError> {
    let statement = Statement::from_sql_and_values(on.get_database_backend(), sql, values);
    Ok(on.execute_raw(statement).await?.rows_affected())
}

async fn write_record(on: &impl ConnectionTrait, restored: &RestoredStore) -> Result<(), EngineError> {
    let row =
        state::ActiveModel { key: Set(RESTORED_KEY.to_owned()), value: Set(json(restored)), expires_at: Set(None) };
    let replace = OnConflict::column(state::Column::Key).update_column(state::Column::Value).to_owned();
    state::Entity::insert(row).on_conflict(replace).exec_without_returning(on).await?;
    Ok(())
}

fn json(restored: &RestoredStore) -> String {
    serde_json::to_string(restored).expect("invariant: it serializes to JSON")
}

/// The last restore of a store, if it was ever restored.
pub(super) async fn read(on: &impl ConnectionTrait, now: UnixMs) -> Result<Option<RestoredStore>, EngineError> {
    let stored = totals::state(on, RESTORED_KEY, now).await?;
    let parse = |text: String| {
        serde_json::from_str(&text).map_err(|error| EngineError::Corrupt(format!("invalid {RESTORED_KEY}: {error}")))
    };
    stored.map(parse).transpose()
}

/// What became of the operations that were due at a restore.
pub(super) async fn read_progress(on: &impl ConnectionTrait) -> Result<RestoreProgress, EngineError> {
    use operations::Column::{State, UnknownOutcome};
    let marked = || operations::Entity::find().filter(UnknownOutcome.like(DUE));
    let dead = dead_letters::Entity::find()
        .filter(dead_letters::Column::Class.eq(FailureClass::Restored.name()))
        .filter(dead_letters::Column::RedrivenAs.is_null());
    Ok(RestoreProgress {
        unchecked: marked().filter(State.is_in(UNFINISHED)).count(on).await?,
        not_sent: dead.count(on).await?,
        needs_review: marked().filter(State.eq("needs_review")).count(on).await?,
    })
}

impl Store {
    /// The last restore of this store, if it was ever restored.
    ///
    /// # Errors
    ///
    /// When the store does not respond.
    pub async fn restored(&self) -> Result<Option<RestoredStore>, StoreError> {
        self.read(read(&self.shared.reading, self.shared.clocks.now())).await
    }

    /// What became of the operations that were due at the last restore.
    ///
    /// # Errors
    ///
    /// When the store does not respond.
    pub async fn restore_progress(&self) -> Result<RestoreProgress, StoreError> {
        self.read(read_progress(&self.shared.reading)).await
    }

    /// Records that every operation that was due at the last restore is finished.
    ///
    /// # Errors
    ///
    /// When the store does not respond.
    pub async fn finish_restore(&self, restored: RestoredStore) -> Result<(), StoreError> {
        let restored = RestoredStore { checked_at: Some(self.shared.clocks.now()), ..restored };
        self.set_state(RESTORED_KEY, Some(json(&restored)), None).await
    }
}
