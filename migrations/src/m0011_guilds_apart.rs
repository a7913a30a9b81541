//! What is looked up by guild, on SQLite: there every page that a commit touches is written twice, and what is new in many guilds
//! would touch a page for each of them.

use crate::Step;

pub(crate) const STEP: Step = Step { name: "0011_guilds_apart", up: UP, down: DOWN };

const UP: &[&str] = &[
    // Those that are not done are found by their queue, which is their guild's own; some stand in another.
    "{sqlite}DROP INDEX operations_guild",
    "{sqlite}CREATE INDEX operations_guild ON operations (guild_id, id) WHERE finished_at IS NOT NULL",
    "{sqlite}CREATE INDEX operations_apart ON operations (guild_id, id)
        WHERE finished_at IS NULL AND guild_id <> queue",
    // Notes of one time lie together; whoever looks for a guild's goes from one time to the next.
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
