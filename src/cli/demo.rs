//! `guildhall demo`

use std::{path::PathBuf, process::ExitCode};

use super::setting_flags::{self, SettingFlags};
use crate::daemon::signals::{OnHangup, Signals, StopSource};
use crate::demo::{Demo, DemoSettings};
use crate::{daemon, logging};

/// Default log filter: the demo prints its own output.
const DEFAULT_LOG_FILTER: &str = "warn";

#[derive(clap::Args, Debug)]
pub(super) struct Args {
    /// Exit after the scenario and print a summary; the exit code is 1 if a step failed
    #[arg(long)]
    exit: bool,
    #[command(flatten)]
    settings: SettingFlags,
}

pub(super) fn run(file: Option<PathBuf>, args: Args) -> anyhow::Result<ExitCode> {
    if args.settings.has_simulator() {
        anyhow::bail!("the demo starts a simulator of its own; remove --sim");
    }
    let loaded = setting_flags::load(file.clone(), args.settings.clone())?;
    let timeout = loaded.settings.shutdown.timeout;
    let mut log = loaded.settings.log.clone();
    if loaded.is_default("log.filter") {
        DEFAULT_LOG_FILTER.clone_into(&mut log.filter);
    }
    logging::init(&log, loaded.settings.secrets())?;
    daemon::raise_open_files();
    let settings = DemoSettings { file, flags: args.settings.into_flags(), loaded };
    daemon::block_on(async {
        let mut signals = Signals::listen(StopSource::Signals, OnHangup::Exit)?;
        let mut demo = tokio::select! {
            started = Demo::start(settings) => started?,
            _ = signals.first() => return Ok(ExitCode::FAILURE),
        };
        let complete = tokio::select! {
            complete = demo.run() => complete?,
            _ = signals.first() => {
                demo.shutdown(timeout).await?;
                return Ok(ExitCode::FAILURE);
            }
        };
        let exit_code = if complete { ExitCode::SUCCESS } else { ExitCode::FAILURE };
        println!("\n{}", demo.summary());
        if !args.exit {
            println!("{}", demo.hints());
            tokio::select! {
                ended = demo.ended() => anyhow::bail!("{ended}"),
                _ = signals.first() => {}
            }
        }
        demo.shutdown(timeout).await?;
        Ok(exit_code)
    })?
}
