//! Processes that ended because a part failed. Such a process writes this as its last action; the next process, its
//! metrics and `guildhall doctor` read it.

use guildhall_actors::supervision::PartEnd;
use guildhall_core::time::UnixMs;
use sea_orm::ConnectionTrait;

use super::{
    close_connection, cluster::instance_name, connect, error::EngineError, operation_row::time, rows::query, write,
};
use crate::settings::StoreSettings as Settings;

/// Maximum number of stored rows.
const MAX_STORED: i64 = 100;

/// A process that ended because a part failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessEnd {
    /// Name of the process.
    pub instance: String,
    /// Name of the part.
    pub part: String,
    /// Why the part ended. Contains no message: the log of the process has it.
    pub cause: String,
    /// Time of the end.
    pub at: UnixMs,
}

/// Stores the end of this process over a connection of its own.
pub(super) async fn record(settings: &Settings, end: &PartEnd, now: UnixMs) {
    let Ok(on) = connect::open_writer(settings).await else { return };
    // If this fails, the log still has the reason.
    let _ = insert(&on, &instance_name(settings), end, write::signed(now.millis())).await;
    close_connection(on).await;
}

async fn insert(on: &impl ConnectionTrait, instance: &str, end: &PartEnd, now: i64) -> Result<(), EngineError> {
    const INSERT: &str = "INSERT INTO process_ends (instance, part, cause, ended_at) VALUES ($1, $2, $3, $4)";
    const TRIM: &str =
        "DELETE FROM process_ends WHERE id NOT IN (SELECT id FROM process_ends ORDER BY id DESC LIMIT $1)";
    let values = vec![instance.into(), end.part.name().into(), end.cause.summary().into(), now.into()];
    query(on, INSERT, values).await?;
    query(on, TRIM, vec![MAX_STORED.into()]).await?;
    Ok(())
}

/// Reads the stored ends, newest first.
pub(super) async fn read(on: &impl ConnectionTrait) -> Result<Vec<ProcessEnd>, EngineError> {
    const SELECT: &str = "SELECT instance, part, cause, ended_at FROM process_ends ORDER BY id DESC LIMIT $1";
    let rows = query(on, SELECT, vec![MAX_STORED.into()]).await?;
    let end = |row: &sea_orm::QueryResult| {
        Ok(ProcessEnd {
            instance: row.try_get_by_index(0)?,
            part: row.try_get_by_index(1)?,
            cause: row.try_get_by_index(2)?,
            at: time(row.try_get_by_index(3)?),
        })
    };
    rows.iter().map(end).collect()
}
