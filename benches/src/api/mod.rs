//! `api`: operations per second that a daemon accepts over HTTP, one at a time and in batches. Each operation is on
//! disk before the response is sent. The baseline is BullMQ's `add` with a Redis that syncs its append-only file every
//! second.

mod callers;
mod connection;

use anyhow::{Context as _, ensure};
use bytes::Bytes;
use clap::Args;
use guildhall_sim::{BotConfig, LimitConfig, Sim, SimConfig};
use http::Method;
use serde_json::{Value, json};
use tokio::task::block_in_place;

use self::callers::{LoadConfig, LoadResult, run_load};
use crate::daemon::{API_KEY, Daemon};
use crate::http_client::Connection;
use crate::processes::TOKEN;
use crate::redis_server::RedisServer;
use crate::{disk, peers};

/// Operations per request in batch mode.
const BATCH_SIZE: u32 = 100;

/// Callers and guilds.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Number of concurrent callers that submit one operation at a time.
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=500))]
    callers: u32,
    /// Number of concurrent callers that submit batches.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=500))]
    bulk_callers: u32,
    /// Number of guilds that the operations are spread over.
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    guilds: u32,
    /// Measure only Guildhall.
    #[arg(long)]
    alone: bool,
}

pub(crate) async fn run(arguments: &Arguments, seconds: u64, quiet: bool) -> anyhow::Result<Value> {
    let folder = disk::temp_dir()?;
    let config = SimConfig {
        bots: vec![BotConfig { token: TOKEN.to_owned(), ..BotConfig::default() }],
        guilds: 1,
        limits: LimitConfig::off(),
        ..SimConfig::default()
    };
    let sim = Sim::start(config).await.context("cannot start the simulator")?;
    let (api, gateway) = (sim.api_url(), sim.gateway_url());
    let store = format!("sqlite:{}", folder.path().join("api.db").display());
    let settings = [
        ("DISCORD__TOKEN", TOKEN),
        ("DISCORD__API_URL", api.as_str()),
        ("DISCORD__GATEWAY_URL", gateway.as_str()),
        ("STORE__URL", store.as_str()),
    ];
    let daemon = block_in_place(|| Daemon::start(&settings, folder.path()))?;
    daemon.wait_until_ready().await?;
    // BullMQ is measured without workers, too.
    pause(&daemon).await?;

    let guilds = arguments.guilds;
    let single_load = LoadConfig { callers: arguments.callers, batch: 1, guilds, seconds };
    let batch_load = LoadConfig { callers: arguments.bulk_callers, batch: BATCH_SIZE, guilds, seconds };
    let one = block_in_place(|| run_load(daemon.address, single_load))?;
    let [add, add_shared] = measure_bullmq(arguments, single_load)?;
    print_result("single operations", &one, add.as_ref(), add_shared.as_ref(), quiet);
    let many = block_in_place(|| run_load(daemon.address, batch_load))?;
    let [add_bulk, add_bulk_shared] = measure_bullmq(arguments, batch_load)?;
    print_result("batches", &many, add_bulk.as_ref(), add_bulk_shared.as_ref(), quiet);

    let accepted = daemon.metrics().await?.sum("guildhall_operations_enqueued_total");
    ensure!(
        accepted == (one.accepted + many.accepted) as f64,
        "the daemon accepted {accepted} operations, which differs from the number of its 202 responses"
    );
    block_in_place(|| drop(daemon));
    sim.stop().await;
    let figure = |peer: &Option<Value>, key: &str| peer.as_ref().map(|figures| figures[key].clone());
    Ok(json!({
        "name": "api",
        "callers": arguments.callers,
        "bulk_callers": arguments.bulk_callers,
        "batch": BATCH_SIZE,
        "guilds": arguments.guilds,
        "submit_per_s": one.per_s,
        "submit_bulk_per_s": many.per_s,
        "p50_ms": one.p50_ms,
        "p99_ms": one.p99_ms,
        "bulk_p50_ms": many.p50_ms,
        "bulk_p99_ms": many.p99_ms,
        "bullmq_add_per_s": figure(&add, "per_s"),
        "bullmq_add_bulk_per_s": figure(&add_bulk, "per_s"),
        "bullmq_add_shared_per_s": figure(&add_shared, "per_s"),
        "bullmq_add_bulk_shared_per_s": figure(&add_bulk_shared, "per_s"),
        "bullmq_p50_ms": figure(&add, "p50_ms"),
        "bullmq_p99_ms": figure(&add, "p99_ms"),
        "bullmq_bulk_p50_ms": figure(&add_bulk, "p50_ms"),
        "bullmq_bulk_p99_ms": figure(&add_bulk, "p99_ms"),
    }))
}

/// Pauses execution: operations are accepted and stored, but not executed.
async fn pause(daemon: &Daemon) -> anyhow::Result<()> {
    let mut connection = Connection::open(daemon.address).await?;
    let (status, response) =
        connection.call(Method::POST, "/v1/pause", &format!("Bearer {API_KEY}"), Bytes::from_static(b"{}")).await?;
    ensure!(status == 200, "cannot pause the daemon: it returned {status}: {}", String::from_utf8_lossy(&response));
    Ok(())
}

/// Measures BullMQ with the same number of callers and the same batch size: first with one connection per caller, as
/// for Guildhall, then with one connection that all callers share. `None` if it is not installed.
fn measure_bullmq(arguments: &Arguments, load: LoadConfig) -> anyhow::Result<[Option<Value>; 2]> {
    if arguments.alone || !peers::is_installed("bullmq") || !peers::is_installed("ioredis") {
        return Ok([None, None]);
    }
    let LoadConfig { callers, batch, guilds, seconds } = load;
    let add = |connections: u32| {
        let server = RedisServer::start_persistent()?;
        let numbers = [u64::from(callers), u64::from(batch), u64::from(guilds), seconds, u64::from(connections)];
        peers::run_script("bullmq", std::iter::once(server.url()).chain(numbers.map(|number| number.to_string())))
    };
    block_in_place(|| Ok([Some(add(callers)?), Some(add(1)?)]))
}

fn print_result(label: &str, ours: &LoadResult, bullmq: Option<&Value>, shared: Option<&Value>, quiet: bool) {
    if quiet {
        return;
    }
    let LoadResult { per_s, p50_ms, p99_ms, .. } = ours;
    println!("{label}: {per_s:.0} operations/s, p50 {p50_ms:.1} ms, p99 {p99_ms:.1} ms");
    let rate = |figures: &Value| figures["per_s"].as_f64().unwrap_or_default();
    match bullmq.zip(shared) {
        Some((own, one)) => {
            let (own, one) = (rate(own), rate(one));
            println!(
                "{label}, BullMQ: {own:.0} jobs/s with one connection per caller, {one:.0} with a shared \
                connection"
            );
        }
        None => println!("BullMQ was not measured; install it with scripts/bench-peers"),
    }
}
