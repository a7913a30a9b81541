//! `budgets`: throughput of a budget that is shared over Redis, under full demand. The baseline is the common way to
//! share one: a script that is sent in full with each attempt and retried until it succeeds.

mod naive;
mod script_usage;

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use clap::Args;
use guildhall::redis::{RedisBudgets, RedisClient, RedisConfig, RedisKeys};
use guildhall_actors::budget::{BudgetsHandle, SharedBudgetsConfig};
use guildhall_core::budget::{BudgetDecision, BudgetFallback, BudgetLimits, BudgetMemberConfig, BudgetName, Points};
use serde_json::{Value, json};
use tokio::task::{JoinSet, LocalSet};
use tokio::time::{Instant, sleep, sleep_until};

use self::naive::NaiveClient;
use self::script_usage::{ScriptForm, ScriptUsage};
use crate::redis_server::RedisServer;
use crate::stats::per_second;

/// Number of turns that each side has on each budget.
const ROUNDS: u32 = 4;

/// Capacity of a budget: the refill of a second divided by this.
const CAPACITY_DIVISOR: u64 = 100;

/// Longest wait of a caller: longer than a turn.
const MAX_WAIT: Duration = Duration::from_secs(600);

/// Load on the budgets.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Number of callers, each with one request at a time.
    #[arg(long, default_value_t = 2_000, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    callers: u32,
    /// Calls per second that the wide budget allows.
    #[arg(long, default_value_t = 400_000, value_parser = clap::value_parser!(u64).range(CAPACITY_DIVISOR..=10_000_000))]
    wide: u64,
    /// Calls per second that the narrow budget allows.
    #[arg(long, default_value_t = 5_000, value_parser = clap::value_parser!(u64).range(CAPACITY_DIVISOR..=10_000_000))]
    narrow: u64,
    /// Milliseconds that the naive client waits after a rejected attempt.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=1_000))]
    pause_ms: u64,
}

pub(crate) async fn run(arguments: &Arguments, seconds: u64, quiet: bool) -> anyhow::Result<Value> {
    LocalSet::new().run_until(measure(arguments, seconds, quiet)).await
}

async fn measure(arguments: &Arguments, seconds: u64, quiet: bool) -> anyhow::Result<Value> {
    let server = RedisServer::start()?;
    let pause = Duration::from_millis(arguments.pause_ms);
    let naive = NaiveClient::connect(&server.url(), pause).await?;
    let budgets = start_budgets(&server)?;
    // All turns together take the requested time.
    let time = Duration::from_secs(seconds) / (ROUNDS * 4);
    let mut figures = [[Figures::default(); 2]; 2];
    for round in 0..ROUNDS {
        for (rate, figures) in [arguments.wide, arguments.narrow].into_iter().zip(&mut figures) {
            let name = BudgetName::new(&format!("budget-{rate}-{round}"))?;
            let limits = BudgetLimits {
                maximum: Points::whole(rate / CAPACITY_DIVISOR),
                restore_per_second: Points::whole(rate),
            };
            budgets.configure(&name, limits).await?;
            let methods = [
                (AcquireMethod::Booked(budgets.clone(), name.clone()), ScriptForm::Hash),
                (AcquireMethod::Tried(naive.clone(), format!("naive:{name}"), limits), ScriptForm::Source),
            ];
            for ((method, script), figures) in methods.into_iter().zip(figures) {
                let before = ScriptUsage::query(&server.url(), script)?;
                let taken = run_callers(&method, arguments.callers, time).await?;
                figures.add(taken, time, ScriptUsage::query(&server.url(), script)? - before);
                let max_permitted = rate / CAPACITY_DIVISOR + rate * u64::try_from(time.as_millis())? / 1_000;
                // One percent more: the server's second may differ slightly from ours.
                ensure!(
                    taken.all <= max_permitted + max_permitted / 100,
                    "{} calls were permitted, which exceeds the limit of {max_permitted}",
                    taken.all
                );
            }
        }
    }
    let [[ours, theirs], [ours_narrow, theirs_narrow]] = figures;
    if !quiet {
        println!("wide budget: {ours}; naive {theirs}");
        println!("narrow budget: {ours_narrow}; naive {theirs_narrow}");
    }
    Ok(json!({
        "name": "budgets",
        "seconds": seconds,
        "callers": arguments.callers,
        "budget_per_s": arguments.wide,
        "acquire_per_s": ours.rate(),
        "naive_per_s": theirs.rate(),
        "ratio": ours.rate() / theirs.rate(),
        "round_trips_per_acquire": ours.trips(),
        "naive_round_trips_per_acquire": theirs.trips(),
        "redis_us_per_acquire": ours.redis_us(),
        "naive_redis_us_per_acquire": theirs.redis_us(),
        "narrow_budget_per_s": arguments.narrow,
        "narrow_acquire_per_s": ours_narrow.rate(),
        "narrow_naive_per_s": theirs_narrow.rate(),
        "narrow_round_trips_per_acquire": ours_narrow.trips(),
        "narrow_naive_round_trips_per_acquire": theirs_narrow.trips(),
        "narrow_redis_us_per_acquire": ours_narrow.redis_us(),
        "narrow_naive_redis_us_per_acquire": theirs_narrow.redis_us(),
    }))
}

/// Budgets over Redis, as in the daemon.
fn start_budgets(server: &RedisServer) -> anyhow::Result<BudgetsHandle> {
    let url = server.url().parse().context("invalid address of redis-server")?;
    let redis = RedisClient::new(RedisConfig { url, ca_file: None, timeout: MAX_WAIT })?;
    let port = Arc::new(RedisBudgets::new(redis, RedisKeys::new(1), "bench"));
    let partner = BudgetMemberConfig {
        max_budgets: 100,
        max_wait: MAX_WAIT,
        on_loss: BudgetFallback::Closed,
        retry_after: Duration::from_secs(1),
    };
    Ok(BudgetsHandle::start_shared(port, SharedBudgetsConfig { member: partner, max_in_flight: 100_000 }))
}

/// How a caller acquires from a budget. Each call costs 1.
#[derive(Clone)]
enum AcquireMethod {
    /// Requests once, and waits for the delay in the response.
    Booked(BudgetsHandle, BudgetName),
    /// Retries until permitted.
    Tried(NaiveClient, String, BudgetLimits),
}

impl AcquireMethod {
    async fn acquire(&self) -> anyhow::Result<()> {
        match self {
            Self::Booked(budgets, name) => match budgets.acquire(name, Points::whole(1), MAX_WAIT).await? {
                BudgetDecision::Allowed { delay: Duration::ZERO, .. } => Ok(()),
                BudgetDecision::Allowed { delay, .. } => {
                    sleep(delay).await;
                    Ok(())
                }
                BudgetDecision::Refused { retry_after, .. } => bail!("refused; retry after {retry_after:?}"),
            },
            Self::Tried(naive, key, limits) => naive.acquire(key, *limits).await,
        }
    }
}

/// Number of permitted calls.
#[derive(Clone, Copy, Default)]
struct GrantCounts {
    /// In the whole turn.
    all: u64,
    /// After the first quarter of the turn, when the initial capacity of the budget is spent.
    counted: u64,
}

/// Runs callers at full demand for the given time.
async fn run_callers(method: &AcquireMethod, callers: u32, time: Duration) -> anyhow::Result<GrantCounts> {
    let start = Instant::now();
    let (from, until) = (start + time / 4, start + time);
    let taken = Rc::new(Cell::new(GrantCounts::default()));
    let mut tasks = JoinSet::new();
    for _ in 0..callers {
        let (method, taken) = (method.clone(), Rc::clone(&taken));
        tasks.spawn_local(async move {
            loop {
                tokio::select! {
                    acquired = method.acquire() => acquired?,
                    () = sleep_until(until) => return Ok::<_, anyhow::Error>(()),
                }
                let now = Instant::now();
                if now < until {
                    let GrantCounts { all, counted } = taken.get();
                    taken.set(GrantCounts { all: all + 1, counted: counted + u64::from(now >= from) });
                }
            }
        });
    }
    while let Some(result) = tasks.join_next().await {
        result??;
    }
    Ok(taken.get())
}

/// Figures of one side on one budget.
#[derive(Clone, Copy, Default)]
struct Figures {
    all: u64,
    counted: u64,
    time: Duration,
    used: ScriptUsage,
}

impl Figures {
    fn add(&mut self, taken: GrantCounts, time: Duration, used: ScriptUsage) {
        self.all += taken.all;
        self.counted += taken.counted;
        self.time += time - time / 4;
        self.used = self.used + used;
    }

    fn rate(&self) -> f64 {
        per_second(usize::try_from(self.counted).unwrap_or(usize::MAX), self.time)
    }

    fn trips(&self) -> f64 {
        ratio(self.used.calls, self.all)
    }

    fn redis_us(&self) -> f64 {
        ratio(self.used.micros, self.all)
    }
}

#[expect(clippy::cast_precision_loss, reason = "a ratio needs no more digits than a double has")]
fn ratio(a: u64, b: u64) -> f64 {
    a as f64 / b as f64
}

impl std::fmt::Display for Figures {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (rate, trips, micros) = (self.rate(), self.trips(), self.redis_us());
        write!(f, "{rate:.0} acquired/s, {trips:.3} round trips and {micros:.1} us of Redis time each")
    }
}
