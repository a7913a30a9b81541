//! Calls of operations that are in flight, or were when their process ended.

use sea_orm::entity::prelude::*;

#[derive(Clone, Debug, PartialEq, Eq, DeriveEntityModel)]
#[sea_orm(table_name = "intents")]
pub(crate) struct Model {
    #[sea_orm(primary_key, auto_increment = false)]
    pub(crate) operation_id: Uuid,
    pub(crate) marker: String,
    pub(crate) at: i64,
}

plain_entity!();
