//! `guildhall commands sync`

use std::{
    fmt::Write as _,
    io::{self, Write as _},
    num::NonZeroU64,
    path::PathBuf,
    process::ExitCode,
};

use clap::Subcommand;
use guildhall_core::command::{CommandChange, CommandScope};

use super::{
    remote::RemoteArgs,
    setting_flags::{self, SettingFlags},
};
use crate::daemon::commands::{SyncMode, SyncResult};
use crate::{commands, daemon, logging};

/// Default log filter: the command's output is what the user waits for.
const DEFAULT_LOG_FILTER: &str = "warn,guildhall_actors::telemetry=error";
/// Maximum number of changed fields that are named; the others are counted.
const MAX_NAMED_FIELDS: usize = 8;

#[derive(clap::Args, Debug)]
pub(super) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Replace the commands at Discord with those of a file, and print the differences
    Sync {
        /// File with the commands: YAML, or JSON if the name ends with .json; - for standard input
        #[arg(short, long, value_name = "COMMANDS.YAML")]
        file: PathBuf,
        /// Register the commands only in this guild, where they appear at once [default: all guilds]
        #[arg(long, value_name = "ID")]
        guild: Option<NonZeroU64>,
        /// Print the differences without changing anything
        #[arg(long)]
        dry_run: bool,
        #[command(flatten)]
        remote: Box<RemoteArgs>,
        #[command(flatten)]
        settings: Box<SettingFlags>,
    },
}

pub(super) fn run(file: Option<PathBuf>, args: Args) -> anyhow::Result<ExitCode> {
    let Command::Sync { file: commands, guild, dry_run, remote, settings } = args.command;
    let loaded = setting_flags::load(file, *settings)?;
    // Before any request to Discord.
    let desired = commands::load(&commands)?;
    let token = loaded.settings.discord.bot_token()?;
    let mut log = loaded.settings.log.clone();
    if loaded.is_default("log.filter") {
        DEFAULT_LOG_FILTER.clone_into(&mut log.filter);
    }
    logging::init(&log, loaded.settings.secrets())?;
    let scope = guild.map_or(CommandScope::Global, |guild| CommandScope::Guild(guild.get()));
    let mode = if dry_run { SyncMode::DryRun } else { SyncMode::Apply };
    let daemon = remote.client_with(|| Ok(loaded.settings.clone())).map_err(|error| error.to_string());
    let synced = daemon::block_on(daemon::sync(&loaded.settings, token, &desired, scope, mode, &daemon))??;
    io::stdout().write_all(format_result(&synced, mode).as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

/// Formats the result for people.
fn format_result(synced: &SyncResult, mode: SyncMode) -> String {
    let mut out = String::new();
    let (mut created, mut changed, mut removed, mut same) = (0, 0, 0, 0);
    for change in &synced.plan.changes {
        let (sign, label, fields, count) = match change {
            CommandChange::Created { label } => ('+', label, None, &mut created),
            CommandChange::Changed { label, fields } => ('~', label, Some(fields), &mut changed),
            CommandChange::Removed { label } => ('-', label, None, &mut removed),
            CommandChange::Same { label } => ('=', label, None, &mut same),
        };
        *count += 1;
        let fields = fields.map(|fields| format_fields(fields)).unwrap_or_default();
        writeln!(out, "{sign} {label}{fields}").expect("invariant: writing to a String cannot fail");
    }
    let end = match (synced.sent, synced.plan.is_needed(), mode) {
        (true, _, _) => "Registered with Discord.",
        (false, false, _) => "Discord is up to date; nothing was sent.",
        (false, true, SyncMode::DryRun) => "Nothing was sent (--dry-run).",
        (false, true, SyncMode::Apply) => "Nothing was sent.",
    };
    out + &format!("{created} created, {changed} changed, {removed} removed, {same} unchanged. {end}\n")
}

fn format_fields(fields: &[String]) -> String {
    let more = fields.len().saturating_sub(MAX_NAMED_FIELDS);
    let more = if more == 0 { String::new() } else { format!(" and {more} more") };
    format!(": {}{more}", fields.iter().take(MAX_NAMED_FIELDS).cloned().collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests {
    use guildhall_core::command::CommandPlan;
    use serde_json::Value;

    use super::*;

    #[test]
    fn each_command_is_a_line_and_many_fields_are_counted() {
        let label = |name: &str| name.to_owned();
        let changes = vec![
            CommandChange::Created { label: label("/new") },
            CommandChange::Changed { label: label("/ban"), fields: (0..10).map(|n| format!("f{n}")).collect() },
            CommandChange::Removed { label: label("user command Old") },
            CommandChange::Same { label: label("/ping") },
        ];
        let synced = SyncResult { plan: CommandPlan { changes, body: Value::Null }, sent: false };
        assert_eq!(
            format_result(&synced, SyncMode::DryRun),
            "+ /new\n~ /ban: f0, f1, f2, f3, f4, f5, f6, f7 and 2 more\n- user command Old\n= /ping\n1 created, 1 changed, \
             1 removed, 1 unchanged. Nothing was sent (--dry-run).\n"
        );
    }
}
