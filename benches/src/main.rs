//! The benchmark program: `guildhall-bench <name> --json` measures one thing and prints one JSON object as its last line.
//!
//! Every benchmark takes `--seconds` and ends within a minute by default. Figures that depend on the machine are given
//! beside a baseline from the same run where there is one.

mod load;
mod sim;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

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
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let _ = rlimit::increase_nofile_limit(65_536);
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return fail(&error.into()),
    };
    let measured = runtime.block_on(async {
        match &arguments.name {
            Name::Sim(options) => sim::run(options, arguments.seconds, arguments.json).await,
        }
    });
    match measured {
        Ok(figures) => {
            println!("{figures}");
            ExitCode::SUCCESS
        }
        Err(error) => fail(&error),
    }
}

fn fail(error: &anyhow::Error) -> ExitCode {
    eprintln!("guildhall-bench: {error:#}");
    ExitCode::FAILURE
}
