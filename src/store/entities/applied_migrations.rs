//! Hashes of the applied migrations, and the programs that can use them.

use sea_orm::entity::prelude::*;

#[derive(Clone, Debug, PartialEq, Eq, DeriveEntityModel)]
#[sea_orm(table_name = "applied_migrations")]
pub(crate) struct Model {
    #[sea_orm(primary_key, auto_increment = false)]
    pub(crate) number: i64,
    pub(crate) name: String,
    pub(crate) sql_hash: String,
    pub(crate) compatible_from: i64,
    /// Version of guildhall that recorded it.
    pub(crate) program: String,
    pub(crate) recorded_at: i64,
}

plain_entity!();
