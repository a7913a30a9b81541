//! Statements of `write/cancel.rs`.

/// In SQL: it changes rows and returns them in one statement.
pub(in crate::store) const CANCEL: &str =
    "UPDATE operations SET state = 'cancelled', updated_at = $2, finished_at = $2,
        joins_at = NULL, changed = {changed}
    WHERE id = $1 AND tenant = COALESCE($3, tenant) AND state IN ('scheduled', 'queued', 'delayed') AND attempts = 0
        AND progress IS NULL AND (unknown_outcome IS NULL OR joins_at IS NOT NULL)
        AND NOT EXISTS (SELECT 1 FROM intents i WHERE i.operation_id = operations.id)
    RETURNING state, queue, caller, tenant";

/// In SQL: it changes rows and returns them in one statement.
pub(in crate::store) const EXPEDITE: &str =
    "UPDATE operations SET eligible_at = $2, updated_at = $2, changed = {changed}
    WHERE id = $1 AND tenant = COALESCE($3, tenant) AND state IN ('scheduled', 'queued', 'delayed', 'retrying')
    AND eligible_at > $2 RETURNING state, queue";

/// In SQL: a condition on an optional tenant, in one text.
pub(in crate::store) const SELECT_STATE: &str =
    "SELECT state, queue FROM operations WHERE id = $1 AND tenant = COALESCE($2, tenant)";
