//! `guildhall serve`

use std::{path::PathBuf, process::ExitCode};

use guildhall_actors::supervision::Supervision;

use super::setting_flags::{self, SettingFlags};
use crate::daemon::reload::Reloader;
use crate::daemon::signals::{OnHangup, Signals, StopSource};
use crate::daemon::{ServeError, StartError};
use crate::events::{StoreRestored, emit};
use crate::{daemon, handlers, logging, store};

#[derive(clap::Args, Debug)]
pub(super) struct Args {
    /// Shut down when standard input closes, so that the daemon does not outlive its parent process
    #[arg(long, hide = true)]
    until_input_ends: bool,
    /// The store was restored from a backup: check all unfinished operations before anything is sent
    #[arg(long)]
    restored: bool,
    #[command(flatten)]
    settings: SettingFlags,
}

pub(super) fn run(file: Option<PathBuf>, args: Args) -> anyhow::Result<ExitCode> {
    let ends_with = if args.until_input_ends { StopSource::Input } else { StopSource::Signals };
    // Before the first part starts: only parts that start after this are watched.
    Supervision::install().map_err(ServeError::Supervision)?;
    // Early, so that no signal is lost during the start, and SIGHUP never ends the process.
    let signals = Signals::listen(ends_with, OnHangup::Reload);
    let signals = signals.map_err(|error| anyhow::anyhow!("cannot listen for signals: {error}"))?;
    let read = move || setting_flags::load(file.clone(), args.settings.clone());
    let started = read()?;
    let mut settings = started.settings.clone();
    // Before the log starts: these errors are for the user of the command.
    settings.discord.bot_token()?;
    // And so that the log knows which secrets it must not contain.
    let key = daemon::admin_key::find(&settings)?;
    settings.set_admin_key(&key.key);
    let (handlers, prints) = handlers::load_with_digests(&settings.handlers)?;
    let secrets = settings.secrets().into_iter().chain(handlers::secrets(&handlers)).collect();
    let log = logging::init(&settings.log, secrets)?;
    let reloader = Reloader::new(Box::new(read), started, prints, log);
    daemon::raise_open_files();
    if args.restored {
        let prepared = store::prepare_restored(&settings.store, settings.operations.settle);
        let restored = daemon::block_on(prepared)?.map_err(StartError::Store)?;
        emit(StoreRestored { restored });
    }
    daemon::block_on(daemon::serve(&settings, handlers, &key, signals, &reloader))??;
    Ok(ExitCode::SUCCESS)
}
