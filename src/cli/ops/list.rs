//! `guildhall ops list` and `guildhall ops show`

use std::process::ExitCode;

use serde_json::Value;

use super::view;
use crate::{
    cli::{
        duration,
        listing::{self, PageArgs},
        output::Output,
        suggest,
    },
    client::{Client, ListRequest, path_segment},
};

#[derive(clap::Args, Debug)]
pub(super) struct ListArgs {
    /// Show only operations of this guild
    #[arg(long, value_name = "ID")]
    guild: Option<String>,
    /// Show only operations in this state
    #[arg(long, value_parser = suggest::states())]
    state: Option<String>,
    /// Show only operations of this kind
    #[arg(long, value_parser = suggest::kinds(), hide_possible_values = true)]
    kind: Option<String>,
    /// Show only parked operations (true), which others may overtake, or only the others (false)
    #[arg(long, value_name = "BOOL")]
    parked: Option<bool>,
    /// Show only operations of this deployment
    #[arg(long, value_name = "ID")]
    deployment: Option<String>,
    /// Show only operations accepted after this time: RFC 3339, or an age such as 2h
    #[arg(long, value_name = "TIME", value_parser = duration::parse_time)]
    created_after: Option<String>,
    /// Show only operations accepted before this time
    #[arg(long, value_name = "TIME", value_parser = duration::parse_time)]
    created_before: Option<String>,
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
    let given = vec![
        ("guild_id", args.guild),
        ("state", args.state),
        ("kind", args.kind),
        ("parked", args.parked.map(|parked| parked.to_string())),
        ("deployment_id", args.deployment),
        ("created_after", args.created_after),
        ("created_before", args.created_before),
    ];
    let max = args.wanted.max_entries();
    let pages = ListRequest {
        path: "/v1/operations",
        list: "operations",
        cursor: "cursor",
        filters: given,
        max_entries: max,
        feature: None,
    };
    listing::show(client, out, pages, "No matching operations.", view::table).await
}

pub(super) async fn show(client: &Client, out: &Output, args: &ShowArgs) -> anyhow::Result<ExitCode> {
    let mut found = Vec::new();
    for id in &args.ids {
        found.push(client.get(format!("/v1/operations/{}", path_segment(id))).await?.body);
    }
    let value = if let [one] = found.as_slice() { one.clone() } else { view::list_value(&found) };
    let all = |paint| found.iter().map(|one: &Value| view::details(one, paint)).collect::<Vec<_>>().join("\n");
    out.show(&value, all)?;
    Ok(ExitCode::SUCCESS)
}
