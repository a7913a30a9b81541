//! The command line. Each command is a file: its arguments, and a `run` that gives the exit code.
//!
//! Exit codes: 0 fine, 1 failed, 2 wrong usage, and 130 or 143 when a second signal ended the process at once.

mod commands;
mod completions;
mod config;
mod demo;
mod handlers;
mod healthcheck;
mod migrate;
mod serve;
mod setting_flags;
mod sim;
mod trust;

use std::{path::PathBuf, process::ExitCode};

use clap::{Parser, Subcommand};

/// A daemon that stands between a Discord bot's brain and Discord.
#[derive(Debug, Parser)]
#[command(name = "guildhall", version, arg_required_else_help = true)]
pub struct Cli {
    /// The settings file; without this, config/guildhall.toml when there is one
    #[arg(long, global = true, value_name = "PATH")]
    config: Option<PathBuf>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the daemon
    Serve(serve::Args),
    /// Show the daemon at work against the built-in simulator; no token needed
    Demo(demo::Args),
    /// Run the built-in simulator of Discord alone
    Sim(sim::Args),
    /// Look at the settings
    Config(config::Args),
    /// Give Discord the commands that users see
    Commands(commands::Args),
    /// Look at the handlers: what is done with which events
    Handlers(handlers::Args),
    /// Bring the store to another version of its schema
    Migrate(migrate::Args),
    /// Ask a running daemon whether it is ready
    Healthcheck(healthcheck::Args),
    /// Print a shell's completion script
    Completions(completions::Args),
}

/// Runs what the command line asks for. Wrong usage has already ended the process with 2.
pub fn run(cli: Cli) -> ExitCode {
    let file = cli.config;
    let outcome = match cli.command {
        Command::Serve(args) => serve::run(file, args),
        Command::Demo(args) => demo::run(file, args),
        Command::Sim(args) => sim::run(args),
        Command::Config(args) => config::run(file, args),
        Command::Commands(args) => commands::run(file, args),
        Command::Handlers(args) => handlers::run(file, args),
        Command::Migrate(args) => migrate::run(file, &args),
        Command::Healthcheck(args) => healthcheck::run(file, &args),
        Command::Completions(args) => completions::run(&args),
    };
    match outcome {
        Ok(code) => code,
        Err(error) => {
            // Not the chain of sources: each message already says what a person needs.
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    #[test]
    fn the_command_line_is_well_formed() {
        super::Cli::command().debug_assert();
    }
}
