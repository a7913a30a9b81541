//! The command line. Each command is a file: its arguments, and a `run` that returns the exit code.

mod audit;
mod backup;
mod breakers;
mod broker;
mod budgets;
mod commands;
mod completions;
mod config;
mod confirm;
#[cfg(feature = "simulator")]
mod demo;
mod dlq;
mod doctor;
mod duration;
mod egress;
mod erase;
mod events;
mod guilds;
mod handlers;
mod healthcheck;
mod input_file;
mod instances;
mod interrupt;
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
#[cfg(feature = "simulator")]
mod sim;
mod status;
mod suggest;
mod usage;

use std::{io, path::PathBuf, process::ExitCode};

use clap::{Parser, Subcommand};

/// Run and operate Guildhall, a daemon between a Discord bot's own code and Discord.
#[derive(Debug, Parser)]
#[command(name = "guildhall", version, arg_required_else_help = true)]
pub struct Cli {
    /// Path of the settings file [default: config/guildhall.toml, if it exists]
    #[arg(long, global = true, value_name = "PATH")]
    config: Option<PathBuf>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the daemon
    Serve(serve::Args),
    #[cfg(feature = "simulator")]
    /// Run a demo of the daemon against the built-in simulator; needs no token
    Demo(demo::Args),
    #[cfg(feature = "simulator")]
    /// Run only the built-in Discord simulator
    Sim(sim::Args),
    /// Check the settings, or print a template
    Config(config::Args),
    /// Register application commands with Discord
    Commands(commands::Args),
    /// Check the event handlers, or test them with an event
    Handlers(handlers::Args),
    /// Show the state of the daemon on one screen
    Status(status::Args),
    /// Submit, list, watch, cancel and retry operations
    Ops(ops::Args),
    /// List, redrive and discard dead letters
    Dlq(dlq::Args),
    /// List, redrive and discard dead events
    Events(events::Args),
    /// List, show, pause and resume guilds
    Guilds(guilds::Args),
    /// List and restart gateway shards
    Shards(shards::Args),
    /// Show Discord's rate limits and their largest consumers
    Limits(limits::Args),
    /// List circuit breakers; open or close them manually
    Breakers(breakers::Args),
    /// Show who uses the REST proxy most; send calls to a webhook again
    Egress(egress::Args),
    /// Check and declare the queues of RabbitMQ, and manage its dead letters
    Broker(broker::Args),
    /// Show named budgets and their spending
    Budgets(budgets::Args),
    /// Create, list, rotate and revoke API keys
    Keys(keys::Args),
    /// List the audit log of changes
    Audit(audit::Args),
    /// Reload the settings of a running daemon, as SIGHUP does
    Reload(reload::Args),
    /// Erase the stored data about a user or a guild
    Erase(erase::Args),
    /// List the processes that share the store
    Instances(instances::Args),
    /// Show how much of the store each caller uses, and the limits
    Usage(usage::Args),
    /// Check everything that a daemon needs, and suggest fixes
    Doctor(doctor::Args),
    /// Back up the SQLite file of the store, or restore a backup
    Backup(backup::Args),
    /// Apply, revert and list migrations of the store's schema
    Migrate(migrate::Args),
    /// Print the OpenAPI 3.1 description of the API as JSON
    Openapi,
    /// Check whether a running daemon is ready
    Healthcheck(healthcheck::Args),
    /// Print a shell completion script
    Completions(completions::Args),
}

/// Runs a command. Usage errors have already ended the process with 2.
pub fn run(cli: Cli) -> ExitCode {
    let file = cli.config;
    let outcome = match cli.command {
        Command::Serve(args) => serve::run(file, args),
        #[cfg(feature = "simulator")]
        Command::Demo(args) => demo::run(file, args),
        #[cfg(feature = "simulator")]
        Command::Sim(args) => sim::run(args),
        Command::Config(args) => config::run(file, args),
        Command::Commands(args) => commands::run(file, args),
        Command::Handlers(args) => handlers::run(file, args),
        Command::Status(args) => status::run(file, &args),
        Command::Ops(args) => ops::run(file, args),
        Command::Dlq(args) => dlq::run(file, args),
        Command::Events(args) => events::run(file, args),
        Command::Guilds(args) => guilds::run(file, args),
        Command::Shards(args) => shards::run(file, args),
        Command::Limits(args) => limits::run(file, &args),
        Command::Breakers(args) => breakers::run(file, args),
        Command::Egress(args) => egress::run(file, args),
        Command::Broker(args) => broker::run(file, args),
        Command::Budgets(args) => budgets::run(file, args),
        Command::Keys(args) => keys::run(file, args),
        Command::Audit(args) => audit::run(file, args),
        Command::Reload(args) => reload::run(file, &args),
        Command::Erase(args) => erase::run(file, &args),
        Command::Instances(args) => instances::run(file, &args),
        Command::Usage(args) => usage::run(file, &args),
        Command::Doctor(args) => doctor::run(file, args),
        Command::Backup(args) => backup::run(file, &args),
        Command::Migrate(args) => migrate::run(file, &args),
        Command::Openapi => openapi::run(),
        Command::Healthcheck(args) => healthcheck::run(file, &args),
        Command::Completions(args) => completions::run(&args),
    };
    match outcome {
        Ok(code) => code,
        // The reader of the output has closed the pipe.
        Err(error)
            if error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe) =>
        {
            ExitCode::SUCCESS
        }
        Err(error) => {
            // Not the chain of sources: each message is complete.
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
