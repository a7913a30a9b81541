//! The daemon is killed at random moments, again and again, while it works.

use std::{env, sync::Arc, time::Duration};

use fastrand::Rng;
use futures_util::future::join_all;
use guildhall_sim::{Fault, FaultAction, Stage as On};
use tokio::{
    sync::{Mutex, Semaphore},
    time::{sleep, timeout},
};

use crate::{
    asker::{Asker, asks},
    caller::Accepted,
    errand::Sort,
    judge::{Finding, judge},
    life::{Life, was_killed},
    stage::{Engine, Furniture, Stage},
};

/// Kills for one store and one simulator: a guild has room for only so many roles and channels.
const ROUND: u32 = 15;
/// Concurrent rounds on each engine.
const AT_ONCE: usize = 2;
/// Maximum time to wait in a run in which nothing is left to do.
const LONGEST: Duration = Duration::from_secs(4);

/// The operations, and the faults in addition to kills.
#[derive(Clone, Debug)]
pub(crate) struct Weather {
    pub(crate) sorts: Vec<Sort>,
    pub(crate) faults: Vec<Fault>,
    pub(crate) permissions: Option<u64>,
}

/// Some calls are slow before or after their effect, so that kills hit them in flight.
fn slow() -> Weather {
    let slow = |at| Fault {
        route: "*".to_owned(),
        action: FaultAction::Latency { fixed_ms: 0, jitter_ms: 60, at },
        probability: 0.3,
        count: None,
        skip: 0,
    };
    Weather { sorts: Sort::ALL.to_vec(), faults: vec![slow(On::Effect), slow(On::Answer)], permissions: None }
}

/// Waits for a random time or event before the kill.
async fn lasts(stage: &Stage, life: &Life, permits: &Semaphore, rng: &mut Rng) {
    let ms = |rng: &mut Rng, most| Duration::from_millis(rng.u64(..most));
    permits.add_permits(rng.usize(3..12));
    match rng.u8(..6) {
        // While it starts, or waits for Discord's window.
        0 => sleep(ms(rng, 900)).await,
        // While it accepts.
        1 => {
            let enough = stage.accepted() + rng.usize(1..6);
            let wait = async {
                while stage.accepted() < enough {
                    sleep(Duration::from_millis(1)).await;
                }
            };
            drop(timeout(LONGEST, wait).await);
            sleep(ms(rng, 10)).await;
        }
        // While it works.
        _ => {
            let listens = timeout(LONGEST * 5, life.listens()).await;
            assert!(matches!(listens, Ok(Some(_))), "it did not start\n{}", life.last_words());
            stage.effects(rng.usize(1..12), LONGEST).await;
            sleep(ms(rng, 60)).await;
        }
    }
}

/// Kills the daemon so often while it works, then waits until everything is finished.
pub(crate) async fn round(engine: Engine, kills: u32, seed: u64, weather: &Weather) -> Finding {
    let mut rng = Rng::with_seed(seed);
    let furniture = Furniture { guilds: 3, roles: 20, doomed: 20, permissions: weather.permissions };
    let stage = Stage::new(engine, furniture).await;
    for fault in &weather.faults {
        stage.sim.add_fault(fault.clone()).unwrap();
    }
    let permits = Semaphore::new(0);
    let askers = stage.places.iter().map(|place| {
        let (asker, seed) = (Asker::new(place.clone()), rng.u64(..));
        asks(&stage, asker, &weather.sorts, &permits, seed)
    });
    let askers: Vec<_> = askers.collect();
    let lives = async {
        for _ in 0..kills {
            let mut life = stage.begin();
            lasts(&stage, &life, &permits, &mut rng).await;
            assert!(was_killed(life.kill()), "it exited by itself\n{}", life.last_words());
        }
        permits.close();
        stage.begin()
    };
    let (accepted, life) = tokio::join!(join_all(askers), lives);
    let accepted: Vec<Accepted> = accepted.into_iter().flatten().collect();
    let became = stage.all_became(&accepted).await;
    let finding = judge(&stage.sim.score(), &accepted, &became);
    if !finding.wrong.is_empty() {
        eprintln!("seed {seed} on {}:\n{:#?}\n{}", engine.name(), finding.wrong, life.last_words());
    }
    finding
}

/// So many kills on an engine, in rounds, some of them concurrently.
pub(crate) async fn kills(engine: Engine, kills: u32, seed: u64, weather: &Weather) -> Finding {
    let rounds = kills.div_ceil(ROUND);
    let left =
        Arc::new(Mutex::new((0..rounds).map(|round| (round, ROUND.min(kills - round * ROUND))).collect::<Vec<_>>()));
    let works = (0..AT_ONCE).map(|_| async {
        let mut found = Finding::default();
        loop {
            let Some((number, kills)) = left.lock().await.pop() else { return found };
            found.add(round(engine, kills, seed.wrapping_mul(1_000).wrapping_add(u64::from(number)), weather).await);
        }
    });
    let mut finding = Finding::default();
    for found in join_all(works).await {
        finding.add(found);
    }
    finding
}

async fn sixty(engine: Engine) {
    kills(engine, 60, 7, &slow()).await.holds(engine.name());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sixty_kills_at_any_moment_lose_double_and_reorder_nothing_in_sqlite() {
    sixty(Engine::Sqlite).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sixty_kills_at_any_moment_lose_double_and_reorder_nothing_in_postgres() {
    sixty(Engine::Postgres).await;
}

/// `scripts/soak crash` runs this with the number of kills and the seed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes as long as its settings say; scripts/soak crash runs it"]
async fn soak() {
    let set = |name: &str| env::var(name).ok().and_then(|text| text.parse().ok());
    let (each, seed) = (set("CRASH_KILLS").unwrap_or(1_000) / 2, set("CRASH_SEED").unwrap_or(1));
    let each = u32::try_from(each).unwrap();
    let weather = slow();
    let runs = Engine::BOTH.map(|engine| {
        let weather = &weather;
        async move {
            let finding = kills(engine, each, seed, weather).await;
            let line = serde_json::json!({
                "engine": engine.name(),
                "seed": seed,
                "kills": each,
                "operations": finding.operations,
                "lost": finding.lost,
                "duplicates": finding.duplicates,
                "order_violations": finding.out_of_order,
                "needs_review": finding.reviewed,
                "cancelled": finding.cancelled,
                "violations": finding.wrong.len(),
            });
            println!("{line}");
            finding
        }
    });
    for (finding, engine) in join_all(runs).await.iter().zip(Engine::BOTH) {
        finding.holds(engine.name());
    }
}
