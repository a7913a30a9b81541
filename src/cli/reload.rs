//! `guildhall reload`: reloads the settings of a running daemon.

use std::{path::PathBuf, process::ExitCode};

use super::{
    output::{Painter, TextTable, text},
    remote::RemoteArgs,
};
use crate::api::ReloadReport;
use crate::client::ApiRequest;

#[derive(clap::Args, Debug)]
pub(super) struct Args {
    #[command(flatten)]
    remote: RemoteArgs,
}

pub(super) fn run(file: Option<PathBuf>, args: &Args) -> anyhow::Result<ExitCode> {
    args.remote.run(file, async |client, out| {
        // Idempotent: effective settings are not applied again.
        let report = client.send(&ApiRequest::post("/v1/reload").repeatable()).await?.body;
        out.show_response(&report, format_report)?;
        Ok(ExitCode::SUCCESS)
    })
}

fn format_report(report: &ReloadReport, paint: Painter) -> String {
    let mut table = TextTable::new(&["RESULT", "WHAT", "OLD", "NEW"]).with_text_columns(&["OLD", "NEW"]);
    for (result, items) in [("changed", &report.changed), ("needs restart", &report.needs_restart)] {
        for item in items {
            table.row(vec![result.into(), item.what.as_str().into(), text(&item.old).into(), text(&item.new).into()]);
        }
    }
    for what in &report.unchanged {
        table.row(vec!["unchanged".into(), what.as_ref().into(), "".into(), "".into()]);
    }
    table.print(paint)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cli::output::read;

    #[test]
    fn changes_and_needed_restarts_are_displayed() {
        let report = json!({
            "changed": [{"what": "log.filter", "old": "info", "new": "debug"}],
            "needs_restart": [{"what": "gateway.shards", "old": 1, "new": 2}],
            "unchanged": ["certificate"],
        });
        let text = format_report(&read(&report).unwrap(), Painter::none());
        for line in ["changed log.filter info debug", "needs restart gateway.shards 1 2", "unchanged certificate"] {
            let has = |one: &str| one.split_whitespace().collect::<Vec<_>>().join(" ").starts_with(line);
            assert!(text.lines().any(has), "{line} in\n{text}");
        }
    }
}
