//! Daemons are suspended for a moment or for longer than their lease, killed, and stopped gracefully, at random and
//! while they work.

use std::{
    env,
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use fastrand::Rng;
use futures_util::future::join_all;
use guildhall_sim::Stage as On;
use guildhall_testkit::crash::{
    checker::CheckReport,
    client::TEST_TIMEOUT,
    daemon_process::{DaemonProcess, was_killed},
    fixture::{DaemonFixture, Engine},
};
use tokio::{
    sync::Semaphore,
    time::{sleep, timeout},
};

use super::fleet::{
    LEASE, SHORT_LEASE, check_all, env_number, fixture_size, processes, slow_down, submit_in_all_guilds,
    wait_until_listening,
};

/// Events for one store and one simulator: a guild has room for only so many roles and channels.
const EVENTS_PER_ROUND: u32 = 25;

/// What happens to a daemon.
#[derive(Clone, Copy, Debug)]
enum ChaosEvent {
    /// Suspended, usually for less than its lease.
    Halted(Duration),
    /// Suspended for longer than its lease.
    Frozen(Duration),
    Killed,
    /// Stopped gracefully.
    Terminated,
}

impl ChaosEvent {
    fn random(rng: &mut Rng) -> Self {
        let mut ms = |range| Duration::from_millis(rng.u64(range));
        let (short, long) = (ms(50..1_500), LEASE + ms(200..2_500));
        match rng.u8(..10) {
            0..=2 => Self::Halted(short),
            3..=5 => Self::Frozen(long),
            6..=7 => Self::Killed,
            _ => Self::Terminated,
        }
    }
}

/// Result of a round.
struct RoundOutcome {
    report: CheckReport,
    /// Calls that arrived while another call of their guild was in flight.
    overlaps: u64,
}

/// Applies events to a daemon as long as any remain. Returns the daemon that runs at the end.
async fn run_chaos(fixture: &DaemonFixture, remaining: &AtomicU32, permits: &Semaphore, seed: u64) -> DaemonProcess {
    let mut rng = Rng::with_seed(seed);
    let mut daemon = fixture.start_daemon_with(&SHORT_LEASE);
    while remaining.try_update(Ordering::SeqCst, Ordering::SeqCst, |remaining| remaining.checked_sub(1)).is_ok() {
        // Most events hit a working daemon, some a starting one.
        if rng.u8(..6) > 0 {
            wait_until_listening(&daemon).await;
        }
        permits.add_permits(rng.usize(20..120));
        sleep(Duration::from_millis(rng.u64(..800))).await;
        match ChaosEvent::random(&mut rng) {
            ChaosEvent::Halted(time) | ChaosEvent::Frozen(time) => {
                daemon.signal("STOP");
                sleep(time).await;
                daemon.signal("CONT");
            }
            ChaosEvent::Killed => {
                assert!(was_killed(daemon.kill()), "it exited by itself\n{}", daemon.log_tail());
                daemon = fixture.start_daemon_with(&SHORT_LEASE);
            }
            ChaosEvent::Terminated => {
                // Signal handlers are not installed before it listens.
                wait_until_listening(&daemon).await;
                daemon.signal("TERM");
                assert!(
                    timeout(TEST_TIMEOUT, daemon.wait_for_exit()).await.is_ok(),
                    "it did not exit\n{}",
                    daemon.log_tail()
                );
                assert!(!was_killed(daemon.kill()), "it was killed\n{}", daemon.log_tail());
                daemon = fixture.start_daemon_with(&SHORT_LEASE);
            }
        }
    }
    wait_until_listening(&daemon).await;
    daemon
}

/// Runs so many events, then waits until all accepted operations are finished.
async fn run_round(guilds: u32, events: u32, seed: u64) -> RoundOutcome {
    let mut rng = Rng::with_seed(seed);
    let fixture = DaemonFixture::new(Engine::Postgres, fixture_size(guilds)).await;
    slow_down(&fixture, On::Effect, 0, 40);
    slow_down(&fixture, On::Answer, 0, 40);
    let (permits, remaining) = (Semaphore::new(guilds as usize), AtomicU32::new(events));
    let chaos_runs = (0..processes()).map(|_| run_chaos(&fixture, &remaining, &permits, rng.u64(..)));
    let chaos_runs = join_all(chaos_runs.collect::<Vec<_>>());
    let running_daemons = async {
        let running_daemons = chaos_runs.await;
        permits.close();
        running_daemons
    };
    let (accepted, mut running_daemons) = tokio::join!(submit_in_all_guilds(&fixture, &permits, seed), running_daemons);
    let report = check_all(&fixture, &accepted, &mut running_daemons).await;
    if !report.violations.is_empty() {
        eprintln!("seed {seed}: {:#?}", report.violations);
    }
    RoundOutcome { report, overlaps: fixture.sim.score().overlaps }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twenty_chaos_events_break_nothing_and_never_overlap() {
    let RoundOutcome { report, overlaps } = run_round(200, 20, 11).await;
    println!("{} operations, {} cancelled", report.operations, report.cancelled);
    report.assert_ok("20 events");
    assert_eq!(overlaps, 0);
}

/// `scripts/soak ownership` runs this with the number of events and the seed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes as long as its settings say; scripts/soak ownership runs it"]
async fn soak() {
    let (events, guilds) = (env_number("OWNERSHIP_EVENTS", 500), env_number("OWNERSHIP_GUILDS", 200));
    let seed: u64 = env::var("OWNERSHIP_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(1);
    let mut total = RoundOutcome { report: CheckReport::default(), overlaps: 0 };
    for (number, first) in (0..).zip((0..events).step_by(EVENTS_PER_ROUND as usize)) {
        let seed = seed.wrapping_mul(1_000).wrapping_add(number);
        let RoundOutcome { report, overlaps } = run_round(guilds, EVENTS_PER_ROUND.min(events - first), seed).await;
        total.report.add(report);
        total.overlaps += overlaps;
    }
    let RoundOutcome { report, overlaps } = total;
    let line = serde_json::json!({
        "processes": processes(),
        "guilds": guilds,
        "seed": seed,
        "events": events,
        "operations": report.operations,
        "lost": report.lost,
        "duplicates": report.duplicates,
        "order_violations": report.out_of_order,
        "overlaps": overlaps,
        "needs_review": report.needs_review,
        "cancelled": report.cancelled,
        "violations": report.violations.len(),
    });
    println!("{line}");
    report.assert_ok("soak");
}
