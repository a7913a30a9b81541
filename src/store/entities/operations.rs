//! Operations, pending and finished.

use sea_orm::entity::prelude::*;

#[derive(Clone, Debug, PartialEq, Eq, DeriveEntityModel)]
#[sea_orm(table_name = "operations")]
pub(crate) struct Model {
    #[sea_orm(primary_key, auto_increment = false)]
    pub(crate) id: Uuid,
    pub(crate) tenant: String,
    pub(crate) queue: i64,
    pub(crate) guild_id: Option<i64>,
    /// Position in the queue; negative while scheduled.
    pub(crate) seq: i64,
    pub(crate) kind: String,
    pub(crate) payload: String,
    pub(crate) payload_hash: Vec<u8>,
    pub(crate) lane: String,
    pub(crate) state: String,
    pub(crate) attempts: i64,
    pub(crate) delays: i64,
    pub(crate) max_attempts: i64,
    pub(crate) eligible_at: i64,
    pub(crate) deadline_at: Option<i64>,
    pub(crate) parked: i64,
    pub(crate) deployment_id: Option<Uuid>,
    pub(crate) trace: Option<String>,
    pub(crate) reason: Option<String>,
    /// JSON of a `Failure`.
    pub(crate) error: Option<String>,
    pub(crate) result: Option<String>,
    /// ID of the object that the operation created.
    pub(crate) made: Option<i64>,
    pub(crate) redrive_of: Option<Uuid>,
    pub(crate) redriven_as: Option<Uuid>,
    pub(crate) created_at: i64,
    pub(crate) updated_at: i64,
    pub(crate) finished_at: Option<i64>,
    /// Number of the transaction that last changed the operation.
    pub(crate) changed: i64,
    pub(crate) bounds: i64,
    pub(crate) caller: String,
    /// Bit set.
    pub(crate) scopes: i64,
    /// Time when a scheduled operation takes a position in its queue.
    pub(crate) joins_at: Option<i64>,
    /// Whether a policy has postponed it.
    pub(crate) put_off: i64,
    pub(crate) bytes: i64,
    /// JSON of a `Progress`.
    pub(crate) progress: Option<String>,
    /// JSON of an `UnknownOutcome`.
    pub(crate) unknown_outcome: Option<String>,
    /// Time when a scheduled operation took a position in its queue.
    pub(crate) joined_at: Option<i64>,
}

/// Rows that belong to an operation.
#[derive(Clone, Copy, Debug, EnumIter, DeriveRelation)]
pub(crate) enum Relation {
    #[sea_orm(belongs_to = "super::intents::Entity", from = "Column::Id", to = "super::intents::Column::OperationId")]
    Intent,
    #[sea_orm(
        belongs_to = "super::idempotency::Entity",
        from = "Column::Id",
        to = "super::idempotency::Column::OperationId"
    )]
    Idempotency,
}

impl ActiveModelBehavior for ActiveModel {}
