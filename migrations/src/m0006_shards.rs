//! Ownership of shards.

use crate::Step;

pub(crate) const STEP: Step = Step { name: "0006_shards", up: UP, down: DOWN };

const UP: &[&str] = &[
    // `owner` is an instance, or NULL since `freed_at`, which uses the clock of the database. `fence` increases with
    // every owner.
    "CREATE TABLE shard_owners (
        shards BIGINT NOT NULL,
        shard BIGINT NOT NULL,
        owner {uuid},
        fence BIGINT NOT NULL,
        freed_at BIGINT NOT NULL,
        PRIMARY KEY (shards, shard)
    )",
    "CREATE INDEX shard_owners_owner ON shard_owners (owner)",
    // Number of shards that a process still needs for its part of them.
    "ALTER TABLE instances ADD COLUMN seeks BIGINT NOT NULL DEFAULT 0",
];

const DOWN: &[&str] = &["ALTER TABLE instances DROP COLUMN seeks", "DROP TABLE shard_owners"];
