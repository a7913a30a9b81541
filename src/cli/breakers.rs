//! `guildhall breakers`: circuit breakers.

use std::{path::PathBuf, process::ExitCode, time::Duration};

use clap::Subcommand;
use http::Method;
use serde_json::{Value, json};

use super::{
    duration,
    output::{Color, Output, TableCell, TextTable, format_time, or_dash},
    remote::RemoteArgs,
};
use crate::api::dto::{Breaker, Breakers};
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
            out.show_response(&response, |all: &Breakers, paint| {
                if all.breakers.is_empty() {
                    out.note("No circuit breakers yet: no failures recorded.");
                }
                table(&all.breakers).print(paint)
            })?;
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

fn table(breakers: &[Breaker]) -> TextTable {
    let mut table = TextTable::new(&["KEY", "STATE", "WHY", "FAILED", "SINCE", "UNTIL"]);
    for breaker in breakers {
        let state: &str = breaker.state.as_ref();
        let tint = match state {
            "closed" => Color::Good,
            "half_open" => Color::Care,
            _ => Color::Bad,
        };
        table.row(vec![
            breaker.key.as_str().into(),
            TableCell::tinted(state, tint),
            or_dash(breaker.why.as_ref()).into(),
            format!("{}/{}", or_dash(breaker.failures), or_dash(breaker.calls)).into(),
            format_time(breaker.since.as_ref()).into(),
            format_time(breaker.until.as_ref()).into(),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::output::{Painter, read};

    #[test]
    fn each_breaker_is_a_row() {
        let open = json!({"key": "discord", "kind": "address", "state": "open", "since": "2026-01-31T12:00:00.000Z",
            "until": null, "calls": 9, "failures": 5, "slow": 0, "why": "failures"});
        assert_eq!(
            table(&[read(&open).unwrap()]).print(Painter::none()),
            "KEY      STATE  WHY       FAILED  SINCE                 UNTIL\n\
             discord  open   failures  5/9     2026-01-31T12:00:00Z  -\n"
        );
    }
}
