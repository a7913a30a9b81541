//! Statements of `write/state.rs`.

/// In SQL: many rows: one text for every number of them.
pub(in crate::store) const STORE: &str =
    "INSERT INTO state (key, value, expires_at) SELECT its_key, value, expires_at FROM {v} WHERE 1 = 1
    ON CONFLICT (key) DO UPDATE SET value = excluded.value, expires_at = excluded.expires_at";

/// In SQL: many rows: one text for every number of them.
pub(in crate::store) const REMOVE: &str = "DELETE FROM state WHERE key IN (SELECT its_key FROM {v})";
