//! Processes that ended because a part failed.

use sea_orm::entity::prelude::*;

#[derive(Clone, Debug, PartialEq, Eq, DeriveEntityModel)]
#[sea_orm(table_name = "process_ends")]
pub(crate) struct Model {
    #[sea_orm(primary_key)]
    pub(crate) id: i64,
    pub(crate) instance: String,
    pub(crate) part: String,
    pub(crate) cause: String,
    pub(crate) ended_at: i64,
}

plain_entity!();
