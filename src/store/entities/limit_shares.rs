//! Shares of a rate limit, by process.

use sea_orm::entity::prelude::*;

#[derive(Clone, Debug, PartialEq, Eq, DeriveEntityModel)]
#[sea_orm(table_name = "limit_shares")]
pub(crate) struct Model {
    #[sea_orm(primary_key, auto_increment = false)]
    pub(crate) scope: String,
    #[sea_orm(primary_key, auto_increment = false)]
    pub(crate) instance: Uuid,
    /// Name of the advisory lock that the process holds.
    pub(crate) seat: String,
    /// Sequence number of the last renewal.
    pub(crate) beat: i64,
    pub(crate) turn: i64,
    pub(crate) share: i64,
    pub(crate) hold_ms: i64,
    pub(crate) departed: i64,
}

plain_entity!();
