//! Spend of named budgets.

use std::{collections::BTreeMap, sync::Arc};

use guildhall_core::budget::{BudgetName, Hour, SpendRecord};

use super::{EngineError, RunOrder, WriteJob, WriteTx, signed};
use crate::store::rows::{Columns, Rows, columns, query, row, with_rows};

/// Maximum number of rows that one sweep removes.
const SWEEP: i64 = 500;

/// Stores sums of a process. Each replaces the previous one.
pub(in crate::store) struct StoreSpend {
    pub(in crate::store) process: Arc<str>,
    pub(in crate::store) sums: Vec<SpendRecord>,
}

/// Removes hours before this one. Returns the number of rows.
pub(in crate::store) struct SweepSpend(pub(in crate::store) Hour);

impl WriteJob for StoreSpend {
    type Output = ();

    const ORDER: RunOrder = RunOrder::StoreSpend;

    fn size(&self) -> (usize, usize) {
        (self.sums.len(), 0)
    }

    async fn run_all(jobs: &[&Self], tx: &mut WriteTx<'_>) -> Result<Vec<()>, EngineError> {
        const SUMS: Columns = columns![name: Text, hour: Number, process: Text, micros: Number, calls: Number];
        // A sum that is not greater is an old one that arrives late.
        const UPSERT: &str = "INSERT INTO budget_spend (name, hour, process, micros, calls)
            SELECT name, hour, process, micros, calls FROM {v} WHERE 1 = 1
            ON CONFLICT (name, hour, process) DO UPDATE SET micros = excluded.micros, calls = excluded.calls
            WHERE excluded.calls > budget_spend.calls";
        // Sorted, so that no two processes wait for each other's rows; and each row only once.
        let mut last: BTreeMap<(&BudgetName, Hour, &str), &SpendRecord> = BTreeMap::new();
        for (process, spend) in jobs.iter().flat_map(|job| job.sums.iter().map(|spend| (&*job.process, spend))) {
            let stored = last.entry((&spend.name, spend.hour, process)).or_insert(spend);
            if spend.calls > stored.calls {
                *stored = spend;
            }
        }
        let mut rows = Rows::new();
        for ((name, hour, process), spend) in last {
            rows.push(row! {
                name.as_str(), signed(hour.number()), process, signed(spend.micros), signed(spend.calls),
            });
        }
        with_rows(tx.on, UPSERT, SUMS, rows, Vec::new()).await?;
        Ok(vec![(); jobs.len()])
    }
}

impl WriteJob for SweepSpend {
    type Output = u64;

    async fn run(&self, tx: &mut WriteTx<'_>) -> Result<u64, EngineError> {
        const FORGET: &str = "DELETE FROM budget_spend WHERE (name, hour, process) IN
            (SELECT name, hour, process FROM budget_spend WHERE hour < $1 ORDER BY hour LIMIT $2 + 0) RETURNING hour";
        Ok(query(tx.on, FORGET, vec![signed(self.0.number()).into(), SWEEP.into()]).await?.len() as u64)
    }
}
