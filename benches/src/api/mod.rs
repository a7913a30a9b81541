//! `api`: how many operations a second a daemon accepts over HTTP, one by one and in batches, each kept on the disk before it
//! is answered; beside what BullMQ adds to a Redis that writes down what it is told every second.

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

/// What is asked for in one request of a batch.
const BATCH: u32 = 100;

/// Who asks.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Callers at once that ask for one operation after the other.
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=500))]
    callers: u32,
    /// Callers at once that ask for batches.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=500))]
    bulk_callers: u32,
    /// Guilds that what is asked for is spread over.
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    guilds: u32,
    /// Measure only ours.
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
    // As nobody works on what BullMQ is given.
    hold_back(&daemon).await?;

    let guilds = arguments.guilds;
    let singly = Asking { callers: arguments.callers, batch: 1, guilds, seconds };
    let in_batches = Asking { callers: arguments.bulk_callers, batch: BATCH, guilds, seconds };
    let one = block_in_place(|| ask(daemon.address, singly))?;
    let [add, add_shared] = beside(arguments, singly)?;
    tell("one by one", &one, add.as_ref(), add_shared.as_ref(), quiet);
    let many = block_in_place(|| ask(daemon.address, in_batches))?;
    let [add_bulk, add_bulk_shared] = beside(arguments, in_batches)?;
    tell("in batches", &many, add_bulk.as_ref(), add_bulk_shared.as_ref(), quiet);

    let kept = daemon.metrics().await?.sum("guildhall_operations_enqueued_total");
    ensure!(
        kept == (one.accepted + many.accepted) as f64,
        "the daemon has accepted {kept} operations and said otherwise"
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

/// Operations are accepted and kept, and not carried out.
async fn hold_back(daemon: &Daemon) -> anyhow::Result<()> {
    let mut connection = Connection::open(daemon.address).await?;
    let (status, told) =
        connection.call(Method::POST, "/v1/pause", &format!("Bearer {KEY}"), Bytes::from_static(b"{}")).await?;
    ensure!(status == 200, "the daemon is not held back, but answers {status}: {}", String::from_utf8_lossy(&told));
    Ok(())
}

/// What BullMQ does with as many callers and batches as large: first with a connection for each caller, as ours have, then with
/// one that all of them share. Nothing if it is not installed.
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
            println!("{how}, BullMQ: {own:.0} jobs/s with a connection a caller, {one:.0} with one for all");
        }
        None => println!("BullMQ was not measured; scripts/bench-peers installs it"),
    }
}
