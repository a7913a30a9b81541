//! Statements of `write/change_seq.rs`.

/// The highest change of all operations in the store, and of all that were removed.
/// In SQL: the larger one of two maxima.
pub(in crate::store) const HIGHEST: &str = "SELECT MAX(COALESCE((SELECT MAX(changed) FROM operations), 0),
    COALESCE((SELECT at FROM marks WHERE name = $1), 0))";

/// In SQL: on the transaction number of PostgreSQL.
pub(in crate::store) const AHEAD: &str =
    "SELECT 1 FROM operations WHERE changed > (SELECT pg_current_xact_id()::text::bigint) LIMIT 1";

/// In SQL: it changes rows and returns them in one statement.
pub(in crate::store) const MEND: &str = "UPDATE operations SET changed = (SELECT pg_current_xact_id()::text::bigint)
    WHERE changed > (SELECT pg_current_xact_id()::text::bigint) RETURNING id";

/// In SQL: on the transaction number of PostgreSQL.
pub(in crate::store) const LOWER_MARK: &str = "UPDATE marks SET at = (SELECT pg_current_xact_id()::text::bigint)
    WHERE name = $1 AND at > (SELECT pg_current_xact_id()::text::bigint)";

/// In SQL: a conditional upsert, or one that returns what is stored.
pub(in crate::store) const RAISE_MARK: &str =
    "INSERT INTO marks (name, at) VALUES ($1, $2) ON CONFLICT (name) DO UPDATE
    SET at = CASE WHEN excluded.at > marks.at THEN excluded.at ELSE marks.at END";
