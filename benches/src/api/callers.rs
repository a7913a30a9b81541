//! Callers that submit operations continuously. Each has its own connection and one request at a time.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{anyhow, ensure};
use tokio::runtime::Builder;
use tokio::task::JoinSet;

use super::connection::ApiConnection;
use crate::daemon::API_KEY;
use crate::operations::FIRST_GUILD;
use crate::stats::{Durations, per_second};

/// Id of the first user.
const FIRST_USER: u64 = 1_400_000_000_000_000_000;

/// Configuration of a load run.
#[derive(Clone, Copy, Debug)]
pub(super) struct LoadConfig {
    pub(super) callers: u32,
    /// Operations per request.
    pub(super) batch: u32,
    /// Number of guilds that the operations are spread over.
    pub(super) guilds: u32,
    pub(super) seconds: u64,
}

/// Result of a load run.
#[derive(Debug)]
pub(super) struct LoadResult {
    pub(super) accepted: usize,
    pub(super) per_s: f64,
    pub(super) p50_ms: f64,
    pub(super) p99_ms: f64,
}

/// Submits operations for the configured time, from its own thread, like the callers of BullMQ. Every request that was
/// sent before the end is counted, and so is the time until its response.
pub(super) fn run_load(daemon: SocketAddr, load: LoadConfig) -> anyhow::Result<LoadResult> {
    let load = move || Builder::new_current_thread().enable_all().build()?.block_on(run_callers(daemon, load));
    std::thread::spawn(load).join().map_err(|_| anyhow!("a caller thread panicked"))?
}

async fn run_callers(daemon: SocketAddr, load: LoadConfig) -> anyhow::Result<LoadResult> {
    let mut connections = Vec::new();
    for _ in 0..load.callers {
        connections.push(ApiConnection::open(daemon, API_KEY).await?);
    }
    let next = Arc::new(AtomicU64::new(0));
    let started = Instant::now();
    let deadline = started + Duration::from_secs(load.seconds);
    let mut callers = JoinSet::new();
    for connection in connections {
        callers.spawn(run_caller(connection, load, Arc::clone(&next), deadline));
    }
    let mut all = Durations::default();
    while let Some(durations) = callers.join_next().await {
        all.extend(durations??);
    }
    let elapsed = started.elapsed();
    all.sort();
    let accepted = all.len() * load.batch as usize;
    Ok(LoadResult {
        accepted,
        per_s: per_second(accepted, elapsed),
        p50_ms: all.quantile_ms(0.5),
        p99_ms: all.quantile_ms(0.99),
    })
}

async fn run_caller(
    mut connection: ApiConnection,
    load: LoadConfig,
    next: Arc<AtomicU64>,
    deadline: Instant,
) -> anyhow::Result<Durations> {
    let mut durations = Durations::default();
    loop {
        let sent_at = Instant::now();
        if sent_at >= deadline {
            return Ok(durations);
        }
        let nth = next.fetch_add(1, Ordering::Relaxed);
        let path = format!("/v1/guilds/{}/operations", FIRST_GUILD + nth % u64::from(load.guilds));
        let (status, response) = connection.post(&path, &request_body(nth, load.batch)).await?;
        ensure!(status == 202, "the daemon returned {status}: {}", String::from_utf8_lossy(response));
        durations.push(sent_at.elapsed());
    }
}

/// Request body.
fn request_body(nth: u64, batch: u32) -> String {
    let first = FIRST_USER + nth * u64::from(batch);
    let operation = |user: u64| {
        let role = FIRST_GUILD + 7;
        format!(r#"{{"kind":"assign_role","payload":{{"user_id":"{user}","role_id":"{role}"}}}}"#)
    };
    if batch == 1 {
        return operation(first);
    }
    let operations: Vec<String> = (first..first + u64::from(batch)).map(operation).collect();
    format!(r#"{{"operations":[{}]}}"#, operations.join(","))
}
