//! Statements of `write/submit.rs`.

/// In SQL: many rows: one text for every number of them.
pub(in crate::store) const SELECT_KEYS: &str =
    "SELECT i.operation_id AS id, i.payload_hash, COALESCE(i.state, o.state) AS state,
    COALESCE(i.result, o.result) AS result, i.scope, i.key, i.expires_at <= v.at AS expired FROM {v}
    JOIN idempotency i ON i.scope = v.scope AND i.key = v.key LEFT JOIN operations o ON o.id = i.operation_id";

/// In SQL: many rows: one text for every number of them.
pub(in crate::store) const SELECT_OPERATIONS: &str =
    "SELECT o.id, o.payload_hash, o.state, o.result, o.tenant, o.guild_id, o.joins_at
    FROM {v} JOIN operations o ON o.id = v.op";

/// In SQL: many rows: one text for every number of them.
pub(in crate::store) const SELECT_QUEUES: &str =
    "SELECT q.queue, q.next_seq, q.pending, q.tenant, q.key, (SELECT MIN(s.joins_at)
    FROM operations s WHERE s.queue = q.queue AND s.joins_at IS NOT NULL) AS joins_at
    FROM {v} JOIN guild_queues q ON q.queue = v.line";

/// In SQL: many rows: one text for every number of them.
pub(in crate::store) const DELETE_EXPIRED_KEYS: &str =
    "DELETE FROM idempotency WHERE (scope, key) IN (SELECT its_scope, its_key FROM {v})
    RETURNING scope AS caller, tenant, bytes";
