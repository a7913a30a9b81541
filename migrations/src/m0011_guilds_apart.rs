//! Indexes by guild on SQLite: there every page that a commit changes is written twice, and new rows in many guilds
//! would change a page for each of them.

use crate::Step;

pub(crate) const STEP: Step = Step { name: "0011_guilds_apart", up: UP, down: DOWN };

const UP: &[&str] = &[
    // Pending operations are found by their queue, which is usually the guild's own; some are in another queue.
    "{sqlite}DROP INDEX operations_guild",
    "{sqlite}CREATE INDEX operations_guild ON operations (guild_id, id) WHERE finished_at IS NOT NULL",
    "{sqlite}CREATE INDEX operations_apart ON operations (guild_id, id)
        WHERE finished_at IS NULL AND guild_id <> queue",
    // Audit rows of the same time are stored together; a search for a guild's rows goes from one time to the next.
    "{sqlite}DROP INDEX audit_guild",
    "{sqlite}CREATE INDEX audit_guild ON audit (place / 1024, guild_id)",
];

const DOWN: &[&str] = &[
    "{sqlite}DROP INDEX audit_guild",
    "{sqlite}CREATE INDEX audit_guild ON audit (guild_id, place)",
    "{sqlite}DROP INDEX operations_apart",
    "{sqlite}DROP INDEX operations_guild",
    "{sqlite}CREATE INDEX operations_guild ON operations (guild_id, id)",
];
