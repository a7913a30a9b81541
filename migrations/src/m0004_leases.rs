//! Leases: named locks that expire.

use crate::Step;

pub(crate) const STEP: Step = Step { name: "0004_leases", up: UP, down: DOWN };

const UP: &[&str] = &[
    // `token` and `holder` are NULL after a release. The row stays for a while after that, for its fence.
    "CREATE TABLE leases (
        name TEXT PRIMARY KEY,
        token {bytes},
        fence BIGINT NOT NULL,
        holder TEXT,
        expires_at BIGINT NOT NULL
    )",
    "CREATE INDEX leases_ended ON leases (expires_at)",
];

const DOWN: &[&str] = &["DROP TABLE leases"];
