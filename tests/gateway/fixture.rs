//! A simulated Discord, and shards that connect to it.

use std::{sync::OnceLock, time::Duration};

use guildhall::discord::{ShardPool, ShardPoolConfig};
use guildhall::settings::{SecretValue, ShardRange};
use guildhall_actors::shard::FlowLimit;
use guildhall_actors::wall_clock::WallClock;
use guildhall_core::backoff::Backoff;
use guildhall_sim::{GatewayConfig, Sim, SimConfig, SimHandle, StormEvent, StormSpec};
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::time::Instant;
use twilight_gateway::{
    Intents,
    queue::{InMemoryQueue, Queue},
};

use crate::shard_listener::{ShardListener, TEST_TIMEOUT};

/// A gateway without identify limits and with a high tolerance for missed heartbeats.
pub(crate) fn lenient_gateway() -> GatewayConfig {
    GatewayConfig {
        max_concurrency: 16,
        identify_window: Duration::ZERO,
        session_starts: 100_000,
        sends_per_minute: 100_000,
        missed_heartbeats: 300,
        heartbeat_interval: Duration::from_millis(200),
        ..GatewayConfig::default()
    }
}

pub(crate) async fn sim(gateway: GatewayConfig) -> SimHandle {
    // Another test may have installed it.
    drop(rustls::crypto::ring::default_provider().install_default());
    metrics();
    Sim::start(SimConfig { guilds: 8, members: 1, channels: 1, gateway, ..SimConfig::default() }).await.unwrap()
}

/// Metrics of this process, over all its tests.
pub(crate) fn metrics() -> &'static PrometheusHandle {
    static RECORDER: OnceLock<PrometheusHandle> = OnceLock::new();
    RECORDER.get_or_init(|| guildhall::metrics::install().unwrap())
}

/// The value of a metric; 0 if there is none.
pub(crate) fn metric(line: &str) -> f64 {
    let text = metrics().render();
    let value = text.lines().find_map(|found| found.strip_prefix(line)?.trim().parse().ok());
    value.unwrap_or_default()
}

/// No spacing between IDENTIFYs.
pub(crate) fn unlimited_queue() -> InMemoryQueue {
    InMemoryQueue::new(0, 1_000, Duration::from_secs(1), 1_000)
}

pub(crate) fn config<Q>(sim: &SimHandle, shards: u32, queue: Q) -> ShardPoolConfig<Q> {
    ShardPoolConfig {
        token: SecretValue::new("sim-bot-token"),
        gateway_url: Some(sim.gateway_url()),
        shards,
        range: ShardRange::all(shards),
        intents: Intents::GUILDS | Intents::GUILD_MESSAGES | Intents::GUILD_MESSAGE_TYPING | Intents::GUILD_MEMBERS,
        presence: None,
        queue,
        resume: Vec::new(),
        threads: 1,
        buffer: FlowLimit { events: 4_096, bytes: 16 << 20 },
        backoff: Backoff::up_to(Duration::from_millis(10), Duration::from_millis(50)),
        hello_timeout: Duration::from_secs(20),
        clock: WallClock::system(),
    }
}

pub(crate) fn start<Q>(config: ShardPoolConfig<Q>, listener: &ShardListener) -> ShardPool
where
    Q: Queue + Clone + Unpin + Send + Sync + 'static,
{
    ShardPool::start(config, |shard| listener.shard_sender(shard), listener.observer()).unwrap()
}

/// Sends so many events as fast as possible.
pub(crate) async fn storm(sim: &SimHandle, count: u64, event: StormEvent) {
    let spec = StormSpec { events_per_s: 50_000, seconds: 30.0, count: Some(count), event, ..StormSpec::default() };
    assert_eq!(sim.storm(spec).await.sent, count);
}

/// The last sequence number of a session, sent or not.
pub(crate) fn last_seq(sim: &SimHandle, session: &str) -> u64 {
    sim.gateway_score().sessions[session].last_seq
}

/// Waits until the listener has received everything of the shards' current sessions.
pub(crate) async fn wait_until_received(sim: &SimHandle, listener: &ShardListener, shards: u32) {
    for shard in 0..shards {
        listener
            .wait_until("everything has arrived", |log| {
                log.latest(shard).is_some_and(|received| received.last() == last_seq(sim, &received.id))
            })
            .await;
    }
}

/// Polls until a condition holds.
pub(crate) async fn wait_until(description: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + TEST_TIMEOUT;
    while !condition() {
        assert!(Instant::now() < deadline, "timed out: {description}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
