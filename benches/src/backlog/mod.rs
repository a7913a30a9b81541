//! `backlog`: cost of an operation when the store holds many finished and many pending operations.

mod history;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::ensure;
use clap::Args;
use serde_json::{Value, json};

use self::history::{Extent, History};
use crate::disk;
use crate::operations::{OperationsFixture, Upstream, settings};

/// Number of finished operations, and the JSON key of the figure.
const SIZES: [(u64, &str); 4] =
    [(1_000, "us_per_op_1k"), (10_000, "us_per_op_10k"), (100_000, "us_per_op_100k"), (1_000_000, "us_per_op_1m")];

/// Time limit of one round.
const ROUND_TIMEOUT: Duration = Duration::from_secs(60);

/// Size of the store and of a round.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Number of guilds with pending operations.
    #[arg(long, default_value_t = 2_000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    guilds: u32,
    /// Number of pending operations of each guild.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pending: u32,
    /// Number of guilds whose operations are all executed in one round.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=2_000))]
    served: u32,
    /// Rounds per store. The figure is the best round.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=99))]
    rounds: u32,
}

pub(crate) async fn run(arguments: &Arguments, quiet: bool) -> anyhow::Result<Value> {
    ensure!(
        arguments.served <= arguments.guilds,
        "--served must not exceed the number of guilds ({})",
        arguments.guilds
    );
    let _recorder = guildhall::metrics::install()?;
    let folder = disk::temp_dir()?;
    let mut histories = Vec::new();
    for (finished, key) in SIZES {
        let started = Instant::now();
        histories.push(write(arguments, folder.path(), finished, key).await?);
        if !quiet {
            println!("wrote a store with {finished} finished operations in {:.1?}", started.elapsed());
        }
    }
    // Rounds alternate between the stores, so that other load on the machine affects all of them.
    let mut best = [f64::INFINITY; SIZES.len()];
    for _ in 0..arguments.rounds {
        for ((history, best), (finished, _)) in histories.iter().zip(&mut best).zip(SIZES) {
            let micros = measure_round(arguments, history).await?;
            history.restore().await?;
            if !quiet {
                println!("{finished} finished: {micros:.1} µs per operation");
            }
            *best = best.min(micros);
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

/// Executes all operations of some guilds: claims their queues, reads, executes and stores all operations, and releases
/// the queues. Returns microseconds per operation.
async fn measure_round(arguments: &Arguments, history: &History) -> anyhow::Result<f64> {
    let count = arguments.served as usize * arguments.pending as usize;
    let served = arguments.served.to_string();
    // As many guild slots as guilds to serve, and no poll for more during the round.
    let overrides =
        [("GUILDHALL__OPERATIONS__ACTIVE_GUILDS", served.as_str()), ("GUILDHALL__OPERATIONS__POLL_MS", "600000")];
    let settings = settings(history.url(), &overrides)?;
    let upstream = Upstream::new(count);
    let store = guildhall::store::Store::open(&settings.store).await?;
    let started = Instant::now();
    let fixture = OperationsFixture::with_store(store, &settings, Arc::clone(&upstream));
    upstream.wait_until_answered(ROUND_TIMEOUT).await?;
    fixture.drain().await?;
    let elapsed = started.elapsed();
    fixture.close().await;
    ensure!(upstream.violations() == 0, "{} operations were out of order", upstream.violations());
    #[expect(clippy::cast_precision_loss, reason = "a figure needs no more digits than a double has")]
    Ok(elapsed.as_secs_f64() * 1_000_000.0 / count as f64)
}
