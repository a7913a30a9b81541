//! `gate`: how much of Discord's global limit the whole pipeline uses under full demand, and how fairly it shares it.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use clap::Args;
use guildhall::discord::rest::HyperTransport;
use guildhall_actors::gate::{ClearedRequest, Gate, GateConfig, SendFuture, Transport};
use guildhall_actors::lease_guard::LeaseGuard;
use guildhall_core::response::Credential;
use guildhall_sim::{Sim, SimConfig, Snowflake};
use http::HeaderName;
use serde_json::{Value, json};
use tokio::task::{JoinSet, LocalSet};
use tokio::time::{Instant, sleep_until};

use crate::fleet::{self, Load};
use crate::pipeline::{add_latency, bot_credential, call, read_request, transport};
use crate::stats::{Durations, per_second};

/// Maximum delay of a request, and again of its response: 20 ms ± 20 ms in total.
const JITTER_MS: u64 = 20;

/// Time before anything is counted: the quiet first window, the burst after it, and the first responses on every route.
const WARM_UP: Duration = Duration::from_secs(4);

/// Paths that each caller reads of its guilds, in turn. None of them has a limit that is reached before the global one.
const READS: [&str; 4] = ["", "/roles", "/channels", "/members?limit=10"];

/// Load on the gate.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Number of callers with equal demand.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    callers: u32,
    /// Number of calls that each caller has in flight or waiting.
    #[arg(long, default_value_t = 10)]
    pending: u32,
    /// Number of guilds, divided among the callers.
    #[arg(long, default_value_t = 200)]
    guilds: u32,
    /// Number of processes that share the limit over Redis. Together they have as many calls in flight or waiting as
    /// all callers.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=20))]
    processes: u32,
}

/// Response header with the time at which the call reached the transport, in microseconds since the start.
const DISPATCHED: HeaderName = HeaderName::from_static("x-bench-dispatched-us");

/// The real transport, which adds the time of dispatch to each response.
struct TimingTransport {
    transport: HyperTransport,
    start: Instant,
}

impl Transport for TimingTransport {
    fn send(&self, call: ClearedRequest) -> SendFuture<'_> {
        let dispatched = u64::try_from(self.start.elapsed().as_micros()).unwrap_or(u64::MAX);
        Box::pin(async move {
            let mut received = self.transport.send(call).await?;
            received.headers.insert(DISPATCHED, dispatched.into());
            Ok(received)
        })
    }
}

/// One concurrent task of a caller.
struct Worker {
    caller: u32,
    gate: Arc<Gate>,
    credential: Credential,
    guilds: Vec<Snowflake>,
    turn: usize,
    start: Instant,
    from: Instant,
    until: Instant,
}

/// Waits that a worker counted.
struct WorkerResult {
    caller: u32,
    waits: Durations,
}

pub(crate) async fn run(arguments: &Arguments, seconds: u64, quiet: bool) -> anyhow::Result<Value> {
    let Arguments { callers, pending, guilds, processes } = *arguments;
    if processes > 1 {
        let load = Load { processes, pending: callers * pending, guilds };
        return fleet::run(&load, seconds, quiet).await;
    }
    LocalSet::new().run_until(measure(arguments, seconds, quiet)).await
}

async fn measure(arguments: &Arguments, seconds: u64, quiet: bool) -> anyhow::Result<Value> {
    let Arguments { callers, pending, guilds, .. } = *arguments;
    ensure!(guilds >= callers, "--guilds must be at least the number of callers ({callers})");
    let config = SimConfig { guilds, ..SimConfig::default() };
    let limit = config.limits.global.limit;
    let sim = Sim::start(config).await.context("cannot start the simulator")?;
    add_latency(&sim, 0, JITTER_MS)?;
    let credential = bot_credential(&sim)?;
    let start = Instant::now();
    let gate = Gate::start(
        TimingTransport { transport: transport(sim.api_url())?, start },
        GateConfig::default(),
        LeaseGuard::always(),
    );

    let all: Vec<Snowflake> = sim.guilds();
    let from = Instant::now() + WARM_UP;
    let until = from + Duration::from_secs(seconds);
    let mut workers = JoinSet::new();
    // Workers start in round-robin order. If each caller started all its calls at once, responses would also come in
    // blocks, and the bounds of the counted time would decide which caller gets an extra block.
    for turn in 0..pending as usize {
        for caller in 0..callers {
            let gate = Arc::clone(&gate);
            let guilds = all.iter().copied().skip(caller as usize).step_by(callers as usize).collect();
            let worker = Worker { caller, gate, credential, guilds, turn, start, from, until };
            workers.spawn(worker.run());
        }
    }

    sleep_until(until).await;
    let mut shares = vec![0; callers as usize];
    let mut waits = Durations::default();
    while let Some(result) = workers.join_next().await {
        let result = result??;
        shares[result.caller as usize] += result.waits.len();
        waits.extend(result.waits);
    }
    waits.sort();
    let score = sim.score();
    let limited = score.rate_limited;
    let goodput = per_second(waits.len(), until - from);
    let mean = per_second(waits.len(), Duration::from_secs(u64::from(callers)));
    let min_count = per_second(shares.iter().copied().min().unwrap_or_default(), Duration::from_secs(1));
    if !quiet {
        println!("{goodput:.1} calls/s answered, {limit} allowed; calls per caller: {shares:?}");
    }
    Ok(json!({
        "name": "gate",
        "seconds": seconds,
        "callers": callers,
        "limit": limit,
        "max_in_any_second": score.max_per_second.values().max(),
        "goodput_per_s": goodput,
        "http_429": limited.user + limited.shared + limited.global,
        "wait_ms_p50": waits.quantile_ms(0.5),
        "wait_ms_p99": waits.quantile_ms(0.99),
        "fairness_min_share": min_count / mean,
    }))
}

impl Worker {
    /// Calls until the time is up. Responses within the counted time are counted, whenever their call started.
    async fn run(self) -> anyhow::Result<WorkerResult> {
        let mut waits = Durations::default();
        let mut turn = self.turn;
        while Instant::now() < self.until {
            let guild = self.guilds[turn % self.guilds.len()];
            let suffix = READS[turn / self.guilds.len() % READS.len()];
            let started = Instant::now();
            let request = read_request(format!("/guilds/{guild}{suffix}"), self.credential);
            let answered = tokio::select! {
                answered = call(&self.gate, request) => answered?,
                // Calls that still wait at the end are abandoned.
                () = sleep_until(self.until) => break,
            };
            if Instant::now() >= self.from {
                let dispatched = answered.headers.get(DISPATCHED).and_then(|at| at.to_str().ok()?.parse().ok());
                let dispatched = self.start
                    + Duration::from_micros(dispatched.context(
                        "a response has no dispatch \
                    time",
                    )?);
                waits.push(dispatched - started);
            }
            turn += 1;
        }
        Ok(WorkerResult { caller: self.caller, waits })
    }
}
