//! `guildhall config check` and `guildhall config template`

use std::{
    io::{self, Write as _},
    path::PathBuf,
    process::ExitCode,
};

use clap::Subcommand;
use serde_json::json;

use super::setting_flags::{self, SettingFlags};
use crate::settings::{LoadedSettings, SettingsError, template};

#[derive(clap::Args, Debug)]
pub(super) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Print every effective setting and its source, or all errors
    Check {
        /// Print one JSON object
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        settings: Box<SettingFlags>,
    },
    /// Print a settings file with every setting commented out at its default
    Template,
}

pub(super) fn run(file: Option<PathBuf>, args: Args) -> anyhow::Result<ExitCode> {
    match args.command {
        Command::Check { json, settings } => {
            let loaded = setting_flags::load(file, *settings);
            let text = match (&loaded, json) {
                (Ok(loaded), false) => table(loaded),
                (Err(_), false) => String::new(),
                (loaded, true) => format!("{:#}\n", as_json(loaded)),
            };
            io::stdout().write_all(text.as_bytes())?;
            loaded?;
        }
        Command::Template => io::stdout().write_all(template().as_bytes())?,
    }
    Ok(ExitCode::SUCCESS)
}

fn table(loaded: &LoadedSettings) -> String {
    let rows: Vec<_> = loaded
        .effective_settings()
        .map(|setting| {
            let value = if setting.value.is_null() { "(not set)".to_owned() } else { setting.value.to_string() };
            (setting.key(), value, setting.origin())
        })
        .collect();
    let widest = |column: fn(&(&'static str, String, String)) -> usize| rows.iter().map(column).max().unwrap_or(0);
    let (keys, values) = (widest(|row| row.0.len()), widest(|row| row.1.len()));
    rows.iter().map(|(key, value, origin)| format!("{key:keys$}  {value:values$}  {origin}\n")).collect()
}

fn as_json(loaded: &Result<LoadedSettings, SettingsError>) -> serde_json::Value {
    match loaded {
        Ok(loaded) => {
            let settings: Vec<_> = loaded
                .effective_settings()
                .map(|setting| json!({"key": setting.key(), "value": setting.value, "origin": setting.origin()}))
                .collect();
            json!({"ok": true, "settings": settings})
        }
        Err(error) => {
            let errors: Vec<_> = error
                .problems
                .iter()
                .map(|problem| {
                    json!({
                        "key": problem.key,
                        "origin": problem.origin.as_ref().map(ToString::to_string),
                        "message": problem.to_string(),
                    })
                })
                .collect();
            json!({"ok": false, "errors": errors})
        }
    }
}
