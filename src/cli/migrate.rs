//! `guildhall migrate up`, `guildhall migrate down` and `guildhall migrate status`

use std::{
    io::{self, Write as _},
    path::PathBuf,
    process::ExitCode,
};

use clap::Subcommand;

use super::setting_flags::{self, SettingFlags};
use crate::{
    app,
    store::{
        OpenError,
        migrate::{self, Step},
    },
};

#[derive(clap::Args, Debug)]
pub(super) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Bring the store up to date; `serve` does so by itself unless store.migrate is false
    Up {
        #[command(flatten)]
        settings: Box<SettingFlags>,
    },
    /// Take back the newest migrations, and throw away what they hold
    Down {
        /// How many
        #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
        steps: u32,
        #[command(flatten)]
        settings: Box<SettingFlags>,
    },
    /// Print every migration, and whether the store has it
    Status {
        #[command(flatten)]
        settings: Box<SettingFlags>,
    },
}

pub(super) fn run(file: Option<PathBuf>, args: &Args) -> anyhow::Result<ExitCode> {
    let (Command::Up { settings } | Command::Down { settings, .. } | Command::Status { settings }) = &args.command;
    let store = setting_flags::load(file, (**settings).clone())?.settings.store;
    let steps: Result<Vec<Step>, OpenError> = app::block_on(async {
        match &args.command {
            Command::Up { .. } => migrate::up(&store).await,
            Command::Down { steps, .. } => migrate::down(&store, *steps).await,
            Command::Status { .. } => migrate::status(&store).await,
        }
    })?;
    io::stdout().write_all(table(&steps?).as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

fn table(steps: &[Step]) -> String {
    let line = |step: &Step| {
        let standing = match (step.applied, step.known) {
            (true, true) => "applied",
            (true, false) => "applied by a newer version",
            (false, _) => "pending",
        };
        format!("{}  {standing}\n", step.name)
    };
    steps.iter().map(line).collect()
}
