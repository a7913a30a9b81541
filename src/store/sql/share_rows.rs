//! Statements of `cluster/share_rows.rs`.

/// Serializes reservations of one limit. Its holder delays only the growth of other shares: renewals do not need it.
/// In SQL: a lock of PostgreSQL.
pub(in crate::store) const LOCK: &str =
    "SELECT pg_try_advisory_xact_lock(hashtextextended('guildhall limit ' || current_schema() || $1, 0))";

/// In SQL: it changes rows and returns them in one statement.
pub(in crate::store) const RENEW: &str =
    "UPDATE limit_shares SET beat = $3 WHERE scope = $1 AND instance = $2 RETURNING *";

/// In SQL: it changes rows and returns them in one statement.
pub(in crate::store) const JOIN: &str =
    "INSERT INTO limit_shares (scope, instance, beat, seat, hold_ms, share, departed, turn)
    SELECT $1, $2, $3, $4, $5, 0, 0, COALESCE(MAX(turn), 0) + 1 FROM limit_shares WHERE scope = $1 RETURNING turn";

/// In SQL: it changes rows and returns them in one statement.
pub(in crate::store) const RESERVE: &str =
    "UPDATE limit_shares SET share = $4 WHERE scope = $1 AND instance = $2 AND beat = $3
    AND (SELECT COALESCE(SUM(o.share), 0) FROM limit_shares o WHERE o.scope = $1 AND o.instance <> $2) + $4 <= $5
    RETURNING share";

/// In SQL: it changes rows and returns them in one statement.
pub(in crate::store) const LOWER: &str = "UPDATE limit_shares SET share = $4, turn = COALESCE($5, turn)
    WHERE scope = $1 AND instance = $2 AND beat = $3 RETURNING share";

/// A row that is being renewed, perhaps by a frozen process, is skipped.
/// In SQL: a claim: the rows that others have locked are skipped.
pub(in crate::store) const REMOVE: &str =
    "DELETE FROM limit_shares WHERE (scope, instance) IN (SELECT scope, instance FROM limit_shares
    WHERE scope = $1 AND instance = $2 AND beat = $3 FOR UPDATE SKIP LOCKED) RETURNING share";
