//! `hot-bucket`: one route bucket under full demand, compared with a client that has one call in flight at a time.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use clap::Args;
use guildhall_actors::gate::{Gate, GateConfig};
use guildhall_actors::lease_guard::LeaseGuard;
use guildhall_core::limit::LimitConfig;
use guildhall_core::response::Credential;
use guildhall_sim::{Algorithm, Case, Rate, RouteLimit, Sim, SimConfig, Snowflake};
use serde_json::{Value, json};
use tokio::task::{JoinSet, LocalSet};
use tokio::time::{Instant, sleep_until};

use crate::pipeline::{add_latency, bot_credential, call, read_request, transport};
use crate::stats::per_second;

/// Load of one side.
struct Load {
    pending: usize,
    limit: usize,
    time: Duration,
}

/// Global limit of the simulator and of the gate, far above the limit of the bucket: only the bucket is measured.
const GLOBAL: u32 = 100_000;

/// Half of the latency is on the request, half on the response.
const ONE_WAY_MS: u64 = 25;

/// Time before anything is counted: the quiet first window and the first responses.
const WARM_UP: Duration = Duration::from_secs(3);

/// Load on the bucket.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Number of calls per second that the bucket allows.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    limit: u32,
    /// Number of calls in flight or waiting at any time.
    #[arg(long, default_value_t = 200)]
    pending: usize,
}

pub(crate) async fn run(arguments: &Arguments, seconds: u64, quiet: bool) -> anyhow::Result<Value> {
    LocalSet::new().run_until(measure(arguments, seconds, quiet)).await
}

async fn measure(arguments: &Arguments, seconds: u64, quiet: bool) -> anyhow::Result<Value> {
    let mut config = SimConfig { guilds: 2, ..SimConfig::default() };
    config.limits.global = Rate::new(GLOBAL, 1_000, Algorithm::Sliding);
    config.limits.routes = vec![RouteLimit {
        method: "GET".into(),
        path: "/guilds/{guild.id}/roles".into(),
        case: Case::Any,
        bucket: None,
        limit: arguments.limit,
        per_ms: 1_000,
        algorithm: Algorithm::Fixed,
    }];
    let sim = Sim::start(config).await.context("cannot start the simulator")?;
    add_latency(&sim, ONE_WAY_MS, 0)?;
    let credential = bot_credential(&sim)?;
    let time = Duration::from_secs(seconds);
    // Each side has its own guild and gate, so that neither learns from the other.
    let guilds = sim.guilds();
    let mut rates = Vec::new();
    for (guild, pending) in guilds.into_iter().zip([1, arguments.pending]) {
        let limits = LimitConfig { global: GLOBAL, ..LimitConfig::default() };
        let gate = Gate::start(
            transport(sim.api_url())?,
            GateConfig { limits, ..GateConfig::default() },
            LeaseGuard::always(),
        );
        let limit = arguments.limit as usize;
        rates.push(load(&gate, guild, credential, Load { pending, limit, time }).await?);
    }
    let (one_in_flight, ours) = (rates[0], rates[1]);
    let limited = sim.score().rate_limited;
    if !quiet {
        println!("{ours:.1} calls/s; with one call in flight at a time {one_in_flight:.1} calls/s");
    }
    Ok(json!({
        "name": "hot-bucket",
        "seconds": seconds,
        "limit_per_s": arguments.limit,
        "latency_ms": ONE_WAY_MS * 2,
        "ours_per_s": ours,
        "one_in_flight_per_s": one_in_flight,
        "ratio": ours / one_in_flight,
        "http_429": limited.user + limited.shared + limited.global,
    }))
}

/// Maintains the given number of pending calls, and returns the number of responses per second.
async fn load(
    gate: &Arc<Gate>,
    guild: Snowflake,
    credential: Credential,
    Load { pending, limit, time }: Load,
) -> anyhow::Result<f64> {
    let from = Instant::now() + WARM_UP;
    let until = from + time;
    let mut workers = JoinSet::new();
    for _ in 0..pending {
        let gate = Arc::clone(gate);
        workers.spawn(async move {
            let mut answered = Vec::new();
            loop {
                tokio::select! {
                    called = call(&gate, read_request(format!("/guilds/{guild}/roles"), credential)) => drop(called?),
                    () = sleep_until(until) => return Ok::<_, anyhow::Error>(answered),
                }
                answered.push(Instant::now());
            }
        });
    }
    let mut answered = Vec::new();
    while let Some(worker) = workers.join_next().await {
        answered.extend(worker??.into_iter().filter(|at| *at >= from));
    }
    answered.sort_unstable();
    // Responses come in one burst per window. Counting from the start of one burst to the start of another excludes
    // partial windows.
    let whole = answered.len().saturating_sub(1) / limit * limit;
    ensure!(whole > 0, "fewer than {limit} calls were answered; increase --seconds");
    Ok(per_second(whole, answered[whole] - answered[0]))
}
