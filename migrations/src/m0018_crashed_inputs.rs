//! Inputs that ended a process by a panic, and how often: an input that did so twice is set aside.

use crate::Step;

pub(crate) const STEP: Step = Step { name: "0018_crashed_inputs", up: UP, down: DOWN };

const UP: &[&str] = &[
    // `kind` says which key columns are in use: for `operation` the UUID, for `event` session and sequence number, for
    // `inbox` these and the handler. Unused columns are empty, so that they can be part of the key.
    "CREATE TABLE crashed_inputs (
        kind TEXT NOT NULL,
        operation {uuid} NOT NULL,
        session TEXT NOT NULL,
        seq BIGINT NOT NULL,
        handler TEXT NOT NULL,
        crashes BIGINT NOT NULL,
        part TEXT NOT NULL,
        cause TEXT NOT NULL,
        first_at BIGINT NOT NULL,
        last_at BIGINT NOT NULL,
        PRIMARY KEY (kind, operation, session, seq, handler)
    ) {by_key}",
    "CREATE INDEX crashed_inputs_age ON crashed_inputs (last_at)",
];

const DOWN: &[&str] = &["DROP TABLE crashed_inputs"];
