//! The benchmark program: `guildhall-bench <name> --json` runs one benchmark and prints one JSON object as its last
//! line.
//!
//! Every benchmark accepts `--seconds` and ends within a minute by default. Figures that depend on the machine come
//! with a baseline from the same run where possible.

mod api;
mod backlog;
mod broker;
mod budgets;
mod cpu;
mod daemon;
mod decisions;
mod disk;
mod event_load;
mod events;
mod fleet;
mod gate;
mod hot_bucket;
mod http_client;
mod idle;
mod memory;
mod metrics;
mod operations;
mod order;
mod overhead;
mod peers;
mod pipeline;
mod postgres_server;
mod processes;
mod proxy;
mod proxy_hot;
mod redis_server;
mod routes;
mod sender;
mod serve_sim;
mod sim;
mod stats;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use serde_json::Value;
use tokio::runtime::{Builder, Runtime};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Benchmark one part of Guildhall.
#[derive(Debug, Parser)]
#[command(name = "guildhall-bench", version)]
struct Arguments {
    #[command(subcommand)]
    name: Benchmark,
    /// Print only the JSON object.
    #[arg(long, global = true)]
    json: bool,
    /// Seconds that each measurement runs.
    #[arg(long, global = true, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=600))]
    seconds: u64,
}

#[derive(Debug, Subcommand)]
enum Benchmark {
    /// Measure the simulator's capacity: REST requests and gateway events per second, with limits off.
    Sim(sim::Arguments),
    /// Measure how much of the global limit the whole pipeline uses under full demand, and how fairly it shares it.
    Gate(gate::Arguments),
    /// Measure one route bucket under full demand, compared with a client that has one call in flight at a time.
    HotBucket(hot_bucket::Arguments),
    /// Measure how fast the limiter decides, alone and as an actor, and its memory per bucket.
    Decisions(decisions::Arguments),
    /// Measure the cost of an ordering decision by the number of operations that wait in a queue.
    Order(order::Arguments),
    /// Measure the cost of a call through the whole pipeline, compared with the same call made directly.
    Overhead(overhead::Arguments),
    /// Measure a budget shared over Redis under full demand, compared with a script that is retried until it succeeds.
    Budgets(budgets::Arguments),
    /// Measure events per second through RabbitMQ with confirms and order, compared with a plain publisher.
    Broker(broker::Arguments),
    /// Measure end-to-end operations per second with durable steps, compared with other queues on the same PostgreSQL.
    Operations(operations::Arguments),
    /// Measure the cost of an operation when the store holds many finished and many pending operations.
    Backlog(backlog::Arguments),
    /// Measure operations per second of one, two and four daemons that share a PostgreSQL.
    Processes(processes::Arguments),
    /// Measure end-to-end events per second up to a rule, and the latency of an event.
    Events(events::Arguments),
    /// Measure the latency of forwarding and handling events at several rates, while a rule acts on some of them.
    Load(event_load::Arguments),
    /// Measure the memory of a daemon per shard and per guild.
    Memory(memory::Arguments),
    /// Measure how many operations per second a daemon accepts over HTTP, compared with BullMQ.
    Api(api::Arguments),
    /// Measure the memory and processor time of an idle daemon.
    Idle(idle::Arguments),
    /// Measure the cost of finding and checking an API route, compared with a resource of actix-web for each path.
    Routes,
    /// Measure the cost and latency of a call through the REST proxy, compared with a plain pass-through.
    Proxy(proxy::Arguments),
    /// Measure one channel through the REST proxy under full demand, compared with one call in flight at a time.
    ProxyHot(proxy_hot::Arguments),
    /// Run a simulator for a benchmark that needs it in another process.
    #[command(name = serve_sim::SUBCOMMAND, hide = true)]
    ServeSim(serve_sim::Arguments),
    /// Run a pass-through for a benchmark that compares with it.
    #[command(name = proxy::SUBCOMMAND, hide = true)]
    ServePassthrough(proxy::PassthroughArguments),
    /// Run one process of a fleet that shares one limit.
    #[command(name = fleet::SUBCOMMAND, hide = true)]
    Drive(fleet::Drive),
    /// Run a daemon that shares the work with others.
    #[command(name = daemon::SUBCOMMAND, hide = true)]
    ServeDaemon,
}

impl Benchmark {
    /// Benchmarks that measure processor time run on one thread. Then no time is spent on switching between threads,
    /// and the figure does not depend on the number of threads.
    fn runtime(&self) -> std::io::Result<Runtime> {
        let mut builder = match self {
            Self::Decisions(_) | Self::Overhead(_) | Self::Order(_) | Self::Routes | Self::ServePassthrough(_) => {
                Builder::new_current_thread()
            }
            Self::Sim(_)
            | Self::Gate(_)
            | Self::HotBucket(_)
            | Self::Budgets(_)
            | Self::ServeSim(_)
            | Self::Proxy(_)
            | Self::ProxyHot(_)
            | Self::Broker(_)
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
    if let Benchmark::ServeDaemon = arguments.name {
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

/// Runs the benchmark and returns its figures. `None` for the hidden subcommands.
fn measure(arguments: &Arguments) -> anyhow::Result<Option<Value>> {
    let Arguments { name, json, seconds } = arguments;
    let figures = match name {
        Benchmark::Drive(drive) => {
            fleet::drive(drive)?;
            return Ok(None);
        }
        Benchmark::Operations(options) => run_on_daemon_runtime(operations::run(options, *json))?,
        Benchmark::Broker(options) => run_on_daemon_runtime(broker::run(options, *seconds, *json))?,
        Benchmark::Backlog(options) => run_on_daemon_runtime(backlog::run(options, *json))?,
        Benchmark::Events(options) => run_on_daemon_runtime(events::run(options, *seconds, *json))?,
        Benchmark::Load(options) => name.runtime()?.block_on(event_load::run(options, *seconds, *json))?,
        Benchmark::Memory(options) => name.runtime()?.block_on(memory::run(options, *json))?,
        Benchmark::Api(options) => name.runtime()?.block_on(api::run(options, *seconds, *json))?,
        Benchmark::Idle(options) => name.runtime()?.block_on(idle::run(options, *seconds, *json))?,
        Benchmark::Processes(options) => name.runtime()?.block_on(processes::run(options, *json))?,
        // Handled in `main`.
        Benchmark::ServeDaemon => return Ok(None),
        Benchmark::ServeSim(options) => {
            name.runtime()?.block_on(serve_sim::serve(options))?;
            return Ok(None);
        }
        Benchmark::ServePassthrough(options) => {
            name.runtime()?.block_on(proxy::serve_passthrough(options))?;
            return Ok(None);
        }
        Benchmark::Proxy(options) => name.runtime()?.block_on(proxy::run(options, *seconds, *json))?,
        Benchmark::ProxyHot(options) => name.runtime()?.block_on(proxy_hot::run(options, *seconds, *json))?,
        Benchmark::Sim(options) => name.runtime()?.block_on(sim::run(options, *seconds, *json))?,
        Benchmark::Gate(options) => name.runtime()?.block_on(gate::run(options, *seconds, *json))?,
        Benchmark::HotBucket(options) => name.runtime()?.block_on(hot_bucket::run(options, *seconds, *json))?,
        Benchmark::Decisions(options) => name.runtime()?.block_on(decisions::run(options, *seconds, *json))?,
        Benchmark::Order(options) => order::run(options, *seconds, *json)?,
        Benchmark::Overhead(options) => name.runtime()?.block_on(overhead::run(options, *seconds, *json))?,
        Benchmark::Routes => name.runtime()?.block_on(routes::run(*seconds, *json))?,
        Benchmark::Budgets(options) => name.runtime()?.block_on(budgets::run(options, *seconds, *json))?,
    };
    Ok(Some(figures))
}

/// Runs a benchmark on the same runtime as the daemon, because it uses components of the daemon.
fn run_on_daemon_runtime(run: impl Future<Output = anyhow::Result<Value>>) -> anyhow::Result<Value> {
    let _ = rustls::crypto::ring::default_provider().install_default();
    guildhall::daemon::block_on(run)?
}
