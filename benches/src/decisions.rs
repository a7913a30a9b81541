//! `decisions`: how fast the limiter decides, alone and as an actor, and its memory per bucket.
//!
//! A call needs two decisions: whether it is permitted, and what its response changes.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use clap::Args;
use guildhall_actors::clock::Clock;
use guildhall_actors::token_bucket::{TokenBucket, TokenBucketHandle};
use guildhall_core::lane::Lane;
use guildhall_core::limit::{AcquireOutcome, CallerId, LimitConfig, Limiter, PermitRequest};
use guildhall_core::response::{Credential, RateHeaders, ResponseClass, ResponseInfo};
use guildhall_core::route::Route;
use guildhall_core::time::Timestamp;
use serde_json::{Value, json};
use tokio::task::{JoinSet, LocalSet};

use crate::stats::per_second;

const BOT: Credential = Credential::Application(1);

/// Routes. Each has a separate bucket per object.
const ROUTES: [(&str, &str); 4] = [
    ("POST", "/channels/{}/messages"),
    ("PUT", "/guilds/{}/members/5/roles/6"),
    ("GET", "/guilds/{}/roles"),
    ("PATCH", "/channels/{}"),
];

/// Interval between calls in the simulated time of the limiter: half of the global limit of 50 per second.
const CALL_INTERVAL: Duration = Duration::from_millis(40);

/// Calls between two clock reads.
const BATCH: usize = 1_024;

/// Covers the first window of the actor, in which it grants nothing, and the first responses.
const WARM_UP: Duration = Duration::from_millis(1_500);

/// Longer than the allocator retains unused pages.
const RELEASE_TIME: Duration = Duration::from_secs(3);

/// Load on the limiter.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Number of objects that calls are sent to. Each has a bucket on each of four routes.
    #[arg(long, default_value_t = 5_000, value_parser = clap::value_parser!(u32).range(1..=20_000))]
    objects: u32,
    /// Number of callers of the actor, each with one call at a time.
    #[arg(long, default_value_t = 256)]
    callers: usize,
    /// Number of buckets for the memory measurement.
    #[arg(long, default_value_t = 200_000, value_parser = clap::value_parser!(u32).range(10_000..=10_000_000))]
    buckets: u32,
}

pub(crate) async fn run(arguments: &Arguments, seconds: u64, quiet: bool) -> anyhow::Result<Value> {
    let _recorder = guildhall::metrics::install()?;
    let time = Duration::from_secs(seconds);
    // First, because the heap is empty: later, freed memory of other measurements would distort the figure.
    let bytes_per_bucket = measure_memory(arguments.buckets)?;
    if !quiet {
        println!("{bytes_per_bucket:.0} bytes for each of {} buckets", arguments.buckets);
    }
    let machine_per_s = measure_limiter(arguments.objects, time)?;
    if !quiet {
        println!("limiter alone: {machine_per_s:.0} decisions/s");
    }
    let actor_per_s = LocalSet::new().run_until(measure_actor(arguments, time)).await?;
    if !quiet {
        println!("limiter actor: {actor_per_s:.0} decisions/s for {} callers", arguments.callers);
    }
    Ok(json!({
        "name": "decisions",
        "seconds": seconds,
        "objects": arguments.objects,
        "callers": arguments.callers,
        "machine_per_s": machine_per_s,
        "actor_per_s": actor_per_s,
        "bytes_per_bucket": bytes_per_bucket,
    }))
}

/// Discord's side: a fixed window per object and route.
struct Upstream {
    limit: u32,
    per_ms: u64,
    /// Window and number of calls in it, by index of object and route.
    used: Vec<(u64, u32)>,
    /// One response per route, updated in place, so that no allocation is measured.
    answers: Vec<ResponseInfo>,
}

impl Upstream {
    fn new(limit: u32, per_ms: u64, places: usize) -> Self {
        let answers = (0..ROUTES.len()).map(|route| {
            let bucket = format!("{route:032x}");
            let rate = RateHeaders { bucket, limit, remaining: 0, reset_ms: 0, reset_after: Duration::ZERO };
            ResponseInfo { class: ResponseClass::Success, rate: Some(rate) }
        });
        Self { limit, per_ms, used: vec![(0, 0); places], answers: answers.collect() }
    }

    /// Counts a call and returns its response.
    fn answer(&mut self, index: usize, now: Timestamp) -> anyhow::Result<&ResponseInfo> {
        let now_ms = now.micros() / 1_000;
        let window = now_ms / self.per_ms;
        let used = &mut self.used[index];
        if used.0 != window {
            *used = (window, 0);
        }
        used.1 += 1;
        let Some(remaining) = self.limit.checked_sub(used.1) else { bail!("the limiter permitted too many calls") };
        let response = &mut self.answers[index % ROUTES.len()];
        if let Some(rate) = &mut response.rate {
            rate.remaining = remaining;
            rate.reset_ms = (window + 1) * self.per_ms;
            rate.reset_after = Duration::from_millis(rate.reset_ms - now_ms);
        }
        Ok(response)
    }
}

/// One route per object and template. The index modulo `ROUTES.len()` identifies the template.
fn routes(objects: u32) -> Vec<Route> {
    let routes_of = |object: u32| {
        ROUTES.iter().map(move |(method, path)| {
            let path = path.replace("{}", &(1_000_000_000_000 + u64::from(object)).to_string());
            Route::parse(method, &path, 1, 0)
        })
    };
    (0..objects).flat_map(routes_of).collect()
}

/// Measures the limiter as a pure state machine, in simulated time.
fn measure_limiter(objects: u32, time: Duration) -> anyhow::Result<f64> {
    let requests: Vec<PermitRequest> = routes(objects)
        .into_iter()
        .map(|route| PermitRequest {
            credential: BOT,
            route,
            lane: Lane::Operation,
            caller: CallerId::NONE,
            deadline: Timestamp::from_micros(u64::MAX),
        })
        .collect();
    let mut upstream = Upstream::new(5, 5_000, requests.len());
    let mut limiter = Limiter::new(LimitConfig::default(), Timestamp::ZERO);
    let mut now = Timestamp::from_millis(10_000);
    let mut turn = 0;
    let mut calls = |count: usize| {
        for _ in 0..count {
            now = now + CALL_INTERVAL;
            let index = turn % requests.len();
            let AcquireOutcome::Granted(permit) = limiter.acquire(requests[index].clone(), now) else {
                bail!("a call had to wait")
            };
            limiter.on_response(permit, upstream.answer(index, now)?, now);
            turn += 1;
        }
        Ok(())
    };
    // Warm-up, so that every bucket exists.
    calls(requests.len())?;
    let started = Instant::now();
    let mut done = 0;
    while started.elapsed() < time {
        calls(BATCH)?;
        done += BATCH;
    }
    Ok(per_second(done * 2, started.elapsed()))
}

/// Memory that a limiter adds to the process per bucket. Buckets are used again until the allocator has returned what
/// the growth left behind, so that only retained memory is counted.
fn measure_memory(buckets: u32) -> anyhow::Result<f64> {
    let config = LimitConfig { max_buckets: buckets as usize * 2, ..LimitConfig::default() };
    let mut upstream = Upstream::new(5, 5_000, 1);
    let mut now = Timestamp::from_millis(10_000);
    let before = resident_bytes()?;
    let mut limiter = Limiter::new(config, Timestamp::ZERO);
    let started = Instant::now();
    while started.elapsed() < RELEASE_TIME {
        for object in 0..buckets {
            now = now + CALL_INTERVAL;
            let path = format!("/channels/{}/messages", 1_000_000_000_000 + u64::from(object));
            let request = PermitRequest {
                credential: BOT,
                route: Route::parse("POST", &path, 1, 0),
                lane: Lane::Operation,
                caller: CallerId::NONE,
                deadline: now,
            };
            let AcquireOutcome::Granted(permit) = limiter.acquire(request, now) else { bail!("a call had to wait") };
            upstream.used[0] = (0, 0);
            limiter.on_response(permit, upstream.answer(0, now)?, now);
        }
    }
    let added = resident_bytes()?.saturating_sub(before);
    let bucket_count = limiter.snapshot(now).buckets;
    ensure!(bucket_count >= buckets as usize, "only {bucket_count} of {buckets} buckets exist");
    Ok(per_second(added, Duration::from_secs(bucket_count as u64)))
}

/// Resident memory of this process in bytes.
fn resident_bytes() -> anyhow::Result<usize> {
    let status = std::fs::read_to_string("/proc/self/status").context(
        "cannot read the memory of the process; this \
        benchmark needs Linux",
    )?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context(
        "cannot find VmRSS in \
        /proc/self/status",
    )?;
    let kib: usize = line.trim().trim_end_matches(" kB").parse()?;
    Ok(kib * 1_024)
}

/// Measures the actor with many concurrent callers, in real time.
async fn measure_actor(arguments: &Arguments, time: Duration) -> anyhow::Result<f64> {
    let limits = LimitConfig { global: 10_000_000, ..LimitConfig::default() };
    let clock = Clock::start();
    let tokens = TokenBucketHandle::new(TokenBucket::new(clock, limits).run(), clock);
    let routes: Rc<[Route]> = routes(arguments.objects).into();
    let upstream = Rc::new(RefCell::new(Upstream::new(100_000, 1_000, routes.len())));
    let turn = Rc::new(Cell::new(0_usize));
    let from = Instant::now() + WARM_UP;
    let until = from + time;
    let mut callers = JoinSet::new();
    for _ in 0..arguments.callers {
        let (tokens, routes) = (tokens.clone(), Rc::clone(&routes));
        let (upstream, turn) = (Rc::clone(&upstream), Rc::clone(&turn));
        callers.spawn_local(async move {
            let mut done = 0;
            loop {
                let index = turn.replace(turn.get() + 1) % routes.len();
                let route = routes[index].clone();
                let mut permit = tokens.acquire(BOT, route, Lane::Operation, Duration::from_secs(60)).await?;
                permit.sent();
                let response = upstream.borrow_mut().answer(index, clock.now())?.clone();
                permit.answered(response);
                let now = Instant::now();
                done += usize::from(now >= from);
                if now >= until {
                    return Ok::<_, anyhow::Error>(done);
                }
            }
        });
    }
    let mut done = 0;
    while let Some(caller) = callers.join_next().await {
        done += caller??;
    }
    Ok(per_second(done * 2, time))
}
