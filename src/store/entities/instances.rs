//! Processes that have opened the store, and their leases.

use sea_orm::entity::prelude::*;

#[derive(Clone, Debug, PartialEq, Eq, DeriveEntityModel)]
#[sea_orm(table_name = "instances")]
pub(crate) struct Model {
    #[sea_orm(primary_key, auto_increment = false)]
    pub(crate) id: Uuid,
    pub(crate) name: String,
    pub(crate) started_at: i64,
    /// By the clock of the database.
    pub(crate) seen_at: i64,
    /// By the clock of the database.
    pub(crate) lease_until: i64,
    /// Number of a `MemberPhase`.
    pub(crate) leaving: i64,
    /// Number of shards that the process still needs for its part of them.
    pub(crate) seeks: i64,
}

plain_entity!();
