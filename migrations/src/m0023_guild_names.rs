//! Guilds that the bot is in, by name.

use crate::Step;

pub(crate) const STEP: Step = Step { name: "0023_guild_names", up: UP, down: DOWN };

const UP: &[&str] = &["CREATE TABLE guild_names (
        guild_id BIGINT NOT NULL PRIMARY KEY,
        name TEXT NOT NULL
    )"];

const DOWN: &[&str] = &["DROP TABLE guild_names"];
