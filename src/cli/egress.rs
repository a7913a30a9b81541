//! `guildhall egress`: the REST proxy.

use std::{path::PathBuf, process::ExitCode};

use clap::Subcommand;
use serde_json::json;

use super::{
    output::{Color, Output},
    remote::RemoteArgs,
};
use crate::api::dto::ClearedWebhook;
use crate::client::{ApiRequest, Client};

/// Name of the feature in errors of daemons that do not support it.
const FEATURE: &str = "egress";

#[derive(clap::Args, Debug)]
pub(super) struct Args {
    #[command(flatten)]
    remote: RemoteArgs,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Forget that a webhook does not exist: calls to it are sent again
    ClearWebhook {
        /// Id of the webhook
        #[arg(value_name = "ID")]
        webhook: String,
    },
}

pub(super) fn run(file: Option<PathBuf>, args: Args) -> anyhow::Result<ExitCode> {
    args.remote.run(file, async |client, out| match args.command {
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
