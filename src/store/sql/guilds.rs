//! Statements of `write/guilds.rs`.

/// In SQL: many rows: one text for every number of them.
pub(in crate::store) const STORED: &str = "SELECT g.guild_id FROM {v} JOIN guild_names g ON g.guild_id = v.its_id";

/// A name that has not changed is not written again: every new session repeats all of them.
/// In SQL: many rows: one text for every number of them.
pub(in crate::store) const UPSERT: &str =
    "INSERT INTO guild_names (guild_id, name) SELECT its_id, its_name FROM {v} WHERE 1 = 1
    ON CONFLICT (guild_id) DO UPDATE SET name = excluded.name WHERE guild_names.name <> excluded.name";

/// In SQL: many rows: one text for every number of them.
pub(in crate::store) const REMOVE: &str = "DELETE FROM guild_names WHERE guild_id IN (SELECT its_id FROM {v})";
