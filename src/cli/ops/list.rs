//! `guildhall ops list` and `guildhall ops show`

use std::process::ExitCode;

use super::{report::OperationReport, view};
use crate::{
    cli::{
        duration,
        listing::{self, PageArgs},
        output::Output,
        suggest,
    },
    client::{Client, ListRequest, path_segment},
};

/// Filter for operations.
#[derive(clap::Args, Clone, Debug)]
pub(super) struct OperationFilter {
    /// Select only operations of this guild
    #[arg(long, value_name = "ID")]
    guild: Option<String>,
    /// Select only operations in this state
    #[arg(long, value_parser = suggest::states())]
    state: Option<String>,
    /// Select only operations of this kind
    #[arg(long, value_parser = suggest::kinds(), hide_possible_values = true)]
    kind: Option<String>,
    /// Select only parked operations (true), which others may overtake, or only the others (false)
    #[arg(long, value_name = "BOOL")]
    parked: Option<bool>,
    /// Select only operations accepted after this time: RFC 3339, or an age such as 2h
    #[arg(long, value_name = "TIME", value_parser = duration::parse_time)]
    created_after: Option<String>,
    /// Select only operations accepted before this time
    #[arg(long, value_name = "TIME", value_parser = duration::parse_time)]
    created_before: Option<String>,
}

impl OperationFilter {
    /// Names of its arguments.
    pub(super) const ARGS: [&str; 6] = ["guild", "state", "kind", "parked", "created_after", "created_before"];

    /// The states that it selects; `None` for all.
    pub(super) fn state(&self) -> Option<&str> {
        self.state.as_deref()
    }

    /// Returns the list of the operations that match.
    pub(super) fn list(&self, state: Option<&str>, max_entries: usize) -> ListRequest<'static> {
        ListRequest {
            path: "/v1/operations",
            list: "operations",
            cursor: "cursor",
            filters: vec![
                ("guild_id", self.guild.clone()),
                ("state", state.map(str::to_owned)),
                ("kind", self.kind.clone()),
                ("parked", self.parked.map(|parked| parked.to_string())),
                ("created_after", self.created_after.clone()),
                ("created_before", self.created_before.clone()),
            ],
            max_entries,
            feature: None,
        }
    }
}

#[derive(clap::Args, Debug)]
pub(super) struct ListArgs {
    #[command(flatten)]
    which: OperationFilter,
    #[command(flatten)]
    wanted: PageArgs,
}

#[derive(clap::Args, Debug)]
pub(super) struct ShowArgs {
    /// IDs of the operations
    #[arg(value_name = "ID", required = true)]
    ids: Vec<String>,
}

pub(super) async fn list(client: &Client, out: &Output, args: ListArgs) -> anyhow::Result<ExitCode> {
    let pages = args.which.list(args.which.state(), args.wanted.max_entries());
    listing::show(client, out, pages, "No matching operations.", |all: &[OperationReport]| view::table(all)).await
}

pub(super) async fn show(client: &Client, out: &Output, args: &ShowArgs) -> anyhow::Result<ExitCode> {
    let mut found = Vec::new();
    for id in &args.ids {
        found.push(client.get(format!("/v1/operations/{}", path_segment(id))).await?.body);
    }
    out.show_each("operations", found, view::details)?;
    Ok(ExitCode::SUCCESS)
}
