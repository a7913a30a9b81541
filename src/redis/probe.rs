//! Looking at a Redis once, for whoever wants to know whether it will do.

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

/// What there is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedisProbe {
    /// Where its primary is.
    pub node: String,
    /// Its version.
    pub version: String,
    /// How long a PING took.
    pub took: Duration,
    /// What it forgets when its memory is full.
    pub policy: String,
    /// How much memory it may use; 0 is without a bound.
    pub memory_most: u64,
    /// Whether it writes down what it is told.
    pub appends: bool,
    /// Whether it could not write to its disk the last time it tried.
    pub is_disk_broken: bool,
}

/// Why it cannot be looked at.
#[derive(Debug, thiserror::Error)]
pub enum RedisProbeError {
    /// The settings are not ones.
    #[error(transparent)]
    Config(#[from] RedisConfigError),
    /// It does not answer, or not with what was asked for.
    #[error("{0}")]
    Failed(
        /// In words, without a secret.
        String,
    ),
}

/// Connects, asks, and leaves.
///
/// # Errors
///
/// When the settings are not ones, or there is no answer in time.
pub async fn look(config: RedisConfig) -> Result<RedisProbe, RedisProbeError> {
    let RedisConfig { url, ca_file, timeout: within } = config;
    let mut connector = Connector::new(url, ca_file)?;
    // It has a time limit of its own.
    let connection = connector.connect(&Arc::new(ConnectionSlot::new()), None).await.map_err(failed)?;
    let late = |_| RedisProbeError::Failed(format!("no answer within redis.timeout_ms = {}", within.as_millis()));
    timeout(within, ask(&connection)).await.map_err(late)?.map_err(failed)
}

fn failed(failure: RedisFailure) -> RedisProbeError {
    RedisProbeError::Failed(failure.says)
}

async fn ask(connection: &RedisConnection) -> Result<RedisProbe, RedisFailure> {
    let started = Instant::now();
    connection.ping().await?;
    let took = started.elapsed();
    let server = connection.info("server").await?;
    let memory = connection.info("memory").await?;
    let disk = connection.info("persistence").await?;
    let told = |info: &str, name: &str| field(info, name).unwrap_or("unknown").to_owned();
    let is_broken = ["rdb_last_bgsave_status", "aof_last_write_status", "aof_last_bgrewrite_status"]
        .into_iter()
        .any(|name| field(&disk, name).is_some_and(|status| status != "ok"));
    Ok(RedisProbe {
        node: connection.node.to_string(),
        version: told(&server, "redis_version"),
        took,
        policy: told(&memory, "maxmemory_policy"),
        memory_most: field(&memory, "maxmemory").and_then(|bytes| bytes.parse().ok()).unwrap_or(0),
        appends: field(&disk, "aof_enabled") == Some("1"),
        is_disk_broken: is_broken,
    })
}
