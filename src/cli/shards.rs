//! `guildhall shards`: gateway connections.

use std::{path::PathBuf, process::ExitCode};

use clap::Subcommand;
use serde_json::json;

use super::{
    listing,
    output::{Color, Output, TableCell, TextTable, or_dash},
    remote::RemoteArgs,
};
use crate::api::dto::Shard;
use crate::client::{ApiRequest, Client, ListRequest};

/// Name of the feature in errors of daemons that do not support it.
const FEATURE: &str = "shards";

#[derive(clap::Args, Debug)]
pub(super) struct Args {
    #[command(flatten)]
    remote: RemoteArgs,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List shards
    List,
    /// Reconnect shards; they RESUME their sessions, so no events are lost
    Restart {
        /// Numbers of the shards
        #[arg(value_name = "SHARD", required = true)]
        shards: Vec<u32>,
    },
}

pub(super) fn run(file: Option<PathBuf>, args: Args) -> anyhow::Result<ExitCode> {
    args.remote.run(file, async |client, out| match args.command {
        Command::List => list(client, out).await,
        Command::Restart { shards } => {
            for shard in &shards {
                client.send(&ApiRequest::post(format!("/v1/shards/{shard}/restart"))).await?;
            }
            let text = |_| shards.iter().map(|shard| format!("shard {shard} reconnects\n")).collect();
            out.show(&json!({ "restarted": shards }), text)?;
            Ok(ExitCode::SUCCESS)
        }
    })
}

async fn list(client: &Client, out: &Output) -> anyhow::Result<ExitCode> {
    let pages = ListRequest {
        path: "/v1/shards",
        list: "shards",
        cursor: "cursor",
        filters: Vec::new(),
        max_entries: usize::MAX,
        feature: Some(FEATURE),
    };
    listing::show(client, out, pages, "No shards yet.", table).await
}

fn table(shards: &[Shard]) -> TextTable {
    let mut table = TextTable::new(&[
        "SHARD",
        "STATE",
        "LATENCY",
        "SEQUENCE",
        "CONFIRMED",
        "RESUMES",
        "IDENTIFIES",
        "INSTANCE",
        "SESSION",
    ]);
    for shard in shards {
        let state: &str = shard.state.as_ref();
        let tint = match state {
            "connected" => Color::Good,
            "elsewhere" => Color::Dim,
            "unclaimed" => Color::Bad,
            _ => Color::Care,
        };
        table.row(vec![
            shard.id.to_string().into(),
            TableCell::tinted(state, tint),
            or_dash(shard.latency_ms.map(|ms| format!("{ms}ms"))).into(),
            or_dash(shard.sequence).into(),
            or_dash(shard.confirmed).into(),
            or_dash(shard.resumes).into(),
            or_dash(shard.identifies).into(),
            or_dash(shard.instance.as_ref()).into(),
            TableCell::tinted(or_dash(shard.session.as_ref()), Color::Dim),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::output::{Painter, read};

    #[test]
    fn each_shard_is_a_row() {
        let one = json!({"id": 0, "state": "connected", "session": "abc", "sequence": 42, "confirmed": 41, "latency_ms": 37,
            "instance": "a", "resumes": 2, "identifies": 1});
        let row = table(&[read(&one).unwrap()]).print(Painter::none()).lines().nth(1).unwrap().to_owned();
        assert_eq!(
            row.split_whitespace().collect::<Vec<_>>(),
            ["0", "connected", "37ms", "42", "41", "2", "1", "a", "abc"]
        );
    }
}
