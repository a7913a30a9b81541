//! Options and output of paginated lists.

use std::process::ExitCode;

use clap::Args;
use serde::de::DeserializeOwned;

use super::output::{Output, TextTable, read};
use crate::client::{Client, ListRequest};

/// Default number of entries.
const DEFAULT_LIMIT: usize = 50;

/// Number of entries to show.
#[derive(Args, Clone, Copy, Debug)]
pub(super) struct PageArgs {
    /// Maximum number of entries to show [default: 50]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..), conflicts_with = "all")]
    limit: Option<u32>,
    /// Show all entries
    #[arg(long)]
    all: bool,
}

impl PageArgs {
    pub(super) fn max_entries(self) -> usize {
        match (self.all, self.limit) {
            (true, _) => usize::MAX,
            (false, Some(limit)) => limit as usize,
            (false, None) => DEFAULT_LIMIT,
        }
    }
}

/// Reads a list and prints it. `nothing` is the message for an empty list.
pub(super) async fn show<T: DeserializeOwned>(
    client: &Client,
    out: &Output,
    pages: ListRequest<'_>,
    nothing: &str,
    table: impl FnOnce(&[T]) -> TextTable,
) -> anyhow::Result<ExitCode> {
    let page = client.read_list(&pages).await?;
    let (count, is_more) = (page.entries.len(), page.next.is_some());
    if count == 0 {
        out.note(nothing);
        if out.is_table() {
            return Ok(ExitCode::SUCCESS);
        }
    }
    // Programs get the response as it is, also from a daemon of another version.
    let entries =
        if out.is_table() { page.entries.iter().map(read).collect::<anyhow::Result<Vec<T>>>()? } else { Vec::new() };
    out.show(&page.into_value(pages.list), |paint| table(&entries).print(paint))?;
    if is_more {
        out.note(&format!("Only the first {count} entries are shown. Use --all or --limit COUNT to see more."));
    }
    Ok(ExitCode::SUCCESS)
}
