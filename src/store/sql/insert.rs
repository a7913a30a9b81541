//! Statements of `write/insert.rs`.

use crate::store::rows::{Columns, columns};

/// Columns of the rows of new operations, and the statement that inserts them.
macro_rules! operation_insert {
    ($columns:ident, $insert:ident, $state:literal $(, $more:ident)*) => {
        /// Columns of the statement.
        pub(in crate::store) const $columns: Columns = columns![
            id: Uuid, tenant: Text, queue: Number, guild_id: Number, caller: Text, packed: Number, seq: Number,
            kind: Text, payload: Text, payload_hash: Bytes, lane: Text, eligible_at: Number, deadline_at: Number,
            deployment_id: Uuid, trace: Text, reason: Text, redrive_of: Uuid, created_at: Number $(, $more: Number)*
        ];
        /// In SQL: many rows: one text for every number of them.
        pub(in crate::store) const $insert: &str = concat!(
            "INSERT INTO operations (id, tenant, queue, guild_id, caller, bounds, scopes, seq, kind, payload,
            payload_hash, lane, max_attempts, eligible_at, deadline_at, deployment_id, trace, reason, redrive_of,
            created_at, updated_at, ", $(stringify!($more), ", ",)* "state, attempts, delays, parked, bytes, changed)
            SELECT id, tenant, queue, guild_id, caller, (packed >> 24) & 3, packed & 16777215, seq, kind, payload,
            payload_hash, lane, (packed >> 26) & 255, eligible_at, deadline_at, deployment_id, trace, reason, redrive_of,
            created_at, created_at, ", $(stringify!($more), ", ",)* "'", $state, "', 0, 0, 0, packed >> 34, {changed}
            FROM {v}"
        );
    };
}

operation_insert!(OPERATIONS, INSERT, "queued");
operation_insert!(SCHEDULED, INSERT_SCHEDULED, "scheduled", joins_at, put_off);

/// Adds operations to the counts of queues, and makes the queues due when the operations are.
macro_rules! upsert {
    ($identity:literal, $condition:literal) => {
        concat!(
            "INSERT INTO guild_queues (queue, tenant, ",
            $identity,
            "next_seq, pending, paused, ready_at, fence)
            SELECT line, tenant, ",
            $identity,
            "next_seq, n, 0, ready_at, $2 FROM {v} WHERE 1 = 1
            ON CONFLICT (queue) DO UPDATE SET next_seq = excluded.next_seq,
            pending = guild_queues.pending + excluded.pending,
            ready_at = CASE WHEN guild_queues.ready_at IS NULL OR guild_queues.ready_at > excluded.ready_at
            THEN excluded.ready_at ELSE guild_queues.ready_at END",
            $condition
        )
    };
}

/// In SQL: many rows: one text for every number of them.
pub(in crate::store) const ADD_TO_QUEUES: &str = upsert!("", "");

/// The same for queues with a class and a key.
/// In SQL: many rows: one text for every number of them.
pub(in crate::store) const ADD_TO_KEYED_QUEUES: &str = upsert!(
    "class, key, ",
    " WHERE guild_queues.tenant = excluded.tenant AND guild_queues.class = excluded.class
    AND guild_queues.key = excluded.key RETURNING queue"
);

/// Another process may insert the same key at the same moment: the retry finds it.
/// In SQL: many rows: one text for every number of them.
pub(in crate::store) const INSERT_KEYS: &str = "INSERT INTO idempotency (scope, key, payload_hash, operation_id, tenant, bytes)
    SELECT scope, key, payload_hash, operation_id, tenant, bytes FROM {v} WHERE 1 = 1 ON CONFLICT DO NOTHING RETURNING key";

/// In SQL: many rows: one text for every number of them.
pub(in crate::store) const INSERT_REFS: &str = "INSERT INTO operation_refs (operation_id, target)
    SELECT operation_id, target FROM {v} WHERE 1 = 1 ON CONFLICT DO NOTHING";
