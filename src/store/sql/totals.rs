//! Statements of `read/totals.rs`.

use guildhall_core::operation::OperationState;

/// Number of operations in each state that are read to find the one that waits longest. They are read in the order of
/// acceptance, which differs from the order of waiting only for operations that were scheduled.
const OLDEST_READ: u32 = 256;

/// Number of operations in each of these states.
/// In SQL: one count for each state, each from the index by state: grouping would also read finished operations.
pub(in crate::store) fn depths(states: impl Iterator<Item = OperationState>) -> String {
    let count = |state: OperationState| {
        format!("SELECT '{0}' AS state, COUNT(*) AS depth FROM operations WHERE state = '{0}'", state.name())
    };
    states.map(count).collect::<Vec<_>>().join(" UNION ALL ")
}

/// Since when the operation waits that waits longest in each of these states.
/// In SQL: a bounded read for each state.
pub(in crate::store) fn oldest_waiting<const N: usize>(states: [OperationState; N]) -> String {
    let oldest = |state: OperationState| {
        format!(
            "SELECT '{0}' AS state, MIN(w.since) AS since FROM (SELECT COALESCE(o.joined_at, o.created_at) AS since
            FROM operations o WHERE o.state = '{0}' ORDER BY o.id LIMIT {OLDEST_READ}) AS w",
            state.name()
        )
    };
    states.map(oldest).join(" UNION ALL ")
}

/// In SQL: a condition on other tables, in the text of the index that it uses.
pub(in crate::store) const NEXT_DUE: &str = "SELECT ready_at FROM guild_queues
    WHERE owner IS NULL AND paused = 0 AND ready_at IS NOT NULL
    AND NOT EXISTS (SELECT 1 FROM switches WHERE name = $1 AND is_on = 1) ORDER BY ready_at LIMIT 1";
