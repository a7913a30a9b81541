//! `guildhall serve`

use std::{path::PathBuf, process::ExitCode};

use super::setting_flags::{self, SettingFlags};
use crate::{
    app::{self, EndsWith, StartError},
    handlers, logging,
};

#[derive(clap::Args, Debug)]
pub(super) struct Args {
    /// End in order when standard input does: for whoever starts it and must not be outlived by it
    #[arg(long, hide = true)]
    until_input_ends: bool,
    #[command(flatten)]
    settings: SettingFlags,
}

pub(super) fn run(file: Option<PathBuf>, args: Args) -> anyhow::Result<ExitCode> {
    let mut settings = setting_flags::load(file, args.settings)?.settings;
    // Before the log starts: the answer is for the person who typed the command.
    if settings.discord.token.is_none() {
        return Err(StartError::NoToken.into());
    }
    // And so that the log knows what it must not hold.
    let key = app::admin_key::find(&settings)?;
    settings.api.admin_key = Some(key.key.clone());
    let handlers = handlers::load(&settings.handlers)?;
    let secrets = settings.secrets().into_iter().chain(handlers::secrets(&handlers)).collect();
    logging::init(&settings.log, secrets)?;
    app::raise_open_files();
    let ends_with = if args.until_input_ends { EndsWith::Input } else { EndsWith::Signals };
    app::block_on(app::serve(&settings, handlers, &key, ends_with))??;
    Ok(ExitCode::SUCCESS)
}
