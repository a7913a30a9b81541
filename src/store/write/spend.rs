//! Spend of named budgets.

use std::{collections::BTreeMap, sync::Arc};

use guildhall_core::budget::{BudgetName, Hour, SpendRecord};
use sea_orm::{
    ColumnTrait as _, EntityTrait as _, QueryFilter as _, QueryOrder as _, QuerySelect as _, QueryTrait as _,
    sea_query::{Expr, ExprTrait as _},
};

use super::{EngineError, RunOrder, WriteJob, WriteTx, signed};
use crate::store::sql;
use crate::store::{
    entities::budget_spend,
    rows::{Columns, Rows, columns, row, with_rows},
};

/// Maximum number of rows that one sweep removes.
const SWEEP: u64 = 500;

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
        with_rows(tx.on, sql::spend::STORE, SUMS, rows, Vec::new()).await?;
        Ok(vec![(); jobs.len()])
    }
}

impl WriteJob for SweepSpend {
    type Output = u64;

    async fn run(&self, tx: &mut WriteTx<'_>) -> Result<u64, EngineError> {
        use budget_spend::Column::{Hour as OfHour, Name, Process};
        let key = [Name, OfHour, Process];
        let oldest = budget_spend::Entity::find()
            .select_only()
            .columns(key)
            .filter(OfHour.lt(signed(self.0.number())))
            .order_by_asc(OfHour)
            .limit(SWEEP);
        let is_old = Expr::tuple(key.map(sea_orm::ColumnTrait::into_expr)).in_subquery(oldest.into_query());
        Ok(budget_spend::Entity::delete_many().filter(is_old).exec(tx.on).await?.rows_affected)
    }
}
