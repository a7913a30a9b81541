//! `guildhall completions <shell>`

use std::{io, process::ExitCode};

use clap::CommandFactory as _;
use clap_complete::Shell;

use super::Cli;

#[derive(clap::Args, Debug)]
pub(super) struct Args {
    /// Shell to print the script for
    shell: Shell,
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "guildhall", &mut script);
    io::Write::write_all(&mut io::stdout(), &script)?;
    Ok(ExitCode::SUCCESS)
}
