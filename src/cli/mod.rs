//! The command line. Each command is a file: its arguments, and a `run` that gives the exit code.
//!
//! Exit codes: 0 fine, 1 failed, 2 wrong usage, and 130 or 143 when a second signal ended the process at once.

mod audit;
mod breakers;
mod budgets;
mod commands;
mod completions;
mod config;
mod demo;
mod dlq;
mod doctor;
mod duration;
mod erase;
mod guilds;
mod handlers;
mod healthcheck;
mod input_file;
mod instances;
mod keys;
mod limits;
mod listing;
mod migrate;
mod openapi;
mod ops;
mod output;
mod reload;
mod remote;
mod serve;
mod setting_flags;
mod shards;
mod sim;
mod suggest;
mod usage;

use std::{io, path::PathBuf, process::ExitCode};

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
    /// Submit operations to a running daemon, look at them, follow them
    Ops(ops::Args),
    /// Look at dead letters, do them again, throw them away
    Dlq(dlq::Args),
    /// See how things stand in guilds, hold them back, let them go on
    Guilds(guilds::Args),
    /// See the connections to Discord's gateway, and make them anew
    Shards(shards::Args),
    /// See what Discord's limits leave, and who uses them up
    Limits(limits::Args),
    /// See what is not called since it fails; open and close it by hand
    Breakers(breakers::Args),
    /// See named budgets, and what was spent of them
    Budgets(budgets::Args),
    /// Make keys of the API, see them, take them back
    Keys(keys::Args),
    /// See who changed what
    Audit(audit::Args),
    /// Reload the settings of a running daemon, as SIGHUP does
    Reload(reload::Args),
    /// Erase what is stored about a user or a guild
    Erase(erase::Args),
    /// See the processes that share the store
    Instances(instances::Args),
    /// Show what callers use of the store, and their bounds
    Usage(usage::Args),
    /// Look over everything that a daemon needs, and say what to do
    Doctor(doctor::Args),
    /// Bring the store to another version of its schema
    Migrate(migrate::Args),
    /// Print the API's description: OpenAPI 3.1, in JSON
    Openapi,
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
        Command::Ops(args) => ops::run(file, args),
        Command::Dlq(args) => dlq::run(file, args),
        Command::Guilds(args) => guilds::run(file, args),
        Command::Shards(args) => shards::run(file, args),
        Command::Limits(args) => limits::run(file, &args),
        Command::Breakers(args) => breakers::run(file, args),
        Command::Budgets(args) => budgets::run(file, args),
        Command::Keys(args) => keys::run(file, args),
        Command::Audit(args) => audit::run(file, args),
        Command::Reload(args) => reload::run(file, &args),
        Command::Erase(args) => erase::run(file, &args),
        Command::Instances(args) => instances::run(file, &args),
        Command::Usage(args) => usage::run(file, &args),
        Command::Doctor(args) => doctor::run(file, args),
        Command::Migrate(args) => migrate::run(file, &args),
        Command::Openapi => openapi::run(),
        Command::Healthcheck(args) => healthcheck::run(file, &args),
        Command::Completions(args) => completions::run(&args),
    };
    match outcome {
        Ok(code) => code,
        // Whoever reads what is printed has had enough of it.
        Err(error)
            if error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe) =>
        {
            ExitCode::SUCCESS
        }
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
