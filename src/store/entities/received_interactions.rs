//! Interactions that this deployment has received.

use sea_orm::entity::prelude::*;

#[derive(Clone, Debug, PartialEq, Eq, DeriveEntityModel)]
#[sea_orm(table_name = "received_interactions")]
pub(crate) struct Model {
    /// SHA-256 digest of the interaction's token.
    #[sea_orm(primary_key, auto_increment = false)]
    pub(crate) token: Vec<u8>,
    pub(crate) id: i64,
    pub(crate) application_id: i64,
    /// 0 outside a guild.
    pub(crate) guild_id: i64,
    pub(crate) received_at: i64,
    pub(crate) expires_at: i64,
}

plain_entity!();
