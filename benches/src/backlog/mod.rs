//! `backlog`: what an operation costs when the store holds many that are done and many that are not.

mod history;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::ensure;
use clap::Args;
use serde_json::{Value, json};

use self::history::{Extent, History};
use crate::disk;
use crate::operations::{Upstream, Works, settings};

/// How many operations that are done there are, and what the figure is called.
const SIZES: [(u64, &str); 4] =
    [(1_000, "us_per_op_1k"), (10_000, "us_per_op_10k"), (100_000, "us_per_op_100k"), (1_000_000, "us_per_op_1m")];

/// How long one round may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// What is kept and done.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Guilds that have something to do.
    #[arg(long, default_value_t = 2_000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    guilds: u32,
    /// Operations that each of them has pending.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pending: u32,
    /// Guilds that are served in one round, all that they have.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=2_000))]
    served: u32,
    /// Rounds with each store. The figure is the best.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=99))]
    rounds: u32,
}

pub(crate) async fn run(arguments: &Arguments, quiet: bool) -> anyhow::Result<Value> {
    ensure!(arguments.served <= arguments.guilds, "there are only {} guilds to serve", arguments.guilds);
    let _recorder = guildhall::metrics::install()?;
    let folder = disk::folder()?;
    let mut histories = Vec::new();
    for (finished, key) in SIZES {
        let began = Instant::now();
        histories.push(write(arguments, folder.path(), finished, key).await?);
        if !quiet {
            println!("a store with {finished} operations that are done was written in {:.1?}", began.elapsed());
        }
    }
    // The stores take turns, so that whatever else the machine does hits all of them.
    let mut best = [f64::INFINITY; SIZES.len()];
    for _ in 0..arguments.rounds {
        for ((history, best), (finished, _)) in histories.iter().zip(&mut best).zip(SIZES) {
            let took = round(arguments, history).await?;
            history.restore().await?;
            if !quiet {
                println!("{finished} done: {took:.1} µs an operation");
            }
            *best = best.min(took);
        }
    }
    let mut figures = json!({
        "name": "backlog",
        "queued": u64::from(arguments.guilds) * u64::from(arguments.pending),
        "rounds": arguments.rounds,
        "growth": best[SIZES.len() - 1] / best[0],
    });
    for ((_, key), best) in SIZES.iter().zip(best) {
        figures[*key] = best.into();
    }
    Ok(figures)
}

async fn write(arguments: &Arguments, folder: &Path, finished: u64, name: &str) -> anyhow::Result<History> {
    let extent = Extent { finished, guilds: arguments.guilds.into(), pending: arguments.pending.into() };
    let now_ms = u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH)?.as_millis())?;
    History::write(&folder.join(format!("{name}.db")), extent, now_ms).await
}

/// Serves some guilds: their queues are taken, all that they have is read, done and kept, and they are given back.
/// Microseconds an operation.
async fn round(arguments: &Arguments, history: &History) -> anyhow::Result<f64> {
    let count = arguments.served as usize * arguments.pending as usize;
    let served = arguments.served.to_string();
    // As many guilds as there are places; nobody looks for more before the round is over.
    let others =
        [("GUILDHALL__OPERATIONS__ACTIVE_GUILDS", served.as_str()), ("GUILDHALL__OPERATIONS__POLL_MS", "600000")];
    let settings = settings(history.url(), &others)?;
    let upstream = Upstream::new(count);
    let store = guildhall::store::Store::open(&settings.store).await?;
    let began = Instant::now();
    let works = Works::over(store, &settings, Arc::clone(&upstream));
    upstream.all_answered(PATIENCE).await?;
    works.drain().await?;
    let took = began.elapsed();
    works.close().await;
    ensure!(upstream.violations() == 0, "{} operations were out of order", upstream.violations());
    #[expect(clippy::cast_precision_loss, reason = "a figure needs no more digits than a double has")]
    Ok(took.as_secs_f64() * 1_000_000.0 / count as f64)
}
