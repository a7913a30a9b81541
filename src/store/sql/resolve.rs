//! Statements of `read/resolve.rs`.

/// In SQL: many rows: one text for every number of them.
pub(in crate::store) const OBJECTS_OF_KEYS: &str = "SELECT m.kind, m.key, m.discord_id, m.channel_id FROM {v}
    JOIN managed_objects m ON m.guild_id = $2 AND m.kind = v.kind AND m.key = v.key";

/// The channel of a created message is known if the message has a key.
/// In SQL: many rows: one text for every number of them.
pub(in crate::store) const RESULTS_OF_OPERATIONS: &str =
    "SELECT o.id, o.guild_id, o.state, o.made, m.channel_id FROM {v}
    JOIN operations o ON o.id = v.op
    LEFT JOIN managed_objects m ON m.kind = 'message' AND m.discord_id = o.made";

/// Finds objects that have a key, or were created by an operation.
/// In SQL: many rows: one text for every number of them.
pub(in crate::store) const BOUND_OBJECTS: &str = "SELECT v.object FROM {v}
    WHERE EXISTS (SELECT 1 FROM managed_objects m WHERE m.kind = $2 AND m.discord_id = v.object)
    OR EXISTS (SELECT 1 FROM operations o WHERE o.made = v.object AND o.made IS NOT NULL)";
