//! The caller of an operation, and the scopes of its key: permissions are checked again when the operation is
//! dispatched.

use crate::Step;

pub(crate) const STEP: Step = Step { name: "0012_callers", up: UP, down: DOWN };

const UP: &[&str] = &[
    // `scopes` is a bit set. Older operations were checked at acceptance only: those of the operator (`bounds` = 0)
    // keep all scopes, those of other keys have none.
    "ALTER TABLE operations ADD COLUMN caller TEXT NOT NULL DEFAULT ''",
    "ALTER TABLE operations ADD COLUMN scopes BIGINT NOT NULL DEFAULT 0",
    "ALTER TABLE dead_letters ADD COLUMN caller TEXT NOT NULL DEFAULT ''",
    "ALTER TABLE dead_letters ADD COLUMN scopes BIGINT NOT NULL DEFAULT 0",
    "UPDATE operations SET caller = 'admin', scopes = 131071 WHERE bounds = 0",
    "UPDATE dead_letters SET caller = 'admin', scopes = 131071 WHERE bounds = 0",
];

const DOWN: &[&str] = &[
    "ALTER TABLE dead_letters DROP COLUMN scopes",
    "ALTER TABLE dead_letters DROP COLUMN caller",
    "ALTER TABLE operations DROP COLUMN scopes",
    "ALTER TABLE operations DROP COLUMN caller",
];
