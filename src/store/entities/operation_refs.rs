//! Operations that others refer to.

use sea_orm::entity::prelude::*;

#[derive(Clone, Debug, PartialEq, Eq, DeriveEntityModel)]
#[sea_orm(table_name = "operation_refs")]
pub(crate) struct Model {
    #[sea_orm(primary_key, auto_increment = false)]
    pub(crate) operation_id: Uuid,
    #[sea_orm(primary_key, auto_increment = false)]
    pub(crate) target: Uuid,
}

plain_entity!();
