//! Probes a Redis server once, to find out whether it is suitable.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::time::timeout;

use super::{
    RedisConfig, RedisConfigError,
    connection::{RedisConnection, field},
    connection_slot::ConnectionSlot,
    connector::Connector,
    error::RedisFailure,
};

/// Result of a probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedisProbe {
    /// Address of the primary.
    pub node: String,
    /// Its version.
    pub version: String,
    /// Round-trip time of a PING.
    pub ping_time: Duration,
    /// Eviction policy.
    pub policy: String,
    /// Memory limit in bytes; 0 means no limit.
    pub max_memory: u64,
    /// Whether the append-only file is enabled.
    pub has_append_only_file: bool,
    /// Whether the last write to disk has failed.
    pub is_disk_broken: bool,
}

/// Why the probe failed.
#[derive(Debug, thiserror::Error)]
pub enum RedisProbeError {
    /// The settings are invalid.
    #[error(transparent)]
    Config(#[from] RedisConfigError),
    /// The server does not respond, or not as expected.
    #[error("{0}")]
    Failed(
        /// Message without secrets.
        String,
    ),
}

/// Connects, reads the server's information, and disconnects.
///
/// # Errors
///
/// When the settings are invalid, or there is no response in time.
pub async fn probe_redis(config: RedisConfig) -> Result<RedisProbe, RedisProbeError> {
    let RedisConfig { url, ca_file, timeout: limit } = config;
    let mut connector = Connector::new(url, ca_file)?;
    // It has a timeout of its own.
    let connection = connector.connect(&Arc::new(ConnectionSlot::new()), None).await.map_err(failed)?;
    let late = |_| RedisProbeError::Failed(format!("no response within redis.timeout_ms = {}", limit.as_millis()));
    timeout(limit, query_server(&connection)).await.map_err(late)?.map_err(failed)
}

fn failed(failure: RedisFailure) -> RedisProbeError {
    RedisProbeError::Failed(failure.message)
}

async fn query_server(connection: &RedisConnection) -> Result<RedisProbe, RedisFailure> {
    let started = Instant::now();
    connection.ping().await?;
    let ping_time = started.elapsed();
    let server = connection.info("server").await?;
    let memory = connection.info("memory").await?;
    let disk = connection.info("persistence").await?;
    let field_or_unknown = |info: &str, name: &str| field(info, name).unwrap_or("unknown").to_owned();
    let is_broken = ["rdb_last_bgsave_status", "aof_last_write_status", "aof_last_bgrewrite_status"]
        .into_iter()
        .any(|name| field(&disk, name).is_some_and(|status| status != "ok"));
    Ok(RedisProbe {
        node: connection.node.to_string(),
        version: field_or_unknown(&server, "redis_version"),
        ping_time,
        policy: field_or_unknown(&memory, "maxmemory_policy"),
        max_memory: field(&memory, "maxmemory").and_then(|bytes| bytes.parse().ok()).unwrap_or(0),
        has_append_only_file: field(&disk, "aof_enabled") == Some("1"),
        is_disk_broken: is_broken,
    })
}
