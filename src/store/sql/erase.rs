//! Statements of `write/erase.rs`.

/// In SQL: a condition on other tables, in the text of the index that it uses.
pub(in crate::store) const SELECT_OPERATIONS: &str = "SELECT o.id,
    CASE WHEN o.payload LIKE $1 OR o.result LIKE $1 OR o.error LIKE $1 OR o.reason LIKE $1 OR o.progress LIKE $1
        THEN o.payload || ' ' || COALESCE(o.result, '') || ' ' || COALESCE(o.error, '')
        || ' ' || COALESCE(o.reason, '') || ' ' || COALESCE(o.progress, '') END AS text,
    CAST(CASE WHEN o.guild_id = $2 THEN 1 ELSE 0 END AS BIGINT) AS its,
    CAST(CASE WHEN o.finished_at IS NULL OR EXISTS (SELECT 1 FROM operation_refs r WHERE r.target = o.id)
        THEN 1 ELSE 0 END AS BIGINT) AS stays
    FROM operations o WHERE o.id > $3 ORDER BY o.id LIMIT $4 + 0";

/// In SQL: many rows: one text for every number of them.
pub(in crate::store) const CLEAR_OPERATIONS: &str =
    "UPDATE idempotency SET result = NULL WHERE operation_id IN (SELECT op FROM {v})";

/// In SQL: many rows: one text for every number of them.
pub(in crate::store) const REMOVE_OPERATIONS: &str = "DELETE FROM operations WHERE id IN (SELECT op FROM {v})
    RETURNING id, queue, changed, caller, tenant, bytes";

/// In SQL: it computes a text from several columns.
pub(in crate::store) const SELECT_DEAD_LETTERS: &str = "SELECT l.id,
    CASE WHEN l.payload LIKE $1 OR l.error LIKE $1 OR l.reason LIKE $1
        THEN l.payload || ' ' || l.error || ' ' || COALESCE(l.reason, '') END AS text,
    CAST(CASE WHEN l.guild_id = $2 THEN 1 ELSE 0 END AS BIGINT) AS its, CAST(0 AS BIGINT) AS stays
    FROM dead_letters l WHERE l.id > $3 ORDER BY l.id LIMIT $4 + 0";

/// In SQL: many rows: one text for every number of them.
pub(in crate::store) const REMOVE_DEAD_LETTERS: &str =
    "DELETE FROM dead_letters WHERE id IN (SELECT op FROM {v}) RETURNING caller, tenant, bytes";

/// In SQL: it computes a text from several columns.
pub(in crate::store) const SELECT_RESULTS: &str =
    "SELECT i.scope, i.key, CASE WHEN i.result LIKE $1 THEN i.result END AS text,
    CAST(0 AS BIGINT) AS its, CAST(CASE WHEN i.state IS NULL THEN 1 ELSE 0 END AS BIGINT) AS stays
    FROM idempotency i WHERE (i.scope, i.key) > ($2, $3) ORDER BY i.scope, i.key LIMIT $4 + 0";

/// In SQL: many rows: one text for every number of them.
pub(in crate::store) const CLEAR_RESULTS: &str =
    "UPDATE idempotency SET result = NULL WHERE (scope, key) IN (SELECT its_scope, its_key FROM {v})";

/// In SQL: it computes a text from several columns.
pub(in crate::store) const SELECT_EVENTS: &str = "SELECT e.place,
    CASE WHEN e.event LIKE $1 OR e.why LIKE $1 OR e.dead LIKE $1
        THEN e.event || ' ' || COALESCE(e.why, '') || ' ' || COALESCE(e.dead, '') END AS text,
    CAST(0 AS BIGINT) AS its, CAST(CASE WHEN e.dead IS NULL THEN 1 ELSE 0 END AS BIGINT) AS stays
    FROM inbox e WHERE e.place > $2 ORDER BY e.place LIMIT $3 + 0";

/// In SQL: many rows: one text for every number of them.
pub(in crate::store) const REMOVE_EVENTS: &str =
    "DELETE FROM inbox WHERE place IN (SELECT its_place FROM {v}) AND dead IS NOT NULL";

/// In SQL: it computes a text from several columns.
pub(in crate::store) const SELECT_STATE: &str = "SELECT s.key,
    CASE WHEN s.key LIKE $1 OR s.value LIKE $1 THEN s.key || ' ' || s.value END AS text,
    CAST(0 AS BIGINT) AS its, CAST(0 AS BIGINT) AS stays
    FROM state s WHERE s.key > $2 AND s.key NOT LIKE 'gate:%' ORDER BY s.key LIMIT $3 + 0";

/// In SQL: many rows: one text for every number of them.
pub(in crate::store) const REMOVE_STATE: &str = "DELETE FROM state WHERE key IN (SELECT its_key FROM {v})";

/// In SQL: a bounded batch that returns what it removed.
pub(in crate::store) const REMOVE_MANAGED_OBJECTS: &str = "DELETE FROM managed_objects WHERE (guild_id, kind, key) IN
    (SELECT guild_id, kind, key FROM managed_objects WHERE guild_id = $1 LIMIT $2 + 0) RETURNING key";

/// In SQL: a bounded batch that returns what it removed.
pub(in crate::store) const REMOVE_CHANNELS: &str = "DELETE FROM channel_guilds WHERE (kind, id) IN
    (SELECT kind, id FROM channel_guilds WHERE guild_id = $1 LIMIT $2 + 0) RETURNING id";

/// In SQL: a bounded batch that returns what it removed.
pub(in crate::store) const REMOVE_GUILD_NAMES: &str = "DELETE FROM guild_names WHERE guild_id IN
    (SELECT guild_id FROM guild_names WHERE guild_id = $1 LIMIT $2 + 0) RETURNING guild_id";
