//! Operations that failed.

use sea_orm::entity::prelude::*;

#[derive(Clone, Debug, PartialEq, Eq, DeriveEntityModel)]
#[sea_orm(table_name = "dead_letters")]
pub(crate) struct Model {
    #[sea_orm(primary_key, auto_increment = false)]
    pub(crate) id: Uuid,
    pub(crate) tenant: String,
    pub(crate) queue: i64,
    pub(crate) guild_id: Option<i64>,
    pub(crate) kind: String,
    pub(crate) payload: String,
    pub(crate) class: String,
    /// JSON of a `Failure`.
    pub(crate) error: String,
    pub(crate) attempts: i64,
    pub(crate) reason: Option<String>,
    pub(crate) created_at: i64,
    pub(crate) died_at: i64,
    pub(crate) redrive_of: Option<Uuid>,
    pub(crate) redriven_as: Option<Uuid>,
    /// The error message in lower case, for searches.
    pub(crate) wording: String,
    pub(crate) bounds: i64,
    pub(crate) caller: String,
    pub(crate) scopes: i64,
    pub(crate) bytes: i64,
}

plain_entity!();
