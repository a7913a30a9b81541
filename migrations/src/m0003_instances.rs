//! Processes that share a store: each renews its lease with heartbeats.

use crate::Step;

pub(crate) const STEP: Step = Step { name: "0003_instances", up: UP, down: DOWN };

/// Existing rows need no migration: no process is alive during it.
const UP: &[&str] = &[
    "DROP TABLE instances",
    // `lease_until` and `seen_at` use the clock of the database.
    "CREATE TABLE instances (
        id {uuid} PRIMARY KEY,
        name TEXT NOT NULL,
        started_at BIGINT NOT NULL,
        seen_at BIGINT NOT NULL,
        lease_until BIGINT NOT NULL,
        leaving BIGINT NOT NULL
    )",
];

const DOWN: &[&str] = &[
    "DROP TABLE instances",
    "CREATE TABLE instances (
        id {uuid} PRIMARY KEY,
        epoch BIGINT NOT NULL UNIQUE,
        started_at BIGINT NOT NULL
    )",
];
