//! `guildhall budgets`: named budgets for what a bot's brain calls.

use std::{collections::BTreeSet, path::PathBuf, process::ExitCode};

use clap::Subcommand;
use http::Method;
use serde_json::Value;

use super::{
    output::{Output, Painter, TableCell, TextTable, fields, text, time},
    remote::RemoteArgs,
};
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
            out.show(&budget, |paint| details(&budget, paint))?;
            Ok(ExitCode::SUCCESS)
        }
    })
}

async fn list(client: &Client, out: &Output) -> anyhow::Result<ExitCode> {
    let response = client.send(&ApiRequest::new(Method::GET, "/v1/budgets").with_feature(FEATURE)).await?.body;
    let budgets = response["budgets"].as_array().cloned().unwrap_or_default();
    if budgets.is_empty() {
        out.note("No budgets yet.");
    }
    out.show(&response, |paint| rows(&budgets).print(paint))?;
    Ok(ExitCode::SUCCESS)
}

/// Formats entries as rows with a column for each scalar field: `name` first, the others in alphabetical order.
fn rows(entries: &[Value]) -> TextTable {
    let plain = |value: &Value| !matches!(value, Value::Array(_) | Value::Object(_));
    let names: BTreeSet<&str> = entries
        .iter()
        .filter_map(Value::as_object)
        .flat_map(|entry| entry.iter().filter(|(_, value)| plain(value)).map(|(name, _)| name.as_str()))
        .collect();
    let mut names: Vec<&str> = names.into_iter().collect();
    names.sort_by_key(|name| *name != "name");
    let heads: Vec<String> = names.iter().map(|name| name.to_uppercase().replace('_', " ")).collect();
    let mut table = TextTable::new(&heads.iter().map(String::as_str).collect::<Vec<_>>());
    for entry in entries {
        table.row(names.iter().map(|name| TableCell::from(format_value(name, &entry[*name]))).collect());
    }
    table
}

fn format_value(name: &str, value: &Value) -> String {
    if name.ends_with("_at") || name.ends_with("_until") || name == "hour" { time(value) } else { text(value) }
}

/// Formats one entry: its scalar fields, those of nested objects, and its lists as tables.
fn details(entry: &Value, paint: Painter) -> String {
    let mut pairs: Vec<(String, TableCell)> = Vec::new();
    let mut lists = Vec::new();
    for (name, value) in entry.as_object().into_iter().flatten() {
        match value {
            Value::Object(inner) => {
                pairs.extend(
                    inner.iter().map(|(below, value)| (format!("{name}.{below}"), format_value(below, value).into())),
                );
            }
            Value::Array(list) if list.iter().any(Value::is_object) => lists.push((name, list)),
            value => pairs.push((name.clone(), format_value(name, value).into())),
        }
    }
    pairs.sort_by_key(|(name, _)| name != "name");
    let pairs: Vec<(&str, TableCell)> = pairs.iter().map(|(name, cell)| (name.as_str(), cell.clone())).collect();
    let mut out = fields(&pairs, paint);
    for (name, list) in lists {
        out += &format!("\n{name}\n{}", rows(list).print(paint));
    }
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn budget_displays_all_its_fields() {
        let budget = json!({"name": "rpc", "available": 12.5, "config": {"maximum": 100, "restore_per_second": 5},
            "spend": [{"hour": "2026-01-31T12:00:00.000Z", "cost": 40}]});
        assert_eq!(rows(std::slice::from_ref(&budget)).print(Painter::none()), "NAME  AVAILABLE\nrpc   12.5\n");
        assert_eq!(
            details(&budget, Painter::none()),
            "name                       rpc\navailable                  12.5\nconfig.maximum             100\n\
             config.restore_per_second  5\n\nspend\nCOST  HOUR\n40    2026-01-31T12:00:00Z\n"
        );
    }
}
