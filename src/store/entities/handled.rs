//! Handlers that are done with events after the confirmed position of their session.

use sea_orm::entity::prelude::*;

#[derive(Clone, Debug, PartialEq, Eq, DeriveEntityModel)]
#[sea_orm(table_name = "handled")]
pub(crate) struct Model {
    #[sea_orm(primary_key, auto_increment = false)]
    pub(crate) session: String,
    #[sea_orm(primary_key, auto_increment = false)]
    pub(crate) seq: i64,
    #[sea_orm(primary_key, auto_increment = false)]
    pub(crate) handler: String,
    pub(crate) at: i64,
}

plain_entity!();
