//! Callers that submit operations continuously. Each has its own connection and one request at a time.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{anyhow, ensure};
use tokio::runtime::Builder;
use tokio::task::JoinSet;

use super::line::Line;
use crate::daemon::KEY;
use crate::operations::FIRST_GUILD;
use crate::stats::{Durations, per_second};

/// Id of the first user.
const FIRST_USER: u64 = 1_400_000_000_000_000_000;

/// Configuration of a load run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asking {
    pub(super) callers: u32,
    /// Operations per request.
    pub(super) batch: u32,
    /// Number of guilds that the operations are spread over.
    pub(super) guilds: u32,
    pub(super) seconds: u64,
}

/// Result of a load run.
#[derive(Debug)]
pub(super) struct Showed {
    pub(super) accepted: usize,
    pub(super) per_s: f64,
    pub(super) p50_ms: f64,
    pub(super) p99_ms: f64,
}

/// Submits operations for the configured time, from its own thread, like the callers of BullMQ. Every request that was
/// sent before the end is counted, and so is the time until its response.
pub(super) fn ask(daemon: SocketAddr, asking: Asking) -> anyhow::Result<Showed> {
    let asking = move || Builder::new_current_thread().enable_all().build()?.block_on(ask_all(daemon, asking));
    std::thread::spawn(asking).join().map_err(|_| anyhow!("a caller thread panicked"))?
}

async fn ask_all(daemon: SocketAddr, asking: Asking) -> anyhow::Result<Showed> {
    let mut connections = Vec::new();
    for _ in 0..asking.callers {
        connections.push(Line::open(daemon, KEY).await?);
    }
    let next = Arc::new(AtomicU64::new(0));
    let began = Instant::now();
    let ends = began + Duration::from_secs(asking.seconds);
    let mut callers = JoinSet::new();
    for connection in connections {
        callers.spawn(call(connection, asking, Arc::clone(&next), ends));
    }
    let mut all = Durations::default();
    while let Some(took) = callers.join_next().await {
        all.extend(took??);
    }
    let lasted = began.elapsed();
    all.sort();
    let accepted = all.len() * asking.batch as usize;
    Ok(Showed { accepted, per_s: per_second(accepted, lasted), p50_ms: all.ms_at(0.5), p99_ms: all.ms_at(0.99) })
}

async fn call(mut line: Line, asking: Asking, next: Arc<AtomicU64>, ends: Instant) -> anyhow::Result<Durations> {
    let mut took = Durations::default();
    loop {
        let asked = Instant::now();
        if asked >= ends {
            return Ok(took);
        }
        let nth = next.fetch_add(1, Ordering::Relaxed);
        let path = format!("/v1/guilds/{}/operations", FIRST_GUILD + nth % u64::from(asking.guilds));
        let (status, told) = line.post(&path, &body(nth, asking.batch)).await?;
        ensure!(status == 202, "the daemon returned {status}: {}", String::from_utf8_lossy(told));
        took.push(asked.elapsed());
    }
}

/// Request body.
fn body(nth: u64, batch: u32) -> String {
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
