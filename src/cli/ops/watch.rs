//! `guildhall ops watch`

use std::{process::ExitCode, time::Duration};

use anyhow::bail;
use serde_json::Value;

use super::{Follower, ProgressReporter, report::OperationReport, view};
use crate::{
    cli::{
        duration,
        interrupt::{interrupted, unless_interrupted},
        output::{Output, read},
        suggest,
    },
    client::{Client, ClientError, OperationStream, StreamItem},
};

#[derive(clap::Args, Debug)]
pub(super) struct Args {
    /// IDs of the operations to follow until they finish; without any, follow all matching operations until Ctrl-C
    #[arg(value_name = "ID")]
    ids: Vec<String>,
    /// Follow only operations of this guild
    #[arg(long, value_name = "ID")]
    guild: Option<String>,
    /// Follow only operations of this kind
    #[arg(long, value_parser = suggest::kinds(), hide_possible_values = true, conflicts_with = "ids")]
    kind: Option<String>,
    /// Show only changes to this state
    #[arg(long, value_parser = suggest::states(), hide_possible_values = true, conflicts_with = "ids")]
    state: Option<String>,
    /// Continue after the event of the stream with this ID
    #[arg(long, value_name = "EVENT", conflicts_with = "ids")]
    after: Option<String>,
    /// Maximum time to follow operations given by ID
    #[arg(long, value_name = "DURATION", default_value = "1h", value_parser = duration::parse)]
    within: Duration,
}

pub(super) async fn run(client: &Client, out: &Output, args: Args) -> anyhow::Result<ExitCode> {
    if args.ids.is_empty() {
        return watch_all(client, out, args).await;
    }
    let mut follow = Follower::open(client, &[("guild_id", args.guild)]).await?;
    follow.follow_existing(args.ids);
    let mut reporter = ProgressReporter::printing_changes(out, follow.count());
    let result = unless_interrupted(follow.wait_until_finished(args.within, &mut reporter)).await;
    reporter.finish();
    let Some(result) = result else { return Ok(interrupted(&follow.pending_summary())) };
    result?;
    if follow.count() > 1 {
        out.note(&reporter.summary());
    }
    Ok(if follow.all_succeeded() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Prints all changes until Ctrl-C.
async fn watch_all(client: &Client, out: &Output, args: Args) -> anyhow::Result<ExitCode> {
    let given = [("guild_id", args.guild), ("kind", args.kind), ("state", args.state)];
    let opened = OperationStream::open(client, &given, args.after).await;
    let mut feed = match opened {
        Ok(feed) => feed,
        Err(error @ ClientError::Unsupported { .. }) => {
            bail!("{error}. Without the stream, only operations given by ID can be followed");
        }
        Err(error) => return Err(error.into()),
    };
    let mut greeting = Some("Following operations; press Ctrl-C to stop.");
    loop {
        let next = async {
            greeting.take().inspect(|greeting| out.note(greeting));
            feed.next().await
        };
        // The end that the user chooses; nothing was interrupted.
        let Some(next) = unless_interrupted(next).await else {
            out.note("Stopped following; the operations continue.");
            return Ok(ExitCode::SUCCESS);
        };
        match next? {
            StreamItem::Operation(operation) => print_change(out, &operation)?,
            StreamItem::Gap => {
                eprintln!("some changes were missed: the stream was disconnected for too long");
            }
        }
    }
}

fn print_change(out: &Output, operation: &Value) -> anyhow::Result<()> {
    let report: Option<OperationReport> = out.is_table().then(|| read(operation)).transpose()?;
    out.show_next(operation, |paint| report.map_or_else(String::new, |report| view::line(&report, paint)))
}
