//! Inputs that ended processes. Key columns that a kind does not use are empty.

use sea_orm::entity::prelude::*;

#[derive(Clone, Debug, PartialEq, Eq, DeriveEntityModel)]
#[sea_orm(table_name = "crashed_inputs")]
pub(crate) struct Model {
    #[sea_orm(primary_key, auto_increment = false)]
    pub(crate) kind: String,
    #[sea_orm(primary_key, auto_increment = false)]
    pub(crate) operation: Uuid,
    #[sea_orm(primary_key, auto_increment = false)]
    pub(crate) session: String,
    #[sea_orm(primary_key, auto_increment = false)]
    pub(crate) seq: i64,
    #[sea_orm(primary_key, auto_increment = false)]
    pub(crate) handler: String,
    pub(crate) crashes: i64,
    pub(crate) part: String,
    pub(crate) cause: String,
    pub(crate) first_at: i64,
    pub(crate) last_at: i64,
}

plain_entity!();
