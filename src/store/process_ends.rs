//! Processes that ended because a part failed. Such a process writes this as its last action; the next process, its
//! metrics and `guildhall doctor` read it.

use guildhall_actors::supervision::PartEnd;
use guildhall_core::time::UnixMs;
use sea_orm::{
    ActiveValue::{NotSet, Set},
    ColumnTrait as _, ConnectionTrait, EntityTrait as _, QueryFilter as _, QueryOrder as _, QuerySelect as _,
    QueryTrait as _, Select,
};

use super::{
    close_connection, cluster::instance_name, connect, entities::process_ends, error::EngineError, operation_row::time,
    write,
};
use crate::settings::StoreSettings as Settings;

/// Maximum number of stored rows.
const MAX_STORED: u64 = 100;

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
    let end = process_ends::ActiveModel {
        id: NotSet,
        instance: Set(instance.to_owned()),
        part: Set(end.part.name().to_owned()),
        cause: Set(end.cause.summary().to_owned()),
        ended_at: Set(now),
    };
    process_ends::Entity::insert(end).exec_without_returning(on).await?;
    let newest = newest().select_only().column(process_ends::Column::Id).into_query();
    process_ends::Entity::delete_many().filter(process_ends::Column::Id.not_in_subquery(newest)).exec(on).await?;
    Ok(())
}

fn newest() -> Select<process_ends::Entity> {
    process_ends::Entity::find().order_by_desc(process_ends::Column::Id).limit(MAX_STORED)
}

/// Reads the stored ends, newest first.
pub(super) async fn read(on: &impl ConnectionTrait) -> Result<Vec<ProcessEnd>, EngineError> {
    let end = |process_ends::Model { instance, part, cause, ended_at, .. }| ProcessEnd {
        instance,
        part,
        cause,
        at: time(ended_at),
    };
    Ok(newest().all(on).await?.into_iter().map(end).collect())
}
