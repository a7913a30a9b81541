//! `idle`: memory and processor time of an idle daemon with one shard.

use std::time::{Duration, Instant};

use anyhow::Context as _;
use clap::Args;
use guildhall_sim::{BotConfig, LimitConfig, Sim, SimConfig};
use serde_json::{Value, json};
use tokio::task::block_in_place;
use tokio::time::sleep;

use crate::daemon::Daemon;
use crate::disk;
use crate::processes::TOKEN;

/// Time for a daemon to become idle: the gate is open, and the allocator has returned the memory that the start used.
const SETTLE_TIME: Duration = Duration::from_secs(10);

/// No options.
#[derive(Debug, Args)]
pub(crate) struct Arguments {}

pub(crate) async fn run(_: &Arguments, seconds: u64, quiet: bool) -> anyhow::Result<Value> {
    let config = SimConfig {
        bots: vec![BotConfig { token: TOKEN.to_owned(), ..BotConfig::default() }],
        limits: LimitConfig::off(),
        ..SimConfig::default()
    };
    let sim = Sim::start(config).await.context("cannot start the simulator")?;
    let folder = disk::temp_dir()?;
    let (api, gateway) = (sim.api_url(), sim.gateway_url());
    let store = format!("sqlite:{}", folder.path().join("idle.db").display());
    let settings = [
        ("DISCORD__TOKEN", TOKEN),
        ("DISCORD__API_URL", &api),
        ("DISCORD__GATEWAY_URL", &gateway),
        ("GATEWAY__SHARDS", "1"),
        ("STORE__URL", &store),
    ];
    let daemon = block_in_place(|| Daemon::start(&settings, folder.path()))?;
    daemon.wait_until_ready().await?;
    sleep(SETTLE_TIME).await;
    let (before, started) = (daemon.cpu_time()?, Instant::now());
    sleep(Duration::from_secs(seconds)).await;
    let used = daemon.cpu_time()?.saturating_sub(before);
    let percent = used.as_secs_f64() / started.elapsed().as_secs_f64() * 100.0;
    let resident = daemon.resident_bytes()? as f64 / 1_048_576.0;
    if !quiet {
        println!("{resident:.1} MB, {percent:.2} % of a core");
    }
    block_in_place(|| drop(daemon));
    sim.stop().await;
    Ok(json!({ "name": "idle", "rss_mb": resident, "cpu_percent": percent }))
}
