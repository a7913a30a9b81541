//! `operations`: end-to-end operations per second, from the operation service to a Discord that responds at once,
//! stored at each step. The baselines are two Node.js queues with the same ordering on the same PostgreSQL.

mod fixture;
mod peers;
mod upstream;

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use clap::Args;
use guildhall::settings::Settings;
use guildhall::store::Store;
use guildhall_actors::access::Caller;
use guildhall_actors::ports::{OperationFilter, OperationStore as _};
use guildhall_actors::submission::{OperationRequest, Submission};
use guildhall_core::operation::{OperationKind, OperationState};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::sleep;

pub(crate) use self::fixture::{OperationsFixture, settings};
use self::peers::{Jobs, Peer, PeerResult};
pub(crate) use self::upstream::Upstream;
use crate::disk;
use crate::postgres_server::PostgresServer;
use crate::stats::{Durations, per_second};

/// Id of the first guild: as long as a Discord id.
pub(crate) const FIRST_GUILD: u64 = 1_300_000_000_000_000_000;

/// Role that every user gets.
const ROLE: u64 = 1_300_000_000_000_000_007;

/// Time limit of one turn.
const TURN_TIMEOUT: Duration = Duration::from_secs(120);

/// Operations per submission.
const BATCH_SIZE: u64 = 100;

/// Rows per page of the store.
const PAGE_SIZE: usize = 5_000;

/// Number of operations and jobs.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Number of guilds, all active at the same time.
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=2_000))]
    guilds: u32,
    /// Number of operations of each guild, executed in order.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    per_guild: u32,
    /// Number of turns of each engine. The figure is the median.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=99))]
    turns: u32,
    /// Number of jobs of each guild for the peers.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    peer_jobs: u32,
    /// Number of jobs that a peer runs concurrently.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    peer_workers: u32,
}

/// Result of one turn.
struct TurnResult {
    per_s: f64,
    p99_ms: f64,
    violations: usize,
}

pub(crate) async fn run(arguments: &Arguments, quiet: bool) -> anyhow::Result<Value> {
    let _recorder = guildhall::metrics::install()?;
    // PostgreSQL stores its data on the same disk.
    let folder = disk::temp_dir()?;
    let server = PostgresServer::start()?;
    let (mut sqlite, mut postgres) = (Vec::new(), Vec::new());
    for turn in 0..arguments.turns {
        let file = format!("sqlite:{}", folder.path().join(format!("{turn}.db")).display());
        sqlite.push(measure(arguments, &settings(&file, &[])?).await.context("on SQLite")?);
        let url = server.create_database(&format!("ours_{turn}"))?;
        postgres.push(measure(arguments, &settings(&url, &[])?).await.context("on PostgreSQL")?);
        if !quiet {
            for (engine, turns) in [("SQLite", &sqlite), ("PostgreSQL", &postgres)] {
                let Some(TurnResult { per_s, p99_ms, violations }) = turns.last() else { continue };
                println!("{engine}: {per_s:.0} operations/s, p99 {p99_ms:.0} ms, {violations} out of order");
            }
        }
    }
    let jobs = Jobs { guilds: arguments.guilds, per_guild: arguments.peer_jobs, workers: arguments.peer_workers };
    let graphile = measure_peer(Peer::Graphile, &server, jobs, quiet)?;
    let pgboss = measure_peer(Peer::PgBoss, &server, jobs, quiet)?;
    let all = || sqlite.iter().chain(&postgres);
    Ok(json!({
        "name": "operations",
        "guilds": arguments.guilds,
        "per_guild": arguments.per_guild,
        "turns": arguments.turns,
        "sqlite_per_s": median(&sqlite, |turn| turn.per_s),
        "postgres_per_s": median(&postgres, |turn| turn.per_s),
        "graphile_per_s": graphile.map(|done| done.per_s),
        "pgboss_per_s": pgboss.map(|done| done.per_s),
        "p99_ms": median(&sqlite, |turn| turn.p99_ms).max(median(&postgres, |turn| turn.p99_ms)),
        "order_violations": all().map(|turn| turn.violations).sum::<usize>(),
        "graphile_order_violations": graphile.map(|done| done.order_violations),
        "pgboss_order_violations": pgboss.map(|done| done.order_violations),
    }))
}

fn measure_peer(peer: Peer, server: &PostgresServer, jobs: Jobs, quiet: bool) -> anyhow::Result<Option<PeerResult>> {
    let done = peer.measure(&server.create_database(peer.name())?, jobs)?;
    if !quiet {
        match done {
            Some(PeerResult { per_s, order_violations }) => {
                println!("{}: {per_s:.0} jobs/s, {order_violations} out of order", peer.name());
            }
            None => println!("{} is not installed; install it with scripts/bench-peers", peer.name()),
        }
    }
    Ok(done)
}

/// Measures from the first submission until the store has recorded the success of the last operation.
async fn measure(arguments: &Arguments, settings: &Settings) -> anyhow::Result<TurnResult> {
    let count = arguments.guilds as usize * arguments.per_guild as usize;
    let upstream = Upstream::new(count);
    let fixture = OperationsFixture::start(settings, Arc::clone(&upstream)).await?;
    let started = Instant::now();
    let mut submitting = JoinSet::new();
    for guild in 0..u64::from(arguments.guilds) {
        let (service, per_guild) = (Arc::clone(fixture.service()), u64::from(arguments.per_guild));
        submitting.spawn(async move {
            for first in (1..=per_guild).step_by(BATCH_SIZE as usize) {
                let users = first..(first + BATCH_SIZE).min(per_guild + 1);
                service.submit(submission(FIRST_GUILD + guild, users)).await?;
            }
            anyhow::Ok(())
        });
    }
    while let Some(submitted) = submitting.join_next().await {
        submitted??;
    }
    upstream.wait_until_answered(TURN_TIMEOUT).await?;
    while is_busy(&fixture.store).await? {
        sleep(Duration::from_millis(1)).await;
    }
    let elapsed = started.elapsed();
    let latencies = latencies(&fixture.store, count).await?;
    fixture.drain().await?;
    fixture.close().await;
    Ok(TurnResult {
        per_s: per_second(count, elapsed),
        p99_ms: latencies.quantile_ms(0.99),
        violations: upstream.violations(),
    })
}

/// Gives a role to these users, in order.
fn submission(guild: u64, users: std::ops::Range<u64>) -> Submission {
    let request = |user: u64| {
        let payload = json!({ "user_id": user.to_string(), "role_id": ROLE.to_string() });
        Ok(OperationRequest::new(OperationKind::AssignRole, payload))
    };
    Submission { caller: Caller::operator(), guild: Some(guild), operations: users.map(request).collect() }
}

/// Returns whether the store has unfinished operations.
async fn is_busy(store: &Store) -> anyhow::Result<bool> {
    let depths = store.depths().await?;
    ensure!(depths.get("dead_letters").is_none_or(|dead_letters| *dead_letters == 0), "operations failed: {depths:?}");
    Ok(depths.values().any(|count| *count > 0))
}

/// Latencies of all operations, from acceptance to success.
async fn latencies(store: &Store, count: usize) -> anyhow::Result<Durations> {
    let mut latencies = Durations::default();
    let mut filter =
        OperationFilter { state: Some(OperationState::Succeeded), limit: PAGE_SIZE, ..OperationFilter::default() };
    loop {
        let page = store.list(filter.clone()).await?;
        let Some(last) = page.last() else { break };
        filter.before = Some(last.stored.operation.id);
        for operation in &page {
            let finished = operation.finished_at.context("a succeeded operation has no finish time")?;
            latencies.push(finished.since(operation.stored.operation.created_at));
        }
    }
    ensure!(latencies.len() == count, "{} of {count} operations succeeded", latencies.len());
    latencies.sort();
    Ok(latencies)
}

fn median(turns: &[TurnResult], value: impl Fn(&TurnResult) -> f64) -> f64 {
    let mut all: Vec<f64> = turns.iter().map(value).collect();
    all.sort_unstable_by(f64::total_cmp);
    all.get(all.len() / 2).copied().unwrap_or_default()
}
