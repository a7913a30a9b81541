//! The generated admin key: at most one row, with ID 1.

use sea_orm::entity::prelude::*;

#[derive(Clone, Debug, PartialEq, Eq, DeriveEntityModel)]
#[sea_orm(table_name = "generated_admin_key")]
pub(crate) struct Model {
    #[sea_orm(primary_key, auto_increment = false)]
    pub(crate) id: i64,
    pub(crate) digest: Vec<u8>,
    pub(crate) host: String,
    pub(crate) file: String,
    pub(crate) instance: String,
    pub(crate) created_at: i64,
}

plain_entity!();
