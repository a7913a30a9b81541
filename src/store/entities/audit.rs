//! The audit log.

use sea_orm::entity::prelude::*;

#[derive(Clone, Debug, PartialEq, Eq, DeriveEntityModel)]
#[sea_orm(table_name = "audit")]
pub(crate) struct Model {
    #[sea_orm(primary_key)]
    pub(crate) place: i64,
    pub(crate) at: i64,
    pub(crate) tenant: String,
    pub(crate) api_key: String,
    pub(crate) action: String,
    pub(crate) guild_id: Option<i64>,
    pub(crate) target: String,
    pub(crate) detail: String,
    pub(crate) request: String,
}

plain_entity!();
