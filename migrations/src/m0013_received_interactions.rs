//! Interactions that this deployment has received: callers may respond only to these.

use crate::Step;

pub(crate) const STEP: Step = Step { name: "0013_received_interactions", up: UP, down: DOWN };

const UP: &[&str] = &[
    // `token` is the SHA-256 digest of an interaction's token. `guild_id` is 0 outside a guild.
    "CREATE TABLE received_interactions (
        token {bytes} NOT NULL PRIMARY KEY,
        id BIGINT NOT NULL,
        application_id BIGINT NOT NULL,
        guild_id BIGINT NOT NULL,
        received_at BIGINT NOT NULL,
        expires_at BIGINT NOT NULL
    ) {by_key}",
    "CREATE INDEX received_interactions_expiry ON received_interactions (expires_at)",
];

const DOWN: &[&str] = &["DROP TABLE received_interactions"];
