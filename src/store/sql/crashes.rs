//! Statements of `crashes.rs` and `write/crashes.rs`.

/// In SQL: a conditional upsert, or one that returns what is stored.
pub(in crate::store) const COUNT_CRASH: &str = "INSERT INTO crashed_inputs
    (kind, operation, session, seq, handler, crashes, part, cause, first_at, last_at)
    VALUES ($1, $2, $3, $4, $5, 1, $6, $7, $8, $8)
    ON CONFLICT (kind, operation, session, seq, handler) DO UPDATE SET crashes = crashed_inputs.crashes + 1,
    part = excluded.part, cause = excluded.cause, last_at = excluded.last_at RETURNING crashes";

/// In SQL: the bound is a subselect.
pub(in crate::store) const TRIM_INPUTS: &str = "DELETE FROM crashed_inputs WHERE last_at <
    (SELECT last_at FROM crashed_inputs ORDER BY last_at DESC LIMIT 1 OFFSET $1)";

/// Operations that ended enough processes and are not finished. There are seldom any.
/// In SQL: a condition on other tables, in the text of the index that it uses.
pub(in crate::store) const CRASHED_OPERATIONS: &str = "SELECT c.operation, c.crashes, c.part, c.cause, o.queue, o.state, o.attempts,
    o.delays, o.eligible_at, o.guild_id, o.kind, CAST(CASE WHEN o.unknown_outcome IS NOT NULL
    OR o.progress IS NOT NULL OR EXISTS (SELECT 1 FROM intents i WHERE i.operation_id = o.id) THEN 1 ELSE 0 END AS BIGINT) AS sent
    FROM crashed_inputs c JOIN operations o ON o.id = c.operation
    WHERE c.kind = $1 AND c.crashes >= $2 AND o.finished_at IS NULL";

/// In SQL: many rows: one text for every number of them.
pub(in crate::store) const FORGET_INPUTS: &str =
    "DELETE FROM crashed_inputs WHERE (kind, operation, session, seq, handler) IN
    (SELECT its_kind, its_operation, its_session, its_seq, its_handler FROM {v})";

/// In SQL: a bounded batch that returns what it removed.
pub(in crate::store) const SWEEP_INPUTS: &str =
    "DELETE FROM crashed_inputs WHERE (kind, operation, session, seq, handler) IN
    (SELECT kind, operation, session, seq, handler FROM crashed_inputs WHERE last_at < $1
    ORDER BY last_at LIMIT $2 + 0) RETURNING kind";
