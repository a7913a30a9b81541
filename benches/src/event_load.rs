//! `load`: latency at which a daemon forwards events to their guilds and handles them, at several rates, while a rule
//! acts on one event in twenty.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use bytes::Bytes;
use clap::Args;
use guildhall_sim::{BotConfig, GuildsSpec, LimitConfig, Sim, SimConfig, SimHandle};
use http::Method;
use serde_json::{Value, json};
use tokio::task::{block_in_place, spawn_blocking};
use tokio::time::sleep;

use crate::daemon::Daemon;
use crate::disk;
use crate::http_client::Connection;
use crate::metrics::Metrics;
use crate::processes::TOKEN;
use crate::sender::{Guild, MARK, Sender};

/// Events per second of each stage.
const STAGES: [u32; 4] = [100, 1_000, 5_000, 1_000];

/// The rule acts on one event in this number.
const MARK_INTERVAL: u64 = 20;

/// Shards that the events arrive on.
const SHARDS: u32 = 4;

/// Time limit for handling what was sent.
const RECEIVE_TIMEOUT: Duration = Duration::from_secs(30);

const HANDLED: &str = "guildhall_event_handling_seconds_count";
const FORWARD: &str = "guildhall_gateway_event_latency_seconds";
const HANDLE: &str = "guildhall_event_handling_seconds";

/// Counters of errors.
const ERRORS: [&str; 5] = [
    "guildhall_events_put_off_total",
    "guildhall_events_dead_total",
    "guildhall_gateway_malformed_total",
    "guildhall_gateway_gaps_total",
    "guildhall_operations_failed_total",
];

/// Number of guilds.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Number of guilds with events.
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=2_000))]
    guilds: u32,
}

pub(crate) async fn run(arguments: &Arguments, seconds: u64, quiet: bool) -> anyhow::Result<Value> {
    let folder = disk::temp_dir()?;
    let (sim, guilds) = start_sim(arguments.guilds).await?;
    let sender = Sender::start(SHARDS, &guilds, Some(MARK_INTERVAL))?;
    let daemon = block_in_place(|| start_daemon(&sim, &sender, folder.path()))?;
    daemon.wait_until_ready().await?;
    let mut figures = json!({ "name": "load", "seconds": seconds, "guilds": arguments.guilds, "shards": SHARDS });
    let beginning = daemon.metrics().await?;
    let (mut forward, mut handle) = (0.0_f64, 0.0_f64);
    for (nth, per_s) in STAGES.into_iter().enumerate() {
        let before = daemon.metrics().await?;
        let pace = sender.pace(per_s, Duration::from_secs(seconds))?;
        spawn_blocking(move || pace.join()).await?.map_err(|_| anyhow::anyhow!("the sender thread panicked"))??;
        let after = wait_until_handled(&daemon, &sender).await?;
        let p99_ms = |name| after.quantile_since(&before, name, 0.99).map(|seconds| seconds * 1_000.0);
        let (forwarded, handled) =
            (p99_ms(FORWARD).context("no event was forwarded")?, p99_ms(HANDLE).context("no event was handled")?);
        if !quiet {
            println!("at {per_s} events/s: forwarded within {forwarded:.2} ms, handled within {handled:.2} ms (p99)");
        }
        figures[format!("stage_{}_forward_ms_p99", nth + 1)] = forwarded.into();
        figures[format!("stage_{}_handle_ms_p99", nth + 1)] = handled.into();
        (forward, handle) = (forward.max(forwarded), handle.max(handled));
    }
    let end = daemon.metrics().await?;
    let errors: f64 = ERRORS.iter().map(|name| end.sum(name) - beginning.sum(name)).sum();
    let sent = sender.sent();
    let lost =
        sent as f64 - (end.sum("guildhall_events_received_total") - beginning.sum("guildhall_events_received_total"));
    ensure!(sender.reconnects() == 0, "a shard disconnected because its buffer was full; the figures are not valid");
    let operations = end.sum("guildhall_handler_operations_total");
    ensure!(operations > 0.0, "the rule never acted");
    figures["forward_ms_p99"] = forward.into();
    figures["handle_ms_p99"] = handle.into();
    figures["error_rate"] = ((errors + lost) / sent as f64).into();
    figures["events"] = sent.into();
    figures["operations"] = operations.into();
    block_in_place(|| drop(daemon));
    sim.stop().await;
    Ok(figures)
}

/// Waits until everything that was sent is handled.
async fn wait_until_handled(daemon: &Daemon, sender: &Sender) -> anyhow::Result<Metrics> {
    let deadline = tokio::time::Instant::now() + RECEIVE_TIMEOUT;
    loop {
        let metrics = daemon.metrics().await?;
        if metrics.sum(HANDLED) > 0.0 && metrics.sum("guildhall_events_received_total") >= sender.sent() as f64 {
            // Received events are handled shortly after. Those that are not appear in the next stage.
            sleep(Duration::from_millis(200)).await;
            return daemon.metrics().await;
        }
        ensure!(tokio::time::Instant::now() < deadline, "not all sent events were received within {RECEIVE_TIMEOUT:?}");
        sleep(Duration::from_millis(50)).await;
    }
}

/// Starts a Discord without limits. Returns it with a channel and a user of each of its guilds.
async fn start_sim(count: u32) -> anyhow::Result<(SimHandle, Vec<Guild>)> {
    let config = SimConfig {
        bots: vec![BotConfig { token: TOKEN.to_owned(), ..BotConfig::default() }],
        guilds: 0,
        limits: LimitConfig::off(),
        ..SimConfig::default()
    };
    let sim = Sim::start(config).await.context("cannot start the simulator")?;
    sim.create_guilds(&GuildsSpec { count: Some(count), members: Some(1), ..GuildsSpec::default() })?;
    let mut discord = Connection::open(sim.address()).await?;
    let (_, state) = discord.call(Method::GET, "/sim/state?limit=100000", "", Bytes::new()).await?;
    let state: Value = serde_json::from_slice(&state)?;
    let id = |value: &Value| value.as_str().and_then(|id| id.parse().ok()).context("an id is not a number in a string");
    let mut guilds = Vec::new();
    for guild in state["guilds"].as_array().context("the state has no list of guilds")? {
        let text = guild["channels"].as_array().into_iter().flatten().find(|channel| channel["type"] == 0);
        let channel = id(&text.context("a guild has no text channel")?["id"])?;
        let guild = id(&guild["id"])?;
        guilds.push(Guild { id: guild, channel, user: guild });
    }
    Ok((sim, guilds))
}

/// Starts a daemon with a rule that responds to marked messages.
fn start_daemon(sim: &SimHandle, sender: &Sender, folder: &std::path::Path) -> anyhow::Result<Daemon> {
    let file = folder.join("handlers.toml");
    let rules = format!(
        r#"
        [[handlers]]
        name = "greets"
        on = "message.create"
        when = {{ fields = {{ content = "{MARK}" }} }}
        do = [{{ kind = "send_message", payload = {{ channel_id = "{{channel_id}}", content = "hello" }} }}]

        [[handlers]]
        name = "looks-on"
        on = ["message.#", "member.#"]
        do = []
        "#
    );
    std::fs::write(&file, rules)?;
    let (api, gateway) = (sim.api_url(), sender.url());
    let (shards, store) = (SHARDS.to_string(), format!("sqlite:{}", folder.join("load.db").display()));
    let settings = [
        ("DISCORD__TOKEN", TOKEN),
        ("DISCORD__API_URL", &api),
        ("DISCORD__GATEWAY_URL", &gateway),
        ("GATEWAY__SHARDS", &shards),
        ("GATEWAY__MAX_CONCURRENCY", "0"),
        ("GATEWAY__IDENTIFY_SPACING_MS", "0"),
        ("STORE__URL", &store),
        ("HANDLERS__FILE", file.to_str().context("the path of the temporary directory is not UTF-8")?),
    ];
    Daemon::start(&settings, folder)
}
