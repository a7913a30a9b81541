//! `guildhall erase`: erases the stored data about a user or a guild.

use std::{collections::BTreeMap, path::PathBuf, process::ExitCode};

use clap::ArgGroup;
use serde_json::{Value, json};

use super::{
    output::{Painter, TextTable, text},
    remote::RemoteArgs,
};
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
        let erased = erase(client, subject).await?;
        out.show(&erased, |paint| format_result(&erased, paint))?;
        Ok(ExitCode::SUCCESS)
    })
}

/// Sends requests until every table was examined, and adds up the removed and the remaining rows.
async fn erase(client: &Client, subject: Value) -> anyhow::Result<Value> {
    let mut removed = BTreeMap::<String, u64>::new();
    let mut remaining = BTreeMap::<String, Value>::new();
    let mut body = subject.clone();
    loop {
        // Idempotent: removed rows are not removed again.
        let mut answer = client.send(&ApiRequest::post("/v1/erase").with_body(body).repeatable()).await?.body;
        for (what, count) in answer["removed"].as_object().into_iter().flatten() {
            *removed.entry(what.clone()).or_default() += count.as_u64().unwrap_or(0);
        }
        for mut row in answer["kept"].as_array_mut().map(std::mem::take).unwrap_or_default() {
            let what = text(&row["what"]);
            if let (Some(count), Some(before)) = (row["count"].as_u64(), remaining.get(&what)) {
                row["count"] = (count + before["count"].as_u64().unwrap_or(0)).into();
            }
            remaining.insert(what, row);
        }
        let next = answer["next"].take();
        if next.is_null() {
            let remaining: Vec<_> = remaining.into_values().collect();
            return Ok(json!({"removed": removed, "kept": remaining, "done": true}));
        }
        body = subject.clone();
        body["next"] = next;
    }
}

fn format_result(erased: &Value, paint: Painter) -> String {
    let removed: Vec<_> =
        erased["removed"].as_object().into_iter().flatten().map(|(what, count)| format!("{count} {what}")).collect();
    let removed = if removed.is_empty() { "nothing found".to_owned() } else { removed.join(", ") };
    let mut table = TextTable::new(&["KEPT", "COUNT", "WHY"]);
    for retained in erased["kept"].as_array().into_iter().flatten() {
        table.row(vec![text(&retained["what"]).into(), text(&retained["count"]).into(), text(&retained["why"]).into()]);
    }
    format!("removed: {removed}\n\n{}", table.print(paint))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn removed_and_remaining_rows_are_displayed() {
        let erased = json!({"removed": {"operations": 2}, "kept": [{"what": "audit", "why": "stays"}]});
        let text = format_result(&erased, Painter::none());
        assert!(text.starts_with("removed: 2 operations\n"), "{text}");
        assert!(text.contains("audit") && text.contains("stays"), "{text}");
        let nothing = json!({"removed": {}, "kept": []});
        assert!(format_result(&nothing, Painter::none()).contains("nothing found"));
    }
}
