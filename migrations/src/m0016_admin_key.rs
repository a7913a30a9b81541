//! The admin key that a process generated because none was set: its SHA-256, and the location of the key itself.

use crate::Step;

pub(crate) const STEP: Step = Step { name: "0016_admin_key", up: UP, down: DOWN };

const UP: &[&str] = &[
    // At most one row: the processes of a store accept one generated key.
    "CREATE TABLE generated_admin_key (
        id BIGINT PRIMARY KEY CHECK (id = 1),
        digest {bytes} NOT NULL,
        host TEXT NOT NULL,
        file TEXT NOT NULL,
        instance TEXT NOT NULL,
        created_at BIGINT NOT NULL
    )",
];

const DOWN: &[&str] = &["DROP TABLE generated_admin_key"];
