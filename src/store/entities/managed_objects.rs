//! Objects that have a key. Guild 0 means no guild.

use sea_orm::entity::prelude::*;

#[derive(Clone, Debug, PartialEq, Eq, DeriveEntityModel)]
#[sea_orm(table_name = "managed_objects")]
pub(crate) struct Model {
    #[sea_orm(primary_key, auto_increment = false)]
    pub(crate) guild_id: i64,
    #[sea_orm(primary_key, auto_increment = false)]
    pub(crate) kind: String,
    #[sea_orm(primary_key, auto_increment = false)]
    pub(crate) key: String,
    pub(crate) discord_id: i64,
    pub(crate) channel_id: Option<i64>,
    pub(crate) origin: String,
    pub(crate) updated_at: i64,
}

plain_entity!();
