//! Changes of operations, operations of a deployment, and searchable messages of dead letters.

use crate::Step;

pub(crate) const STEP: Step = Step { name: "0008_operation_changes", up: UP, down: DOWN };

const UP: &[&str] = &[
    // Number of the transaction that last changed an operation. Older rows have none.
    "ALTER TABLE operations ADD COLUMN changed BIGINT NOT NULL DEFAULT 0",
    "CREATE INDEX operations_changed ON operations (changed, id)",
    "CREATE INDEX operations_deployment ON operations (deployment_id, id) WHERE deployment_id IS NOT NULL",
    // Stored numbers: `forgotten` is the highest change of all operations that were removed.
    "CREATE TABLE marks (
        name TEXT PRIMARY KEY,
        at BIGINT NOT NULL
    )",
    // The error message in lower case, for searches.
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
