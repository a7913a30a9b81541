//! Statements of `write/usage.rs`.

/// Usage of scopes, summed over all processes.
/// In SQL: many rows: one text for every number of them.
pub(in crate::store) const USED: &str =
    "SELECT u.scope, CAST(SUM(u.operations) AS BIGINT) AS operations, CAST(SUM(u.bytes) AS BIGINT) AS bytes
    FROM {v} JOIN usage u ON u.scope = v.its_scope GROUP BY u.scope";

/// In SQL: many rows: one text for every number of them.
pub(in crate::store) const ADD: &str = "INSERT INTO usage (scope, instance, operations, bytes)
    SELECT its_scope, $2, operations, bytes FROM {v} WHERE 1 = 1
    ON CONFLICT (scope, instance) DO UPDATE
    SET operations = usage.operations + excluded.operations, bytes = usage.bytes + excluded.bytes";

/// In SQL: a conditional upsert, or one that returns what is stored.
pub(in crate::store) const MERGE: &str = "WITH gone AS (DELETE FROM usage WHERE instance <> $1
        AND NOT EXISTS (SELECT 1 FROM instances i WHERE i.id = usage.instance)
        RETURNING scope, operations, bytes)
    INSERT INTO usage (scope, instance, operations, bytes)
    SELECT scope, $1, SUM(operations), SUM(bytes) FROM gone GROUP BY scope ORDER BY scope
    ON CONFLICT (scope, instance) DO UPDATE
    SET operations = usage.operations + excluded.operations, bytes = usage.bytes + excluded.bytes";
