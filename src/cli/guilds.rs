//! `guildhall guilds`: lists, shows, pauses and resumes guilds.

use std::{path::PathBuf, process::ExitCode};

use clap::{ArgGroup, Subcommand};
use serde_json::json;

use super::{
    listing::{self, PageArgs},
    output::{Color, Output, TableCell, TextTable, fields, or_dash},
    remote::RemoteArgs,
};
use crate::api::dto::{Guild, GuildStatus};
use crate::client::{ApiRequest, Client, ListRequest, path_segment};

#[derive(clap::Args, Debug)]
pub(super) struct Args {
    #[command(flatten)]
    remote: RemoteArgs,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List guilds with their names
    List {
        #[command(flatten)]
        wanted: PageArgs,
    },
    /// Show whether guilds are paused, and their pending operations
    Show {
        /// IDs of the guilds
        #[arg(value_name = "GUILD_ID", required = true)]
        ids: Vec<String>,
    },
    /// Pause the operations of guilds, also across restarts; new operations are still accepted
    Pause(GuildSelection),
    /// Resume the operations of guilds
    Resume(GuildSelection),
}

#[derive(clap::Args, Debug)]
#[command(group = ArgGroup::new("choice").args(["ids", "all"]).required(true))]
struct GuildSelection {
    /// IDs of the guilds
    #[arg(value_name = "GUILD_ID")]
    ids: Vec<String>,
    /// Apply to all operations, including those without a guild
    #[arg(long)]
    all: bool,
}

pub(super) fn run(file: Option<PathBuf>, args: Args) -> anyhow::Result<ExitCode> {
    args.remote.run(file, async |client, out| match args.command {
        Command::List { wanted } => list(client, out, wanted).await,
        Command::Show { ids } => show(client, out, &ids).await,
        Command::Pause(chosen) => post_action(client, out, &chosen, "pause").await,
        Command::Resume(chosen) => post_action(client, out, &chosen, "resume").await,
    })
}

async fn list(client: &Client, out: &Output, page: PageArgs) -> anyhow::Result<ExitCode> {
    let pages = ListRequest {
        path: "/v1/guilds",
        list: "guilds",
        cursor: "cursor",
        filters: Vec::new(),
        max_entries: page.max_entries(),
        feature: Some("the list of guilds"),
    };
    listing::show(client, out, pages, "No guilds yet: the gateway has reported none.", table).await
}

fn table(guilds: &[Guild]) -> TextTable {
    let mut table = TextTable::new(&["ID", "NAME", "TENANT"]).with_text_columns(&["NAME"]);
    for guild in guilds {
        table.row(vec![
            guild.id.to_string().into(),
            or_dash(guild.name.as_ref()).into(),
            TableCell::tinted(guild.tenant.as_str(), Color::Dim),
        ]);
    }
    table
}

async fn show(client: &Client, out: &Output, ids: &[String]) -> anyhow::Result<ExitCode> {
    let mut found = Vec::new();
    for id in ids {
        found.push(client.get(format!("/v1/guilds/{}", path_segment(id))).await?.body);
    }
    out.show_each("guilds", found, |guild, paint| fields(&status_fields(guild), paint))?;
    Ok(ExitCode::SUCCESS)
}

/// Formats the status of a guild.
fn status_fields(guild: &GuildStatus) -> Vec<(&'static str, TableCell)> {
    let more = if guild.depth_is_more { "more than " } else { "" };
    let paused = match (guild.paused, guild.all_paused) {
        (true, _) => TableCell::tinted("yes", Color::Care),
        (false, true) => TableCell::tinted("yes (all guilds)", Color::Care),
        (false, false) => "no".into(),
    };
    let pending: Vec<_> = guild.pending.iter().map(|(state, count)| format!("{count} {state}")).collect();
    let mut pairs = vec![
        ("guild", guild.guild_id.to_string().into()),
        ("name", or_dash(guild.name.as_ref()).into()),
        ("paused", paused),
        ("pending", format!("{more}{}", guild.depth).into()),
    ];
    if !pending.is_empty() {
        pairs.push(("by state", pending.join(", ").into()));
    }
    pairs
}

async fn post_action(client: &Client, out: &Output, chosen: &GuildSelection, action: &str) -> anyhow::Result<ExitCode> {
    // Idempotent.
    let mut done = Vec::new();
    if chosen.all {
        done.push(client.send(&ApiRequest::post(format!("/v1/{action}")).repeatable()).await?.body);
    }
    for id in &chosen.ids {
        done.push(
            client
                .send(&ApiRequest::post(format!("/v1/guilds/{}/{action}", path_segment(id))).repeatable())
                .await?
                .body,
        );
    }
    let names = chosen.ids.iter().map(|id| format!("guild {id}"));
    let names = chosen.all.then(|| "everything".to_owned()).into_iter().chain(names);
    let text: String = names.map(|name| format!("{name} is {action}d\n")).collect();
    let value = if done.len() == 1 { done.remove(0) } else { json!({ "guilds": done }) };
    out.show(&value, |_| text)?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::output::{Painter, read};

    #[test]
    fn guild_displays_pending_operations_and_pause() {
        let guild = json!({"guild_id": "7", "name": "Pilots", "paused": false, "all_paused": true, "depth": 1000, "depth_is_more": true,
            "pending": {"queued": 999, "running": 1}});
        assert_eq!(
            fields(&status_fields(&read(&guild).unwrap()), Painter::none()),
            "guild     7\nname      Pilots\npaused    yes (all guilds)\npending   more than 1000\nby state  999 queued, 1 running\n"
        );
    }
}
