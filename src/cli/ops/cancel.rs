//! `guildhall ops cancel` and `guildhall ops retry`

use std::process::ExitCode;

use clap::ArgGroup;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::{WaitArgs, list::OperationFilter, report::ReportList, view, wait_for};
use crate::{
    api::dto::{Cancelled, Operation, RetriedOperation},
    cli::{
        confirm::{ConfirmArgs, Count},
        interrupt::{interrupted, unless_interrupted},
        output::{Output, read},
    },
    client::{ApiRequest, Client, ClientError, path_segment},
};

#[derive(clap::Args, Debug)]
pub(super) struct CancelArgs {
    /// IDs of the operations
    #[arg(value_name = "ID", required = true)]
    ids: Vec<String>,
}

#[derive(clap::Args, Debug)]
#[command(group = ArgGroup::new("choice").args(["ids", "all"]).args(OperationFilter::ARGS).required(true).multiple(true))]
pub(super) struct RetryArgs {
    /// IDs of the operations
    #[arg(value_name = "ID", conflicts_with_all = OperationFilter::ARGS, conflicts_with_all = ["all", "limit"])]
    ids: Vec<String>,
    #[command(flatten)]
    which: OperationFilter,
    /// Select all operations that wait for a limit or an attempt, or that failed for good
    #[arg(long)]
    all: bool,
    /// Maximum number of operations, newest first
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..))]
    limit: Option<u64>,
    #[command(flatten)]
    confirm: ConfirmArgs,
    #[command(flatten)]
    waiting: WaitArgs,
}

/// States whose operations are retried by a filter that does not name one. Operations in the others run soon by themselves,
/// or are finished.
const RETRIED_STATES: [&str; 4] = ["delayed", "retrying", "dead", "needs_review"];

pub(super) async fn cancel(client: &Client, out: &Output, args: &CancelArgs) -> anyhow::Result<ExitCode> {
    let (done, failed) = send_each(client, &args.ids, "cancel").await?;
    print_each(out, done, |one: &Cancelled| format!("{} is cancelled\n", one.id))?;
    Ok(exit_code(failed))
}

pub(super) async fn retry(client: &Client, out: &Output, args: &RetryArgs) -> anyhow::Result<ExitCode> {
    let chosen;
    let ids = if args.ids.is_empty() {
        let Some(found) = choose(client, out, args).await? else { return Ok(ExitCode::FAILURE) };
        chosen = found;
        if chosen.is_empty() || args.confirm.is_dry_run() {
            return Ok(ExitCode::SUCCESS);
        }
        &chosen
    } else if args.confirm.is_dry_run() {
        let ids: Vec<Value> = args.ids.iter().map(|id| json!({"id": id})).collect();
        out.show(&view::list_value(ids), |_| format!("{} would be retried.\n", args.ids.join(", ")))?;
        return Ok(ExitCode::SUCCESS);
    } else {
        &args.ids
    };
    let Some(sent) = unless_interrupted(send_each(client, ids, "retry")).await else {
        return Ok(interrupted("some of the operations are retried already, and continue in the background"));
    };
    let (done, failed) = sent?;
    let Some(timeout) = args.waiting.timeout() else {
        print_each(out, done, |RetriedOperation { id, redrive_of, .. }| match redrive_of {
            Some(first) => format!("{id} is the redrive of {first}\n"),
            None => format!("{id} is due now\n"),
        })?;
        return Ok(exit_code(failed));
    };
    let again: Vec<RetriedOperation> = done.iter().map(read).collect::<anyhow::Result<_>>()?;
    let ids = again.iter().map(|one| one.id.to_string()).collect();
    let waited = wait_for(client, out, ids, timeout).await?;
    Ok(if failed > 0 { ExitCode::FAILURE } else { waited })
}

/// Finds the operations that the filter selects, and asks whether to retry them. `None` if the answer is no. Without a
/// confirmation, prints them.
async fn choose(client: &Client, out: &Output, args: &RetryArgs) -> anyhow::Result<Option<Vec<String>>> {
    let states = args.which.state().map_or_else(|| RETRIED_STATES.to_vec(), |state| vec![state]);
    let max = Count::max_entries(args.limit);
    let (mut found, mut is_more) = (Vec::new(), false);
    for state in states {
        let page = client.read_list(&args.which.list(Some(state), max - found.len())).await?;
        is_more |= page.next.is_some();
        found.extend(page.entries);
        if found.len() >= max {
            break;
        }
    }
    if found.is_empty() {
        out.note("No matching operations.");
        if !out.is_table() {
            out.show(&view::list_value(Vec::<Value>::new()), |_| String::new())?;
        }
        return Ok(Some(Vec::new()));
    }
    let count = Count { number: found.len(), is_more: false }.of("operation");
    if args.confirm.is_dry_run() {
        let table = |list: &ReportList, paint| view::table(&list.operations).print(paint);
        out.show_response(&view::list_value(found), table)?;
        out.note(&format!("{count} would be retried."));
        return Ok(Some(Vec::new()));
    }
    let more = if is_more { " More operations match, and are not among them." } else { "" };
    if !args.confirm.ask(&format!("Retry {count}?{more}"))? {
        return Ok(None);
    }
    let found: Vec<Operation> = found.iter().map(read).collect::<anyhow::Result<_>>()?;
    Ok(Some(found.iter().map(|one| one.id.to_string()).collect()))
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

/// Prints a line for each response; for programs, one response as it is, and several as a list.
fn print_each<T: DeserializeOwned>(
    out: &Output,
    mut done: Vec<Value>,
    line: impl Fn(&T) -> String,
) -> anyhow::Result<()> {
    let typed: Vec<T> = if out.is_table() { done.iter().map(read).collect::<anyhow::Result<_>>()? } else { Vec::new() };
    let value = if done.len() == 1 { done.remove(0) } else { view::list_value(done) };
    out.show(&value, |_| typed.iter().map(line).collect())
}

fn exit_code(failed: usize) -> ExitCode {
    if failed > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
