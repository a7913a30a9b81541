//! `guildhall keys`: API keys.

use std::{path::PathBuf, process::ExitCode, time::Duration};

use anyhow::anyhow;
use clap::Subcommand;
use http::Method;
use serde_json::{Value, json};

use super::{
    duration,
    listing::{self, PageArgs},
    output::{Color, Output, Painter, TableCell, TextTable, fields, format_time, print, read},
    remote::RemoteArgs,
    setting_flags::{self, SettingFlags},
    suggest,
};
use crate::api::dto::{CreatedKey, Key, Scope};
use crate::client::{ApiRequest, Client, ListRequest, path_segment};
use crate::daemon;
use crate::daemon::admin_key;

#[derive(clap::Args, Debug)]
pub(super) struct Args {
    #[command(flatten)]
    remote: RemoteArgs,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    #[command(flatten)]
    Remote(RemoteCommand),
    /// Replace the generated admin key shared through PostgreSQL; needs access to the store, not a running daemon
    RotateAdmin,
}

/// Commands that need a running daemon.
#[derive(Debug, Subcommand)]
enum RemoteCommand {
    /// Create a key and print it on standard output; it is shown only once
    Create {
        /// Descriptive name of the key
        #[arg(long, value_name = "TEXT")]
        name: String,
        /// Scope of the key; repeat the option or separate scopes with commas
        #[arg(long = "scope", value_name = "SCOPE", required = true, value_delimiter = ',', value_parser = suggest::scopes())]
        scopes: Vec<String>,
        /// Restrict the key to these guilds [default: all guilds of its tenant]
        #[arg(long = "guild", value_name = "ID", value_delimiter = ',')]
        guilds: Vec<String>,
        /// Lifetime of the key, such as 30d [default: no expiry]
        #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
        expires: Option<Duration>,
        /// Tenant of the key
        #[arg(long, value_name = "NAME")]
        tenant: Option<String>,
    },
    /// List keys, without their secrets
    List {
        /// Show only keys of this tenant
        #[arg(long, value_name = "NAME")]
        tenant: Option<String>,
        #[command(flatten)]
        wanted: PageArgs,
    },
    /// Show a key, without its secret
    Show {
        /// ID of the key
        #[arg(value_name = "ID")]
        id: String,
    },
    /// Revoke keys; requests with them are rejected within seconds
    Revoke {
        /// IDs of the keys
        #[arg(value_name = "ID", required = true)]
        ids: Vec<String>,
    },
    /// Replace a key with a new one and print the new key on standard output
    Rotate {
        /// ID of the key
        #[arg(value_name = "ID")]
        id: String,
        /// Time for which the old key remains valid
        #[arg(long, value_name = "DURATION", value_parser = duration::parse, default_value = "1h")]
        overlap: Duration,
    },
}

pub(super) fn run(file: Option<PathBuf>, args: Args) -> anyhow::Result<ExitCode> {
    let command = match args.command {
        Command::Remote(command) => command,
        Command::RotateAdmin => return rotate_admin(file),
    };
    args.remote.run(file, async |client, out| match command {
        RemoteCommand::Create { name, mut scopes, guilds, expires, tenant } => {
            scopes.extend(guilds.into_iter().map(|guild| format!("guild:{guild}")));
            let mut body = json!({ "name": name, "scopes": scopes });
            if let Some(expires) = expires {
                body["expires_in_s"] = expires.as_secs().into();
            }
            if let Some(tenant) = tenant {
                body["tenant"] = tenant.into();
            }
            print_new_key(out, &client.send(&ApiRequest::post("/v1/keys").with_body(body)).await?.body)
        }
        RemoteCommand::List { tenant, wanted } => {
            let given = vec![("tenant", tenant)];
            let max = wanted.max_entries();
            let pages = ListRequest {
                path: "/v1/keys",
                list: "keys",
                cursor: "cursor",
                filters: given,
                max_entries: max,
                feature: None,
            };
            listing::show(client, out, pages, "No keys except the admin key.", table).await
        }
        RemoteCommand::Show { id } => {
            let key = client.get(format!("/v1/keys/{}", path_segment(&id))).await?.body;
            out.show_response(&key, details)?;
            Ok(ExitCode::SUCCESS)
        }
        RemoteCommand::Revoke { ids } => revoke(client, out, &ids).await,
        RemoteCommand::Rotate { id, overlap } => {
            let request = ApiRequest::post(format!("/v1/keys/{}/rotate", path_segment(&id)));
            let response = client.send(&request.with_body(json!({ "overlap_s": overlap.as_secs() }))).await?;
            out.note(&format!("The old key {id} remains valid for {}.", duration::format_duration(overlap)));
            print_new_key(out, &response.body)
        }
    })
}

fn rotate_admin(file: Option<PathBuf>) -> anyhow::Result<ExitCode> {
    let settings = setting_flags::load(file, SettingFlags::default())?.settings;
    let file = daemon::block_on(admin_key::rotate(&settings))??;
    println!(
        "The new admin key is in {}. Within 2 seconds, running processes accept it and reject the old key.",
        file.display()
    );
    Ok(ExitCode::SUCCESS)
}

/// Prints a new key: only the secret on standard output, so that it can be piped, and the rest on standard error.
fn print_new_key(out: &Output, response: &Value) -> anyhow::Result<ExitCode> {
    if !out.is_table() {
        out.show(response, |_| String::new())?;
        return Ok(ExitCode::SUCCESS);
    }
    let CreatedKey { about, key } = read(response)?;
    eprint!("{}", details(&about, Painter::for_terminal(false)));
    eprintln!("The key follows. Store it now: it is not shown again.");
    // A closed pipe is an error here, too: the key exists, but was not printed.
    print(&format!("{key}\n")).map_err(|error| {
        anyhow!(
            "the key was created, but could not be printed ({error}). Revoke it with `guildhall keys revoke {}`",
            about.id
        )
    })?;
    Ok(ExitCode::SUCCESS)
}

async fn revoke(client: &Client, out: &Output, ids: &[String]) -> anyhow::Result<ExitCode> {
    for id in ids {
        client.send(&ApiRequest::new(Method::DELETE, format!("/v1/keys/{}", path_segment(id))).repeatable()).await?;
    }
    let text = |_| ids.iter().map(|id| format!("{id} is revoked\n")).collect();
    out.show(&json!({ "revoked": ids }), text)?;
    Ok(ExitCode::SUCCESS)
}

/// Formats the status of a key.
fn status_cell(key: &Key) -> TableCell {
    match (key.active, key.revoked_at.is_some()) {
        (true, _) => TableCell::tinted("active", Color::Good),
        (false, true) => TableCell::tinted("revoked", Color::Bad),
        (false, false) => TableCell::tinted("expired", Color::Dim),
    }
}

fn table(keys: &[Key]) -> TextTable {
    let mut table = TextTable::new(&["ID", "NAME", "TENANT", "STATUS", "EXPIRES", "CREATED", "SCOPES"])
        .with_text_columns(&["NAME", "SCOPES"]);
    for key in keys {
        table.row(vec![
            key.id.to_string().into(),
            key.name.as_str().into(),
            key.tenant.as_str().into(),
            status_cell(key),
            format_time(key.expires_at.as_ref()).into(),
            format_time(&key.created_at).into(),
            TableCell::tinted(scopes(key), Color::Dim),
        ]);
    }
    table
}

fn scopes(key: &Key) -> String {
    key.scopes.iter().map(Scope::as_ref).collect::<Vec<_>>().join(", ")
}

fn details(key: &Key, paint: Painter) -> String {
    let mut pairs = vec![
        ("id", key.id.to_string().into()),
        ("name", key.name.as_str().into()),
        ("tenant", key.tenant.as_str().into()),
        ("scopes", scopes(key).into()),
        ("status", status_cell(key)),
        ("created", format_time(&key.created_at).into()),
        ("expires", format_time(key.expires_at.as_ref()).into()),
    ];
    pairs.extend(key.revoked_at.as_ref().map(|at| ("revoked", format_time(at).into())));
    pairs.extend(key.rotated_to.as_ref().map(|id| ("rotated to", id.to_string().into())));
    fields(&pairs, paint)
}
