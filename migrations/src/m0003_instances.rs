//! Processes that share a store: each says again and again that it lives.

use crate::Step;

pub(crate) const STEP: Step = Step { name: "0003_instances", up: UP, down: DOWN };

/// Who was alive is of no use to whoever migrates: nobody is.
const UP: &[&str] = &[
    "DROP TABLE instances",
    // `lease_until` and `seen_at` are by the clock of the database.
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
