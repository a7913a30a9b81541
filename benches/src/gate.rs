//! `gate`: what the whole pipeline makes of Discord's global limit under full demand, and how evenly it shares it.

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
use crate::pipeline::{bot, call, delay, read, transport};
use crate::stats::{Durations, per_second};

/// A call is held up by at most so much on its way in, and again on its way back: 20 ms ± 20 ms in all.
const JITTER_MS: u64 = 20;

/// Before anything is counted: the quiet first window, the burst after it, and the first answers of every route.
const WARM_UP: Duration = Duration::from_secs(4);

/// What each caller reads of its guilds, in turn. None of these has a limit that binds before the global one does.
const READS: [&str; 4] = ["", "/roles", "/channels", "/members?limit=10"];

/// How the gate is loaded.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Callers that all want the same.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    callers: u32,
    /// Calls that each caller has under way or waiting.
    #[arg(long, default_value_t = 10)]
    pending: u32,
    /// Guilds, divided among the callers.
    #[arg(long, default_value_t = 200)]
    guilds: u32,
    /// Processes that share the limit over Redis, with 100 calls under way or waiting in all.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=20))]
    processes: u32,
}

/// The header in which an answer says when its call was handed to the transport, in microseconds since the start.
const DISPATCHED: HeaderName = HeaderName::from_static("x-bench-dispatched-us");

/// The real transport, with a note on each answer of when its call came.
struct Noted {
    transport: HyperTransport,
    start: Instant,
}

impl Transport for Noted {
    fn send(&self, call: ClearedRequest) -> SendFuture<'_> {
        let dispatched = u64::try_from(self.start.elapsed().as_micros()).unwrap_or(u64::MAX);
        Box::pin(async move {
            let mut received = self.transport.send(call).await?;
            received.headers.insert(DISPATCHED, dispatched.into());
            Ok(received)
        })
    }
}

/// One of a caller's threads of work.
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

/// What a worker saw while it was counted.
struct Seen {
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
    ensure!(guilds >= callers, "there must be at least one guild for each of the {callers} callers");
    let config = SimConfig { guilds, ..SimConfig::default() };
    let limit = config.limits.global.limit;
    let sim = Sim::start(config).await.context("cannot start the simulator")?;
    delay(&sim, 0, JITTER_MS)?;
    let credential = bot(&sim)?;
    let start = Instant::now();
    let gate =
        Gate::start(Noted { transport: transport(sim.api_url())?, start }, GateConfig::default(), LeaseGuard::always());

    let all: Vec<Snowflake> = sim.guilds();
    let from = Instant::now() + WARM_UP;
    let until = from + Duration::from_secs(seconds);
    let mut workers = JoinSet::new();
    // In turn: had each caller asked for all its calls at once, they would also be answered in blocks, and where the
    // counted time begins and ends would decide who got a block more.
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
    while let Some(seen) = workers.join_next().await {
        let seen = seen??;
        shares[seen.caller as usize] += seen.waits.len();
        waits.extend(seen.waits);
    }
    waits.sort();
    let score = sim.score();
    let limited = score.rate_limited;
    let goodput = per_second(waits.len(), until - from);
    let mean = per_second(waits.len(), Duration::from_secs(u64::from(callers)));
    let least = per_second(shares.iter().copied().min().unwrap_or_default(), Duration::from_secs(1));
    if !quiet {
        println!("{goodput:.1} calls/s answered of {limit} allowed; calls of each caller: {shares:?}");
    }
    Ok(json!({
        "name": "gate",
        "seconds": seconds,
        "callers": callers,
        "limit": limit,
        "max_in_any_second": score.max_per_second.values().max(),
        "goodput_per_s": goodput,
        "http_429": limited.user + limited.shared + limited.global,
        "wait_ms_p50": waits.ms_at(0.5),
        "wait_ms_p99": waits.ms_at(0.99),
        "fairness_min_share": least / mean,
    }))
}

impl Worker {
    /// Calls until the time is up. What is answered in the counted time counts, whenever it was asked.
    async fn run(self) -> anyhow::Result<Seen> {
        let mut waits = Durations::default();
        let mut turn = self.turn;
        while Instant::now() < self.until {
            let guild = self.guilds[turn % self.guilds.len()];
            let read_of = READS[turn / self.guilds.len() % READS.len()];
            let asked = Instant::now();
            let request = read(format!("/guilds/{guild}{read_of}"), self.credential);
            let answered = tokio::select! {
                answered = call(&self.gate, request) => answered?,
                // Whatever still waits then is not worth waiting for.
                () = sleep_until(self.until) => break,
            };
            if Instant::now() >= self.from {
                let dispatched = answered.headers.get(DISPATCHED).and_then(|at| at.to_str().ok()?.parse().ok());
                let dispatched = self.start + Duration::from_micros(dispatched.context("an answer without its note")?);
                waits.push(dispatched - asked);
            }
            turn += 1;
        }
        Ok(Seen { caller: self.caller, waits })
    }
}
