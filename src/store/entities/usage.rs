//! Storage usage by scope. Each process changes its own rows; the usage is their sum.

use sea_orm::entity::prelude::*;

#[derive(Clone, Debug, PartialEq, Eq, DeriveEntityModel)]
#[sea_orm(table_name = "usage")]
pub(crate) struct Model {
    #[sea_orm(primary_key, auto_increment = false)]
    pub(crate) scope: String,
    #[sea_orm(primary_key, auto_increment = false)]
    pub(crate) instance: Uuid,
    pub(crate) operations: i64,
    pub(crate) bytes: i64,
}

plain_entity!();
