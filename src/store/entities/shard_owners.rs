//! Owners of shards. The fence increases with every owner.

use sea_orm::entity::prelude::*;

#[derive(Clone, Debug, PartialEq, Eq, DeriveEntityModel)]
#[sea_orm(table_name = "shard_owners")]
pub(crate) struct Model {
    #[sea_orm(primary_key, auto_increment = false)]
    pub(crate) shards: i64,
    #[sea_orm(primary_key, auto_increment = false)]
    pub(crate) shard: i64,
    /// `None` since `freed_at`.
    pub(crate) owner: Option<Uuid>,
    pub(crate) fence: i64,
    /// By the clock of the database.
    pub(crate) freed_at: i64,
}

plain_entity!();
