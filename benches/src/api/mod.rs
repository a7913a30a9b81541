//! `api`: operations per second that a daemon accepts over HTTP, one at a time and in batches. Each operation is on
//! disk before the response is sent. The baseline is BullMQ's `add` with a Redis that syncs its append-only file every
//! second.

mod callers;
mod line;

use anyhow::{Context as _, ensure};
use bytes::Bytes;
use clap::Args;
use guildhall_sim::{BotConfig, LimitConfig, Sim, SimConfig};
use http::Method;
use serde_json::{Value, json};
use tokio::task::block_in_place;

use self::callers::{Asking, Showed, ask};
use crate::daemon::{Daemon, KEY};
use crate::load::Connection;
use crate::processes::TOKEN;
use crate::redis_server::RedisServer;
use crate::{disk, peers};

/// Operations per request in batch mode.
const BATCH: u32 = 100;

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
    let folder = disk::folder()?;
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
    daemon.is_ready().await?;
    // BullMQ is measured without workers, too.
    hold_back(&daemon).await?;

    let guilds = arguments.guilds;
    let singly = Asking { callers: arguments.callers, batch: 1, guilds, seconds };
    let in_batches = Asking { callers: arguments.bulk_callers, batch: BATCH, guilds, seconds };
    let one = block_in_place(|| ask(daemon.address, singly))?;
    let [add, add_shared] = beside(arguments, singly)?;
    tell("single operations", &one, add.as_ref(), add_shared.as_ref(), quiet);
    let many = block_in_place(|| ask(daemon.address, in_batches))?;
    let [add_bulk, add_bulk_shared] = beside(arguments, in_batches)?;
    tell("batches", &many, add_bulk.as_ref(), add_bulk_shared.as_ref(), quiet);

    let kept = daemon.metrics().await?.sum("guildhall_operations_enqueued_total");
    ensure!(
        kept == (one.accepted + many.accepted) as f64,
        "the daemon accepted {kept} operations, which differs from the number of its 202 responses"
    );
    block_in_place(|| drop(daemon));
    sim.stop().await;
    let of = |peer: &Option<Value>, key: &str| peer.as_ref().map(|figures| figures[key].clone());
    Ok(json!({
        "name": "api",
        "callers": arguments.callers,
        "bulk_callers": arguments.bulk_callers,
        "batch": BATCH,
        "guilds": arguments.guilds,
        "submit_per_s": one.per_s,
        "submit_bulk_per_s": many.per_s,
        "p50_ms": one.p50_ms,
        "p99_ms": one.p99_ms,
        "bulk_p50_ms": many.p50_ms,
        "bulk_p99_ms": many.p99_ms,
        "bullmq_add_per_s": of(&add, "per_s"),
        "bullmq_add_bulk_per_s": of(&add_bulk, "per_s"),
        "bullmq_add_shared_per_s": of(&add_shared, "per_s"),
        "bullmq_add_bulk_shared_per_s": of(&add_bulk_shared, "per_s"),
        "bullmq_p50_ms": of(&add, "p50_ms"),
        "bullmq_p99_ms": of(&add, "p99_ms"),
        "bullmq_bulk_p50_ms": of(&add_bulk, "p50_ms"),
        "bullmq_bulk_p99_ms": of(&add_bulk, "p99_ms"),
    }))
}

/// Pauses execution: operations are accepted and stored, but not executed.
async fn hold_back(daemon: &Daemon) -> anyhow::Result<()> {
    let mut connection = Connection::open(daemon.address).await?;
    let (status, told) =
        connection.call(Method::POST, "/v1/pause", &format!("Bearer {KEY}"), Bytes::from_static(b"{}")).await?;
    ensure!(status == 200, "cannot pause the daemon: it returned {status}: {}", String::from_utf8_lossy(&told));
    Ok(())
}

/// Measures BullMQ with the same number of callers and the same batch size: first with one connection per caller, as
/// for Guildhall, then with one connection that all callers share. `None` if it is not installed.
fn beside(arguments: &Arguments, asking: Asking) -> anyhow::Result<[Option<Value>; 2]> {
    if arguments.alone || !peers::has("bullmq") || !peers::has("ioredis") {
        return Ok([None, None]);
    }
    let Asking { callers, batch, guilds, seconds } = asking;
    let add = |connections: u32| {
        let server = RedisServer::keeping()?;
        let numbers = [u64::from(callers), u64::from(batch), u64::from(guilds), seconds, u64::from(connections)];
        peers::run("bullmq", std::iter::once(server.url()).chain(numbers.map(|number| number.to_string())))
    };
    block_in_place(|| Ok([Some(add(callers)?), Some(add(1)?)]))
}

fn tell(how: &str, ours: &Showed, bullmq: Option<&Value>, shared: Option<&Value>, quiet: bool) {
    if quiet {
        return;
    }
    let Showed { per_s, p50_ms, p99_ms, .. } = ours;
    println!("{how}: {per_s:.0} operations/s, p50 {p50_ms:.1} ms, p99 {p99_ms:.1} ms");
    let said = |figures: &Value| figures["per_s"].as_f64().unwrap_or_default();
    match bullmq.zip(shared) {
        Some((own, one)) => {
            let (own, one) = (said(own), said(one));
            println!(
                "{how}, BullMQ: {own:.0} jobs/s with one connection per caller, {one:.0} with a shared \
                connection"
            );
        }
        None => println!("BullMQ was not measured; install it with scripts/bench-peers"),
    }
}
