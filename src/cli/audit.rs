//! `guildhall audit`: lists the audit log.

use std::{path::PathBuf, process::ExitCode};

use serde_json::Value;

use super::{
    listing::{self, PageArgs},
    output::{Color, TableCell, TextTable, text, time},
    remote::RemoteArgs,
};
use crate::client::ListRequest;

#[derive(clap::Args, Debug)]
pub(super) struct Args {
    #[command(flatten)]
    remote: RemoteArgs,
    /// Show only changes made with the key of this ID; `admin` is the admin key
    #[arg(long, value_name = "KEY_ID")]
    by: Option<String>,
    /// Show only this action, such as keys.create
    #[arg(long, value_name = "ACTION")]
    action: Option<String>,
    /// Show only changes in this guild
    #[arg(long, value_name = "ID")]
    guild: Option<String>,
    #[command(flatten)]
    wanted: PageArgs,
}

pub(super) fn run(file: Option<PathBuf>, args: Args) -> anyhow::Result<ExitCode> {
    args.remote.run(file, async |client, out| {
        let given = vec![("key", args.by), ("action", args.action), ("guild_id", args.guild)];
        let max = args.wanted.max_entries();
        let pages = ListRequest {
            path: "/v1/audit",
            list: "audit",
            cursor: "before",
            filters: given,
            max_entries: max,
            feature: None,
        };
        listing::show(client, out, pages, "No matching audit entries.", table).await
    })
}

fn table(rows: &[Value]) -> TextTable {
    let mut table = TextTable::new(&["AT", "KEY", "TENANT", "ACTION", "GUILD", "TARGET", "DETAIL"]);
    for row in rows {
        table.row(vec![
            time(&row["at"]).into(),
            text(&row["key"]).into(),
            text(&row["tenant"]).into(),
            text(&row["action"]).into(),
            text(&row["guild_id"]).into(),
            text(&row["target"]).into(),
            TableCell::tinted(row["detail"].as_str().unwrap_or_default(), Color::Dim),
        ]);
    }
    table
}
