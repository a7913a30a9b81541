//! When a scheduled operation took a position in its queue: from then on it waits.

use crate::Step;

pub(crate) const STEP: Step = Step { name: "0022_operation_joined", up: UP, down: DOWN };

const UP: &[&str] = &[
    // NULL if it was never scheduled, or joined while a program without this migration ran.
    "ALTER TABLE operations ADD COLUMN joined_at BIGINT",
];

const DOWN: &[&str] = &["ALTER TABLE operations DROP COLUMN joined_at"];
