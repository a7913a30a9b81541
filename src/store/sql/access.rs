//! Statements of `read/access.rs` and `write/access.rs`.

/// A cross join, so that SQLite searches the keys by ID, whatever it estimates about their number.
/// In SQL: many rows: one text for every number of them.
pub(in crate::store) const FIND_KEYS: &str = "SELECT k.* FROM {v} CROSS JOIN api_keys k WHERE k.id = v.its_id";

/// In SQL: one step in the index.
pub(in crate::store) const FIRST_PLACE: &str = "SELECT MIN(place) FROM audit";

/// In SQL: one step in the index.
pub(in crate::store) const LAST_PLACE: &str = "SELECT MAX(place) FROM audit";

/// In SQL: many rows: one text for every number of them.
pub(in crate::store) const GUILDS_OF_OTHERS: &str =
    "SELECT q.queue FROM {v} JOIN guild_queues q ON q.queue = v.line WHERE q.tenant <> $2";

/// In SQL: many rows: one text for every number of them.
pub(in crate::store) const TAKE_GUILDS: &str =
    "INSERT INTO guild_queues (queue, tenant, next_seq, pending, paused, fence)
    SELECT line, $2, 1, 0, 0, $3 FROM {v} WHERE 1 = 1 ON CONFLICT (queue) DO NOTHING";

/// What the operator does in a guild is visible to the tenant of that guild, and to no other.
/// In SQL: many rows: one text for every number of them.
pub(in crate::store) const INSERT_AUDIT: &str =
    "INSERT INTO audit (at, tenant, api_key, action, guild_id, target, detail, request)
    SELECT v.at, COALESCE(q.tenant, v.tenant), v.api_key, v.action, v.guild_id, v.target, v.detail, v.request
    FROM {v} LEFT JOIN guild_queues q ON q.queue = v.guild_id";

/// In SQL: a bounded batch that returns what it removed.
pub(in crate::store) const SWEEP_AUDIT: &str = "DELETE FROM audit WHERE place IN
    (SELECT place FROM audit WHERE at <= $1 ORDER BY at LIMIT $2 + 0) RETURNING api_key";

/// In SQL: a sum with a cast, and a condition on it.
pub(in crate::store) const KEY_OVER_LIMIT: &str =
    "SELECT scope, CAST(SUM(operations) AS BIGINT) AS stored FROM usage WHERE scope LIKE 'audit:%' GROUP BY scope
    HAVING SUM(operations) > $1 LIMIT 1";

/// In SQL: a bounded batch that returns what it removed.
pub(in crate::store) const TRIM_AUDIT: &str = "DELETE FROM audit WHERE place IN
    (SELECT place FROM audit WHERE api_key = $1 ORDER BY place LIMIT $2 + 0) RETURNING api_key";
