//! `guildhall shards`: connections to Discord's gateway.

use std::{path::PathBuf, process::ExitCode};

use clap::Subcommand;
use http::Method;
use serde_json::{Value, json};

use super::{
    output::{Cell, Output, Table, Tint, text},
    remote::Remote,
};
use crate::client::{Ask, Client};

/// What an older daemon does not know.
const FEATURE: &str = "shards";

#[derive(clap::Args, Debug)]
pub(super) struct Args {
    #[command(flatten)]
    remote: Remote,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List shards
    List,
    /// Close the connections of shards, so that they RESUME over new ones; nothing is lost by it
    Restart {
        /// Which shards
        #[arg(value_name = "SHARD", required = true)]
        shards: Vec<u32>,
    },
}

pub(super) fn run(file: Option<PathBuf>, args: Args) -> anyhow::Result<ExitCode> {
    args.remote.run(file, async |client, out| match args.command {
        Command::List => list(client, out).await,
        Command::Restart { shards } => {
            for shard in &shards {
                client.send(&Ask::post(format!("/v1/shards/{shard}/restart"))).await?;
            }
            let told = |_| shards.iter().map(|shard| format!("shard {shard} connects anew\n")).collect();
            out.show(&json!({ "restarted": shards }), told)?;
            Ok(ExitCode::SUCCESS)
        }
    })
}

async fn list(client: &Client, out: &Output) -> anyhow::Result<ExitCode> {
    let answered = client.send(&Ask::new(Method::GET, "/v1/shards").about(FEATURE)).await?.body;
    let shards = answered["shards"].as_array().cloned().unwrap_or_default();
    out.show(&answered, |paint| table(&shards).print(paint))?;
    if let Some(total) = answered["total"].as_u64().filter(|total| *total != shards.len() as u64) {
        out.note(&format!("The bot has {total} shards; these are the ones that are known of here."));
    }
    Ok(ExitCode::SUCCESS)
}

fn table(shards: &[Value]) -> Table {
    let mut table = Table::new(&[
        "SHARD",
        "STATE",
        "LATENCY",
        "SEQUENCE",
        "CONFIRMED",
        "RESUMES",
        "IDENTIFIES",
        "SESSION",
        "INSTANCE",
    ]);
    for shard in shards {
        let state = text(&shard["state"]);
        let tint = match state.as_str() {
            "connected" | "ready" | "active" => Tint::Good,
            "fatal" | "closed" | "disconnected" | "down" => Tint::Bad,
            _ => Tint::Care,
        };
        let latency = shard["latency_ms"].as_u64().map_or_else(|| "-".to_owned(), |ms| format!("{ms}ms"));
        table.row(vec![
            text(&shard["id"]).into(),
            Cell::tinted(state, tint),
            latency.into(),
            text(&shard["sequence"]).into(),
            text(&shard["confirmed"]).into(),
            text(&shard["resumes"]).into(),
            text(&shard["identifies"]).into(),
            Cell::tinted(text(&shard["session"]), Tint::Dim),
            text(&shard["instance"]).into(),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::output::Paint;

    #[test]
    fn each_shard_is_a_row() {
        let one = json!({"id": 0, "state": "connected", "session": "abc", "sequence": 42, "confirmed": 41, "latency_ms": 37,
            "instance": "a", "resumes": 2, "identifies": 1});
        let row = table(&[one]).print(Paint::none()).lines().nth(1).unwrap().to_owned();
        assert_eq!(
            row.split_whitespace().collect::<Vec<_>>(),
            ["0", "connected", "37ms", "42", "41", "2", "1", "abc", "a"]
        );
    }
}
