//! Statements of `write/outcome.rs`.

/// Changes operations that are not finished, if the caller owns their queues. Returns which related rows exist for
/// those that it finishes.
/// In SQL: many rows: one text for every number of them.
pub(in crate::store) const UPDATE: &str = "UPDATE operations SET state = v.state, attempts = v.attempts, delays = v.delays,
    eligible_at = v.eligible_at, parked = v.parked, error = v.error, result = v.result,
    made = COALESCE(v.made, operations.made), progress = COALESCE(v.progress, operations.progress), updated_at = v.at, finished_at = v.finished_at, bytes = operations.bytes + v.grown,
    changed = {changed}
    FROM {v}, guild_queues q
    WHERE operations.id = v.op AND operations.queue = v.line AND operations.finished_at IS NULL
    AND q.queue = v.line AND q.fence = v.held AND q.owner = $2
    RETURNING id, CAST(CASE WHEN operations.finished_at IS NULL THEN 0 ELSE
    CASE WHEN EXISTS (SELECT 1 FROM idempotency k WHERE k.operation_id = operations.id) THEN 1 ELSE 0 END
    + CASE WHEN EXISTS (SELECT 1 FROM operation_refs r WHERE r.operation_id = operations.id) THEN 2 ELSE 0 END
    + CASE WHEN EXISTS (SELECT 1 FROM intents i WHERE i.operation_id = operations.id) THEN 4 ELSE 0 END
    END AS BIGINT) AS related, operations.caller, operations.tenant";

/// In SQL: many rows: one text for every number of them.
pub(in crate::store) const SELECT_STATUS: &str = "SELECT v.op AS id, o.state, o.attempts, o.delays, q.fence, q.owner
    FROM {v} LEFT JOIN operations o ON o.id = v.op LEFT JOIN guild_queues q ON q.queue = v.line";

/// In SQL: many rows: one text for every number of them.
pub(in crate::store) const OPEN_INTENTS: &str =
    "INSERT INTO intents (operation_id, marker, at) SELECT op, marker, at FROM {v} WHERE 1 = 1
    ON CONFLICT (operation_id) DO NOTHING";

/// In SQL: many rows: one text for every number of them.
pub(in crate::store) const SET_UNKNOWN_OUTCOME: &str =
    "UPDATE operations SET unknown_outcome = v.unknown_outcome FROM {v} WHERE id = v.op";

/// In SQL: many rows: one text for every number of them.
pub(in crate::store) const FORGET_OBJECTS: &str =
    "DELETE FROM managed_objects WHERE (kind, discord_id) IN (SELECT sort, object FROM {v})";

/// In SQL: many rows: one text for every number of them.
pub(in crate::store) const BIND_OBJECTS: &str = "INSERT INTO managed_objects
    (guild_id, kind, key, discord_id, channel_id, origin, updated_at)
    SELECT guild_id, kind, key, discord_id, channel_id, origin, updated_at FROM {v} WHERE 1 = 1
    ON CONFLICT (guild_id, kind, key) DO UPDATE SET discord_id = excluded.discord_id,
    channel_id = excluded.channel_id, origin = excluded.origin, updated_at = excluded.updated_at";

/// In SQL: many rows: one text for every number of them.
pub(in crate::store) const INSERT_DEAD_LETTERS: &str = "INSERT INTO dead_letters
    (id, tenant, queue, guild_id, kind, payload, class, error, wording, attempts, reason, created_at, died_at,
    redrive_of, caller, bounds, scopes, bytes)
    SELECT o.id, o.tenant, o.queue, o.guild_id, o.kind, o.payload, v.class, v.error, v.wording, o.attempts, o.reason,
    o.created_at, v.at, o.redrive_of, o.caller, o.bounds, o.scopes, o.bytes FROM {v} JOIN operations o ON o.id = v.op WHERE 1 = 1
    ON CONFLICT DO NOTHING RETURNING caller, tenant, bytes";
