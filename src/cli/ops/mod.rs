//! `guildhall ops`: submits, lists, follows, cancels and retries operations.

mod batch;
mod cancel;
mod follower;
mod list;
mod progress;
mod report;
mod submit;
mod view;
mod watch;

use std::{path::PathBuf, process::ExitCode, time::Duration};

use clap::Subcommand;
use serde_json::Value;

pub(super) use self::follower::Follower;
use self::progress::ProgressReporter;
use super::{
    duration,
    interrupt::{interrupted, unless_interrupted},
    output::Output,
    remote::RemoteArgs,
};
use crate::client::Client;

#[derive(clap::Args, Debug)]
pub(super) struct Args {
    #[command(flatten)]
    remote: RemoteArgs,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Submit one operation, or all operations of a file
    Submit(Box<submit::Args>),
    /// List operations, newest first
    List(Box<list::ListArgs>),
    /// Show all details of operations
    Show(list::ShowArgs),
    /// Follow operations until they finish, or all matching operations until Ctrl-C
    Watch(watch::Args),
    /// Cancel operations that were not sent yet
    Cancel(cancel::CancelArgs),
    /// Run waiting operations now, and redrive dead ones
    Retry(cancel::RetryArgs),
}

pub(super) fn run(file: Option<PathBuf>, args: Args) -> anyhow::Result<ExitCode> {
    args.remote.run(file, async |client, out| match args.command {
        Command::Submit(args) => submit::run(client, out, *args).await,
        Command::List(args) => list::list(client, out, *args).await,
        Command::Show(args) => list::show(client, out, &args).await,
        Command::Watch(args) => watch::run(client, out, args).await,
        Command::Cancel(args) => cancel::cancel(client, out, &args).await,
        Command::Retry(args) => cancel::retry(client, out, &args).await,
    })
}

/// Options for waiting until operations finish.
#[derive(clap::Args, Clone, Copy, Debug)]
pub(super) struct WaitArgs {
    /// Wait until all operations finish; the exit code is 1 unless all succeed
    #[arg(long)]
    wait: bool,
    /// Maximum time to wait
    #[arg(long, value_name = "DURATION", default_value = "10m", value_parser = duration::parse, requires = "wait")]
    wait_timeout: Duration,
}

impl WaitArgs {
    /// Returns how long to wait; `None` without `--wait`.
    pub(super) fn timeout(self) -> Option<Duration> {
        self.wait.then_some(self.wait_timeout)
    }
}

/// Waits until these operations have finished, prints them, and returns the exit code.
pub(super) async fn wait_for(
    client: &Client,
    out: &Output,
    ids: Vec<String>,
    timeout: Duration,
) -> anyhow::Result<ExitCode> {
    let mut follow = Follower::open(client, &[]).await?;
    follow.follow_existing(ids);
    finish(follow, out, timeout).await
}

/// Follows all operations until they have finished, and prints them.
async fn finish(mut follow: Follower<'_>, out: &Output, timeout: Duration) -> anyhow::Result<ExitCode> {
    let mut reporter = ProgressReporter::with_summary_only(out, follow.count());
    let result = unless_interrupted(follow.wait_until_finished(timeout, &mut reporter)).await;
    reporter.finish();
    let operations = follow.operations();
    let values: Vec<Value> = operations.iter().map(|operation| operation.value.clone()).collect();
    let table = |paint| view::table(operations.iter().map(|operation| &operation.report)).print(paint);
    out.show(&view::list_value(values), table)?;
    let Some(result) = result else { return Ok(interrupted(&follow.pending_summary())) };
    result?;
    Ok(if follow.all_succeeded() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
