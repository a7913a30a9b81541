//! Spend of named budgets, by hour and process.

use sea_orm::entity::prelude::*;

#[derive(Clone, Debug, PartialEq, Eq, DeriveEntityModel)]
#[sea_orm(table_name = "budget_spend")]
pub(crate) struct Model {
    #[sea_orm(primary_key, auto_increment = false)]
    pub(crate) name: String,
    /// Hours since the start of 1970.
    #[sea_orm(primary_key, auto_increment = false)]
    pub(crate) hour: i64,
    #[sea_orm(primary_key, auto_increment = false)]
    pub(crate) process: String,
    pub(crate) micros: i64,
    pub(crate) calls: i64,
}

plain_entity!();
