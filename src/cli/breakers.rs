//! `guildhall breakers`: circuit breakers.

use std::{path::PathBuf, process::ExitCode, time::Duration};

use clap::Subcommand;
use http::Method;
use serde_json::{Value, json};

use super::{
    duration,
    output::{Color, Output, TableCell, TextTable, text, time},
    remote::RemoteArgs,
};
use crate::client::{ApiRequest, Client};

/// Name of the feature in errors of daemons that do not support it.
const FEATURE: &str = "breakers";

#[derive(clap::Args, Debug)]
pub(super) struct Args {
    #[command(flatten)]
    remote: RemoteArgs,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List circuit breakers
    List,
    /// Open a circuit breaker: it rejects all calls until it is reset or the time expires
    Force {
        /// Key of the breaker, as printed by `list`
        #[arg(value_name = "KEY")]
        breaker: String,
        /// Time to keep it open [default: until it is reset]
        #[arg(long = "for", value_name = "DURATION", value_parser = duration::parse)]
        lasts: Option<Duration>,
    },
    /// Close a circuit breaker: it allows calls again
    Reset {
        /// Key of the breaker, as printed by `list`
        #[arg(value_name = "KEY")]
        breaker: String,
    },
}

pub(super) fn run(file: Option<PathBuf>, args: Args) -> anyhow::Result<ExitCode> {
    args.remote.run(file, async |client, out| match args.command {
        Command::List => {
            let response = client.send(&ApiRequest::new(Method::GET, "/v1/breakers").with_feature(FEATURE)).await?.body;
            let breakers = response["breakers"].as_array().cloned().unwrap_or_default();
            if breakers.is_empty() {
                out.note("No circuit breakers yet: no failures recorded.");
            }
            out.show(&response, |paint| table(&breakers).print(paint))?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Force { breaker, lasts: duration } => {
            let mut body = json!({ "key": breaker });
            if let Some(duration) = duration {
                body["for_ms"] = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX).into();
            }
            let until = duration.map_or_else(
                || " until it is reset".to_owned(),
                |duration| format!(" for {}", duration::format_duration(duration)),
            );
            post_action(client, out, "force", body, &format!("{breaker} is open{until}")).await
        }
        Command::Reset { breaker } => {
            post_action(client, out, "reset", json!({ "key": breaker }), &format!("{breaker} is closed")).await
        }
    })
}

async fn post_action(
    client: &Client,
    out: &Output,
    action: &str,
    body: Value,
    message: &str,
) -> anyhow::Result<ExitCode> {
    // Idempotent.
    let api_request = ApiRequest::post(format!("/v1/breakers/{action}")).with_body(body.clone()).repeatable();
    let response = client.send(&api_request).await?.body;
    let displayed = if response.is_null() { body } else { response };
    out.show(&displayed, |paint| format!("{}\n", paint.tint(message, Color::None)))?;
    Ok(ExitCode::SUCCESS)
}

fn table(breakers: &[Value]) -> TextTable {
    let mut table = TextTable::new(&["KEY", "STATE", "WHY", "FAILED", "SINCE", "UNTIL"]);
    for breaker in breakers {
        let state = text(&breaker["state"]);
        let tint = match state.as_str() {
            "closed" => Color::Good,
            "half_open" => Color::Care,
            _ => Color::Bad,
        };
        table.row(vec![
            text(&breaker["key"]).into(),
            TableCell::tinted(state, tint),
            text(&breaker["why"]).into(),
            format!("{}/{}", text(&breaker["failures"]), text(&breaker["calls"])).into(),
            time(&breaker["since"]).into(),
            time(&breaker["until"]).into(),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::output::Painter;

    #[test]
    fn each_breaker_is_a_row() {
        let open = json!({"key": "discord", "kind": "address", "state": "open", "since": "2026-01-31T12:00:00.000Z",
            "until": null, "calls": 9, "failures": 5, "slow": 0, "why": "failures"});
        assert_eq!(
            table(&[open]).print(Painter::none()),
            "KEY      STATE  WHY       FAILED  SINCE                 UNTIL\n\
             discord  open   failures  5/9     2026-01-31T12:00:00Z  -\n"
        );
    }
}
