//! Statements of `read/interactions.rs` and `write/interactions.rs`.

/// In SQL: many rows: one text for every number of them.
pub(in crate::store) const RECEIVED: &str = "SELECT r.* FROM {v} JOIN received_interactions r ON r.token = v.its_token";

/// In SQL: many rows: one text for every number of them.
pub(in crate::store) const RECORD: &str =
    "INSERT INTO received_interactions (token, id, application_id, guild_id, received_at, expires_at)
    SELECT its_token, its_id, its_application, its_guild, its_receipt, its_expiry FROM {v} WHERE 1 = 1
    ON CONFLICT DO NOTHING";

/// In SQL: a bounded batch that returns what it removed.
pub(in crate::store) const SWEEP_EXPIRED: &str = "DELETE FROM received_interactions WHERE token IN
    (SELECT token FROM received_interactions WHERE expires_at <= $1 ORDER BY expires_at LIMIT $2 + 0) RETURNING id";

/// Expiry time up to which interactions exceed the limit, if there are that many.
/// In SQL: the limit is a sum, as `rows::SqlText::limit` explains.
pub(in crate::store) const PAST_BOUND: &str =
    "SELECT expires_at FROM received_interactions ORDER BY expires_at DESC LIMIT 1 OFFSET $1 + 0";
