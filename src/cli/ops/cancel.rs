//! `guildhall ops cancel` and `guildhall ops retry`

use std::process::ExitCode;

use serde_json::{Value, json};

use super::{WaitArgs, view, wait_for};
use crate::{
    cli::output::Output,
    client::{ApiRequest, Client, ClientError, path_segment},
};

#[derive(clap::Args, Debug)]
pub(super) struct CancelArgs {
    /// IDs of the operations
    #[arg(value_name = "ID", required = true)]
    ids: Vec<String>,
}

#[derive(clap::Args, Debug)]
pub(super) struct RetryArgs {
    /// IDs of the operations
    #[arg(value_name = "ID", required = true)]
    ids: Vec<String>,
    #[command(flatten)]
    waiting: WaitArgs,
}

pub(super) async fn cancel(client: &Client, out: &Output, args: &CancelArgs) -> anyhow::Result<ExitCode> {
    let (done, failed) = send_each(client, &args.ids, "cancel").await?;
    print_each(out, &done, |_| "is cancelled".to_owned())?;
    Ok(exit_code(failed))
}

pub(super) async fn retry(client: &Client, out: &Output, args: &RetryArgs) -> anyhow::Result<ExitCode> {
    let (done, failed) = send_each(client, &args.ids, "retry").await?;
    let Some(timeout) = args.waiting.timeout() else {
        print_each(out, &done, |one| match one["redrive_of"].as_str() {
            Some(first) => format!("is the redrive of {first}"),
            None => "is due now".to_owned(),
        })?;
        return Ok(exit_code(failed));
    };
    let ids = done.iter().filter_map(|one| one["id"].as_str().map(str::to_owned)).collect();
    let waited = wait_for(client, out, ids, timeout).await?;
    Ok(if failed > 0 { ExitCode::FAILURE } else { waited })
}

/// Sends the same request for each id. Prints errors and continues with the others; returns the number of errors.
async fn send_each(client: &Client, ids: &[String], action: &str) -> anyhow::Result<(Vec<Value>, usize)> {
    let (mut done, mut failed) = (Vec::new(), 0);
    for id in ids {
        match client.send(&ApiRequest::post(format!("/v1/operations/{}/{action}", path_segment(id)))).await {
            Ok(response) => done.push(response.body),
            Err(error @ ClientError::Rejected(_)) if ids.len() > 1 && error.retry_after().is_none() => {
                eprintln!("error: {error}");
                failed += 1;
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok((done, failed))
}

fn print_each(out: &Output, done: &[Value], describe: impl Fn(&Value) -> String) -> anyhow::Result<()> {
    let value = if let [one] = done { one.clone() } else { view::list_value(done) };
    let line = |one: &Value| format!("{} {}\n", one["id"].as_str().unwrap_or_default(), describe(one));
    if done.is_empty() && !out.is_table() {
        return out.show(&json!({"operations": []}), |_| String::new());
    }
    out.show(&value, |_| done.iter().map(line).collect())
}

fn exit_code(failed: usize) -> ExitCode {
    if failed > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
