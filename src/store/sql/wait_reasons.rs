//! Statements of `read/wait_reasons.rs`.

/// The first operation before it that blocks it; parked ones block only if nothing else does.
/// In SQL: many rows: one text for every number of them.
pub(in crate::store) const QUEUED: &str = "SELECT v.op, q.paused, q.owner,
    (SELECT COUNT(*) FROM switches s WHERE s.name = $2 AND s.is_on = 1) AS all_paused,
    (SELECT b.id FROM operations b WHERE b.queue = v.line AND b.seq > 0 AND b.seq < v.place AND b.finished_at IS NULL
        AND b.parked = 0 ORDER BY b.seq LIMIT 1) AS blocking,
    (SELECT p.id FROM operations p WHERE p.queue = v.line AND p.seq > 0 AND p.seq < v.place AND p.finished_at IS NULL
        ORDER BY p.seq LIMIT 1) AS first
    FROM {v} JOIN guild_queues q ON q.queue = v.line";

/// In SQL: many rows: one text for every number of them.
pub(in crate::store) const SCHEDULED: &str =
    "SELECT v.op, t.id, t.joins_at FROM {v} JOIN operation_refs r ON r.operation_id = v.op
    JOIN operations t ON t.id = r.target WHERE t.joins_at IS NOT NULL";
