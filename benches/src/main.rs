//! The benchmark program: `guildhall-bench <name> --json` measures one thing and prints one JSON object as its last line.
//!
//! Every benchmark takes `--seconds` and ends within a minute by default. Figures that depend on the machine are given
//! beside a baseline from the same run where there is one.

mod api;
mod backlog;
mod budgets;
mod cpu;
mod daemon;
mod decisions;
mod disk;
mod events;
mod fleet;
mod gate;
mod hot_bucket;
mod idle;
mod load;
mod memory;
mod metrics;
mod operations;
mod order;
mod overhead;
mod peers;
mod pipeline;
mod postgres_server;
mod processes;
mod redis_server;
mod sender;
mod serve_sim;
mod sim;
mod stages;
mod stats;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use serde_json::Value;
use tokio::runtime::{Builder, Runtime};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Measures one part of Guildhall.
#[derive(Debug, Parser)]
#[command(name = "guildhall-bench", version)]
struct Arguments {
    #[command(subcommand)]
    name: Name,
    /// Print nothing but the JSON object.
    #[arg(long, global = true)]
    json: bool,
    /// How long each measurement runs.
    #[arg(long, global = true, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=600))]
    seconds: u64,
}

#[derive(Debug, Subcommand)]
enum Name {
    /// How much the simulator can carry: REST requests and gateway events a second, limits off.
    Sim(sim::Arguments),
    /// What the whole pipeline makes of the global limit under full demand, and how evenly it shares it.
    Gate(gate::Arguments),
    /// One route bucket that everybody wants, beside a client with one call under way at a time.
    HotBucket(hot_bucket::Arguments),
    /// How fast the limiter decides, by itself and as an actor, and what it keeps for each bucket.
    Decisions(decisions::Arguments),
    /// What a decision about the order of a queue costs, by how many operations wait in it.
    Order(order::Arguments),
    /// What a call costs through the whole pipeline, beside the same call made directly.
    Overhead(overhead::Arguments),
    /// A budget shared over Redis that everybody wants, beside a script that is tried until it succeeds.
    Budgets(budgets::Arguments),
    /// How many operations a second go all the way, kept at each step, beside other queues on the same PostgreSQL.
    Operations(operations::Arguments),
    /// What an operation costs when the store holds many that are done and many that are not.
    Backlog(backlog::Arguments),
    /// How many operations a second one, two and four daemons do that share a PostgreSQL.
    Processes(processes::Arguments),
    /// How many events a second go all the way to a rule, and how long one takes.
    Events(events::Arguments),
    /// How soon events are handed on and handled while a daemon has more and fewer of them, and a rule acts on some.
    Load(stages::Arguments),
    /// How much memory a daemon holds, by its shards and by its guilds.
    Memory(memory::Arguments),
    /// How many operations a second a daemon accepts over HTTP, beside what BullMQ adds to its queue.
    Api(api::Arguments),
    /// What a daemon with nothing to do takes of memory and processors.
    Idle(idle::Arguments),
    /// A simulator for a benchmark that wants it in another process.
    #[command(name = serve_sim::SUBCOMMAND, hide = true)]
    ServeSim,
    /// A process of a fleet that shares one limit.
    #[command(name = fleet::SUBCOMMAND, hide = true)]
    Drive(fleet::Drive),
    /// A daemon that shares the work with others.
    #[command(name = daemon::SUBCOMMAND, hide = true)]
    ServeDaemon,
}

impl Name {
    /// Where processor time is measured, one thread does all the work: then nothing is lost between threads, and the
    /// figure does not depend on how many there are.
    fn runtime(&self) -> std::io::Result<Runtime> {
        let mut builder = match self {
            Self::Decisions(_) | Self::Overhead(_) | Self::Order(_) => Builder::new_current_thread(),
            Self::Sim(_)
            | Self::Gate(_)
            | Self::HotBucket(_)
            | Self::Budgets(_)
            | Self::ServeSim
            | Self::Operations(_)
            | Self::Backlog(_)
            | Self::Events(_)
            | Self::Load(_)
            | Self::Memory(_)
            | Self::Api(_)
            | Self::Idle(_)
            | Self::Processes(_)
            | Self::ServeDaemon
            | Self::Drive(_) => Builder::new_multi_thread(),
        };
        builder.enable_all().build()
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let _ = rlimit::increase_nofile_limit(65_536);
    if let Name::ServeDaemon = arguments.name {
        return daemon::serve();
    }
    match measure(&arguments) {
        Ok(figures) => {
            if let Some(figures) = figures {
                println!("{figures}");
            }
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("guildhall-bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// The figures, unless it was something else that was asked for.
fn measure(arguments: &Arguments) -> anyhow::Result<Option<Value>> {
    let Arguments { name, json, seconds } = arguments;
    let figures = match name {
        Name::Drive(drive) => {
            fleet::drive(drive)?;
            return Ok(None);
        }
        Name::Operations(options) => as_the_daemon(operations::run(options, *json))?,
        Name::Backlog(options) => as_the_daemon(backlog::run(options, *json))?,
        Name::Events(options) => as_the_daemon(events::run(options, *seconds, *json))?,
        Name::Load(options) => name.runtime()?.block_on(stages::run(options, *seconds, *json))?,
        Name::Memory(options) => name.runtime()?.block_on(memory::run(options, *json))?,
        Name::Api(options) => name.runtime()?.block_on(api::run(options, *seconds, *json))?,
        Name::Idle(options) => name.runtime()?.block_on(idle::run(options, *seconds, *json))?,
        Name::Processes(options) => name.runtime()?.block_on(processes::run(options, *json))?,
        // It has been, before this.
        Name::ServeDaemon => return Ok(None),
        Name::ServeSim => {
            name.runtime()?.block_on(serve_sim::serve())?;
            return Ok(None);
        }
        Name::Sim(options) => name.runtime()?.block_on(sim::run(options, *seconds, *json))?,
        Name::Gate(options) => name.runtime()?.block_on(gate::run(options, *seconds, *json))?,
        Name::HotBucket(options) => name.runtime()?.block_on(hot_bucket::run(options, *seconds, *json))?,
        Name::Decisions(options) => name.runtime()?.block_on(decisions::run(options, *seconds, *json))?,
        Name::Order(options) => order::run(options, *seconds, *json)?,
        Name::Overhead(options) => name.runtime()?.block_on(overhead::run(options, *seconds, *json))?,
        Name::Budgets(options) => name.runtime()?.block_on(budgets::run(options, *seconds, *json))?,
    };
    Ok(Some(figures))
}

/// Runs what is put together as the daemon is, where the daemon runs.
fn as_the_daemon(run: impl Future<Output = anyhow::Result<Value>>) -> anyhow::Result<Value> {
    let _ = rustls::crypto::ring::default_provider().install_default();
    guildhall::app::block_on(run)?
}
