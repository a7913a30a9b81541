//! `guildhall usage`: store usage of callers.

use std::{path::PathBuf, process::ExitCode};

use super::{
    output::{Color, TableCell, TextTable, or_dash},
    remote::RemoteArgs,
};
use crate::api::dto::StoreUsage;

#[derive(clap::Args, Debug)]
pub(super) struct Args {
    #[command(flatten)]
    remote: RemoteArgs,
}

pub(super) fn run(file: Option<PathBuf>, args: &Args) -> anyhow::Result<ExitCode> {
    args.remote.run(file, async |client, out| {
        let response = client.get("/v1/usage").await?.body;
        out.show_response(&response, |usage, paint| table(usage).print(paint))?;
        Ok(ExitCode::SUCCESS)
    })
}

fn table(usage: &StoreUsage) -> TextTable {
    let mut table = TextTable::new(&["BY", "NAME", "QUEUED", "MAX", "BYTES", "MAX", "USED"]);
    for scope in &usage.usage {
        table.row(vec![
            scope.by.to_string().into(),
            scope.name.as_str().into(),
            scope.operations.to_string().into(),
            or_dash(scope.max_operations).into(),
            scope.bytes.to_string().into(),
            or_dash(scope.max_bytes).into(),
            percent(scope.ratio),
        ]);
    }
    if let Some(file) = &usage.file {
        #[expect(clippy::cast_precision_loss, reason = "a ratio for display")]
        let used = percent(file.bytes as f64 / file.max_bytes.max(1) as f64);
        let [bytes, max] = [file.bytes, file.max_bytes].map(|bytes| TableCell::from(bytes.to_string()));
        table.row(vec!["file".into(), "-".into(), "-".into(), "-".into(), bytes, max, used]);
    }
    table
}

/// Formats the used part of a limit, coloured if little is left.
fn percent(ratio: f64) -> TableCell {
    let text = format!("{:.1} %", ratio * 100.0);
    if ratio >= 0.8 { TableCell::tinted(text, Color::Care) } else { text.into() }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cli::output::{Painter, read};

    #[test]
    fn each_scope_and_the_file_is_a_row() {
        let response = json!({"usage": [{"by": "key", "name": "k1", "operations": 5, "max_operations": 10, "bytes": 2048,
            "max_bytes": null, "ratio": 0.5}], "file": {"bytes": 250, "accepts_until_bytes": 875, "max_bytes": 1000}});
        let printed = table(&read(&response).unwrap()).print(Painter::none());
        let rows: Vec<Vec<&str>> = printed.lines().skip(1).map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(rows[0], ["key", "k1", "5", "10", "2048", "-", "50.0", "%"]);
        assert_eq!(rows[1], ["file", "-", "-", "-", "250", "1000", "25.0", "%"]);
    }
}
