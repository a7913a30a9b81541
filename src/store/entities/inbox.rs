//! Events for which their session no longer waits.

use sea_orm::entity::prelude::*;

#[derive(Clone, Debug, PartialEq, Eq, DeriveEntityModel)]
#[sea_orm(table_name = "inbox")]
pub(crate) struct Model {
    #[sea_orm(primary_key)]
    pub(crate) place: i64,
    pub(crate) session: String,
    pub(crate) seq: i64,
    pub(crate) handler: String,
    pub(crate) lane: i64,
    pub(crate) name: String,
    pub(crate) event: String,
    pub(crate) attempts: i64,
    pub(crate) eligible_at: i64,
    /// Why the event was given up.
    pub(crate) dead: Option<String>,
    /// The last error.
    pub(crate) why: Option<String>,
    pub(crate) created_at: i64,
    pub(crate) died_at: Option<i64>,
}

plain_entity!();
