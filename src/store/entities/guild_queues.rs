//! Queues of operations, and their owners.

use sea_orm::entity::prelude::*;

#[derive(Clone, Debug, PartialEq, Eq, DeriveEntityModel)]
#[sea_orm(table_name = "guild_queues")]
pub(crate) struct Model {
    #[sea_orm(primary_key, auto_increment = false)]
    pub(crate) queue: i64,
    pub(crate) tenant: String,
    pub(crate) next_seq: i64,
    pub(crate) pending: i64,
    pub(crate) paused: i64,
    /// `None` while nothing is pending.
    pub(crate) ready_at: Option<i64>,
    /// `None` while no process owns the queue.
    pub(crate) owner: Option<Uuid>,
    pub(crate) fence: i64,
    pub(crate) class: String,
    /// `None` for the queue of a guild.
    pub(crate) key: Option<String>,
}

plain_entity!();
