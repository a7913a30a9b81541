//! `guildhall erase`: erases the stored data about a user or a guild.

use std::{collections::BTreeMap, path::PathBuf, process::ExitCode};

use clap::ArgGroup;
use serde_json::{Value, json};

use super::{
    interrupt::{interrupted, unless_interrupted},
    output::{Painter, TextTable, or_dash, read},
    remote::RemoteArgs,
};
use crate::api::dto::{Erased, RetainedRows};
use crate::client::{ApiRequest, Client};

#[derive(clap::Args, Debug)]
#[command(group = ArgGroup::new("subject").args(["user", "guild"]).required(true))]
pub(super) struct Args {
    #[command(flatten)]
    remote: RemoteArgs,
    /// Erase data about this user
    #[arg(long, value_name = "ID")]
    user: Option<String>,
    /// Erase data about this guild
    #[arg(long, value_name = "ID")]
    guild: Option<String>,
}

pub(super) fn run(file: Option<PathBuf>, args: &Args) -> anyhow::Result<ExitCode> {
    args.remote.run(file, async |client, out| {
        let subject = match (&args.user, &args.guild) {
            (Some(id), _) => json!({"user_id": id}),
            (None, guild) => json!({"guild_id": guild}),
        };
        let Some(erased) = unless_interrupted(erase(client, subject)).await else {
            return Ok(interrupted("a part is erased already; run the same command again to erase the rest"));
        };
        let erased = erased?;
        out.show(&serde_json::to_value(&erased)?, |paint| format_result(&erased, paint))?;
        Ok(ExitCode::SUCCESS)
    })
}

/// Sends requests until every table was examined, and adds up the removed and the remaining rows.
async fn erase(client: &Client, subject: Value) -> anyhow::Result<Erased> {
    let mut removed = BTreeMap::<String, u64>::new();
    let mut remaining = BTreeMap::<String, RetainedRows>::new();
    let mut body = subject.clone();
    loop {
        // Idempotent: removed rows are not removed again.
        let response = client.send(&ApiRequest::post("/v1/erase").with_body(body).repeatable()).await?.body;
        let step: Erased = read(&response)?;
        for (what, count) in step.removed {
            *removed.entry(what).or_default() += count;
        }
        for mut row in step.kept {
            if let (Some(count), Some(before)) = (row.count, remaining.get(&row.what)) {
                row.count = Some(count + before.count.unwrap_or(0));
            }
            remaining.insert(row.what.clone(), row);
        }
        let Some(next) = step.next else {
            return Ok(Erased { removed, kept: remaining.into_values().collect(), done: true, next: None });
        };
        body = subject.clone();
        body["next"] = next.into();
    }
}

fn format_result(erased: &Erased, paint: Painter) -> String {
    let removed: Vec<_> = erased.removed.iter().map(|(what, count)| format!("{count} {what}")).collect();
    let removed = if removed.is_empty() { "nothing found".to_owned() } else { removed.join(", ") };
    let mut table = TextTable::new(&["KEPT", "COUNT", "WHY"]).with_text_columns(&["WHY"]);
    for row in &erased.kept {
        table.row(vec![row.what.as_str().into(), or_dash(row.count).into(), row.why.as_str().into()]);
    }
    format!("removed: {removed}\n\n{}", table.print(paint))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn removed_and_remaining_rows_are_displayed() {
        let erased = json!({"removed": {"operations": 2}, "kept": [{"what": "audit", "why": "stays"}], "done": true});
        let text = format_result(&read(&erased).unwrap(), Painter::none());
        assert!(text.starts_with("removed: 2 operations\n"), "{text}");
        assert!(text.contains("audit") && text.contains("stays"), "{text}");
        assert!(format_result(&Erased::default(), Painter::none()).contains("nothing found"));
    }
}
