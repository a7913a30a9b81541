//! Spend of named budgets.

use std::collections::BTreeMap;

use guildhall_actors::budget::HourlySpend;
use guildhall_core::budget::{BudgetName, Hour};
use sea_orm::{ConnectionTrait, FromQueryResult};

use super::{MAX_ROWS, limit};
use crate::store::{error::EngineError, rows::query_as, write::signed};

#[derive(FromQueryResult)]
struct SpendRow {
    hour: i64,
    own: i64,
    micros: i64,
    calls: i64,
}

/// Spend by hour, split into that of this process and that of others.
pub(in crate::store) async fn since(
    on: &impl ConnectionTrait,
    process: &str,
    name: &BudgetName,
    since: Hour,
) -> Result<BTreeMap<Hour, HourlySpend>, EngineError> {
    // PostgreSQL's sums have another type than their operands.
    const SPENT: &str = "SELECT hour, CAST(CASE WHEN process = $3 THEN 1 ELSE 0 END AS BIGINT) AS own,
        CAST(SUM(micros) AS BIGINT) AS micros, CAST(SUM(calls) AS BIGINT) AS calls
        FROM budget_spend WHERE name = $1 AND hour >= $2 GROUP BY 1, 2 ORDER BY 1 DESC LIMIT $4 + 0";
    let values = vec![name.as_str().into(), signed(since.number()).into(), process.into(), limit(MAX_ROWS).into()];
    let mut spent: BTreeMap<Hour, HourlySpend> = BTreeMap::new();
    for row in query_as::<SpendRow>(on, SPENT, values).await? {
        let (micros, calls) = (row.micros.unsigned_abs(), row.calls.unsigned_abs());
        let spent = spent.entry(Hour::new(row.hour.unsigned_abs())).or_default();
        if row.own != 0 {
            (spent.own_micros, spent.own_calls) = (micros, calls);
        } else {
            (spent.other_micros, spent.other_calls) = (micros, calls);
        }
    }
    Ok(spent)
}
