//! Statements of `write/event_commit.rs`.

/// Inserts the rows of handlers. Returns those that did not exist. For events up to the confirmed position of a session
/// the rows are already removed, and the inbox entry of an event may outlive its row.
/// In SQL: many rows: one text for every number of them.
pub(in crate::store) const INSERT: &str = "INSERT INTO handled (session, seq, handler, at)
    SELECT its_session, its_seq, its_handler, its_time FROM {v}
    WHERE NOT EXISTS (SELECT 1 FROM sessions s WHERE s.session = its_session AND s.confirmed >= its_seq)
    AND NOT EXISTS (SELECT 1 FROM inbox i WHERE i.session = its_session AND i.seq = its_seq AND i.handler = its_handler)
    ON CONFLICT DO NOTHING RETURNING session, seq, handler";

/// In SQL: many rows: one text for every number of them.
pub(in crate::store) const REMOVE: &str =
    "DELETE FROM handled WHERE (session, seq, handler) IN (SELECT its_session, its_seq, its_handler FROM {v})";
