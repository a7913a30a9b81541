//! Spend of named budgets.

use std::collections::BTreeMap;

use guildhall_actors::budget::HourlySpend;
use guildhall_core::budget::{BudgetName, Hour};
use sea_orm::ConnectionTrait;

use super::{MAX_ROWS, limit};
use crate::store::{error::EngineError, rows::query, write::signed};

/// Spend by hour, split into that of this process and that of others.
pub(in crate::store) async fn since(
    on: &impl ConnectionTrait,
    process: &str,
    name: &BudgetName,
    since: Hour,
) -> Result<BTreeMap<Hour, HourlySpend>, EngineError> {
    // PostgreSQL's sums have another type than their operands.
    const SPENT: &str = "SELECT hour, CASE WHEN process = $3 THEN 1 ELSE 0 END, CAST(SUM(micros) AS BIGINT),
        CAST(SUM(calls) AS BIGINT) FROM budget_spend WHERE name = $1 AND hour >= $2
        GROUP BY 1, 2 ORDER BY 1 DESC LIMIT $4 + 0";
    let values = vec![name.as_str().into(), signed(since.number()).into(), process.into(), limit(MAX_ROWS).into()];
    let mut spent: BTreeMap<Hour, HourlySpend> = BTreeMap::new();
    for row in query(on, SPENT, values).await? {
        let hour: i64 = row.try_get_by_index(0)?;
        let own = match row.try_get_by_index::<i32>(1) {
            Ok(own) => own != 0,
            Err(_) => row.try_get_by_index::<i64>(1)? != 0,
        };
        let (micros, calls): (i64, i64) = (row.try_get_by_index(2)?, row.try_get_by_index(3)?);
        let (micros, calls) = (micros.unsigned_abs(), calls.unsigned_abs());
        let spent = spent.entry(Hour::new(hour.unsigned_abs())).or_default();
        if own {
            (spent.own_micros, spent.own_calls) = (micros, calls);
        } else {
            (spent.other_micros, spent.other_calls) = (micros, calls);
        }
    }
    Ok(spent)
}
