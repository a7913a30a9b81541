//! Statements of `write/inbox.rs`.

/// In SQL: many rows: one text for every number of them.
pub(in crate::store) const PRESENT: &str = "SELECT session, seq, handler FROM inbox
    WHERE (session, seq, handler) IN (SELECT its_session, its_seq, its_handler FROM {v})";

/// In SQL: many rows: one text for every number of them.
pub(in crate::store) const REMOVE: &str =
    "DELETE FROM inbox WHERE (session, seq, handler) IN (SELECT its_session, its_seq, its_handler FROM {v})";

/// The condition is true for every actual row. Without it SQLite applies the order before the limit of `{v}`, and
/// treats its unused room as rows.
/// In SQL: many rows: one text for every number of them.
pub(in crate::store) const INSERT: &str =
    "INSERT INTO inbox (session, seq, handler, lane, name, event, attempts, eligible_at, dead, why,
    created_at, died_at) SELECT session, seq, handler, lane, name, event, attempts, eligible_at, dead, why, created_at,
    died_at FROM {v} WHERE n >= 0 ORDER BY n";

/// In SQL: many rows: one text for every number of them.
pub(in crate::store) const POSTPONE: &str =
    "UPDATE inbox SET attempts = v.tried, why = v.says, eligible_at = COALESCE(v.again_at, eligible_at),
    dead = CASE WHEN v.again_at IS NULL THEN v.says END,
    died_at = CASE WHEN v.again_at IS NULL THEN COALESCE(died_at, v.ends_at) END
    FROM {v} WHERE session = v.its_session AND seq = v.its_seq AND handler = v.its_handler
    AND (dead IS NULL OR v.again_at IS NULL) RETURNING session, seq, handler";

/// In SQL: a bounded batch that returns what it removed.
pub(in crate::store) const DISCARD: &str = "DELETE FROM inbox WHERE place = $1 AND dead IS NOT NULL RETURNING place";

/// In SQL: a bounded batch that returns what it removed.
pub(in crate::store) const TAKE: &str = "DELETE FROM inbox WHERE place = $1 AND dead IS NOT NULL
    RETURNING session, seq, handler, lane, name, event, why, created_at";
