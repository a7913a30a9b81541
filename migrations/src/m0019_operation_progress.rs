//! Progress of operations that make several calls.

use crate::Step;

pub(crate) const STEP: Step = Step { name: "0019_operation_progress", up: UP, down: DOWN };

// JSON: the steps in order. NULL for an operation that makes a single call.
const UP: &[&str] = &["ALTER TABLE operations ADD COLUMN progress TEXT"];

const DOWN: &[&str] = &["ALTER TABLE operations DROP COLUMN progress"];
