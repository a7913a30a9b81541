//! Operations as they change, those of one deployment, and the words of dead letters.

use crate::Step;

pub(crate) const STEP: Step = Step { name: "0008_operation_changes", up: UP, down: DOWN };

const UP: &[&str] = &[
    // The number of the transaction that touched an operation last. Those from before this have none.
    "ALTER TABLE operations ADD COLUMN changed BIGINT NOT NULL DEFAULT 0",
    "CREATE INDEX operations_changed ON operations (changed, id)",
    "CREATE INDEX operations_deployment ON operations (deployment_id, id) WHERE deployment_id IS NOT NULL",
    // Numbers to remember: `forgotten` is the highest change of all operations that were removed.
    "CREATE TABLE marks (
        name TEXT PRIMARY KEY,
        at BIGINT NOT NULL
    )",
    // What went wrong, in small letters, for whoever looks for it.
    "ALTER TABLE dead_letters ADD COLUMN wording TEXT NOT NULL DEFAULT ''",
    "UPDATE dead_letters SET wording = LOWER(error)",
];

const DOWN: &[&str] = &[
    "ALTER TABLE dead_letters DROP COLUMN wording",
    "DROP TABLE marks",
    "DROP INDEX operations_deployment",
    "DROP INDEX operations_changed",
    "ALTER TABLE operations DROP COLUMN changed",
];
