//! Statements of `write/queues.rs`.

use crate::store::cluster::SLOT;

/// SQL expression for the time when a queue is due again: the earliest of its first operation, those that others may
/// pass, and the first scheduled one.
pub(in crate::store) const NEXT_DUE: &str =
    "(SELECT MIN(d.due) FROM (SELECT MIN(o.eligible_at) AS due FROM operations o WHERE o.queue = guild_queues.queue
    AND o.finished_at IS NULL AND o.seq > 0 AND (o.parked = 1 OR o.seq = (SELECT MIN(p.seq) FROM operations p
    WHERE p.queue = guild_queues.queue AND p.finished_at IS NULL AND p.seq > 0 AND p.parked = 0))
    UNION ALL SELECT MIN(s.joins_at) FROM operations s WHERE s.queue = guild_queues.queue
    AND s.joins_at IS NOT NULL) d)";

/// Like [`TAKE_DUE`], for several processes: takes queues of the slots of this process, and queues that have waited too
/// long for the process that should own them.
/// In SQL: a claim: the rows that others have locked are skipped.
pub(in crate::store) fn take_due_shared() -> String {
    format!(
        "UPDATE guild_queues SET owner = $1, fence = fence + 1 WHERE queue IN
        (SELECT queue FROM guild_queues WHERE owner IS NULL AND paused = 0 AND ready_at IS NOT NULL AND ready_at <= $2
        AND (ready_at <= $4 OR get_bit($5, {SLOT}) = 1) ORDER BY ready_at LIMIT $3 FOR UPDATE SKIP LOCKED)
        RETURNING queue, fence, paused, ready_at"
    )
}

/// Frees the queues of all other processes.
/// In SQL: an expression over several rows of another table.
pub(in crate::store) fn free_others() -> String {
    format!(
        "UPDATE guild_queues SET owner = NULL, fence = fence + 1, ready_at = {NEXT_DUE}
        WHERE owner IS NOT NULL AND owner <> $1 RETURNING queue"
    )
}

/// Frees queues, if their fences are these.
/// In SQL: many rows: one text for every number of them.
pub(in crate::store) fn free_held() -> String {
    format!(
        "UPDATE guild_queues SET owner = NULL, fence = fence + 1, ready_at = {NEXT_DUE}
        FROM {{v}} WHERE queue = v.line AND fence = v.held"
    )
}

/// Frees queues of dead processes, after they were locked.
/// In SQL: many rows: one text for every number of them.
pub(in crate::store) fn free() -> String {
    format!(
        "UPDATE guild_queues SET owner = NULL, fence = fence + 1, ready_at = {NEXT_DUE} FROM {{v}} WHERE queue = v.line
        RETURNING queue"
    )
}

/// Releases queues of this process.
/// In SQL: many rows: one text for every number of them.
pub(in crate::store) fn release() -> String {
    format!(
        "UPDATE guild_queues SET owner = NULL, ready_at = {NEXT_DUE} FROM {{v}}
        WHERE queue = v.line AND fence = v.held AND (owner = $2 OR owner IS NULL) RETURNING queue, fence"
    )
}

/// In SQL: an expression over several rows of another table.
pub(in crate::store) fn refresh_ready_at() -> String {
    format!("UPDATE guild_queues SET ready_at = {NEXT_DUE} WHERE queue = $1 AND owner IS NULL")
}

/// Makes queues due in which an operation waits for the gate. The condition is as `Failure` is serialized: the field exists
/// only if the gate holds the operation.
/// In SQL: a bounded batch that returns what it changed.
pub(in crate::store) fn release_held(is_shared: bool) -> String {
    let page = if is_shared { "LIMIT $2 FOR NO KEY UPDATE OF q" } else { "LIMIT $2 + 0" };
    format!(
        "UPDATE guild_queues SET ready_at = $1 WHERE queue IN (SELECT q.queue FROM guild_queues q
        WHERE q.owner IS NULL AND q.paused = 0 AND q.ready_at > $1 AND EXISTS (SELECT 1 FROM operations o
        WHERE o.queue = q.queue AND o.finished_at IS NULL AND o.state IN ('delayed', 'reconciling')
        AND o.error LIKE '%\"held_by\":%') ORDER BY q.queue {page}) RETURNING queue"
    )
}

/// In SQL: it is [`LOCK_OWNED`] without a lock.
pub(in crate::store) const SELECT_OWNED: &str = "SELECT queue, fence FROM guild_queues WHERE owner = $1";

/// In SQL: it locks the rows in their order.
pub(in crate::store) const LOCK_OWNED: &str =
    "SELECT queue, fence FROM guild_queues WHERE owner = $1 ORDER BY queue FOR UPDATE";

/// In SQL: a lock that does not conflict with a heartbeat.
pub(in crate::store) const LOCK_INSTANCE: &str = "SELECT 1 FROM instances WHERE id = $1 FOR KEY SHARE";

/// Takes due queues, the longest waiting first.
/// In SQL: it changes rows and returns them in one statement.
pub(in crate::store) const TAKE_DUE: &str = "UPDATE guild_queues SET owner = $1, fence = fence + 1 WHERE queue IN
    (SELECT queue FROM guild_queues WHERE owner IS NULL AND paused = 0 AND ready_at IS NOT NULL AND ready_at <= $2
    ORDER BY ready_at LIMIT $3 + 0) RETURNING queue, fence, paused, ready_at";

/// Queues of interactions and users are temporary; empty ones are removed.
/// In SQL: a condition on other tables, in the text of the index that it uses.
pub(in crate::store) const FORGET_EMPTY: &str =
    "DELETE FROM guild_queues WHERE queue IN (SELECT q.queue FROM guild_queues q
    WHERE q.queue < 0 AND q.pending = 0 AND q.owner IS NULL AND q.paused = 0
    AND NOT EXISTS (SELECT 1 FROM operations o WHERE o.queue = q.queue) LIMIT 10000)";

/// In SQL: many rows: one text for every number of them.
pub(in crate::store) const LOCK: &str =
    "SELECT q.queue, q.owner FROM guild_queues q WHERE q.queue IN (SELECT line FROM {v})
    ORDER BY q.queue FOR NO KEY UPDATE OF q";

/// In SQL: a lock of PostgreSQL.
pub(in crate::store) const LOCK_NAME: &str =
    "SELECT 1 FROM pg_advisory_xact_lock(hashtextextended(current_schema() || '/guildhall/' || $1, 0))";

/// In SQL: many rows: one text for every number of them.
pub(in crate::store) const SELECT_OF_OPERATIONS: &str = "SELECT o.queue FROM {v} JOIN operations o ON o.id = v.op";

/// In SQL: many rows: one text for every number of them.
pub(in crate::store) const CREATE: &str = "INSERT INTO guild_queues (queue, tenant, next_seq, pending, paused, fence)
    SELECT line, 'default', 1, 0, 0, $2 FROM {v} WHERE 1 = 1 ON CONFLICT DO NOTHING";

/// In SQL: many rows: one text for every number of them.
pub(in crate::store) const TAKE: &str = "UPDATE guild_queues SET owner = $2, fence = fence + 1 FROM {v}
    WHERE queue = v.line AND owner IS NULL RETURNING queue, fence, paused, ready_at";

/// In SQL: a claim: the rows that others have locked are skipped.
pub(in crate::store) const TAKE_SHARED: &str = "UPDATE guild_queues SET owner = $2, fence = fence + 1 WHERE queue IN
    (SELECT q.queue FROM guild_queues q WHERE q.queue IN (SELECT line FROM {v}) AND q.owner IS NULL
    FOR UPDATE OF q SKIP LOCKED) RETURNING queue, fence, paused, ready_at";

/// In SQL: a conditional upsert, or one that returns what is stored.
pub(in crate::store) const PAUSE_ALL: &str = "INSERT INTO switches (name, is_on) VALUES ($1, $2)
    ON CONFLICT (name) DO UPDATE SET is_on = excluded.is_on";

/// In SQL: a condition on an optional tenant, in one text.
pub(in crate::store) const PAUSE_KEYED: &str =
    "UPDATE guild_queues SET paused = $2 WHERE queue = $1 AND tenant = COALESCE($3, tenant)";

/// In SQL: a conditional upsert, or one that returns what is stored.
pub(in crate::store) const PAUSE_GUILD: &str =
    "INSERT INTO guild_queues (queue, tenant, next_seq, pending, paused, fence)
    VALUES ($1, COALESCE($3, 'default'), 1, 0, $2, $4) ON CONFLICT (queue) DO UPDATE SET paused = excluded.paused
    WHERE guild_queues.tenant = COALESCE($3, guild_queues.tenant)";
