//! Statements of `write/attempts.rs`.

/// In SQL: many rows: one text for every number of them.
pub(in crate::store) const INSERT: &str =
    "INSERT INTO operation_attempts (operation_id, n, started_at, ended_at, status, class, detail)
    SELECT op, n, started_at, ended_at, status, class, detail FROM {v} WHERE 1 = 1 ON CONFLICT DO NOTHING";

/// Removes attempts between the first and the last ones.
/// In SQL: many rows: one text for every number of them.
pub(in crate::store) fn trim(first: u32, last: u32) -> String {
    let edge = |order: &str, nth: u32| {
        format!(
            "(SELECT a.started_at FROM operation_attempts a WHERE a.operation_id = operation_attempts.operation_id
            ORDER BY a.started_at {order} LIMIT 1 OFFSET {})",
            nth - 1
        )
    };
    format!(
        "DELETE FROM operation_attempts WHERE operation_id IN (SELECT op FROM {{v}}) AND started_at > {} AND started_at < {}",
        edge("ASC", first),
        edge("DESC", last)
    )
}
