//! `guildhall limits`: Discord's rate limits and their largest consumers.

use std::{path::PathBuf, process::ExitCode, time::Duration};

use clap::{Subcommand, ValueEnum};
use http::Method;

use super::{
    duration,
    listing::{self, PageArgs},
    output::{Color, Output, Painter, TableCell, TextTable, fields, format_time, or_dash},
    remote::RemoteArgs,
};
use crate::api::dto::{BanShare, BanShareHolder, BreakerCounts, Bucket, InvalidRequests, Limits, Snowflake, Top};
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
            out.show_response(&response, top)?;
            Ok(ExitCode::SUCCESS)
        }
    })
}

async fn summary(client: &Client, out: &Output) -> anyhow::Result<ExitCode> {
    let limits = client.send(&ApiRequest::new(Method::GET, "/v1/limits").with_feature(FEATURE)).await?.body;
    out.show_response(&limits, |limits, paint| fields(&summary_fields(limits), paint))?;
    Ok(ExitCode::SUCCESS)
}

/// Formats the limits, the ban budget and the number of breakers.
pub(super) fn summary_fields(limits: &Limits) -> Vec<(&'static str, TableCell)> {
    let global = &limits.global;
    let window = duration::format_duration(Duration::from_millis(global.window_ms));
    let shared = match global.sharing.as_ref() {
        "redis" => ", shared through Redis".to_owned(),
        "store" => format!(", a share of {} divided among {} processes", global.total, or_dash(global.members)),
        _ => String::new(),
    };
    let mut pairs: Vec<(&str, TableCell)> = vec![(
        "global",
        format!("{} of {} per {window} available, {} waiting{shared}", global.available, global.limit, global.waiting)
            .into(),
    )];
    if let Some(until) = &global.blocked_until {
        pairs.push(("", TableCell::tinted(format!("blocked until {}", format_time(until)), Color::Bad)));
    }
    let lanes: Vec<_> = limits.lanes.iter().map(|lane| format!("{} {}", lane.lane, lane.waiting)).collect();
    pairs.push(("waiting", if lanes.is_empty() { "-".into() } else { lanes.join(", ").into() }));
    // The first line shows the bot's.
    let is_bot = |credential: &str| credential.bytes().all(|byte| byte.is_ascii_digit());
    let others = limits.credentials.iter().filter(|other| !is_bot(&other.credential));
    for (at, other) in others.take(MAX_CREDENTIALS).enumerate() {
        let text = format!("{}: {} of {} available", other.credential, other.available, other.limit);
        pairs.push((if at == 0 { "other tokens" } else { "" }, text.into()));
    }
    if limits.gone_webhooks > 0 {
        pairs.push(("webhooks", format!("{} do not exist", limits.gone_webhooks).into()));
    }
    pairs.push(("buckets", limits.buckets.to_string().into()));
    pairs.push(("ban budget", ban_budget_cell(&limits.invalid_requests)));
    pairs.extend(share_rows(&limits.invalid_requests.share));
    let BreakerCounts { closed, open, half_open, forced_open } = limits.breakers;
    let breakers = format!("{closed} closed, {forced_open} forced_open, {half_open} half_open, {open} open");
    let tint = if open + half_open + forced_open > 0 { Color::Bad } else { Color::None };
    pairs.push(("breakers", TableCell::tinted(breakers, tint)));
    pairs
}

/// Formats the used part of the ban budget.
fn ban_budget_cell(invalid: &InvalidRequests) -> TableCell {
    let used = format!("{} of {} invalid requests", invalid.used, invalid.most);
    match &invalid.stops {
        None => used.into(),
        Some(held) => TableCell::tinted(format!("{used}: {} is blocked", held.as_ref().replace('_', " ")), Color::Bad),
    }
}

/// Maximum number of other credentials that are displayed.
const MAX_CREDENTIALS: usize = 5;

/// Maximum number of holders that are displayed.
const MAX_HOLDERS: usize = 3;

/// Formats the largest holders of the ban budget, and those whose calls wait.
fn share_rows(share: &BanShare) -> Vec<(&'static str, TableCell)> {
    let listed = share.holders.iter().enumerate().filter(|(at, holder)| *at < MAX_HOLDERS || holder.capped);
    let row = |(at, holder): (usize, &BanShareHolder)| {
        let guild = holder.guild_id.as_ref().map(Snowflake::as_ref);
        let id = or_dash(holder.key.as_deref().or(holder.tenant.as_deref()).or(guild));
        let used = format!("{} {id}: {} of {}", holder.by, holder.used, share.most);
        let cell = if holder.capped {
            let until = format_time(holder.room_at.as_ref());
            TableCell::tinted(format!("{used}: its calls wait until {until}"), Color::Bad)
        } else {
            used.into()
        };
        (if at == 0 { "ban shares" } else { "" }, cell)
    };
    listed.map(row).collect()
}

fn buckets(buckets: &[Bucket]) -> TextTable {
    let mut table = TextTable::new(&["ROUTE", "ID", "LEFT", "WAITING", "RESETS", "BUCKET"]);
    for bucket in buckets {
        let remaining = format!("{}/{}", or_dash(bucket.left), or_dash(bucket.limit));
        table.row(vec![
            or_dash(bucket.route.as_ref()).into(),
            or_dash(bucket.id.as_ref()).into(),
            TableCell::tinted(remaining, if bucket.left == Some(0) { Color::Care } else { Color::None }),
            bucket.waiting.to_string().into(),
            format_time(bucket.resets_at.as_ref()).into(),
            TableCell::tinted(or_dash(bucket.bucket.as_ref()), Color::Dim),
        ]);
    }
    table
}

fn top(response: &Top, paint: Painter) -> String {
    let mut table = TextTable::new(&["WHO", "COUNT"]);
    for one in &response.top {
        let subject = match &one.guild_id {
            Some(guild) => format!("guild {guild}"),
            None => or_dash(one.caller.as_ref()),
        };
        table.row(vec![subject.into(), one.count.to_string().into()]);
    }
    format!("by {}, since {}\n{}", response.by, format_time(&response.since), table.print(paint))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cli::output::read;

    #[test]
    fn summary_displays_remaining_and_blocked_calls() {
        let limits = json!({
            "global": {"limit": 50, "window_ms": 1000, "available": 12, "in_flight": 4, "waiting": 3, "blocked_until": "2026-01-31T12:00:05.000Z",
                "shared": true, "sharing": "redis", "total": 50, "members": 2, "mode": "shared"},
            "lanes": [{"lane": "interactive", "waiting": 1}, {"lane": "background", "waiting": 2}], "buckets": 41,
            "invalid_requests": {"used": 8200, "most": 10000, "window_ms": 600_000, "ratio": 0.82, "stops": "all_but_interactive", "shared": false,
                "spenders": [],
                "share": {"percent": 25, "most": 2500, "capped": 1, "held": 7, "holders": [
                    {"by": "key", "key": "abcdefgh2345", "used": 2500, "in_flight": 0, "ratio": 1.0, "capped": true,
                        "room_at": "2026-01-31T12:08:05.000Z"},
                    {"by": "guild", "guild_id": "7", "used": 12, "in_flight": 1, "ratio": 0.0048, "capped": false,
                        "room_at": null}]}},
            "breakers": {"closed": 3, "open": 1, "half_open": 0, "forced_open": 0},
            "credentials": [
                {"credential": "42", "limit": 50, "available": 12, "in_flight": 4, "blocked_until": null},
                {"credential": "anonymous", "limit": 50, "available": 50, "in_flight": 0, "blocked_until": null}],
            "gone_webhooks": 2, "refused_tokens": 0});
        assert_eq!(
            fields(&summary_fields(&read(&limits).unwrap()), Painter::none()),
            "global        12 of 50 per 1s available, 3 waiting, shared through Redis\n\
            \u{20}             blocked until 2026-01-31T12:00:05Z\n\
             waiting       interactive 1, background 2\n\
             other tokens  anonymous: 50 of 50 available\n\
             webhooks      2 do not exist\n\
             buckets       41\n\
             ban budget    8200 of 10000 invalid requests: all but interactive is blocked\n\
             ban shares    key abcdefgh2345: 2500 of 2500: its calls wait until 2026-01-31T12:08:05Z\n\
            \u{20}             guild 7: 12 of 2500\n\
             breakers      3 closed, 0 forced_open, 0 half_open, 1 open\n"
        );
    }

    #[test]
    fn buckets_and_top_spenders_are_rows() {
        let bucket = json!({"route": "POST /guilds/{id}/roles", "routes": ["POST /guilds/{id}/roles"], "bucket": "abc", "id": "7", "limit": 5, "left": 0,
            "resets_at": "2026-01-31T12:00:05.000Z", "waiting": 2});
        let text = buckets(&[read(&bucket).unwrap()]).print(Painter::none());
        assert!(text.ends_with("POST /guilds/{id}/roles  7   0/5   2        2026-01-31T12:00:05Z  abc\n"), "{text}");
        let response = json!({"by": "429", "since": "2026-01-31T12:00:00.000Z",
            "top": [{"guild_id": "7", "count": 9, "over": 0}, {"caller": "admin", "count": 1, "over": 0}]});
        assert_eq!(
            top(&read(&response).unwrap(), Painter::none()),
            "by 429, since 2026-01-31T12:00:00Z\nWHO      COUNT\nguild 7  9\nadmin    1\n"
        );
    }
}
