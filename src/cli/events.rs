//! `guildhall events`: dead events, which a handler could not handle.

use std::{path::PathBuf, process::ExitCode};

use clap::{ArgGroup, Subcommand};
use http::Method;
use serde_json::{Value, json};

use super::{
    confirm::{ConfirmArgs, Count},
    interrupt::{interrupted, unless_interrupted},
    listing::{self, PageArgs},
    output::{Color, Output, Painter, TableCell, TextTable, fields, format_time, or_dash, read, text},
    remote::RemoteArgs,
};
use crate::api::dto::{DeadEvent, DeadEventPage};
use crate::client::{ApiRequest, Client, ClientError, ListRequest, path_segment};

/// Name of the feature in errors of daemons that do not support it.
const FEATURE: &str = "single dead events";
/// Note for an empty list.
const NONE_MATCH: &str = "No matching dead events.";

#[derive(clap::Args, Debug)]
pub(super) struct Args {
    #[command(flatten)]
    remote: RemoteArgs,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List dead events, newest first
    List {
        #[command(flatten)]
        which: EventFilter,
        #[command(flatten)]
        wanted: PageArgs,
    },
    /// Show all details of dead events
    Show {
        /// Places of the events, as printed by `list`
        #[arg(value_name = "PLACE", required = true)]
        places: Vec<String>,
    },
    /// Deliver dead events to their handlers again, given by place or by filter
    Redrive {
        #[command(flatten)]
        chosen: EventSelection,
        #[command(flatten)]
        confirm: ConfirmArgs,
    },
    /// Discard dead events, given by place or by filter
    Discard {
        #[command(flatten)]
        chosen: EventSelection,
        #[command(flatten)]
        confirm: ConfirmArgs,
    },
}

/// Filter for dead events. The daemon lists all of them; the others are left out here.
#[derive(clap::Args, Clone, Debug)]
struct EventFilter {
    /// Select only events of this handler
    #[arg(long, value_name = "NAME")]
    handler: Option<String>,
    /// Select only events of this type, such as member.join
    #[arg(long = "type", value_name = "TYPE")]
    event_type: Option<String>,
}

impl EventFilter {
    fn matches(&self, event: &DeadEvent) -> bool {
        let is = |wanted: &Option<String>, given: &str| wanted.as_ref().is_none_or(|wanted| given == wanted);
        is(&self.handler, &event.handler) && is(&self.event_type, &event.event_type)
    }
}

/// Selects dead events by place or by filter. `--all` must be explicit.
#[derive(clap::Args, Clone, Debug)]
#[command(group = ArgGroup::new("choice").args(["places", "handler", "event_type", "all"]).required(true).multiple(true))]
struct EventSelection {
    /// Places of the events, as printed by `list`
    #[arg(value_name = "PLACE", conflicts_with_all = ["handler", "event_type", "all"])]
    places: Vec<String>,
    #[command(flatten)]
    which: EventFilter,
    /// Select all dead events
    #[arg(long)]
    all: bool,
}

/// What is done with dead events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Redrive,
    Discard,
}

impl Action {
    const fn verb(self) -> &'static str {
        match self {
            Self::Redrive => "Redrive",
            Self::Discard => "Discard",
        }
    }

    const fn done(self) -> &'static str {
        match self {
            Self::Redrive => "redriven",
            Self::Discard => "discarded",
        }
    }

    fn request(self, place: &str) -> ApiRequest {
        let path = format!("/v1/events/dead/{}", path_segment(place));
        match self {
            Self::Redrive => ApiRequest::post(format!("{path}/revive")),
            Self::Discard => ApiRequest::new(Method::DELETE, path).with_feature(FEATURE),
        }
    }
}

pub(super) fn run(file: Option<PathBuf>, args: Args) -> anyhow::Result<ExitCode> {
    args.remote.run(file, async |client, out| match args.command {
        Command::List { which, wanted } => list(client, out, &which, wanted).await,
        Command::Show { places } => show(client, out, &places).await,
        Command::Redrive { chosen, confirm } => apply(client, out, &chosen, confirm, Action::Redrive).await,
        Command::Discard { chosen, confirm } => apply(client, out, &chosen, confirm, Action::Discard).await,
    })
}

fn all_dead_events(max_entries: usize) -> ListRequest<'static> {
    ListRequest {
        path: "/v1/events/dead",
        list: "events",
        cursor: "before",
        filters: Vec::new(),
        max_entries,
        feature: None,
    }
}

async fn list(client: &Client, out: &Output, which: &EventFilter, page: PageArgs) -> anyhow::Result<ExitCode> {
    if which.handler.is_none() && which.event_type.is_none() {
        return listing::show(client, out, all_dead_events(page.max_entries()), NONE_MATCH, table).await;
    }
    let found = find(client, which, page.max_entries()).await?;
    if found.is_empty() {
        out.note(NONE_MATCH);
        if out.is_table() {
            return Ok(ExitCode::SUCCESS);
        }
    }
    out.show_response(&json!({ "events": found, "next": null }), |page: &DeadEventPage, paint| {
        table(&page.events).print(paint)
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the dead events that match, at most `max`.
async fn find(client: &Client, which: &EventFilter, max: usize) -> anyhow::Result<Vec<Value>> {
    let listed = client.read_list(&all_dead_events(usize::MAX)).await?;
    let mut found = Vec::new();
    for value in listed.entries {
        if found.len() < max && which.matches(&read(&value)?) {
            found.push(value);
        }
    }
    Ok(found)
}

fn table(events: &[DeadEvent]) -> TextTable {
    let mut table =
        TextTable::new(&["PLACE", "HANDLER", "TYPE", "GUILD", "TRIES", "CREATED", "WHY"]).with_text_columns(&["WHY"]);
    for event in events {
        table.row(vec![
            event.place.to_string().into(),
            event.handler.as_str().into(),
            event.event_type.as_str().into(),
            text(&event.event["guild_id"]).into(),
            event.attempts.to_string().into(),
            format_time(&event.created_at).into(),
            TableCell::tinted(or_dash(event.why.as_ref()), Color::Dim),
        ]);
    }
    table
}

async fn show_one(client: &Client, place: &str) -> Result<Value, ClientError> {
    let request = ApiRequest::new(Method::GET, format!("/v1/events/dead/{}", path_segment(place)));
    Ok(client.send(&request.with_feature(FEATURE)).await?.body)
}

async fn show(client: &Client, out: &Output, places: &[String]) -> anyhow::Result<ExitCode> {
    let mut found = Vec::new();
    for place in places {
        found.push(show_one(client, place).await?);
    }
    out.show_each("events", found, details)?;
    Ok(ExitCode::SUCCESS)
}

fn details(event: &DeadEvent, paint: Painter) -> String {
    let pairs = [
        ("place", event.place.to_string().into()),
        ("handler", event.handler.as_str().into()),
        ("type", event.event_type.as_str().into()),
        ("session", format!("{}, event {}", event.session, event.seq).into()),
        ("why", TableCell::tinted(or_dash(event.why.as_ref()), Color::Bad)),
        ("tries", event.attempts.to_string().into()),
        ("created", format_time(&event.created_at).into()),
        ("event", event.event.to_string().into()),
    ];
    fields(&pairs, paint)
}

async fn apply(
    client: &Client,
    out: &Output,
    chosen: &EventSelection,
    confirm: ConfirmArgs,
    action: Action,
) -> anyhow::Result<ExitCode> {
    let selected_by_place = !chosen.places.is_empty();
    let asks = confirm.must_ask() && (action == Action::Discard || !selected_by_place);
    let mut places = chosen.places.clone();
    if !selected_by_place || confirm.is_dry_run() {
        let mut found = Vec::new();
        if selected_by_place {
            for place in &places {
                found.push(show_one(client, place).await?);
            }
        } else {
            found = find(client, &chosen.which, usize::MAX).await?;
        }
        if confirm.is_dry_run() {
            out.show_response(&json!({ "events": found, "next": null }), |page: &DeadEventPage, paint| {
                table(&page.events).print(paint)
            })?;
            let count = Count { number: found.len(), is_more: false };
            out.note(&format!("{} would be {}.", count.of("dead event"), action.done()));
            return Ok(ExitCode::SUCCESS);
        }
        let found: Vec<DeadEvent> = found.iter().map(read).collect::<anyhow::Result<_>>()?;
        places = found.iter().map(|event| event.place.to_string()).collect();
    }
    let count = Count { number: places.len(), is_more: false };
    if asks && count.number > 0 && !confirm.ask(&format!("{} {}?", action.verb(), count.of("dead event")))? {
        return Ok(ExitCode::FAILURE);
    }
    let (mut done, mut failed) = (Vec::new(), 0);
    for place in &places {
        let Some(sent) = unless_interrupted(client.send(&action.request(place))).await else {
            let rest = places.len() - done.len();
            return Ok(interrupted(&format!("{} {}, {rest} left", done.len(), action.done())));
        };
        match sent {
            Ok(_) => done.push(place),
            Err(error @ ClientError::Rejected(_)) if places.len() > 1 && error.retry_after().is_none() => {
                eprintln!("error: {error}");
                failed += 1;
            }
            Err(error) => return Err(error.into()),
        }
    }
    out.show(&json!({action.done(): done}), |_| format!("{} {}.\n", done.len(), action.done()))?;
    Ok(if failed > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event() -> Value {
        json!({"place": "17", "handler": "greeter", "event_type": "member.join", "session": "abc", "seq": "42",
            "why": "the webhook returned 410", "attempts": 5, "created_at": "2026-01-31T12:00:00.123Z",
            "event": {"event_type": "member.join", "guild_id": "7"}})
    }

    #[test]
    fn dead_events_are_rows_and_have_details() {
        let row = table(&[read(&event()).unwrap()]).print(Painter::none()).lines().nth(1).unwrap().to_owned();
        assert_eq!(row, "17     greeter  member.join  7      5      2026-01-31T12:00:00Z  the webhook returned 410");
        let details = details(&read(&event()).unwrap(), Painter::none());
        assert!(details.contains("session  abc, event 42\n") && details.contains("\"guild_id\":\"7\""), "{details}");
    }

    #[test]
    fn filter_selects_by_handler_and_type() {
        let filter = |handler: Option<&str>, event_type: Option<&str>| EventFilter {
            handler: handler.map(str::to_owned),
            event_type: event_type.map(str::to_owned),
        };
        let event: DeadEvent = read(&event()).unwrap();
        assert!(filter(None, None).matches(&event) && filter(Some("greeter"), Some("member.join")).matches(&event));
        assert!(!filter(Some("other"), None).matches(&event) && !filter(None, Some("x")).matches(&event));
    }
}
