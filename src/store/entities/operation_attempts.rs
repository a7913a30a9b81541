//! Attempts of operations.

use sea_orm::entity::prelude::*;

#[derive(Clone, Debug, PartialEq, Eq, DeriveEntityModel)]
#[sea_orm(table_name = "operation_attempts")]
pub(crate) struct Model {
    #[sea_orm(primary_key, auto_increment = false)]
    pub(crate) operation_id: Uuid,
    #[sea_orm(primary_key, auto_increment = false)]
    pub(crate) n: i64,
    #[sea_orm(primary_key, auto_increment = false)]
    pub(crate) started_at: i64,
    pub(crate) ended_at: i64,
    pub(crate) status: Option<i64>,
    pub(crate) class: String,
    pub(crate) detail: Option<String>,
}

plain_entity!();
