//! Statements of `write/finish.rs`.

/// In SQL: many rows: one text for every number of them.
pub(in crate::store) const COUNT_FINISHED: &str =
    "UPDATE guild_queues SET pending = pending - v.n FROM {v} WHERE queue = v.line";

/// In SQL: many rows: one text for every number of them.
pub(in crate::store) const UPDATE_KEYS: &str = "UPDATE idempotency SET state = v.state, result = v.result, expires_at = v.expires_at,
    bytes = idempotency.bytes + v.grown FROM {v} WHERE operation_id = v.op RETURNING operation_id, idempotency.scope AS scope, idempotency.tenant AS tenant";

/// In SQL: many rows: one text for every number of them.
pub(in crate::store) const DELETE_REFS: &str = "DELETE FROM operation_refs WHERE operation_id IN (SELECT op FROM {v})";

/// In SQL: many rows: one text for every number of them.
pub(in crate::store) const CLOSE_INTENTS: &str = "DELETE FROM intents WHERE operation_id IN (SELECT op FROM {v})";
