//! `guildhall demo`

use std::{path::PathBuf, process::ExitCode};

use super::setting_flags::{self, SettingFlags};
use crate::{
    app::{self, Demo, Signals},
    logging,
};

/// What is logged unless somebody asks for more: the demo tells its own story.
const QUIET: &str = "warn";

#[derive(clap::Args, Debug)]
pub(super) struct Args {
    /// End after the scenario, with a summary; exit code 1 if something did not happen
    #[arg(long)]
    exit: bool,
    #[command(flatten)]
    settings: SettingFlags,
}

pub(super) fn run(file: Option<PathBuf>, args: Args) -> anyhow::Result<ExitCode> {
    let loaded = setting_flags::load(file, args.settings)?;
    let is_default = |key: &str| loaded.is_default(key);
    let mut settings = loaded.settings.clone();
    if is_default("log.filter") {
        QUIET.clone_into(&mut settings.log.filter);
    }
    if is_default("api.bind") {
        // A newcomer's port 8080 may be taken; a free one is as good.
        settings.api.bind.set_port(0);
    }
    logging::init(&settings.log, settings.secrets())?;
    app::raise_open_files();
    app::block_on(async {
        let mut signals = Signals::listen()?;
        let mut demo = tokio::select! {
            started = Demo::start(&settings) => started?,
            _ = signals.first() => return Ok(ExitCode::FAILURE),
        };
        let complete = tokio::select! {
            complete = demo.play() => complete?,
            _ = signals.first() => {
                demo.shutdown(settings.shutdown.timeout).await?;
                return Ok(ExitCode::FAILURE);
            }
        };
        let verdict = if complete { ExitCode::SUCCESS } else { ExitCode::FAILURE };
        println!("\n{}", demo.summary());
        if !args.exit {
            println!("{}", demo.hints());
            tokio::select! {
                ended = demo.daemon().ended() => anyhow::bail!("{ended}"),
                _ = signals.first() => {}
            }
        }
        demo.shutdown(settings.shutdown.timeout).await?;
        Ok(verdict)
    })?
}
