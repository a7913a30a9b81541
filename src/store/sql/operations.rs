//! Statements of `read/operations.rs`.

/// In SQL: a bounded count.
pub(in crate::store) const COUNT_SCHEDULED: &str =
    "SELECT COUNT(*) FROM (SELECT 1 FROM operations o WHERE o.queue = $1 AND o.joins_at IS NOT NULL
    LIMIT $2 + 0) counted";

/// Operations that are finished, or no longer exist.
/// In SQL: many rows: one text for every number of them.
pub(in crate::store) const FINISHED: &str = "SELECT v.op FROM {v} LEFT JOIN operations o ON o.id = v.op
    WHERE o.id IS NULL OR o.finished_at IS NOT NULL";

/// In SQL: many rows: one text for every number of them.
pub(in crate::store) const ATTEMPTS: &str = "SELECT a.* FROM {v} JOIN operation_attempts a ON a.operation_id = v.op";
