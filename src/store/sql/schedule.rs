//! Statements of `write/schedule.rs`.

/// Due operations of a queue, in the order in which they join.
/// In SQL: it runs for every queue in which operations are due.
pub(in crate::store) const DUE: &str = "SELECT o.id, o.deadline_at FROM operations o
    WHERE o.queue = $1 AND o.joins_at IS NOT NULL AND o.joins_at <= $2 ORDER BY o.joins_at, o.seq DESC LIMIT $3 + 0";

/// Time when the first scheduled operation of a queue is due.
/// In SQL: it runs for every queue in which operations are due.
pub(in crate::store) const FIRST: &str =
    "SELECT MIN(s.joins_at) FROM operations s WHERE s.queue = $1 AND s.joins_at IS NOT NULL";

/// In SQL: many rows: one text for every number of them.
pub(in crate::store) const SELECT_TARGETS: &str = "SELECT r.operation_id, t.id, t.joins_at FROM {v}
    JOIN operation_refs r ON r.operation_id = v.op JOIN operations t ON t.id = r.target WHERE t.joins_at IS NOT NULL";

/// In SQL: it changes rows and returns them in one statement.
pub(in crate::store) const TAKE: &str =
    "UPDATE guild_queues SET next_seq = next_seq + $2 WHERE queue = $1 RETURNING next_seq";

/// In SQL: many rows: one text for every number of them.
pub(in crate::store) const PLACE: &str =
    "UPDATE operations SET state = 'queued', seq = v.place, joins_at = NULL, joined_at = $2, updated_at = $2,
    changed = {changed} FROM {v} WHERE id = v.op AND joins_at IS NOT NULL";

/// In SQL: many rows: one text for every number of them.
pub(in crate::store) const UPDATE: &str =
    "UPDATE operations SET joins_at = v.at FROM {v} WHERE id = v.op AND joins_at IS NOT NULL";

/// In SQL: many rows: one text for every number of them.
pub(in crate::store) const FOLLOW: &str = "SELECT o.id, o.queue, o.eligible_at, o.deadline_at, o.joins_at FROM {v}
    JOIN operation_refs r ON r.target = v.op JOIN operations o ON o.id = r.operation_id WHERE o.joins_at IS NOT NULL";

/// In SQL: many rows: one text for every number of them.
pub(in crate::store) const MAKE_READY: &str = "UPDATE guild_queues SET ready_at = v.at FROM {v} WHERE queue = v.line
    AND (ready_at IS NULL OR ready_at > v.at)";
