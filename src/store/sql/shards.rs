//! Statements of `write/shards.rs`.

use super::cluster::NOW;

/// Number of processes that are alive and not leaving, and of shards that the others need.
/// In SQL: on the clock of the database.
pub(in crate::store) fn live() -> String {
    format!(
        "SELECT COUNT(*) AS live, COALESCE(SUM(CASE WHEN id = $1 THEN 0 ELSE seeks END), 0)::bigint AS requested
        FROM instances
        WHERE leaving <> $2 AND (id = $1 OR lease_until > {NOW})"
    )
}

/// In SQL: it changes rows and returns them in one statement.
pub(in crate::store) const SEEK: &str = "UPDATE instances SET seeks = $2 WHERE id = $1 AND seeks <> $2 RETURNING seeks";

/// In SQL: on the clock of the database.
pub(in crate::store) const CREATE: &str =
    "INSERT INTO shard_owners (shards, shard, fence, freed_at) SELECT $2, nth, $3, {now} FROM {v}
    WHERE 1 = 1 ON CONFLICT DO NOTHING";

/// A shard of a process without a row in `instances` has no owner.
/// In SQL: on the clock of the database.
pub(in crate::store) const SELECT_SHARDS: &str = "SELECT s.shard, s.fence, i.id AS owner,
    CAST(CASE WHEN s.freed_at <= {now} - $4 THEN 1 ELSE 0 END AS BIGINT) AS overdue FROM shard_owners s LEFT JOIN instances i ON i.id = s.owner
    WHERE s.shards = $1 AND s.shard >= $2 AND s.shard <= $3 ORDER BY s.shard";

/// In SQL: many rows: one text for every number of them.
pub(in crate::store) const TAKE: &str = "UPDATE shard_owners SET owner = $2, fence = fence + 1 FROM {v}
    WHERE shards = $3 AND shard = v.nth AND fence = v.held RETURNING shard, fence";

/// In SQL: a claim: the rows that others have locked are skipped.
pub(in crate::store) const TAKE_SHARED: &str =
    "UPDATE shard_owners SET owner = $2, fence = fence + 1 WHERE (shards, shard) IN
    (SELECT s.shards, s.shard FROM {v} JOIN shard_owners s ON s.shards = $3 AND s.shard = v.nth AND s.fence = v.held
    ORDER BY s.shard FOR UPDATE OF s SKIP LOCKED) RETURNING shard, fence";

/// In SQL: on the clock of the database.
pub(in crate::store) const RELEASE: &str =
    "UPDATE shard_owners SET owner = NULL, fence = fence + 1, freed_at = {now} FROM {v}
    WHERE shards = v.of_shards AND shard = v.nth AND fence = v.held AND owner = $2 RETURNING shard";
