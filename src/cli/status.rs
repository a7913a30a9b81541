//! `guildhall status`: the state of the daemon on one screen.

use std::{fmt::Display, path::PathBuf, process::ExitCode, time::Duration};

use guildhall_core::operation::OperationState;
use http::Method;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Map, Value};
use tokio::time::sleep;

use super::{
    duration,
    interrupt::unless_interrupted,
    limits,
    output::{Color, Output, Painter, TableCell, fields, format_time, read, time},
    remote::RemoteArgs,
};
use crate::{
    api::dto,
    client::{ApiRequest, Client, ListRequest},
};

/// Maximum number of shards, breakers and processes that are shown individually.
const MAX_LISTED: usize = 8;

#[derive(clap::Args, Debug)]
pub(super) struct Args {
    #[command(flatten)]
    remote: RemoteArgs,
    /// Redraw until Ctrl-C
    #[arg(short, long)]
    watch: bool,
    /// Time between two redraws
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = interval, requires = "watch")]
    interval: Duration,
    /// Print JSON, as with --output json
    #[arg(long, conflicts_with = "output")]
    json: bool,
}

fn interval(text: &str) -> Result<Duration, String> {
    let span = duration::parse(text)?;
    if span >= Duration::from_millis(100) { Ok(span) } else { Err("must be at least 100ms".to_owned()) }
}

/// A part of the status, or why it could not be fetched.
type Part<T> = Result<T, String>;

/// The parts of the status, as the API returns them.
struct Status {
    at: String,
    shards: Part<Vec<dto::Shard>>,
    limits: Part<dto::Limits>,
    breakers: Part<dto::Breakers>,
    queues: Part<dto::Queues>,
    instances: Part<dto::Instances>,
}

pub(super) fn run(file: Option<PathBuf>, args: &Args) -> anyhow::Result<ExitCode> {
    let remote = if args.json { args.remote.clone().with_json() } else { args.remote.clone() };
    remote.run(file, async |client, out| {
        if args.watch {
            return watch(client, out, args.interval).await;
        }
        let status = Status::fetch(client).await;
        out.show(&status.value(), |paint| status.screen(client.api_url(), paint))?;
        Ok(if status.is_available() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    })
}

/// Redraws until Ctrl-C, which is the way to end it. A daemon that is not available is shown as such.
async fn watch(client: &Client, out: &Output, interval: Duration) -> anyhow::Result<ExitCode> {
    while let Some(status) = unless_interrupted(Status::fetch(client)).await {
        out.redraw(&status.value(), |paint| status.screen(client.api_url(), paint))?;
        if unless_interrupted(sleep(interval)).await.is_none() {
            break;
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn fetch<T: DeserializeOwned>(client: &Client, path: &str, feature: &'static str) -> Part<T> {
    let request = ApiRequest::new(Method::GET, path).with_feature(feature);
    let body = client.send(&request).await.map_err(|error| error.to_string())?.body;
    read(&body).map_err(|error| error.to_string())
}

async fn fetch_shards(client: &Client) -> Part<Vec<dto::Shard>> {
    let pages = ListRequest {
        path: "/v1/shards",
        list: "shards",
        cursor: "cursor",
        filters: Vec::new(),
        max_entries: usize::MAX,
        feature: Some("shards"),
    };
    let listed = client.read_list(&pages).await.map_err(|error| error.to_string())?;
    listed.entries.iter().map(|shard| read(shard).map_err(|error| error.to_string())).collect()
}

impl Status {
    async fn fetch(client: &Client) -> Self {
        let (shards, limits, breakers, queues, instances) = tokio::join!(
            fetch_shards(client),
            fetch(client, "/v1/limits", "limits"),
            fetch(client, "/v1/breakers", "breakers"),
            fetch(client, "/v1/queues", "the number of pending operations"),
            fetch(client, "/v1/instances", "processes"),
        );
        let at = duration::time_before(Duration::ZERO);
        Self { at, shards, limits, breakers, queues, instances }
    }

    /// The parts by name: the value, or why there is none.
    fn parts(&self) -> [(&'static str, Part<Value>); 5] {
        fn value<T: Serialize>(part: &Part<T>) -> Part<Value> {
            part.as_ref().map(|part| serde_json::to_value(part).unwrap_or_default()).map_err(Clone::clone)
        }
        [
            ("shards", value(&self.shards)),
            ("limits", value(&self.limits)),
            ("breakers", value(&self.breakers)),
            ("queues", value(&self.queues)),
            ("instances", value(&self.instances)),
        ]
    }

    /// Whether any part could be fetched.
    fn is_available(&self) -> bool {
        self.parts().iter().any(|(_, part)| part.is_ok())
    }

    /// All parts as one object. A part that could not be fetched is null, and `errors` says why.
    fn value(&self) -> Value {
        let mut value = Map::from_iter([("at".to_owned(), Value::from(self.at.clone()))]);
        let mut errors = Map::new();
        for (name, part) in self.parts() {
            if let Err(reason) = &part {
                errors.insert(name.to_owned(), reason.clone().into());
            }
            value.insert(name.to_owned(), part.unwrap_or_default());
        }
        value.insert("errors".to_owned(), errors.into());
        value.into()
    }

    fn screen(&self, daemon: impl Display, paint: Painter) -> String {
        let mut pairs = vec![("daemon", format!("{daemon} at {}", time(&self.at.as_str().into())).into())];
        push(&mut pairs, "shards", &self.shards, |shards| shard_rows(shards));
        match &self.limits {
            Ok(limits) => {
                // Breakers have rows of their own.
                pairs.extend(limits::summary_fields(limits).into_iter().filter(|(name, _)| *name != "breakers"));
            }
            Err(reason) => {
                pairs.push(("limits", unavailable(reason)));
                pairs.push(("ban budget", unavailable(reason)));
            }
        }
        push(&mut pairs, "breakers", &self.breakers, breaker_rows);
        push(&mut pairs, "queues", &self.queues, |queues| vec![queue_cell(queues)]);
        push(&mut pairs, "dead", &self.queues, |queues| vec![dead_cell(queues)]);
        push(&mut pairs, "instances", &self.instances, instance_rows);
        fields(&pairs, paint)
    }
}

fn unavailable(reason: &str) -> TableCell {
    TableCell::tinted(format!("not available: {reason}"), Color::Bad)
}

/// Adds the rows of a part; only the first has its name.
fn push<T>(
    pairs: &mut Vec<(&'static str, TableCell)>,
    name: &'static str,
    part: &Part<T>,
    rows: impl FnOnce(&T) -> Vec<TableCell>,
) {
    let rows = match part {
        Ok(part) => rows(part),
        Err(reason) => vec![unavailable(reason)],
    };
    let names = std::iter::once(name).chain(std::iter::repeat(""));
    pairs.extend(names.zip(rows));
}

/// Adds how many more there are than are listed.
fn push_rest(rows: &mut Vec<TableCell>, count: usize) {
    if count > MAX_LISTED {
        rows.push(TableCell::tinted(format!("and {} more", count - MAX_LISTED), Color::Dim));
    }
}

fn shard_rows(shards: &[dto::Shard]) -> Vec<TableCell> {
    let is_fine = |shard: &dto::Shard| matches!(shard.state.as_ref(), "connected" | "elsewhere");
    let connected = shards.iter().filter(|shard| is_fine(shard)).count();
    let lag: u64 = shards.iter().filter_map(|shard| shard.lag).sum();
    let tint = if connected == shards.len() { Color::Good } else { Color::Care };
    let mut rows =
        vec![TableCell::tinted(format!("{connected} of {} connected, {lag} events unconfirmed", shards.len()), tint)];
    let troubled: Vec<_> = shards.iter().filter(|shard| !is_fine(shard)).collect();
    rows.extend(
        troubled
            .iter()
            .take(MAX_LISTED)
            .map(|shard| TableCell::tinted(format!("shard {} {}", shard.id, shard.state), Color::Care)),
    );
    push_rest(&mut rows, troubled.len());
    rows
}

fn breaker_rows(breakers: &dto::Breakers) -> Vec<TableCell> {
    let troubled: Vec<_> = breakers.breakers.iter().filter(|breaker| breaker.state.as_ref() != "closed").collect();
    let summary = format!("{} not closed", troubled.len());
    let tint = if troubled.is_empty() { Color::Good } else { Color::Bad };
    let mut rows = vec![TableCell::tinted(summary, tint)];
    rows.extend(troubled.iter().take(MAX_LISTED).map(|breaker| {
        let until = breaker.until.as_ref().map(|until| format!(" until {}", format_time(until))).unwrap_or_default();
        let why = breaker.why.as_ref().map(|why| format!(" ({why})")).unwrap_or_default();
        TableCell::tinted(format!("{} {}{until}{why}", breaker.key, breaker.state), Color::Bad)
    }));
    push_rest(&mut rows, troubled.len());
    rows
}

fn queue_cell(queues: &dto::Queues) -> TableCell {
    // In the order in which operations pass through the states.
    let count = |state: &OperationState| queues.pending.get(state.name()).filter(|count| **count > 0);
    let pending: Vec<_> =
        OperationState::ALL.iter().filter_map(|state| Some(format!("{} {}", count(state)?, state.name()))).collect();
    let pending = if pending.is_empty() { "nothing pending".to_owned() } else { pending.join(", ") };
    match (queues.all_paused, queues.paused_guilds) {
        (true, _) => TableCell::tinted(format!("{pending}; everything is paused"), Color::Care),
        (false, 0) => pending.into(),
        (false, 1) => TableCell::tinted(format!("{pending}; 1 guild is paused"), Color::Care),
        (false, paused) => TableCell::tinted(format!("{pending}; {paused} guilds are paused"), Color::Care),
    }
}

fn dead_cell(queues: &dto::Queues) -> TableCell {
    let tint = if queues.dead_letters + queues.dead_events > 0 { Color::Care } else { Color::None };
    TableCell::tinted(format!("{} dead letters, {} dead events", queues.dead_letters, queues.dead_events), tint)
}

fn instance_rows(instances: &dto::Instances) -> Vec<TableCell> {
    let row = |instance: &dto::Instance| {
        let (tint, status) = match (instance.leaving, instance.arriving) {
            (true, _) => (Color::Care, ", leaving"),
            (false, true) => (Color::Care, ", arriving"),
            (false, false) => (Color::None, ""),
        };
        let own = if instance.is_self { " (self)" } else { "" };
        let (queues, shards) = (instance.queues, instance.shards.len());
        let name = if instance.name.is_empty() { &instance.id } else { &instance.name };
        TableCell::tinted(format!("{name}{own}: {queues} queues, {shards} shards{status}"), tint)
    };
    let mut rows: Vec<_> = instances.instances.iter().take(MAX_LISTED).map(row).collect();
    push_rest(&mut rows, instances.instances.len());
    rows
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn shard(id: u32, state: &'static str) -> dto::Shard {
        dto::Shard { id, state: state.into(), lag: Some(2), ..dto::Shard::default() }
    }

    fn rows(rows: Vec<TableCell>) -> String {
        let pairs: Vec<_> = rows.into_iter().map(|row| ("", row)).collect();
        fields(&pairs, Painter::none())
    }

    #[test]
    fn shards_that_are_not_connected_are_listed_up_to_a_limit() {
        let shards: Vec<_> = (0..12).map(|id| shard(id, if id < 2 { "connected" } else { "resuming" })).collect();
        let text = rows(shard_rows(&shards));
        assert!(text.starts_with("  2 of 12 connected, 24 events unconfirmed\n  shard 2 resuming\n"), "{text}");
        assert!(text.ends_with("  shard 9 resuming\n  and 2 more\n"), "{text}");
    }

    #[test]
    fn screen_fits_a_terminal_of_80_columns() {
        let breaker = |key: String| {
            json!({"key": key, "kind": "route", "state": "open", "why": "failures",
            "since": "2026-01-31T12:00:00.000Z", "until": "2026-01-31T12:00:30.000Z"})
        };
        let breakers: Vec<_> =
            (0..3).map(|n| breaker(format!("discord:POST /channels/{{id}}/messages:157171518941639884{n}"))).collect();
        let pending: Map<_, _> =
            OperationState::ALL.iter().map(|state| (state.name().to_owned(), 1_000_000.into())).collect();
        let queues = json!({"pending": pending, "dead_letters": 1_000_000, "dead_events": 1_000_000, "all_paused": false,
            "paused_guilds": 1_000_000});
        let unreachable =
            "cannot connect to http://guildhall.internal.example:8080: connection refused; is it running?";
        let status = Status {
            at: "2026-01-31T12:00:00.000Z".to_owned(),
            shards: Ok((0..12).map(|id| shard(id, "resuming")).collect()),
            limits: Err(unreachable.to_owned()),
            breakers: Ok(read(&json!({"breakers": breakers, "watched": 3})).unwrap()),
            queues: Ok(read(&queues).unwrap()),
            instances: Err(unreachable.to_owned()),
        };
        let screen = status.screen("http://guildhall.internal.example:8080", Painter::none().with_width(80));
        assert!(screen.lines().all(|line| line.chars().count() <= 80), "{screen}");
        assert!(screen.contains("1571715189416398840") && screen.ends_with("running?\n"), "{screen}");
    }

    #[test]
    fn pending_operations_and_pauses_are_on_one_line() {
        let queues = |value: Value| serde_json::from_value::<dto::Queues>(value).unwrap();
        let busy =
            queues(json!({"pending": {"delayed": 3, "queued": 2, "running": 0}, "dead_letters": 1, "dead_events": 0,
            "all_paused": false, "paused_guilds": 2}));
        assert_eq!(rows(vec![queue_cell(&busy)]), "  2 queued, 3 delayed; 2 guilds are paused\n");
        assert_eq!(rows(vec![dead_cell(&busy)]), "  1 dead letters, 0 dead events\n");
        let idle =
            queues(json!({"pending": {}, "dead_letters": 0, "dead_events": 0, "all_paused": true, "paused_guilds": 0}));
        assert_eq!(rows(vec![queue_cell(&idle)]), "  nothing pending; everything is paused\n");
    }
}
