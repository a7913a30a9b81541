//! Statements of `write/sessions.rs`.

/// In SQL: many rows: one text for every number of them.
pub(in crate::store) const SELECT_SESSIONS: &str =
    "SELECT shards, shard, session, resume_url, confirmed, updated_at FROM sessions
    WHERE (shards, shard) IN (SELECT of_shards, nth FROM {v})";

/// In SQL: many rows: one text for every number of them.
pub(in crate::store) const FORGET: &str = "DELETE FROM handled WHERE (session, seq, handler) IN
    (SELECT h.session, h.seq, h.handler FROM {v} JOIN handled h ON h.session = v.its_session AND h.seq <= v.up_to)";

/// In SQL: many rows: one text for every number of them.
pub(in crate::store) const FORGET_ON_POSTGRES: &str =
    "DELETE FROM handled USING {v} WHERE session = v.its_session AND seq <= v.up_to";

/// Another process may have inserted the same row in the meantime.
/// In SQL: many rows: one text for every number of them.
pub(in crate::store) const UPSERT: &str =
    "INSERT INTO sessions (shards, shard, session, resume_url, confirmed, updated_at)
    SELECT shards, shard, session, resume_url, confirmed, updated_at FROM {v} WHERE 1 = 1
    ON CONFLICT (shards, shard) DO UPDATE SET session = excluded.session, resume_url = excluded.resume_url,
    confirmed = CASE WHEN sessions.session = excluded.session AND sessions.confirmed > excluded.confirmed
    THEN sessions.confirmed ELSE excluded.confirmed END, updated_at = excluded.updated_at";

/// In SQL: a bounded batch that returns what it removed.
pub(in crate::store) const SWEEP_DEAD: &str = "DELETE FROM inbox WHERE place IN (SELECT place FROM inbox
    WHERE died_at IS NOT NULL AND died_at < $1 ORDER BY died_at LIMIT $2 + 0) RETURNING place";

/// Finds the sessions of all rows, with one index step for each, and returns those that no shard has.
/// In SQL: a recursive query.
pub(in crate::store) const ORPHANED_SESSIONS: &str =
    "WITH RECURSIVE named (session) AS (SELECT (SELECT MIN(session) FROM handled)
    UNION ALL SELECT (SELECT MIN(h.session) FROM handled h WHERE h.session > named.session) FROM named
    WHERE named.session IS NOT NULL) SELECT named.session FROM named WHERE named.session IS NOT NULL
    AND NOT EXISTS (SELECT 1 FROM sessions s WHERE s.session = named.session) LIMIT $1 + 0";

/// Sequence numbers increase with time, so it is enough to check the first ones.
/// In SQL: a bounded batch that returns what it removed.
pub(in crate::store) const SWEEP_ORPHANED: &str = "DELETE FROM handled WHERE (session, seq, handler) IN
    (SELECT session, seq, handler FROM (SELECT session, seq, handler, at FROM handled WHERE session = $1
    ORDER BY seq LIMIT $3 + 0) AS oldest WHERE at < $2) RETURNING seq";
