//! `guildhall serve`

use std::{path::PathBuf, process::ExitCode};

use super::setting_flags::{self, SettingFlags};
use crate::{
    app::{self, StartError},
    logging,
};

#[derive(clap::Args, Debug)]
pub(super) struct Args {
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
    logging::init(&settings.log, settings.secrets())?;
    app::raise_open_files();
    app::block_on(app::serve(&settings, &key))??;
    Ok(ExitCode::SUCCESS)
}
