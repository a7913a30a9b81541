//! `guildhall usage`: store usage of callers.

use std::{path::PathBuf, process::ExitCode};

use serde_json::Value;

use super::{
    output::{Color, TableCell, TextTable, text},
    remote::RemoteArgs,
};

#[derive(clap::Args, Debug)]
pub(super) struct Args {
    #[command(flatten)]
    remote: RemoteArgs,
}

pub(super) fn run(file: Option<PathBuf>, args: &Args) -> anyhow::Result<ExitCode> {
    args.remote.run(file, async |client, out| {
        let response = client.get("/v1/usage").await?.body;
        out.show(&response, |paint| table(&response).print(paint))?;
        Ok(ExitCode::SUCCESS)
    })
}

fn table(response: &Value) -> TextTable {
    let mut table = TextTable::new(&["BY", "NAME", "QUEUED", "MAX", "BYTES", "MAX", "USED"]);
    for scope in response["usage"].as_array().into_iter().flatten() {
        table.row(vec![
            text(&scope["by"]).into(),
            text(&scope["name"]).into(),
            text(&scope["operations"]).into(),
            text(&scope["max_operations"]).into(),
            text(&scope["bytes"]).into(),
            text(&scope["max_bytes"]).into(),
            percent(scope["ratio"].as_f64().unwrap_or_default()),
        ]);
    }
    let file = &response["file"];
    if let (Some(bytes), Some(max)) = (file["bytes"].as_u64(), file["max_bytes"].as_u64()) {
        #[expect(clippy::cast_precision_loss, reason = "a ratio for display")]
        let used = percent(bytes as f64 / max.max(1) as f64);
        let bytes = [bytes.to_string(), max.to_string()].map(TableCell::from);
        let [bytes, max] = bytes;
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
    use crate::cli::output::Painter;

    #[test]
    fn each_scope_and_the_file_is_a_row() {
        let response = json!({"usage": [{"by": "key", "name": "k1", "operations": 5, "max_operations": 10, "bytes": 2048,
            "max_bytes": null, "ratio": 0.5}], "file": {"bytes": 250, "accepts_until_bytes": 875, "max_bytes": 1000}});
        let printed = table(&response).print(Painter::none());
        let rows: Vec<Vec<&str>> = printed.lines().skip(1).map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(rows[0], ["key", "k1", "5", "10", "2048", "-", "50.0", "%"]);
        assert_eq!(rows[1], ["file", "-", "-", "-", "250", "1000", "25.0", "%"]);
    }
}
