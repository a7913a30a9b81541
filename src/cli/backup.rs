//! `guildhall backup create` and `guildhall backup restore`

use std::{
    io::{self, Write as _},
    path::PathBuf,
    process::ExitCode,
};

use clap::Subcommand;

use super::setting_flags::{self, SettingFlags};
use crate::{
    daemon,
    store::backup::{self, Backup, Restored},
};

#[derive(clap::Args, Debug)]
pub(super) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Copy the SQLite file of the store to a new file; a daemon may run meanwhile
    Create {
        /// Path of the new file
        #[arg(value_name = "PATH")]
        to: PathBuf,
        #[command(flatten)]
        settings: Box<SettingFlags>,
    },
    /// Replace the SQLite file of the store by a backup; no daemon may run
    ///
    /// Operations that were unfinished in the backup are checked in Discord before anything is sent. The replaced file is
    /// kept next to it.
    Restore {
        /// Path of the backup
        #[arg(value_name = "PATH")]
        from: PathBuf,
        #[command(flatten)]
        settings: Box<SettingFlags>,
    },
}

pub(super) fn run(file: Option<PathBuf>, args: &Args) -> anyhow::Result<ExitCode> {
    let (Command::Create { settings, .. } | Command::Restore { settings, .. }) = &args.command;
    let settings = setting_flags::load(file, (**settings).clone())?.settings;
    let report = daemon::block_on(async {
        match &args.command {
            Command::Create { to, .. } => {
                let Backup { bytes, unfinished } = backup::create(&settings.store, to).await?;
                anyhow::Ok(format!(
                    "backed up to {}: {bytes} bytes, {unfinished} unfinished operations\n",
                    to.display()
                ))
            }
            Command::Restore { from, .. } => {
                let restored = backup::restore(&settings.store, from, settings.operations.settle).await?;
                Ok(restore_report(&settings.store.url.to_string(), &restored))
            }
        }
    })??;
    io::stdout().write_all(report.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

fn restore_report(url: &str, Restored { store, replaced }: &Restored) -> String {
    let mut report = format!(
        "restored {url}\nof the backup's unfinished operations, {} are checked in Discord and not sent, and {} stay scheduled\n\
         {} events that waited for a handler are dead events; {} shard sessions are not resumed\n",
        store.due, store.scheduled, store.events, store.sessions
    );
    if let Some(replaced) = replaced {
        report.push_str(&format!("the replaced file is {}\n", replaced.display()));
    }
    report.push_str("next: guildhall serve; then guildhall doctor shows the result of the checks\n");
    report
}
