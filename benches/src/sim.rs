//! `sim`: capacity of the simulator with its limits off, so that it is never the bottleneck of a test.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use bytes::Bytes;
use clap::Args;
use futures_util::{SinkExt as _, StreamExt as _};
use guildhall_sim::{LimitConfig, Sim, SimConfig, StormSpec};
use http::Method;
use serde_json::{Value, json};
use tokio_websockets::{ClientBuilder, Message};

use crate::http_client::Connection;
use crate::stats::{Durations, per_second};

const AUTHORIZATION: &str = "Bot sim-bot-token";

/// Intents for guilds and their messages.
const GUILDS_AND_MESSAGES: u64 = 1 | 1 << 9;

/// Load on the simulator.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Number of REST connections, each with one request in flight.
    #[arg(long, default_value_t = 32)]
    connections: usize,
    /// Number of guilds that requests and events are spread over.
    #[arg(long, default_value_t = 200)]
    guilds: u32,
}

/// Ids that a caller needs of a guild.
struct Guild {
    id: String,
    channel: String,
    member: String,
    role: String,
}

pub(crate) async fn run(arguments: &Arguments, seconds: u64, quiet: bool) -> anyhow::Result<Value> {
    let started = Instant::now();
    let sim = Sim::start(SimConfig { guilds: arguments.guilds, limits: LimitConfig::off(), ..SimConfig::default() })
        .await
        .context("cannot start the simulator")?;
    let start_ms = started.elapsed().as_secs_f64() * 1_000.0;
    let time = Duration::from_secs(seconds);

    let (requests_per_s, mut latencies) = measure_rest(sim.address(), arguments, time).await?;
    latencies.sort();
    if !quiet {
        println!("REST: {requests_per_s:.0} requests/s over {} connections", arguments.connections);
    }

    let (ready, is_ready) = tokio::sync::oneshot::channel();
    let reader = tokio::spawn(read_events(sim.address(), time, ready));
    is_ready.await.context("the event reader could not identify")?;
    let storm = sim
        .storm(StormSpec {
            events_per_s: 0,
            guilds: arguments.guilds,
            seconds: time.as_secs_f64(),
            ..StormSpec::default()
        })
        .await;
    let events_per_s = reader.await??;
    if !quiet {
        println!("Gateway: {events_per_s:.0} events/s to one reader ({} written)", storm.sent);
    }

    Ok(json!({
        "name": "sim",
        "seconds": seconds,
        "guilds": arguments.guilds,
        "connections": arguments.connections,
        "start_ms": start_ms,
        "requests_per_s": requests_per_s,
        "request_us_p50": latencies.quantile_us(0.5),
        "request_us_p99": latencies.quantile_us(0.99),
        "events_per_s": events_per_s,
    }))
}

/// Sends a mix of reads and writes, where each connection starts at a different guild. Returns the rate and all
/// latencies.
async fn measure_rest(address: SocketAddr, arguments: &Arguments, time: Duration) -> anyhow::Result<(f64, Durations)> {
    let guilds = std::sync::Arc::new(prepare_guilds(address).await?);
    let started = Instant::now();
    let mut callers = Vec::new();
    for number in 0..arguments.connections {
        let guilds = std::sync::Arc::clone(&guilds);
        callers.push(tokio::spawn(async move {
            let mut connection = Connection::open(address).await?;
            let mut latencies = Durations::default();
            let mut turn = number;
            while started.elapsed() < time {
                let guild = &guilds[turn % guilds.len()];
                let (method, path, body) = request(guild, turn / guilds.len());
                let sent = Instant::now();
                let (status, response) = connection.call(method, &path, AUTHORIZATION, body).await?;
                latencies.push(sent.elapsed());
                ensure!(
                    (200..300).contains(&status),
                    "{path} returned {status}: {}",
                    String::from_utf8_lossy(&response)
                );
                turn += 1;
            }
            Ok::<_, anyhow::Error>(latencies)
        }));
    }
    let mut latencies = Durations::default();
    for caller in callers {
        latencies.extend(caller.await??);
    }
    Ok((per_second(latencies.len(), started.elapsed()), latencies))
}

fn request(guild: &Guild, turn: usize) -> (Method, String, Bytes) {
    let Guild { id, channel, member, role } = guild;
    match turn % 4 {
        0 => {
            let body = Bytes::from_static(b"{\"content\":\"a line of a usual length, as people write them\"}");
            (Method::POST, format!("/api/v10/channels/{channel}/messages"), body)
        }
        1 => (Method::GET, format!("/api/v10/guilds/{id}/roles"), Bytes::new()),
        2 => (Method::PUT, format!("/api/v10/guilds/{id}/members/{member}/roles/{role}"), Bytes::new()),
        _ => (Method::GET, format!("/api/v10/channels/{channel}"), Bytes::new()),
    }
}

/// Finds a channel and a member in every guild, and creates a role.
async fn prepare_guilds(address: SocketAddr) -> anyhow::Result<Vec<Guild>> {
    let mut connection = Connection::open(address).await?;
    let (_, state) = connection.call(Method::GET, "/sim/state?limit=100000", AUTHORIZATION, Bytes::new()).await?;
    let state: Value = serde_json::from_slice(&state)?;
    let mut guilds = Vec::new();
    for guild in state["guilds"].as_array().context("the state has no list of guilds")? {
        let id = guild["id"].as_str().context("a guild has no id")?.to_owned();
        let channel = guild["channels"][0]["id"].as_str().context("a guild has no channel")?.to_owned();
        let members = format!("/api/v10/guilds/{id}/members?limit=10");
        let (_, members) = connection.call(Method::GET, &members, AUTHORIZATION, Bytes::new()).await?;
        let members: Value = serde_json::from_slice(&members)?;
        let member = members[0]["user"]["id"].as_str().context("a guild has no members")?.to_owned();
        let body = Bytes::from_static(b"{\"name\":\"bench\"}");
        let (_, role) =
            connection.call(Method::POST, &format!("/api/v10/guilds/{id}/roles"), AUTHORIZATION, body).await?;
        let role: Value = serde_json::from_slice(&role)?;
        let role = role["id"].as_str().context("the role was not created")?.to_owned();
        guilds.push(Guild { id, channel, member, role });
    }
    Ok(guilds)
}

/// Identifies, then counts the events of a storm for `time`. Returns events per second.
async fn read_events(
    address: SocketAddr,
    time: Duration,
    ready: tokio::sync::oneshot::Sender<()>,
) -> anyhow::Result<f64> {
    let uri = format!("ws://{address}/?v=10&encoding=json").parse::<http::Uri>()?;
    let (mut socket, _) = ClientBuilder::from_uri(uri).connect().await?;
    let identify =
        json!({ "op": 2, "d": { "token": "sim-bot-token", "intents": GUILDS_AND_MESSAGES, "properties": {} } });
    socket.send(Message::text(identify.to_string())).await?;
    let mut ready = Some(ready);
    let mut counting: Option<(Instant, usize)> = None;
    loop {
        let next = tokio::time::timeout(Duration::from_secs(5), socket.next()).await;
        let message = match next {
            Ok(Some(message)) => message?,
            // The storm has ended.
            Ok(None) | Err(_) => break,
        };
        if message.is_close() {
            bail!("the gateway closed the connection: {:?}", message.as_close());
        }
        let text = message.as_text().unwrap_or_default();
        if text.starts_with("{\"t\":\"READY\"")
            && let Some(ready) = ready.take()
        {
            let _ = ready.send(());
        }
        if text.starts_with("{\"t\":\"MESSAGE_CREATE\"") {
            let (started, count) = counting.get_or_insert_with(|| (Instant::now(), 0));
            *count += 1;
            if started.elapsed() >= time {
                break;
            }
        }
    }
    let (started, count) = counting.context("no event of the storm arrived")?;
    Ok(per_second(count, started.elapsed()))
}
