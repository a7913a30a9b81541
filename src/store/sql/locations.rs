//! Statements of `read/locations.rs` and `write/locations.rs`.

/// Finds their guilds, and the tenants of those. A channel that an operation created under a key is found by that key.
/// In SQL: many rows: one text for every number of them.
pub(in crate::store) const SELECT_OWNERS: &str = "SELECT v.its_kind, v.its_id,
    COALESCE(c.guild_id, m.guild_id, CASE WHEN v.its_kind = 'guild' THEN v.its_id END) AS guild,
    q.tenant FROM {v}
    LEFT JOIN channel_guilds c ON c.kind = v.its_kind AND c.id = v.its_id
    LEFT JOIN managed_objects m ON m.kind = v.its_kind AND m.discord_id = v.its_id
    LEFT JOIN guild_queues q
    ON q.queue = COALESCE(c.guild_id, m.guild_id, CASE WHEN v.its_kind = 'guild' THEN v.its_id END)";

/// In SQL: many rows: one text for every number of them.
pub(in crate::store) const FORGET: &str =
    "DELETE FROM channel_guilds WHERE kind = 'channel' AND id IN (SELECT its_id FROM {v})";
