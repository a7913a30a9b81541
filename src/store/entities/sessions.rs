//! Gateway sessions of shards.

use sea_orm::entity::prelude::*;

#[derive(Clone, Debug, PartialEq, Eq, DeriveEntityModel)]
#[sea_orm(table_name = "sessions")]
pub(crate) struct Model {
    #[sea_orm(primary_key, auto_increment = false)]
    pub(crate) shards: i64,
    #[sea_orm(primary_key, auto_increment = false)]
    pub(crate) shard: i64,
    pub(crate) session: String,
    pub(crate) resume_url: Option<String>,
    /// All events of the session up to this one were handled.
    pub(crate) confirmed: i64,
    pub(crate) updated_at: i64,
}

plain_entity!();
