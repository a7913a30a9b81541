//! `guildhall limits`: Discord's rate limits and their largest consumers.

use std::{path::PathBuf, process::ExitCode, time::Duration};

use clap::{Subcommand, ValueEnum};
use http::Method;
use serde_json::Value;

use super::{
    duration,
    listing::{self, PageArgs},
    output::{Color, Output, Painter, TableCell, TextTable, fields, text, time},
    remote::RemoteArgs,
};
use crate::client::{ApiRequest, Client, ListRequest};

/// Name of the feature in errors of daemons that do not support it.
const FEATURE: &str = "limits";

#[derive(clap::Args, Debug)]
pub(super) struct Args {
    #[command(flatten)]
    remote: RemoteArgs,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List the rate limit buckets with their remaining requests
    Buckets {
        #[command(flatten)]
        wanted: PageArgs,
    },
    /// List the largest consumers
    Top {
        /// Measure to sort by
        #[arg(long, value_enum, default_value_t = TopMeasure::Spend)]
        by: TopMeasure,
        /// Number of entries to show
        #[arg(long, value_name = "COUNT", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
        limit: u32,
    },
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum TopMeasure {
    /// Calls to Discord
    Spend,
    /// Calls rejected by Discord with 429
    #[value(name = "429")]
    Limited,
    /// Calls that count towards a ban
    Invalid,
}

impl TopMeasure {
    const fn name(self) -> &'static str {
        match self {
            Self::Spend => "spend",
            Self::Limited => "429",
            Self::Invalid => "invalid",
        }
    }
}

pub(super) fn run(file: Option<PathBuf>, args: &Args) -> anyhow::Result<ExitCode> {
    args.remote.run(file, async |client, out| match &args.command {
        None => summary(client, out).await,
        Some(Command::Buckets { wanted: page }) => {
            let pages = ListRequest {
                path: "/v1/limits/buckets",
                list: "buckets",
                cursor: "cursor",
                filters: Vec::new(),
                max_entries: page.max_entries(),
                feature: Some(FEATURE),
            };
            listing::show(client, out, pages, "No rate limit buckets yet: no request was sent.", buckets).await
        }
        Some(Command::Top { by, limit }) => {
            let api_request = ApiRequest::new(Method::GET, format!("/v1/limits/top?by={}&limit={limit}", by.name()))
                .with_feature(FEATURE);
            let response = client.send(&api_request).await?.body;
            out.show(&response, |paint| top(&response, paint))?;
            Ok(ExitCode::SUCCESS)
        }
    })
}

async fn summary(client: &Client, out: &Output) -> anyhow::Result<ExitCode> {
    let limits = client.send(&ApiRequest::new(Method::GET, "/v1/limits").with_feature(FEATURE)).await?.body;
    out.show(&limits, |paint| fields(&summary_fields(&limits), paint))?;
    Ok(ExitCode::SUCCESS)
}

fn summary_fields(limits: &Value) -> Vec<(&'static str, TableCell)> {
    let global = &limits["global"];
    let window = global["window_ms"]
        .as_u64()
        .map_or_else(|| "-".to_owned(), |ms| duration::format_duration(Duration::from_millis(ms)));
    let members = text(&global["members"]);
    let shared = match global["sharing"].as_str() {
        Some("redis") => ", shared through Redis".to_owned(),
        Some("store") => format!(", a share of {} divided among {members} processes", text(&global["total"])),
        _ => String::new(),
    };
    let mut pairs: Vec<(&str, TableCell)> = vec![(
        "global",
        format!(
            "{} of {} per {window} available, {} waiting{shared}",
            text(&global["available"]),
            text(&global["limit"]),
            text(&global["waiting"])
        )
        .into(),
    )];
    if !global["blocked_until"].is_null() {
        pairs.push(("", TableCell::tinted(format!("blocked until {}", time(&global["blocked_until"])), Color::Bad)));
    }
    let lanes = limits["lanes"].as_array().into_iter().flatten();
    let lanes: Vec<_> = lanes.map(|lane| format!("{} {}", text(&lane["lane"]), text(&lane["waiting"]))).collect();
    pairs.push(("waiting", if lanes.is_empty() { "-".into() } else { lanes.join(", ").into() }));
    pairs.push(("buckets", text(&limits["buckets"]).into()));
    pairs.push(("ban budget", ban_budget_cell(&limits["invalid_requests"])));
    pairs.extend(share_rows(&limits["invalid_requests"]["share"]));
    let breakers = limits["breakers"].as_object().into_iter().flatten();
    let troubled = limits["breakers"].as_object().is_some_and(|all| {
        all.iter().any(|(state, count)| state != "closed" && count.as_u64().is_some_and(|count| count > 0))
    });
    let breakers: Vec<_> = breakers.map(|(state, count)| format!("{count} {state}")).collect();
    pairs.push(("breakers", TableCell::tinted(breakers.join(", "), if troubled { Color::Bad } else { Color::None })));
    pairs
}

/// Formats the used part of the ban budget.
fn ban_budget_cell(invalid: &Value) -> TableCell {
    let used = format!("{} of {} invalid requests", text(&invalid["used"]), text(&invalid["most"]));
    match invalid["stops"].as_str() {
        None => used.into(),
        Some(blocked) => TableCell::tinted(format!("{used}: {} is blocked", blocked.replace('_', " ")), Color::Bad),
    }
}

/// Maximum number of holders that are displayed.
const MAX_HOLDERS: usize = 3;

/// Formats the largest holders of the ban budget, and those whose calls wait. Older daemons do not report them.
fn share_rows(share: &Value) -> Vec<(&'static str, TableCell)> {
    let holders = share["holders"].as_array().into_iter().flatten();
    let listed = holders.enumerate().filter(|(at, holder)| *at < MAX_HOLDERS || holder["capped"] == true);
    let row = |(at, holder): (usize, &Value)| {
        let id = ["key", "tenant", "guild_id"].into_iter().find(|field| holder[*field].is_string());
        let used = format!(
            "{} {}: {} of {}",
            text(&holder["by"]),
            text(&holder[id.unwrap_or("guild_id")]),
            text(&holder["used"]),
            text(&share["most"])
        );
        let cell = if holder["capped"] == true {
            TableCell::tinted(format!("{used}: its calls wait until {}", time(&holder["room_at"])), Color::Bad)
        } else {
            used.into()
        };
        (if at == 0 { "ban shares" } else { "" }, cell)
    };
    listed.map(row).collect()
}

fn buckets(buckets: &[Value]) -> TextTable {
    let mut table = TextTable::new(&["ROUTE", "ID", "LEFT", "WAITING", "RESETS", "BUCKET"]);
    for bucket in buckets {
        let is_empty = bucket["left"].as_u64() == Some(0);
        let remaining = format!("{}/{}", text(&bucket["left"]), text(&bucket["limit"]));
        table.row(vec![
            text(&bucket["route"]).into(),
            text(&bucket["id"]).into(),
            TableCell::tinted(remaining, if is_empty { Color::Care } else { Color::None }),
            text(&bucket["waiting"]).into(),
            time(&bucket["resets_at"]).into(),
            TableCell::tinted(text(&bucket["bucket"]), Color::Dim),
        ]);
    }
    table
}

fn top(response: &Value, paint: Painter) -> String {
    let mut table = TextTable::new(&["WHO", "COUNT"]);
    for one in response["top"].as_array().into_iter().flatten() {
        let subject = match (&one["guild_id"], &one["caller"]) {
            (Value::String(guild), _) => format!("guild {guild}"),
            (_, caller) => text(caller),
        };
        table.row(vec![subject.into(), text(&one["count"]).into()]);
    }
    format!("by {}, since {}\n{}", text(&response["by"]), time(&response["since"]), table.print(paint))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn summary_displays_remaining_and_blocked_calls() {
        let limits = json!({
            "global": {"limit": 50, "window_ms": 1000, "available": 12, "waiting": 3, "blocked_until": "2026-01-31T12:00:05.000Z",
                "shared": true, "sharing": "redis", "total": 50, "members": 2},
            "lanes": [{"lane": "interactive", "waiting": 1}, {"lane": "background", "waiting": 2}], "buckets": 41,
            "invalid_requests": {"used": 8200, "most": 10000, "ratio": 0.82, "stops": "all_but_interactive",
                "share": {"percent": 25, "most": 2500, "capped": 1, "held": 7, "holders": [
                    {"by": "key", "key": "abcdefgh2345", "used": 2500, "in_flight": 0, "ratio": 1.0, "capped": true,
                        "room_at": "2026-01-31T12:08:05.000Z"},
                    {"by": "guild", "guild_id": "7", "used": 12, "in_flight": 1, "ratio": 0.0048, "capped": false,
                        "room_at": null}]}},
            "breakers": {"closed": 3, "open": 1, "half_open": 0, "forced_open": 0}});
        assert_eq!(
            fields(&summary_fields(&limits), Painter::none()),
            "global      12 of 50 per 1s available, 3 waiting, shared through Redis\n\
            \u{20}           blocked until 2026-01-31T12:00:05Z\n\
             waiting     interactive 1, background 2\n\
             buckets     41\n\
             ban budget  8200 of 10000 invalid requests: all but interactive is blocked\n\
             ban shares  key abcdefgh2345: 2500 of 2500: its calls wait until 2026-01-31T12:08:05Z\n\
            \u{20}           guild 7: 12 of 2500\n\
             breakers    3 closed, 0 forced_open, 0 half_open, 1 open\n"
        );
    }

    #[test]
    fn buckets_and_top_spenders_are_rows() {
        let bucket = json!({"route": "POST /guilds/{id}/roles", "bucket": "abc", "id": "7", "limit": 5, "left": 0,
            "resets_at": "2026-01-31T12:00:05.000Z", "waiting": 2});
        let text = buckets(&[bucket]).print(Painter::none());
        assert!(text.ends_with("POST /guilds/{id}/roles  7   0/5   2        2026-01-31T12:00:05Z  abc\n"), "{text}");
        let response = json!({"by": "429", "since": "2026-01-31T12:00:00.000Z",
            "top": [{"guild_id": "7", "count": 9}, {"caller": "admin", "count": 1}]});
        assert_eq!(
            top(&response, Painter::none()),
            "by 429, since 2026-01-31T12:00:00Z\nWHO      COUNT\nguild 7  9\nadmin    1\n"
        );
    }
}
