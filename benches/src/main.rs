//! The benchmark program: `guildhall-bench <name> --json` measures one thing and prints one JSON object as its last line.
//!
//! Every benchmark takes `--seconds` and ends within a minute by default. Figures that depend on the machine are given
//! beside a baseline from the same run where there is one.

mod budgets;
mod decisions;
mod fleet;
mod gate;
mod hot_bucket;
mod load;
mod overhead;
mod pipeline;
mod redis_server;
mod serve_sim;
mod sim;
mod stats;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
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
    /// What a call costs through the whole pipeline, beside the same call made directly.
    Overhead(overhead::Arguments),
    /// A budget shared over Redis that everybody wants, beside a script that is tried until it succeeds.
    Budgets(budgets::Arguments),
    /// A simulator for a benchmark that wants it in another process.
    #[command(name = serve_sim::SUBCOMMAND, hide = true)]
    ServeSim,
    /// A process of a fleet that shares one limit.
    #[command(name = fleet::SUBCOMMAND, hide = true)]
    Drive(fleet::Drive),
}

impl Name {
    /// Where processor time is measured, one thread does all the work: then nothing is lost between threads, and the
    /// figure does not depend on how many there are.
    fn runtime(&self) -> std::io::Result<Runtime> {
        let mut builder = match self {
            Self::Decisions(_) | Self::Overhead(_) => Builder::new_current_thread(),
            Self::Sim(_) | Self::Gate(_) | Self::HotBucket(_) | Self::Budgets(_) | Self::ServeSim | Self::Drive(_) => {
                Builder::new_multi_thread()
            }
        };
        builder.enable_all().build()
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let _ = rlimit::increase_nofile_limit(65_536);
    if let Name::Drive(drive) = &arguments.name {
        return fleet::drive(drive).map_or_else(|error| fail(&error), |()| ExitCode::SUCCESS);
    }
    let runtime = match arguments.name.runtime() {
        Ok(runtime) => runtime,
        Err(error) => return fail(&error.into()),
    };
    let measured = runtime.block_on(async {
        let Arguments { name, json, seconds } = &arguments;
        Ok(Some(match name {
            Name::Sim(options) => sim::run(options, *seconds, *json).await?,
            Name::Gate(options) => gate::run(options, *seconds, *json).await?,
            Name::HotBucket(options) => hot_bucket::run(options, *seconds, *json).await?,
            Name::Decisions(options) => decisions::run(options, *seconds, *json).await?,
            Name::Overhead(options) => overhead::run(options, *seconds, *json).await?,
            Name::Budgets(options) => budgets::run(options, *seconds, *json).await?,
            Name::ServeSim => {
                serve_sim::serve().await?;
                return Ok(None);
            }
            Name::Drive(_) => return Ok(None),
        }))
    });
    match measured {
        Ok(figures) => {
            if let Some(figures) = figures {
                println!("{figures}");
            }
            ExitCode::SUCCESS
        }
        Err(error) => fail(&error),
    }
}

fn fail(error: &anyhow::Error) -> ExitCode {
    eprintln!("guildhall-bench: {error:#}");
    ExitCode::FAILURE
}
