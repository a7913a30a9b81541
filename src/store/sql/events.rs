//! Statements of `read/events.rs`.

/// In SQL: many rows: one text for every number of them.
pub(in crate::store) const VALUES: &str = "SELECT s.* FROM {v} JOIN state s ON s.key = v.its_key
    WHERE s.expires_at IS NULL OR s.expires_at > $2";
