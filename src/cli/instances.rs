//! `guildhall instances`: the processes that share the store.

use std::{path::PathBuf, process::ExitCode, time::Duration};

use serde_json::Value;

use super::{
    duration,
    output::{Color, TableCell, TextTable, text, time},
    remote::RemoteArgs,
};

#[derive(clap::Args, Debug)]
pub(super) struct Args {
    #[command(flatten)]
    remote: RemoteArgs,
}

pub(super) fn run(file: Option<PathBuf>, args: &Args) -> anyhow::Result<ExitCode> {
    args.remote.run(file, async |client, out| {
        let response = client.get("/v1/instances").await?.body;
        let instances = response["instances"].as_array().cloned().unwrap_or_default();
        out.show(&response, |paint| table(&instances).print(paint))?;
        Ok(ExitCode::SUCCESS)
    })
}

fn table(instances: &[Value]) -> TextTable {
    let mut table = TextTable::new(&["ID", "NAME", "STATUS", "QUEUES", "SHARDS", "LAST SEEN", "LEASE", "STARTED"]);
    let millis = |value: &Value| {
        value.as_u64().map_or_else(|| "-".to_owned(), |ms| duration::format_duration(Duration::from_millis(ms)))
    };
    for instance in instances {
        let status = match (instance["leaving"] == true, instance["arriving"] == true) {
            (true, _) => TableCell::tinted("leaving", Color::Care),
            (false, true) => TableCell::tinted("arriving", Color::Care),
            (false, false) => TableCell::tinted("active", Color::Good),
        };
        let own = if instance["is_self"] == true { " (self)" } else { "" };
        table.row(vec![
            text(&instance["id"]).into(),
            format!("{}{own}", text(&instance["name"])).into(),
            status,
            text(&instance["queues"]).into(),
            ranges(&instance["shards"]).into(),
            format!("{} ago", millis(&instance["lag_ms"])).into(),
            millis(&instance["lease_left_ms"]).into(),
            time(&instance["started_at"]).into(),
        ]);
    }
    table
}

/// Formats consecutive numbers as ranges: `0-3, 7`.
fn ranges(numbers: &Value) -> String {
    let mut numbers: Vec<u64> = numbers.as_array().into_iter().flatten().filter_map(Value::as_u64).collect();
    numbers.sort_unstable();
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    for number in numbers {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == number => *last = number,
            _ => ranges.push((number, number)),
        }
    }
    let texts = |(first, last): (u64, u64)| if first == last { first.to_string() } else { format!("{first}-{last}") };
    let texts: Vec<_> = ranges.into_iter().map(texts).collect();
    if texts.is_empty() { "-".to_owned() } else { texts.join(", ") }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cli::output::Painter;

    #[test]
    fn consecutive_shards_are_a_range() {
        assert_eq!(ranges(&json!([3, 0, 1, 2, 7])), "0-3, 7");
        assert_eq!((ranges(&json!([])), ranges(&json!(null))), ("-".to_owned(), "-".to_owned()));
    }

    #[test]
    fn each_process_is_a_row() {
        let one = json!({"id": "1", "name": "a", "is_self": true, "started_at": "2026-01-31T12:00:00.123Z", "lag_ms": 1200,
            "lease_left_ms": null, "arriving": false, "leaving": true, "queues": 12, "highest_fence": 3, "shards": [0, 1]});
        let row = table(&[one]).print(Painter::none()).lines().nth(1).unwrap().to_owned();
        assert_eq!(
            row.split("  ").filter(|part| !part.is_empty()).map(str::trim).collect::<Vec<_>>(),
            ["1", "a (self)", "leaving", "12", "0-1", "1s ago", "-", "2026-01-31T12:00:00Z"]
        );
    }
}
