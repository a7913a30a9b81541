//! The daemon is killed at random moments, again and again, while it works.

use std::{env, sync::Arc, time::Duration};

use fastrand::Rng;
use futures_util::future::join_all;
use guildhall_sim::{Fault, FaultAction, Stage as On};
use guildhall_testkit::crash::{
    checker::{CheckReport, check_outcomes},
    client::AcceptedOperation,
    daemon_process::{DaemonProcess, was_killed},
    fixture::{DaemonFixture, Engine, FixtureSize},
    generator::{OperationGenerator, submit_operations},
    test_operation::TestKind,
};
use tokio::{
    sync::{Mutex, Semaphore},
    time::{sleep, timeout},
};

/// Kills for one store and one simulator: a guild has room for only so many roles and channels.
const KILLS_PER_ROUND: u32 = 15;
/// Concurrent rounds on each engine.
const CONCURRENCY: usize = 2;
/// Maximum time to wait in a run in which nothing is left to do.
const MAX_RUN_TIME: Duration = Duration::from_secs(4);

/// The operations, and the faults in addition to kills.
#[derive(Clone, Debug)]
pub(crate) struct Workload {
    pub(crate) kinds: Vec<TestKind>,
    pub(crate) faults: Vec<Fault>,
    pub(crate) permissions: Option<u64>,
}

/// Some calls are slow before or after their effect, so that kills hit them in flight.
fn slow_workload() -> Workload {
    let slow_fault = |at| Fault {
        route: "*".to_owned(),
        action: FaultAction::Latency { fixed_ms: 0, jitter_ms: 60, at },
        probability: 0.3,
        count: None,
        skip: 0,
    };
    Workload {
        kinds: TestKind::ALL.to_vec(),
        faults: vec![slow_fault(On::Effect), slow_fault(On::Answer)],
        permissions: None,
    }
}

/// Waits for a random time or event before the kill.
async fn wait_before_kill(fixture: &DaemonFixture, daemon: &DaemonProcess, permits: &Semaphore, rng: &mut Rng) {
    let ms = |rng: &mut Rng, max| Duration::from_millis(rng.u64(..max));
    permits.add_permits(rng.usize(3..12));
    match rng.u8(..6) {
        // While it starts, or waits for Discord's window.
        0 => sleep(ms(rng, 900)).await,
        // While it accepts.
        1 => {
            let expected = fixture.accepted_count() + rng.usize(1..6);
            let wait = async {
                while fixture.accepted_count() < expected {
                    sleep(Duration::from_millis(1)).await;
                }
            };
            drop(timeout(MAX_RUN_TIME, wait).await);
            sleep(ms(rng, 10)).await;
        }
        // While it works.
        _ => {
            let listens = timeout(MAX_RUN_TIME * 5, daemon.wait_until_listening()).await;
            assert!(matches!(listens, Ok(Some(_))), "it did not start\n{}", daemon.log_tail());
            fixture.wait_for_more_effects(rng.usize(1..12), MAX_RUN_TIME).await;
            sleep(ms(rng, 60)).await;
        }
    }
}

/// Kills the daemon so often while it works, then waits until everything is finished.
pub(crate) async fn run_round(engine: Engine, kills: u32, seed: u64, workload: &Workload) -> CheckReport {
    let mut rng = Rng::with_seed(seed);
    let size = FixtureSize { guilds: 3, roles: 20, to_delete: 20, permissions: workload.permissions };
    let fixture = DaemonFixture::new(engine, size).await;
    for fault in &workload.faults {
        fixture.sim.add_fault(fault.clone()).unwrap();
    }
    let permits = Semaphore::new(0);
    let callers = fixture.guilds.iter().map(|guild_fixture| {
        let (generator, seed) = (OperationGenerator::new(guild_fixture.clone()), rng.u64(..));
        submit_operations(&fixture, generator, &workload.kinds, &permits, seed)
    });
    let callers: Vec<_> = callers.collect();
    let runs = async {
        for _ in 0..kills {
            let mut daemon = fixture.start_daemon();
            wait_before_kill(&fixture, &daemon, &permits, &mut rng).await;
            assert!(was_killed(daemon.kill()), "it exited by itself\n{}", daemon.log_tail());
        }
        permits.close();
        fixture.start_daemon()
    };
    let (accepted, daemon) = tokio::join!(join_all(callers), runs);
    let accepted: Vec<AcceptedOperation> = accepted.into_iter().flatten().collect();
    let outcomes = fixture.wait_for_outcomes(&accepted).await;
    let report = check_outcomes(&fixture.sim.score(), &accepted, &outcomes);
    if !report.violations.is_empty() {
        eprintln!("seed {seed} on {}:\n{:#?}\n{}", engine.name(), report.violations, daemon.log_tail());
    }
    report
}

/// So many kills on an engine, in rounds, some of them concurrently.
pub(crate) async fn run_kills(engine: Engine, kills: u32, seed: u64, workload: &Workload) -> CheckReport {
    let rounds = kills.div_ceil(KILLS_PER_ROUND);
    let remaining_rounds = Arc::new(Mutex::new(
        (0..rounds).map(|round| (round, KILLS_PER_ROUND.min(kills - round * KILLS_PER_ROUND))).collect::<Vec<_>>(),
    ));
    let workers = (0..CONCURRENCY).map(|_| async {
        let mut report_of_worker = CheckReport::default();
        loop {
            let Some((number, kills)) = remaining_rounds.lock().await.pop() else { return report_of_worker };
            report_of_worker.add(
                run_round(engine, kills, seed.wrapping_mul(1_000).wrapping_add(u64::from(number)), workload).await,
            );
        }
    });
    let mut report = CheckReport::default();
    for report_of_worker in join_all(workers).await {
        report.add(report_of_worker);
    }
    report
}

async fn run_sixty_kills(engine: Engine) {
    run_kills(engine, 60, 7, &slow_workload()).await.assert_ok(engine.name());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sixty_random_kills_break_nothing_on_sqlite() {
    run_sixty_kills(Engine::Sqlite).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sixty_random_kills_break_nothing_on_postgres() {
    run_sixty_kills(Engine::Postgres).await;
}

/// `scripts/soak crash` runs this with the number of kills and the seed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes as long as its settings say; scripts/soak crash runs it"]
async fn soak() {
    let variable = |name: &str| env::var(name).ok().and_then(|text| text.parse().ok());
    let (kills_per_engine, seed) = (variable("CRASH_KILLS").unwrap_or(1_000) / 2, variable("CRASH_SEED").unwrap_or(1));
    let kills_per_engine = u32::try_from(kills_per_engine).unwrap();
    let workload = slow_workload();
    let runs = Engine::BOTH.map(|engine| {
        let workload = &workload;
        async move {
            let report = run_kills(engine, kills_per_engine, seed, workload).await;
            let line = serde_json::json!({
                "engine": engine.name(),
                "seed": seed,
                "kills": kills_per_engine,
                "operations": report.operations,
                "lost": report.lost,
                "duplicates": report.duplicates,
                "order_violations": report.out_of_order,
                "needs_review": report.needs_review,
                "cancelled": report.cancelled,
                "violations": report.violations.len(),
            });
            println!("{line}");
            report
        }
    });
    for (report, engine) in join_all(runs).await.iter().zip(Engine::BOTH) {
        report.assert_ok(engine.name());
    }
}
