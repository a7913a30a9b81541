//! `guildhall dlq`: dead letters of operations that failed finally.

use std::{path::PathBuf, process::ExitCode};

use clap::{ArgGroup, Subcommand};
use http::Method;
use serde_json::{Map, Value, json};

use super::{
    confirm::{ConfirmArgs, Count},
    duration,
    interrupt::{interrupted, unless_interrupted},
    listing::{self, PageArgs},
    ops::{self, WaitArgs},
    output::{Color, Output, Painter, TableCell, TextTable, fields, format_time, or_dash, read},
    remote::RemoteArgs,
    suggest,
};
use crate::api::dto::{
    DeadLetter, DeadLetterPage, Discarded, Redriven, RedrivenLetter, RetriedOperation, SkippedLetter,
};
use crate::client::{ApiRequest, Client, ListRequest, path_segment};

/// Note for an empty list.
const NONE_MATCH: &str = "No matching dead letters.";
/// Maximum number of dead letters in one request.
const MAX_LETTERS: u64 = 1_000;

#[derive(clap::Args, Debug)]
pub(super) struct Args {
    #[command(flatten)]
    remote: RemoteArgs,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List dead letters, newest first
    List {
        #[command(flatten)]
        which: DeadLetterFilter,
        /// Show only dead letters that were redriven (true) or were not (false)
        #[arg(long, value_name = "BOOL")]
        redriven: Option<bool>,
        #[command(flatten)]
        wanted: PageArgs,
    },
    /// Show all details of dead letters
    Show {
        /// IDs of the dead letters
        #[arg(value_name = "ID", required = true)]
        ids: Vec<String>,
    },
    /// Redrive dead letters, given by ID or by filter, as new operations
    Redrive {
        #[command(flatten)]
        chosen: DeadLetterSelection,
        #[command(flatten)]
        confirm: ConfirmArgs,
        #[command(flatten)]
        waiting: WaitArgs,
    },
    /// Discard dead letters, given by ID or by filter
    Discard {
        #[command(flatten)]
        chosen: DeadLetterSelection,
        #[command(flatten)]
        confirm: ConfirmArgs,
    },
}

/// Filter for dead letters.
#[derive(clap::Args, Clone, Debug)]
struct DeadLetterFilter {
    /// Select only this guild
    #[arg(long, value_name = "ID")]
    guild: Option<String>,
    /// Select only this kind of operation
    #[arg(long, value_parser = suggest::kinds(), hide_possible_values = true)]
    kind: Option<String>,
    /// Select only this error class
    #[arg(long, value_parser = suggest::classes())]
    class: Option<String>,
    /// Select only errors that contain this text
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// Select only letters that died after this time: RFC 3339, or an age such as 2h
    #[arg(long, value_name = "TIME", value_parser = duration::parse_time)]
    died_after: Option<String>,
    /// Select only letters that died before this time
    #[arg(long, value_name = "TIME", value_parser = duration::parse_time)]
    died_before: Option<String>,
}

impl DeadLetterFilter {
    /// Returns the list of the dead letters that match.
    fn list(self, redriven: Option<bool>, max_entries: usize) -> ListRequest<'static> {
        let mut filters = self.query_parameters();
        filters.push(("redriven", redriven.map(|redriven| redriven.to_string())));
        ListRequest {
            path: "/v1/dead-letters",
            list: "dead_letters",
            cursor: "cursor",
            filters,
            max_entries,
            feature: None,
        }
    }

    fn query_parameters(self) -> Vec<(&'static str, Option<String>)> {
        vec![
            ("guild_id", self.guild),
            ("kind", self.kind),
            ("class", self.class),
            ("reason", self.reason),
            ("died_after", self.died_after),
            ("died_before", self.died_before),
        ]
    }
}

/// Selects dead letters by ID or by filter. `--all` must be explicit.
#[derive(clap::Args, Clone, Debug)]
#[command(group = ArgGroup::new("choice").args(["ids", "guild", "kind", "class", "reason", "died_after", "died_before", "all"])
    .required(true).multiple(true))]
struct DeadLetterSelection {
    /// IDs of the dead letters
    #[arg(value_name = "ID", conflicts_with_all = ["guild", "kind", "class", "reason", "died_after", "died_before", "all", "limit"])]
    ids: Vec<String>,
    #[command(flatten)]
    which: DeadLetterFilter,
    /// Select all dead letters
    #[arg(long)]
    all: bool,
    /// Maximum number of dead letters, oldest first
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..))]
    limit: Option<u64>,
}

impl DeadLetterSelection {
    /// Returns the filter as a request body.
    fn filter(&self) -> Map<String, Value> {
        let given = self.which.clone().query_parameters().into_iter();
        given.filter_map(|(name, value)| Some((name.to_owned(), value?.into()))).collect()
    }
}

pub(super) fn run(file: Option<PathBuf>, args: Args) -> anyhow::Result<ExitCode> {
    args.remote.run(file, async |client, out| match args.command {
        Command::List { which, redriven, wanted } => list(client, out, which, redriven, wanted).await,
        Command::Show { ids } => show(client, out, &ids).await,
        Command::Redrive { chosen, confirm, waiting } => {
            let done = unless_interrupted(redrive(client, out, chosen, confirm, waiting)).await;
            done.unwrap_or_else(|| {
                Ok(interrupted(
                    "some dead letters may be redriven already; their operations continue in the background",
                ))
            })
        }
        Command::Discard { chosen, confirm } => {
            let done = unless_interrupted(discard(client, out, chosen, confirm)).await;
            done.unwrap_or_else(|| Ok(interrupted("some dead letters may be discarded already")))
        }
    })
}

async fn list(
    client: &Client,
    out: &Output,
    which: DeadLetterFilter,
    redriven: Option<bool>,
    page: PageArgs,
) -> anyhow::Result<ExitCode> {
    let pages = which.list(redriven, page.max_entries());
    listing::show(client, out, pages, NONE_MATCH, table).await
}

fn table(letters: &[DeadLetter]) -> TextTable {
    let columns = ["ID", "KIND", "GUILD", "CLASS", "TRIES", "DIED", "REDRIVEN AS", "ERROR"];
    let mut table = TextTable::new(&columns).with_text_columns(&["ERROR"]);
    for letter in letters {
        table.row(vec![
            letter.id.to_string().into(),
            letter.kind.to_string().into(),
            or_dash(letter.guild_id.as_ref()).into(),
            letter.error.class.to_string().into(),
            letter.attempts.to_string().into(),
            format_time(&letter.died_at).into(),
            or_dash(letter.redriven_as.as_ref()).into(),
            TableCell::tinted(letter.error.message.as_str(), Color::Dim),
        ]);
    }
    table
}

async fn show(client: &Client, out: &Output, ids: &[String]) -> anyhow::Result<ExitCode> {
    let mut found = Vec::new();
    for id in ids {
        found.push(client.get(format!("/v1/dead-letters/{}", path_segment(id))).await?.body);
    }
    out.show_each("dead_letters", found, details)?;
    Ok(ExitCode::SUCCESS)
}

fn details(letter: &DeadLetter, paint: Painter) -> String {
    let message = format!("{} ({})", letter.error.message, letter.error.class);
    let pairs = [
        ("id", letter.id.to_string().into()),
        ("kind", letter.kind.to_string().into()),
        ("guild", or_dash(letter.guild_id.as_ref()).into()),
        ("payload", letter.payload.to_string().into()),
        ("reason", or_dash(letter.reason.as_ref()).into()),
        ("error", TableCell::tinted(message, Color::Bad)),
        ("tries", letter.attempts.to_string().into()),
        ("created", format_time(&letter.created_at).into()),
        ("died", format_time(&letter.died_at).into()),
        ("redrive of", or_dash(letter.redrive_of.as_ref()).into()),
        ("redriven as", or_dash(letter.redriven_as.as_ref()).into()),
    ];
    fields(&pairs, paint)
}

/// What to do with the selected dead letters.
enum Choice {
    /// Process them; at most this many, if the command selects them by a filter.
    Process(Option<u64>),
    /// Nothing, with this exit code.
    Nothing(ExitCode),
}

/// Prints what would be done, or asks whether to do it. `verb` is the command, `done` what it makes of a dead letter.
async fn choose(
    client: &Client,
    out: &Output,
    chosen: &DeadLetterSelection,
    confirm: ConfirmArgs,
    (verb, done, redriven): (&str, &str, Option<bool>),
    asks_for_ids: bool,
) -> anyhow::Result<Choice> {
    let (count, letters) = if !chosen.ids.is_empty() {
        if !confirm.is_dry_run() && !asks_for_ids {
            return Ok(Choice::Process(None));
        }
        let mut letters = Vec::new();
        for id in &chosen.ids {
            letters.push(client.get(format!("/v1/dead-letters/{}", path_segment(id))).await?.body);
        }
        (Count { number: letters.len(), is_more: false }, letters)
    } else if confirm.must_ask() {
        let max = Count::max_entries(chosen.limit);
        let page = client.read_list(&chosen.which.clone().list(redriven, max)).await?;
        let is_more = page.next.is_some() && chosen.limit.is_none_or(|limit| limit > max as u64);
        (Count { number: page.entries.len(), is_more }, page.entries)
    } else {
        return Ok(Choice::Process(chosen.limit));
    };
    let counted = count.of("dead letter");
    if confirm.is_dry_run() {
        out.show_response(
            &json!({"dead_letters": letters, "next": null, "more": count.is_more}),
            |page: &DeadLetterPage, paint| table(&page.dead_letters).print(paint),
        )?;
        out.note(&format!("{counted} would be {done}."));
        return Ok(Choice::Nothing(ExitCode::SUCCESS));
    }
    if count.number == 0 {
        return Ok(Choice::Process(Some(0)));
    }
    if !confirm.ask(&format!("{verb} {counted}?"))? {
        return Ok(Choice::Nothing(ExitCode::FAILURE));
    }
    // Not those that are added after the question; the oldest are first.
    let counted = (!count.is_more).then_some(count.number as u64);
    Ok(Choice::Process(counted.or(chosen.limit)))
}

async fn redrive(
    client: &Client,
    out: &Output,
    mut chosen: DeadLetterSelection,
    confirm: ConfirmArgs,
    waiting: WaitArgs,
) -> anyhow::Result<ExitCode> {
    match choose(client, out, &chosen, confirm, ("Redrive", "redriven", Some(false)), false).await? {
        Choice::Process(limit) => chosen.limit = limit,
        Choice::Nothing(code) => return Ok(code),
    }
    let mut summary = Redriven::default();
    for id in &chosen.ids {
        let response = client.send(&ApiRequest::post(format!("/v1/dead-letters/{}/redrive", path_segment(id)))).await?;
        let RetriedOperation { id: operation, .. } = read(&response.body)?;
        summary.operations.push(RedrivenLetter { letter: id.clone().into(), operation });
        summary.redriven += 1;
    }
    if chosen.ids.is_empty() {
        let mut remaining = chosen.limit;
        while remaining != Some(0) {
            let limit = remaining.unwrap_or(MAX_LETTERS).min(MAX_LETTERS);
            let mut body = chosen.filter();
            body.insert("limit".to_owned(), limit.into());
            let response =
                client.send(&ApiRequest::post("/v1/dead-letters/redrive").with_body(body.into())).await?.body;
            let done = summary.add(read(&response)?);
            remaining = remaining.map(|remaining| remaining.saturating_sub(done));
            if done == 0 || !summary.more || summary.stopped.is_some() {
                break;
            }
        }
    }
    let failed = !summary.skipped.is_empty() || summary.stopped.is_some();
    let code = if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS };
    let Some(timeout) = waiting.timeout() else {
        out.show(&serde_json::to_value(&summary)?, |_| to_text(&summary))?;
        return Ok(code);
    };
    eprint!("{}", to_text(&summary));
    let ids = summary.operations.iter().map(|pair| pair.operation.to_string()).collect();
    let waited = ops::wait_for(client, out, ids, timeout).await?;
    Ok(if failed { code } else { waited })
}

impl Redriven {
    /// Adds the result of another request. Returns the number of redriven dead letters.
    fn add(&mut self, step: Self) -> u64 {
        let done = step.operations.len();
        self.redriven += done;
        self.operations.extend(step.operations);
        self.skipped.extend(step.skipped);
        (self.stopped, self.more) = (step.stopped, step.more);
        done as u64
    }
}

fn to_text(summary: &Redriven) -> String {
    let again = |pair: &RedrivenLetter| format!("{} is redriven as {}\n", pair.letter, pair.operation);
    let not = |skipped: &SkippedLetter| format!("{} is not redriven: {}\n", skipped.letter, skipped.why);
    let mut out: String = summary.operations.iter().map(again).chain(summary.skipped.iter().map(not)).collect();
    out += &format!("{} redriven, {} skipped.", summary.operations.len(), summary.skipped.len());
    if let Some(reason) = &summary.stopped {
        out += &format!(" Stopped early: {reason}.");
    } else if summary.more {
        out += " More dead letters match.";
    }
    out + "\n"
}

async fn discard(
    client: &Client,
    out: &Output,
    mut chosen: DeadLetterSelection,
    confirm: ConfirmArgs,
) -> anyhow::Result<ExitCode> {
    match choose(client, out, &chosen, confirm, ("Discard", "discarded", None), confirm.must_ask()).await? {
        Choice::Process(limit) => chosen.limit = limit,
        Choice::Nothing(code) => return Ok(code),
    }
    let (mut discarded, mut more) = (0, false);
    for id in &chosen.ids {
        client.send(&ApiRequest::new(Method::DELETE, format!("/v1/dead-letters/{}", path_segment(id)))).await?;
        discarded += 1;
    }
    if chosen.ids.is_empty() {
        let mut remaining = chosen.limit;
        while remaining != Some(0) {
            let mut body = chosen.filter();
            body.insert("limit".to_owned(), remaining.unwrap_or(MAX_LETTERS).min(MAX_LETTERS).into());
            let request = ApiRequest::post("/v1/dead-letters/discard")
                .with_body(body.into())
                .with_feature("bulk discard of dead letters");
            let step: Discarded = read(&client.send(&request).await?.body)?;
            let done = step.discarded;
            (discarded, more) = (discarded + done, step.more);
            remaining = remaining.map(|remaining| remaining.saturating_sub(done));
            if done == 0 || !more {
                break;
            }
        }
    }
    let text = format!("{discarded} discarded.{}\n", if more { " More dead letters match." } else { "" });
    out.show(&json!({"discarded": discarded, "more": more}), |_| text)?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_of_several_requests_are_combined() {
        let mut sum = Redriven::default();
        let first = json!({"redriven": 1, "operations": [{"letter": "a", "operation": "b"}], "skipped": [], "more": true, "stopped": null});
        let second = json!({"redriven": 0, "operations": [], "skipped": [{"letter": "c", "why": "no"}], "more": false, "stopped": "full"});
        assert_eq!((sum.add(read(&first).unwrap()), sum.more), (1, true));
        assert_eq!((sum.add(read(&second).unwrap()), sum.more), (0, false));
        assert_eq!(
            to_text(&sum),
            "a is redriven as b\nc is not redriven: no\n1 redriven, 1 skipped. Stopped early: full.\n"
        );
        assert_eq!(sum.redriven, 1);
    }

    #[test]
    fn list_fits_a_terminal_of_80_columns() {
        let ids =
            ["0198c0de-0000-7000-8000-000000000001", "0198c0de-0000-7000-8000-000000000002", "1571715189416398849"];
        let letter = |redriven_as: Option<&str>| {
            let error = json!({"class": "restored", "message": "Discord returned 403 (code 50013): Missing Permissions",
                "status": 403, "code": 50013});
            let letter = json!({"id": ids[0], "kind": "update_permissions", "guild_id": ids[2], "payload": {},
                "reason": null, "error": error, "attempts": 20, "created_at": "2026-01-31T12:00:00.000Z",
                "died_at": "2026-01-31T12:00:00.000Z", "redrive_of": null, "redriven_as": redriven_as, "href": "/v1"});
            read::<DeadLetter>(&letter).unwrap()
        };
        for letters in [vec![letter(None)], vec![letter(None), letter(Some(ids[1]))]] {
            let printed = table(&letters).print(Painter::none().with_width(80));
            assert!(printed.lines().all(|line| line.chars().count() <= 80), "{printed}");
            let shown = ids.iter().filter(|id| printed.contains(**id)).count();
            assert_eq!(shown, letters.len() + 1, "{printed}");
        }
    }
}
