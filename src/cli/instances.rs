//! `guildhall instances`: the processes that share the store.

use std::{path::PathBuf, process::ExitCode, time::Duration};

use super::{
    duration,
    output::{Color, TableCell, TextTable, format_time, or_dash},
    remote::RemoteArgs,
};
use crate::api::dto::{Instance, Instances};

#[derive(clap::Args, Debug)]
pub(super) struct Args {
    #[command(flatten)]
    remote: RemoteArgs,
}

pub(super) fn run(file: Option<PathBuf>, args: &Args) -> anyhow::Result<ExitCode> {
    args.remote.run(file, async |client, out| {
        let response = client.get("/v1/instances").await?.body;
        out.show_response(&response, |all: &Instances, paint| table(&all.instances).print(paint))?;
        Ok(ExitCode::SUCCESS)
    })
}

fn table(instances: &[Instance]) -> TextTable {
    let mut table = TextTable::new(&["ID", "NAME", "STATUS", "QUEUES", "SHARDS", "LAST SEEN", "LEASE", "STARTED"]);
    let millis = |ms: u64| duration::format_duration(Duration::from_millis(ms));
    for instance in instances {
        let status = match (instance.leaving, instance.arriving) {
            (true, _) => TableCell::tinted("leaving", Color::Care),
            (false, true) => TableCell::tinted("arriving", Color::Care),
            (false, false) => TableCell::tinted("active", Color::Good),
        };
        let own = if instance.is_self { " (self)" } else { "" };
        table.row(vec![
            instance.id.as_str().into(),
            format!("{}{own}", instance.name).into(),
            status,
            instance.queues.to_string().into(),
            ranges(&instance.shards).into(),
            format!("{} ago", millis(instance.lag_ms)).into(),
            or_dash(instance.lease_left_ms.map(millis)).into(),
            format_time(&instance.started_at).into(),
        ]);
    }
    table
}

/// Formats consecutive numbers as ranges: `0-3, 7`.
fn ranges(numbers: &[u32]) -> String {
    let mut numbers = numbers.to_vec();
    numbers.sort_unstable();
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for number in numbers {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == number => *last = number,
            _ => ranges.push((number, number)),
        }
    }
    let texts = |(first, last): (u32, u32)| if first == last { first.to_string() } else { format!("{first}-{last}") };
    let texts: Vec<_> = ranges.into_iter().map(texts).collect();
    if texts.is_empty() { "-".to_owned() } else { texts.join(", ") }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cli::output::{Painter, read};

    #[test]
    fn consecutive_shards_are_a_range() {
        assert_eq!((ranges(&[3, 0, 1, 2, 7]), ranges(&[])), ("0-3, 7".to_owned(), "-".to_owned()));
    }

    #[test]
    fn each_process_is_a_row() {
        let one = json!({"id": "1", "name": "a", "is_self": true, "started_at": "2026-01-31T12:00:00.123Z", "lag_ms": 1200,
            "lease_left_ms": null, "arriving": false, "leaving": true, "queues": 12, "highest_fence": 3, "shards": [0, 1]});
        let row = table(&[read(&one).unwrap()]).print(Painter::none()).lines().nth(1).unwrap().to_owned();
        assert_eq!(
            row.split("  ").filter(|part| !part.is_empty()).map(str::trim).collect::<Vec<_>>(),
            ["1", "a (self)", "leaving", "12", "0-1", "1s ago", "-", "2026-01-31T12:00:00Z"]
        );
    }
}
