//! Statements of `leases.rs`.

/// Takes a free lease. It ends one millisecond later than requested, since the time of the engine is rounded down.
/// In SQL: on the clock of the database.
pub(in crate::store) const ACQUIRE: &str = "INSERT INTO leases (name, token, holder, fence, expires_at)
    VALUES ($1, $2, $3, {us}, {ms} + $4 + 1)
    ON CONFLICT (name) DO UPDATE SET token = excluded.token, holder = excluded.holder, expires_at = excluded.expires_at,
    fence = CASE WHEN leases.fence >= excluded.fence THEN leases.fence + 1 ELSE excluded.fence END
    WHERE leases.token IS NULL OR leases.expires_at <= {ms} RETURNING fence";

/// In SQL: on the clock of the database.
pub(in crate::store) const RENEW: &str = "UPDATE leases SET expires_at = {ms} + $3 + 1
    WHERE name = $1 AND token = $2 AND expires_at > {ms} RETURNING fence";

/// In SQL: on the clock of the database.
pub(in crate::store) const RELEASE: &str = "UPDATE leases SET token = NULL, holder = NULL, expires_at = {ms}
    WHERE name = $1 AND token = $2 AND expires_at > {ms} RETURNING fence";

/// Removes a few leases that ended a week ago. Rows that another transaction has locked are skipped.
/// In SQL: on the clock of the database.
pub(in crate::store) const SWEEP: &str = "DELETE FROM leases WHERE name IN (SELECT name FROM leases
    WHERE expires_at < {ms} - 604800000 ORDER BY expires_at LIMIT 16 {skip})";
