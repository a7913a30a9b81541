//! `memory`: memory of a daemon per idle shard, and per guild that has had an event.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use clap::Args;
use guildhall_sim::{BotConfig, LimitConfig, Sim, SimConfig};
use serde_json::{Value, json};
use tokio::task::{block_in_place, spawn_blocking};
use tokio::time::sleep;

use crate::daemon::Daemon;
use crate::disk;
use crate::processes::TOKEN;
use crate::sender::{Guild, Sender};

/// Number of shards that is compared with a single shard.
const MANY_SHARDS: u32 = 33;

/// Numbers of active guilds, in increasing order.
const SIZES: [u32; 3] = [1_000, 10_000, 100_000];

/// Id of the first guild, as in `events`.
const FIRST_GUILD: u64 = 310_000_000_000 << 22;

/// Number of events that are sent before waiting until they are handled: less than a shard buffers.
const BATCH_SIZE: usize = 2_000;

/// Time limit for handling what was sent.
const HANDLE_TIMEOUT: Duration = Duration::from_secs(60);

/// Time for a daemon to release memory that it does not need.
const SETTLE_TIME: Duration = Duration::from_secs(3);

/// No options.
#[derive(Debug, Args)]
pub(crate) struct Arguments {}

pub(crate) async fn run(_: &Arguments, quiet: bool) -> anyhow::Result<Value> {
    let config = SimConfig {
        bots: vec![BotConfig { token: TOKEN.to_owned(), ..BotConfig::default() }],
        guilds: 0,
        limits: LimitConfig::off(),
        ..SimConfig::default()
    };
    let sim = Sim::start(config).await.context("cannot start the simulator")?;
    let api = sim.api_url();
    let one = measure_idle(1, &api).await?;
    let many = measure_idle(MANY_SHARDS, &api).await?;
    let kb_per_shard = (many as f64 - one as f64) / f64::from(MANY_SHARDS - 1) / 1_024.0;
    if !quiet {
        println!("{kb_per_shard:.0} KB per idle shard ({} KB with one shard)", one / 1_024);
    }
    let resident = measure_guilds(&api, quiet).await?;
    let (Some(first), Some(last)) = (resident.first(), resident.last()) else { anyhow::bail!("nothing was measured") };
    let per_guild = (*last as f64 - *first as f64) / f64::from(SIZES[SIZES.len() - 1]);
    sim.stop().await;
    let mut figures = json!({
        "name": "memory",
        "kb_per_idle_shard": kb_per_shard,
        "bytes_per_guild": per_guild,
        "rss_mb_idle": mb(one),
        "rss_mb_at_100k": mb(*last),
    });
    for (size, resident) in SIZES.into_iter().zip(&resident[1..]) {
        figures[format!("bytes_per_guild_at_{size}")] = ((*resident as f64 - *first as f64) / f64::from(size)).into();
    }
    Ok(figures)
}

fn mb(bytes: u64) -> f64 {
    bytes as f64 / 1_048_576.0
}

/// Memory of a daemon whose shards have sessions but no events.
async fn measure_idle(shards: u32, api: &str) -> anyhow::Result<u64> {
    let folder = disk::temp_dir()?;
    let sender = Sender::start(shards, &[], None)?;
    let daemon = start_daemon(&sender, shards, api, folder.path()).await?;
    sleep(SETTLE_TIME).await;
    let resident = daemon.resident_bytes()?;
    block_in_place(|| drop(daemon));
    Ok(resident)
}

/// Memory of a daemon without active guilds, then with each number of them.
async fn measure_guilds(api: &str, quiet: bool) -> anyhow::Result<Vec<u64>> {
    let folder = disk::temp_dir()?;
    let max_guilds = SIZES[SIZES.len() - 1];
    let guild = |nth: u32| {
        let id = FIRST_GUILD + (u64::from(nth) << 22);
        Guild { id, channel: id + 1, user: id + 2 }
    };
    let guilds: Vec<Guild> = (0..max_guilds).map(guild).collect();
    let sender = Sender::start(1, &guilds, None)?;
    let daemon = start_daemon(&sender, 1, api, folder.path()).await?;
    sleep(SETTLE_TIME).await;
    let mut resident = vec![daemon.resident_bytes()?];
    let mut active = 0;
    for size in SIZES {
        let size = size as usize;
        while active < size {
            let next = size.min(active + BATCH_SIZE);
            let sender_handle = sender.clone();
            spawn_blocking(move || sender_handle.send_once_each(active..next)).await??;
            wait_until_handled(&daemon, &sender).await?;
            active = next;
        }
        sleep(SETTLE_TIME).await;
        resident.push(daemon.resident_bytes()?);
        if !quiet {
            println!("{size} guilds: {:.1} MB", mb(daemon.resident_bytes()?));
        }
    }
    ensure!(sender.reconnects() == 0, "a shard disconnected because its buffer was full; the figures are not valid");
    block_in_place(|| drop(daemon));
    Ok(resident)
}

/// Waits until everything that was sent is handled.
async fn wait_until_handled(daemon: &Daemon, sender: &Sender) -> anyhow::Result<()> {
    let deadline = Instant::now() + HANDLE_TIMEOUT;
    while daemon.metrics().await?.sum("guildhall_events_handled_total") < sender.sent() as f64 {
        ensure!(Instant::now() < deadline, "not all sent events were handled within {HANDLE_TIMEOUT:?}");
        sleep(Duration::from_millis(5)).await;
    }
    Ok(())
}

async fn start_daemon(sender: &Sender, shards: u32, api: &str, folder: &Path) -> anyhow::Result<Daemon> {
    let file = folder.join("handlers.toml");
    std::fs::write(&file, "[[handlers]]\nname = \"looks-on\"\non = [\"message.#\", \"member.#\"]\ndo = []\n")?;
    let (gateway, shards) = (sender.url(), shards.to_string());
    let store = format!("sqlite:{}", folder.join("memory.db").display());
    let settings = [
        ("DISCORD__TOKEN", TOKEN),
        ("DISCORD__API_URL", api),
        ("DISCORD__GATEWAY_URL", &gateway),
        ("GATEWAY__SHARDS", &shards),
        ("GATEWAY__MAX_CONCURRENCY", "0"),
        ("GATEWAY__IDENTIFY_SPACING_MS", "0"),
        ("STORE__URL", &store),
        ("HANDLERS__FILE", file.to_str().context("the path of the temporary directory is not UTF-8")?),
    ];
    let daemon = block_in_place(|| Daemon::start(&settings, folder))?;
    daemon.wait_until_ready().await?;
    let sender_handle = sender.clone();
    spawn_blocking(move || sender_handle.wait_until_ready()).await??;
    Ok(daemon)
}
