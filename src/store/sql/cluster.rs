//! Statements of `cluster/heartbeat.rs` and `read/instances.rs`.

/// Present time of the database's clock, in milliseconds.
pub(in crate::store) const NOW: &str = "(EXTRACT(EPOCH FROM clock_timestamp()) * 1000)::bigint";

/// Sends a notification when the transaction commits.
/// In SQL: a function of PostgreSQL.
pub(in crate::store) const NOTIFY: &str = "SELECT pg_notify($1, $2)";

/// The channel of the notifications.
/// In SQL: a function of PostgreSQL.
pub(in crate::store) const CHANNEL: &str = "SELECT left('guildhall_' || current_schema(), 63)";

/// Present time of the database.
/// In SQL: on the clock of the database.
pub(in crate::store) fn now() -> String {
    format!("SELECT {NOW}")
}

/// Extends the lease of this process.
/// In SQL: on the clock of the database.
pub(in crate::store) fn renew_lease() -> String {
    format!(
        "UPDATE instances SET seen_at = {NOW}, lease_until = {NOW} + $2, leaving = $3 WHERE id = $1
        RETURNING (SELECT COUNT(*) FROM instances i WHERE i.leaving <> $3 AND i.id = $1) AS changed, {NOW} AS now"
    )
}

/// Begins a lease.
/// In SQL: on the clock of the database.
pub(in crate::store) fn begin_lease() -> String {
    format!(
        "INSERT INTO instances (id, name, started_at, seen_at, lease_until, leaving)
        VALUES ($1, $4, $5, {NOW}, {NOW} + $2, $3)"
    )
}

/// All processes, and how much time their leases have left.
/// In SQL: on the clock of the database.
pub(in crate::store) fn members() -> String {
    format!("SELECT id, leaving, lease_until - {NOW} AS remaining FROM instances ORDER BY id")
}

/// Removes processes whose leases have ended.
/// In SQL: a claim: the rows that others have locked are skipped.
pub(in crate::store) fn remove_dead() -> String {
    format!(
        "DELETE FROM instances WHERE id IN
        (SELECT id FROM instances WHERE lease_until <= {NOW} AND id <> $1 FOR UPDATE SKIP LOCKED) RETURNING *"
    )
}

/// In SQL: it locks the rows in their order.
pub(in crate::store) fn free_shards(condition: &str) -> String {
    format!(
        "UPDATE shard_owners SET owner = NULL, fence = fence + 1, freed_at = {NOW} WHERE (shards, shard) IN
        (SELECT shards, shard FROM shard_owners WHERE {condition} ORDER BY shards, shard FOR UPDATE)"
    )
}

/// In SQL: it locks the rows in their order.
pub(in crate::store) fn lock_queues(condition: &str) -> String {
    format!("SELECT queue FROM guild_queues WHERE {condition} ORDER BY queue FOR UPDATE")
}

/// Processes with their queues. Leases use the clock of the database; an SQLite file has none of its own.
/// In SQL: on the clock of the database.
pub(in crate::store) fn instances(is_postgres: bool) -> String {
    let clock = if is_postgres { NOW } else { "CAST($2 AS BIGINT)" };
    format!(
        "SELECT i.id, i.name, i.started_at, {clock} - i.seen_at AS lag, i.lease_until - {clock} AS remaining, i.leaving,
        (SELECT COUNT(*) FROM guild_queues q WHERE q.owner = i.id) AS queues,
        (SELECT MAX(q.fence) FROM guild_queues q WHERE q.owner = i.id) AS fence
        FROM instances i ORDER BY i.started_at, i.id LIMIT $1"
    )
}
