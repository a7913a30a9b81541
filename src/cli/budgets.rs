//! `guildhall budgets`: named budgets for what a bot's brain calls.

use std::{path::PathBuf, process::ExitCode};

use clap::Subcommand;
use http::Method;

use super::{
    output::{Output, Painter, TableCell, TextTable, fields, format_time},
    remote::RemoteArgs,
};
use crate::api::dto::{Budget, BudgetInFull, Budgets};
use crate::client::{ApiRequest, Client, path_segment};

/// Name of the feature in errors of daemons that do not support it.
const FEATURE: &str = "budgets";

#[derive(clap::Args, Debug)]
pub(super) struct Args {
    #[command(flatten)]
    remote: RemoteArgs,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List budgets (the default)
    List,
    /// Show a budget and its spending per hour
    Show {
        /// Name of the budget
        #[arg(value_name = "NAME")]
        name: String,
        /// Number of hours to show [default: 24]
        #[arg(long, value_name = "COUNT")]
        hours: Option<u32>,
    },
}

pub(super) fn run(file: Option<PathBuf>, args: Args) -> anyhow::Result<ExitCode> {
    args.remote.run(file, async |client, out| match args.command {
        None | Some(Command::List) => list(client, out).await,
        Some(Command::Show { name, hours }) => {
            let hours = hours.map_or_else(String::new, |hours| format!("?hours={hours}"));
            let budget = client.get(format!("/v1/budgets/{}{hours}", path_segment(&name))).await?.body;
            out.show_response(&budget, details)?;
            Ok(ExitCode::SUCCESS)
        }
    })
}

async fn list(client: &Client, out: &Output) -> anyhow::Result<ExitCode> {
    let response = client.send(&ApiRequest::new(Method::GET, "/v1/budgets").with_feature(FEATURE)).await?.body;
    out.show_response(&response, |all: &Budgets, paint| {
        if all.budgets.is_empty() {
            out.note("No budgets yet.");
        }
        table(&all.budgets).print(paint)
    })?;
    Ok(ExitCode::SUCCESS)
}

fn table(budgets: &[Budget]) -> TextTable {
    let columns =
        ["name", "available", "booked", "maximum", "restore per second", "observed", "shared", "blocked until"];
    let mut table = TextTable::new(&columns.map(str::to_uppercase).each_ref().map(String::as_str));
    for budget in budgets {
        table.row(cells(budget).into_iter().map(|(_, cell)| cell).collect());
    }
    table
}

/// The fields of a budget.
fn cells(budget: &Budget) -> [(&'static str, TableCell); 8] {
    [
        ("name", budget.name.as_str().into()),
        ("available", budget.available.to_string().into()),
        ("booked", budget.booked.to_string().into()),
        ("maximum", budget.maximum.to_string().into()),
        ("restore per second", budget.restore_per_second.to_string().into()),
        ("observed", if budget.observed { "yes" } else { "no" }.into()),
        ("shared", budget.kept.to_string().into()),
        ("blocked until", format_time(budget.blocked_until.as_ref()).into()),
    ]
}

fn details(shown: &BudgetInFull, paint: Painter) -> String {
    let mut spend = TextTable::new(&["HOUR", "POINTS", "CALLS"]);
    for hour in &shown.spend {
        let (points, calls) = (hour.points.to_string(), hour.calls.to_string());
        spend.row(vec![format_time(&hour.hour).into(), points.into(), calls.into()]);
    }
    format!("{}\n{}", fields(&cells(&shown.budget), paint), spend.print(paint))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cli::output::read;

    #[test]
    fn budget_displays_all_its_fields() {
        let budget = json!({"name": "rpc", "available": 12.5, "booked": 0, "maximum": 100, "restore_per_second": 5,
            "observed": true, "kept": "alone", "blocked_until": null,
            "spend": [{"hour": "2026-01-31T12:00:00.000Z", "points": 40, "calls": 4}]});
        assert_eq!(
            table(&[read(&budget).unwrap()]).print(Painter::none()),
            "NAME  AVAILABLE  BOOKED  MAXIMUM  RESTORE PER SECOND  OBSERVED  SHARED  BLOCKED UNTIL\n\
             rpc   12.5       0       100      5                   yes       alone   -\n"
        );
        assert_eq!(
            details(&read(&budget).unwrap(), Painter::none()),
            "name                rpc\navailable           12.5\nbooked              0\nmaximum             100\n\
             restore per second  5\nobserved            yes\nshared              alone\nblocked until       -\n\n\
             HOUR                  POINTS  CALLS\n2026-01-31T12:00:00Z  40      4\n"
        );
    }
}
