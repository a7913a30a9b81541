//! `proxy-hot`: one channel through the REST proxy under full demand, compared with a client that has one call in flight
//! at a time.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use bytes::Bytes;
use clap::Args;
use guildhall_sim::{Algorithm, BotConfig, Case, Rate, RouteLimit, Sim, SimConfig};
use http::Method;
use serde_json::{Value, json};
use tokio::task::{JoinSet, block_in_place};
use tokio::time::{Instant, timeout_at};

use crate::daemon::Daemon;
use crate::disk;
use crate::http_client::Connection;
use crate::pipeline::add_latency;
use crate::processes::TOKEN;
use crate::stats::per_second;

/// Global limit of the simulator, that of the daemon: only the bucket is measured.
const GLOBAL: u32 = 10_000;

/// Half of the latency is on the request, half on the response.
const ONE_WAY_MS: u64 = 25;

/// Time before anything is counted: the quiet first window and the first responses.
const WARM_UP: Duration = Duration::from_secs(3);

/// Load on the channel.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Number of clients, each with one call at a time.
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    clients: u32,
    /// Number of calls per second that the channel allows.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    limit: u32,
}

pub(crate) async fn run(arguments: &Arguments, seconds: u64, quiet: bool) -> anyhow::Result<Value> {
    let &Arguments { clients, limit } = arguments;
    let mut config = SimConfig {
        bots: vec![BotConfig { token: TOKEN.to_owned(), ..BotConfig::default() }],
        guilds: 2,
        ..SimConfig::default()
    };
    config.limits.global = Rate::new(GLOBAL, 1_000, Algorithm::Sliding);
    config.limits.routes = vec![RouteLimit {
        method: "GET".into(),
        path: "/channels/{channel.id}/messages".into(),
        case: Case::Any,
        bucket: None,
        limit,
        per_ms: 1_000,
        algorithm: Algorithm::Fixed,
    }];
    let sim = Sim::start(config).await.context("cannot start the simulator")?;
    let folder = disk::temp_dir()?;
    let (api, gateway) = (sim.api_url(), sim.gateway_url());
    let store = format!("sqlite:{}", folder.path().join("proxy.db").display());
    let settings = [
        ("DISCORD__TOKEN", TOKEN),
        ("DISCORD__API_URL", api.as_str()),
        ("DISCORD__GATEWAY_URL", gateway.as_str()),
        ("STORE__URL", store.as_str()),
        ("EGRESS__ENABLED", "true"),
        ("EGRESS__BIND", "127.0.0.1:0"),
    ];
    let daemon = block_in_place(|| Daemon::start(&settings, folder.path()))?;
    let egress = block_in_place(|| daemon.wait_for_egress())?;
    daemon.wait_until_ready().await?;
    let mut paths = Vec::new();
    for guild in sim.guilds() {
        paths.push(messages_path(egress, &guild.to_string()).await?);
    }
    add_latency(&sim, ONE_WAY_MS, 0)?;
    let time = Duration::from_secs(seconds);
    // Each side has its own channel, so that neither uses the other's bucket.
    let one_in_flight = load(egress, &paths[0], Load { clients: 1, limit, time }).await?;
    let ours = load(egress, &paths[1], Load { clients, limit, time }).await?;
    let limited = sim.score().rate_limited;
    if !quiet {
        println!("{ours:.1} requests/s; with one in flight at a time {one_in_flight:.1}");
    }
    block_in_place(|| drop(daemon));
    sim.stop().await;
    Ok(json!({
        "name": "proxy-hot",
        "seconds": seconds,
        "clients": clients,
        "limit_per_s": limit,
        "latency_ms": ONE_WAY_MS * 2,
        "ours_per_s": ours,
        "one_in_flight_per_s": one_in_flight,
        "ratio": ours / one_in_flight,
        "http_429": limited.user + limited.shared + limited.global,
    }))
}

/// Path of the messages of a guild's first text channel.
async fn messages_path(egress: SocketAddr, guild: &str) -> anyhow::Result<String> {
    let mut connection = Connection::open(egress).await?;
    let channels: Value =
        serde_json::from_slice(&get(&mut connection, &format!("/api/v10/guilds/{guild}/channels")).await?)?;
    let channels = channels.as_array().context("a guild has no list of channels")?;
    let text = channels.iter().find(|channel| channel["type"] == 0).context("a guild has no text channel")?;
    Ok(format!("/api/v10/channels/{}/messages", text["id"].as_str().context("a channel has no id")?))
}

/// Makes a call that must succeed.
async fn get(connection: &mut Connection, path: &str) -> anyhow::Result<Bytes> {
    let (status, body) = connection.call(Method::GET, path, &format!("Bot {TOKEN}"), Bytes::new()).await?;
    ensure!(status == 200, "{path} returned {status}: {}", String::from_utf8_lossy(&body));
    Ok(body)
}

/// Load of one side.
#[derive(Clone, Copy)]
struct Load {
    clients: u32,
    limit: u32,
    time: Duration,
}

/// Keeps one call of each client in flight or waiting, and returns the number of responses per second.
async fn load(egress: SocketAddr, path: &str, Load { clients, limit, time }: Load) -> anyhow::Result<f64> {
    let from = Instant::now() + WARM_UP;
    let until = from + time;
    let mut workers = JoinSet::new();
    for _ in 0..clients {
        let path = path.to_owned();
        workers.spawn(async move {
            let mut connection = Connection::open(egress).await?;
            let mut answered = Vec::new();
            while let Ok(called) = timeout_at(until, get(&mut connection, &path)).await {
                called?;
                answered.push(Instant::now());
            }
            Ok::<_, anyhow::Error>(answered)
        });
    }
    let mut answered = Vec::new();
    while let Some(worker) = workers.join_next().await {
        answered.extend(worker??.into_iter().filter(|at| *at >= from));
    }
    answered.sort_unstable();
    // Responses come in one burst per window. Counting from the start of one burst to the start of another excludes
    // partial windows.
    let limit = limit as usize;
    let whole = answered.len().saturating_sub(1) / limit * limit;
    ensure!(whole > 0, "fewer than {limit} calls were answered; increase --seconds");
    Ok(per_second(whole, answered[whole] - answered[0]))
}
