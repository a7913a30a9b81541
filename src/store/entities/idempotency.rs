//! Idempotency keys. State, result and expiry are `None` until the operation is finished.

use sea_orm::entity::prelude::*;

#[derive(Clone, Debug, PartialEq, Eq, DeriveEntityModel)]
#[sea_orm(table_name = "idempotency")]
pub(crate) struct Model {
    #[sea_orm(primary_key, auto_increment = false)]
    pub(crate) scope: String,
    #[sea_orm(primary_key, auto_increment = false)]
    pub(crate) key: String,
    pub(crate) payload_hash: Vec<u8>,
    pub(crate) operation_id: Uuid,
    pub(crate) state: Option<String>,
    pub(crate) result: Option<String>,
    pub(crate) expires_at: Option<i64>,
    pub(crate) bytes: i64,
    pub(crate) tenant: String,
}

plain_entity!();
