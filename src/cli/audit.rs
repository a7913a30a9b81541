//! `guildhall audit`: lists the audit log.

use std::{path::PathBuf, process::ExitCode};

use super::{
    listing::{self, PageArgs},
    output::{Color, TableCell, TextTable, format_time, or_dash},
    remote::RemoteArgs,
};
use crate::api::dto::AuditRow;
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

fn table(rows: &[AuditRow]) -> TextTable {
    let mut table =
        TextTable::new(&["AT", "KEY", "TENANT", "ACTION", "GUILD", "TARGET", "DETAIL"]).with_text_columns(&["DETAIL"]);
    for row in rows {
        table.row(vec![
            format_time(&row.at).into(),
            row.key.as_str().into(),
            row.tenant.as_str().into(),
            row.action.to_string().into(),
            or_dash(row.guild_id.as_ref()).into(),
            or_dash(row.target.as_ref()).into(),
            TableCell::tinted(row.detail.as_deref().unwrap_or_default(), Color::Dim),
        ]);
    }
    table
}
