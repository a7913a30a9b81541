//! `guildhall egress`: the REST proxy.

use std::{path::PathBuf, process::ExitCode, time::Duration};

use clap::{Subcommand, ValueEnum};
use http::Method;
use serde_json::json;

use super::{
    duration,
    output::{Color, Output, Painter, TableCell, TextTable, format_time},
    remote::RemoteArgs,
};
use crate::api::dto::{ClearedWebhook, EgressTop, EgressUsageRow};
use crate::client::{ApiRequest, Client};

/// Name of the feature in errors of daemons that do not support it.
const FEATURE: &str = "the REST proxy";

#[derive(clap::Args, Debug)]
pub(super) struct Args {
    #[command(flatten)]
    remote: RemoteArgs,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List the routes and callers that use the REST proxy most
    Top {
        /// Number to sort by
        #[arg(long, value_enum, default_value_t = Measure::Calls)]
        by: Measure,
        /// Number of routes and of callers to show
        #[arg(long, value_name = "COUNT", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=200))]
        limit: u32,
    },
    /// Forget that a webhook does not exist: calls to it are sent again
    ClearWebhook {
        /// Id of the webhook
        #[arg(value_name = "ID")]
        webhook: String,
    },
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Measure {
    /// Calls
    Calls,
    /// Time that calls were delayed
    Waited,
    /// Calls that Guildhall answered itself
    Refused,
    /// Calls that Discord answered with a status of 400 or more
    Errors,
}

impl Measure {
    const fn name(self) -> &'static str {
        match self {
            Self::Calls => "calls",
            Self::Waited => "waited",
            Self::Refused => "refused",
            Self::Errors => "errors",
        }
    }
}

pub(super) fn run(file: Option<PathBuf>, args: Args) -> anyhow::Result<ExitCode> {
    args.remote.run(file, async |client, out| match args.command {
        Command::Top { by, limit } => {
            let path = format!("/v1/egress/top?by={}&limit={limit}", by.name());
            let response = client.send(&ApiRequest::new(Method::GET, path).with_feature(FEATURE)).await?.body;
            out.show_response(&response, top)?;
            Ok(ExitCode::SUCCESS)
        }
        Command::ClearWebhook { webhook } => clear_webhook(client, out, &webhook).await,
    })
}

async fn clear_webhook(client: &Client, out: &Output, webhook: &str) -> anyhow::Result<ExitCode> {
    // Idempotent.
    let api_request = ApiRequest::post("/v1/egress/webhooks/clear".to_owned())
        .with_body(json!({ "webhook_id": webhook }))
        .repeatable()
        .with_feature(FEATURE);
    let response = client.send(&api_request).await?.body;
    out.show_response(&response, |cleared: &ClearedWebhook, paint| {
        let text = match cleared.cleared {
            0 => format!("webhook {webhook} was not remembered"),
            _ => format!("calls to webhook {webhook} are sent again"),
        };
        format!("{}\n", paint.tint(&text, Color::None))
    })?;
    Ok(ExitCode::SUCCESS)
}

fn top(response: &EgressTop, paint: Painter) -> String {
    if !response.enabled {
        return "The REST proxy is not enabled (egress.enabled).\n".to_owned();
    }
    format!(
        "by {}, since {}\n{}\n{}",
        response.by,
        format_time(response.since.as_ref()),
        table("ROUTE", &response.routes).print(paint),
        table("CALLER", &response.callers).print(paint)
    )
}

fn table(title: &str, rows: &[EgressUsageRow]) -> TextTable {
    let mut table = TextTable::new(&[title, "CALLS", "WAITED", "REFUSED", "ERRORS"]);
    for EgressUsageRow { name, calls, waited_ms, refused, errors, .. } in rows {
        table.row(vec![
            name.as_str().into(),
            calls.to_string().into(),
            duration::format_duration(Duration::from_millis(*waited_ms)).into(),
            TableCell::from(refused.to_string()),
            TableCell::from(errors.to_string()),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cli::output::read;

    #[test]
    fn routes_and_callers_are_tables() {
        let usage = |name: &str| json!({"name": name, "calls": 1_204, "waited_ms": 1_500, "refused": 2, "errors": 5, "over": 0});
        let response = json!({
            "enabled": true, "by": "calls", "since": "2026-01-31T12:00:00.000Z",
            "routes": [usage("POST /channels/{id}/messages")], "callers": [usage("bot")]});
        assert_eq!(
            top(&read(&response).unwrap(), Painter::none()),
            "by calls, since 2026-01-31T12:00:00Z\n\
             ROUTE                         CALLS  WAITED  REFUSED  ERRORS\n\
             POST /channels/{id}/messages  1204   1s      2        5\n\
             \n\
             CALLER  CALLS  WAITED  REFUSED  ERRORS\n\
             bot     1204   1s      2        5\n"
        );
        let disabled = json!({"enabled": false, "by": "calls", "since": null, "routes": [], "callers": []});
        assert!(top(&read(&disabled).unwrap(), Painter::none()).contains("egress.enabled"));
    }
}
