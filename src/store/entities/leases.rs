//! Named locks that expire. A row stays for a while after its lease, for the fence.

use sea_orm::entity::prelude::*;

#[derive(Clone, Debug, PartialEq, Eq, DeriveEntityModel)]
#[sea_orm(table_name = "leases")]
pub(crate) struct Model {
    #[sea_orm(primary_key, auto_increment = false)]
    pub(crate) name: String,
    /// `None` after a release.
    pub(crate) token: Option<Vec<u8>>,
    pub(crate) fence: i64,
    /// `None` after a release.
    pub(crate) holder: Option<String>,
    pub(crate) expires_at: i64,
}

plain_entity!();
