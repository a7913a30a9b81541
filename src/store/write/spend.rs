//! Spend of named budgets.

use std::collections::BTreeMap;

use guildhall_core::budget::{BudgetName, Hour, SpendRecord};
use sea_orm::DatabaseTransaction;

use super::{EngineError, signed};
use crate::store::rows::{ColumnType, Columns, RowValue, Rows, query, with_rows};

/// Maximum number of rows that one sweep removes.
const SWEEP: i64 = 500;

/// Stores sums. Each replaces the previous one of its process.
pub(super) async fn store_spend(on: &DatabaseTransaction, sums: &[(&str, &[SpendRecord])]) -> Result<(), EngineError> {
    const SUMS: Columns = Columns(&[
        ("name", ColumnType::Text),
        ("hour", ColumnType::Number),
        ("process", ColumnType::Text),
        ("micros", ColumnType::Number),
        ("calls", ColumnType::Number),
    ]);
    // A sum that is not greater is an old one that arrives late.
    const UPSERT: &str = "INSERT INTO budget_spend (name, hour, process, micros, calls)
        SELECT name, hour, process, micros, calls FROM {v} WHERE 1 = 1
        ON CONFLICT (name, hour, process) DO UPDATE SET micros = excluded.micros, calls = excluded.calls
        WHERE excluded.calls > budget_spend.calls";
    // Sorted, so that no two processes wait for each other's rows; and each row only once.
    let mut last: BTreeMap<(&BudgetName, Hour, &str), &SpendRecord> = BTreeMap::new();
    for (process, spend) in sums.iter().flat_map(|(process, sums)| sums.iter().map(move |spend| (*process, spend))) {
        let stored = last.entry((&spend.name, spend.hour, process)).or_insert(spend);
        if spend.calls > stored.calls {
            *stored = spend;
        }
    }
    let mut rows = Rows::new();
    for ((name, hour, process), spend) in last {
        rows.push(&[
            RowValue::Text(name.as_str()),
            RowValue::Number(signed(hour.number())),
            RowValue::Text(process),
            RowValue::Number(signed(spend.micros)),
            RowValue::Number(signed(spend.calls)),
        ]);
    }
    with_rows(on, UPSERT, SUMS, rows, Vec::new()).await?;
    Ok(())
}

/// Removes hours before this one.
pub(super) async fn sweep(on: &DatabaseTransaction, before: Hour) -> Result<u64, EngineError> {
    const FORGET: &str = "DELETE FROM budget_spend WHERE (name, hour, process) IN
        (SELECT name, hour, process FROM budget_spend WHERE hour < $1 ORDER BY hour LIMIT $2 + 0) RETURNING hour";
    Ok(query(on, FORGET, vec![signed(before.number()).into(), SWEEP.into()]).await?.len() as u64)
}
