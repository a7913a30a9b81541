//! Spend of named budgets.

use std::collections::BTreeMap;

use guildhall_actors::budget::HourlySpend;
use guildhall_core::budget::{BudgetName, Hour};
use sea_orm::{
    ColumnTrait as _, ConnectionTrait, EntityTrait as _, FromQueryResult, QueryFilter as _, QueryOrder as _,
    QuerySelect as _, sea_query::Expr,
};

use super::{MAX_ROWS, sum};
use crate::store::{entities::budget_spend, error::EngineError, rows::first_rows, write::signed};

#[derive(FromQueryResult)]
struct SpendRow {
    hour: i64,
    micros: i64,
    calls: i64,
    own_micros: i64,
    own_calls: i64,
}

/// Spend by hour, split into that of this process and that of others.
pub(in crate::store) async fn since(
    on: &impl ConnectionTrait,
    process: &str,
    name: &BudgetName,
    since: Hour,
) -> Result<BTreeMap<Hour, HourlySpend>, EngineError> {
    use budget_spend::Column::{Calls, Hour as OfHour, Micros, Name, Process};
    let of_process = |column: budget_spend::Column| {
        sum(Expr::case(Process.eq(process), column.into_expr()).finally(Expr::cust("0")).into())
    };
    let select = budget_spend::Entity::find()
        .select_only()
        .column(OfHour)
        .column_as(sum(Micros.into_expr()), "micros")
        .column_as(sum(Calls.into_expr()), "calls")
        .column_as(of_process(Micros), "own_micros")
        .column_as(of_process(Calls), "own_calls")
        .filter(Name.eq(name.as_str()))
        .filter(OfHour.gte(signed(since.number())))
        .group_by(OfHour)
        .order_by_desc(OfHour);
    let select = first_rows(on.get_database_backend(), &select, MAX_ROWS);
    let spent = |row: SpendRow| {
        let (own_micros, own_calls) = (row.own_micros.unsigned_abs(), row.own_calls.unsigned_abs());
        let other_micros = row.micros.unsigned_abs().saturating_sub(own_micros);
        let other_calls = row.calls.unsigned_abs().saturating_sub(own_calls);
        (Hour::new(row.hour.unsigned_abs()), HourlySpend { own_micros, own_calls, other_micros, other_calls })
    };
    Ok(SpendRow::find_by_statement(select).all(on).await?.into_iter().map(spent).collect())
}
