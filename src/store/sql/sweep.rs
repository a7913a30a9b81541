//! Statements of `write/sweep.rs`.

/// In SQL: a bounded batch that returns what it removed.
pub(in crate::store) const DELETE_DEAD_LETTERS: &str = "DELETE FROM dead_letters WHERE id IN
    (SELECT id FROM dead_letters WHERE died_at <= $1 ORDER BY died_at LIMIT $2 + 0) RETURNING caller, tenant, bytes";

/// In SQL: a bounded batch that returns what it removed.
pub(in crate::store) const KEYS: &str = "DELETE FROM idempotency WHERE (scope, key) IN (SELECT scope, key FROM idempotency
    WHERE expires_at IS NOT NULL AND expires_at <= $1 ORDER BY expires_at LIMIT $2 + 0) RETURNING scope AS caller, tenant, bytes";

/// In SQL: a bounded batch that returns what it removed.
pub(in crate::store) const STATE: &str = "DELETE FROM state WHERE key IN (SELECT key FROM state
    WHERE expires_at IS NOT NULL AND expires_at <= $1 ORDER BY expires_at LIMIT $2 + 0) RETURNING key";

/// Removes operations of one state to which no pending operation refers.
/// In SQL: a bounded batch that returns what it removed.
pub(in crate::store) const OPERATIONS: &str = "DELETE FROM operations WHERE id IN (SELECT o.id FROM operations o
    WHERE o.state = $1 AND o.finished_at IS NOT NULL AND o.finished_at <= $2
    AND NOT EXISTS (SELECT 1 FROM operation_refs r WHERE r.target = o.id)
    ORDER BY o.finished_at LIMIT $3 + 0) RETURNING id, queue, changed, caller, tenant, bytes";

/// In SQL: many rows: one text for every number of them.
pub(in crate::store) const ATTEMPTS: &str = "DELETE FROM operation_attempts WHERE operation_id IN (SELECT op FROM {v})";

/// Queues of interactions and users are temporary.
/// In SQL: many rows: one text for every number of them.
pub(in crate::store) const QUEUES: &str =
    "DELETE FROM guild_queues WHERE queue IN (SELECT line FROM {v}) AND queue < 0 AND pending = 0
    AND owner IS NULL AND paused = 0 AND NOT EXISTS (SELECT 1 FROM operations o WHERE o.queue = guild_queues.queue)";
