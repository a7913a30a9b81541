//! Statements of `write/spend.rs`.

/// A sum that is not greater is an old one that arrives late.
/// In SQL: many rows: one text for every number of them.
pub(in crate::store) const STORE: &str = "INSERT INTO budget_spend (name, hour, process, micros, calls)
    SELECT name, hour, process, micros, calls FROM {v} WHERE 1 = 1
    ON CONFLICT (name, hour, process) DO UPDATE SET micros = excluded.micros, calls = excluded.calls
    WHERE excluded.calls > budget_spend.calls";
