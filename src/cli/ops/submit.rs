//! `guildhall ops submit`

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use serde_json::{Value, json};

use super::{
    Follower, WaitArgs,
    batch::{self, BatchSender},
    finish,
    report::{OperationReport, ReportList, ReportedOperation},
    view,
};
use crate::{
    cli::{
        duration, input_file,
        interrupt::{interrupted, unless_interrupted},
        output::Output,
        suggest,
    },
    client::{ApiRequest, Client, ClientError},
    random,
};

/// Maximum time that the daemon is requested to wait with its response.
const MAX_PREFER_WAIT: Duration = Duration::from_secs(60);

#[derive(clap::Args, Debug)]
pub(super) struct Args {
    /// Guild of the operation; omit it for operations without a guild
    #[arg(long, value_name = "ID")]
    guild: Option<String>,
    /// Kind of the operation
    #[arg(long, value_parser = suggest::kinds(), hide_possible_values = true, required_unless_present = "file")]
    kind: Option<String>,
    /// Payload of the operation: JSON, @FILE to read a file, or - for standard input
    #[arg(long, value_name = "JSON|@FILE|-", conflicts_with = "file")]
    payload: Option<String>,
    /// Submit all operations of a file: YAML, or JSON if the name ends with .json; - for standard input
    #[arg(short, long, value_name = "FILE", conflicts_with = "kind")]
    file: Option<PathBuf>,
    /// Idempotency key: an operation already accepted with this key does not run again. With --file, the prefix of the
    /// keys of operations that have no key [default: a random key]
    #[arg(long, value_name = "KEY")]
    idempotency_key: Option<String>,
    /// Reason to show in Discord's audit log
    #[arg(long, value_name = "TEXT", conflicts_with = "file")]
    reason: Option<String>,
    /// Time to wait before the operation may start
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, conflicts_with = "file")]
    delay: Option<Duration>,
    /// Time after which the operation expires
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, conflicts_with = "file")]
    deadline: Option<Duration>,
    /// Maximum number of attempts
    #[arg(long, value_name = "COUNT", conflicts_with = "file")]
    max_attempts: Option<u32>,
    #[command(flatten)]
    waiting: WaitArgs,
}

pub(super) async fn run(client: &Client, out: &Output, args: Args) -> anyhow::Result<ExitCode> {
    let key = args.idempotency_key.clone().unwrap_or_else(random_key);
    match args.file.clone() {
        Some(file) => many(client, out, &args, &file, &key).await,
        None => one(client, out, args, &key).await,
    }
}

async fn one(client: &Client, out: &Output, args: Args, key: &str) -> anyhow::Result<ExitCode> {
    let millis = |span: Duration| Value::from(u64::try_from(span.as_millis()).unwrap_or(u64::MAX));
    let body = batch::build_operation(vec![
        ("kind", args.kind.map(Value::from)),
        ("payload", Some(args.payload.as_deref().map(parse_payload).transpose()?.unwrap_or_else(|| json!({})))),
        ("key", Some(key.into())),
        ("reason", args.reason.map(Value::from)),
        ("delay_ms", args.delay.map(millis)),
        ("deadline_ms", args.deadline.map(millis)),
        ("max_attempts", args.max_attempts.map(Value::from)),
    ]);
    let mut request = ApiRequest::post(batch::submit_path(args.guild.as_deref())).with_body(body).repeatable();
    if let Some(timeout) = args.waiting.timeout() {
        let prefer = timeout.clamp(Duration::from_secs(1), MAX_PREFER_WAIT);
        request = request.with_header("prefer", format!("wait={}", prefer.as_secs())).with_extra_wait(prefer);
    }
    let Some(sent) = unless_interrupted(client.send(&request)).await else {
        return Ok(interrupted(&format!("the operation may have been accepted. {}", resume_command(key))));
    };
    let response = sent.map_err(|error| with_resume_hint(error, 0, 1, key))?;
    let Some(timeout) = args.waiting.timeout() else {
        out.show_response(&response.body, |report: &OperationReport, paint| view::table([report]).print(paint))?;
        return Ok(ExitCode::SUCCESS);
    };
    let operation = ReportedOperation::read(response.body)?;
    let mut follow = if operation.report.is_finished() {
        Follower::polling(client)
    } else {
        Follower::open(client, &[("guild_id", args.guild)]).await?
    };
    follow.follow_accepted(operation);
    finish(follow, out, timeout).await
}

async fn many(client: &Client, out: &Output, args: &Args, file: &Path, key: &str) -> anyhow::Result<ExitCode> {
    let operations = batch::read(file, args.guild.as_deref(), key)?;
    let count = operations.len();
    let guild =
        operations[0].guild.clone().filter(|guild| operations.iter().all(|one| one.guild.as_ref() == Some(guild)));
    // Opened before the submission, so that no change is missed.
    let follow = match args.waiting.timeout() {
        Some(timeout) => Some((Follower::open(client, &[("guild_id", guild)]).await?, timeout)),
        None => None,
    };
    let mut accepted = Vec::with_capacity(count);
    let sent = unless_interrupted(BatchSender::new(client).send(operations, &mut accepted)).await;
    let Some(sent) = sent else {
        return Ok(interrupted(&format!(
            "{} of {count} operations were accepted, and perhaps those that were being sent. Accepted ones continue in the \
             background. {}",
            accepted.len(),
            resume_command(key)
        )));
    };
    let accepted_count = accepted.len();
    accepted.sort_by_key(|(index, _)| *index);
    let accepted: Vec<Value> = accepted.into_iter().map(|(_, one)| one).collect();
    let failed = sent.map_err(|error| with_resume_hint(error, accepted_count, count, key)).err();
    match (failed, follow) {
        (None, Some((mut follow, timeout))) => {
            for one in accepted {
                follow.follow_submitted(ReportedOperation::read(one)?);
            }
            finish(follow, out, timeout).await
        }
        (failed, _) => {
            if accepted_count > 0 {
                let accepted = view::list_value(accepted);
                out.show_response(&accepted, |list: &ReportList, paint| view::table(&list.operations).print(paint))?;
            }
            failed.map_or(Ok(ExitCode::SUCCESS), Err)
        }
    }
}

/// Adds to an error how to continue without executing anything twice.
fn with_resume_hint(error: ClientError, accepted_count: usize, count: usize, key: &str) -> anyhow::Error {
    if accepted_count == 0 && !error.is_outcome_unknown() {
        return error.into();
    }
    let before = if accepted_count == 0 {
        String::new()
    } else {
        format!("{accepted_count} of {count} operations were accepted, then: ")
    };
    anyhow::anyhow!("{before}{error}\n{}", resume_command(key))
}

/// Says how to submit the rest without executing anything twice.
fn resume_command(key: &str) -> String {
    format!("Run the same with --idempotency-key {key} to continue: nothing runs twice.")
}

/// Reads a payload from its argument.
fn parse_payload(given: &str) -> anyhow::Result<Value> {
    match given.strip_prefix('@') {
        Some(path) => input_file::read(Path::new(path)),
        None if given == "-" => input_file::read(Path::new("-")),
        None => serde_json::from_str(given).map_err(|error| {
            anyhow::anyhow!("--payload is not valid JSON ({error}); to read it from a file, use --payload @FILE")
        }),
    }
}

/// Returns a new random key.
fn random_key() -> String {
    let bytes: [u8; 16] = random::bytes().unwrap_or_else(|_| fastrand::u128(..).to_le_bytes());
    format!("cli-{:032x}", u128::from_le_bytes(bytes))
}
