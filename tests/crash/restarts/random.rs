//! The daemon is stopped at random moments, again and again, under a load of events.

use std::{env, process::ExitStatus, time::Duration};

use fastrand::Rng;
use guildhall_testkit::crash::daemon_process::DaemonProcess;
use tokio::time::{sleep, timeout};

use super::{
    checker::{EventReport, check_effects},
    event_load::{SentEvents, run_load},
    fixture::{RestartFixture, SHARDS, TEST_TIMEOUT, unfinished_operations},
};

/// Restarts for one store and one simulator: a guild has room for only so many roles.
const RESTARTS_PER_ROUND: u32 = 40;
/// Maximum time to wait for effects in a run.
const MAX_RUN_TIME: Duration = Duration::from_secs(4);

/// Event buffers: so small that shards sometimes disconnect because it is full, or large.
const BUFFERS: [u32; 2] = [256, 4_096];

/// How a daemon is stopped.
#[derive(Clone, Copy, Debug)]
enum StopMode {
    /// By SIGTERM.
    Term,
    /// By SIGTERM, and killed while it stops.
    TermThenKill,
    Kill,
}

fn random_millis(rng: &mut Rng, max: u64) -> Duration {
    Duration::from_millis(rng.u64(..max))
}

/// Waits for a random time or event. Returns whether the daemon listens.
async fn wait_before_stop(fixture: &RestartFixture, daemon: &DaemonProcess, rng: &mut Rng) -> bool {
    let phase = rng.u8(..6);
    if phase == 0 {
        // While it starts.
        sleep(random_millis(rng, 600)).await;
        return false;
    }
    let listening = timeout(TEST_TIMEOUT, daemon.wait_until_listening()).await;
    assert!(matches!(listening, Ok(Some(_))), "it did not start\n{}", daemon.log_tail());
    if phase == 1 {
        // While it resumes.
        sleep(random_millis(rng, 300)).await;
    } else {
        // While it works.
        let expected = fixture.effect_count() + rng.usize(1..60);
        fixture.wait_until(MAX_RUN_TIME, |fixture| fixture.effect_count() >= expected).await;
        sleep(random_millis(rng, 60)).await;
    }
    true
}

/// Stops a daemon.
async fn stop_daemon(mut daemon: DaemonProcess, was_listening: bool, rng: &mut Rng) {
    let mode = match rng.u8(..8) {
        0..3 => StopMode::Term,
        3 => StopMode::TermThenKill,
        _ => StopMode::Kill,
    };
    match mode {
        StopMode::Term => {
            let status = terminate(&mut daemon).await;
            // A daemon that is still starting cannot stop gracefully.
            assert!(status.success() || !was_listening, "{status}\n{}", daemon.log_tail());
        }
        StopMode::TermThenKill => {
            daemon.signal("TERM");
            sleep(random_millis(rng, 100)).await;
            daemon.kill();
        }
        StopMode::Kill => drop(daemon.kill()),
    }
}

/// Stops a daemon gracefully, and waits until it has exited.
async fn terminate(daemon: &mut DaemonProcess) -> ExitStatus {
    daemon.signal("TERM");
    let exited = timeout(TEST_TIMEOUT, daemon.wait_for_exit()).await;
    assert!(exited.is_ok(), "it did not exit\n{}", daemon.log_tail());
    daemon.kill()
}

/// Starts a daemon, and waits until all its shards have resumed their sessions.
async fn start_and_resume(fixture: &RestartFixture) -> DaemonProcess {
    let expected = fixture.resumes() + u64::from(SHARDS);
    let daemon = fixture.start_daemon();
    let resumed = fixture.wait_until(TEST_TIMEOUT, |fixture| fixture.resumes() >= expected).await;
    assert!(resumed, "it did not resume\n{}", daemon.log_tail());
    daemon
}

/// Waits until everything is finished, and checks that nothing is done again after restarts.
pub(crate) async fn finish_and_check_replay(fixture: &RestartFixture, sent: &SentEvents) {
    let mut daemon = start_and_resume(fixture).await;
    let done = fixture.wait_until(TEST_TIMEOUT, |fixture| fixture.effect_count() >= sent.effects()).await;
    if !done {
        eprintln!("{} effects, not {}\n{}", fixture.effect_count(), sent.effects(), fixture.diagnostics(&daemon).await);
    }
    // Confirmations are stored with a delay, so the next process receives the last events again.
    daemon.kill();
    let mut daemon = start_and_resume(fixture).await;
    let read = fixture.wait_until(TEST_TIMEOUT, RestartFixture::all_events_sent).await;
    assert!(read, "not every event was read\n{}", fixture.diagnostics(&daemon).await);
    let status = terminate(&mut daemon).await;
    assert!(status.success(), "{status}\n{}", daemon.log_tail());
    let mut daemon = start_and_resume(fixture).await;
    let address = daemon.wait_until_listening().await.unwrap();
    let idle = fixture.wait_until(TEST_TIMEOUT, |_| unfinished_operations(address).is_empty()).await;
    assert!(idle, "{:#?}\n{}", unfinished_operations(address), daemon.log_tail());
    assert!(terminate(&mut daemon).await.success(), "{}", daemon.log_tail());
}

/// Starts the sessions with a first daemon, and stops it at once: new sessions are stored.
pub(crate) async fn start_sessions_and_stop(fixture: &RestartFixture) {
    let mut daemon = fixture.start_daemon();
    let sessions_started = |fixture: &RestartFixture| {
        fixture.sim.gateway_score().sessions_started == u64::from(SHARDS) && fixture.all_events_sent()
    };
    assert!(
        fixture.wait_until(TEST_TIMEOUT, sessions_started).await,
        "it did not start its sessions\n{}",
        daemon.log_tail()
    );
    assert!(terminate(&mut daemon).await.success(), "{}", daemon.log_tail());
}

/// Restarts the daemon so often under load, then waits until everything is finished.
async fn run_round(restarts: u32, seed: u64) -> EventReport {
    let mut rng = Rng::with_seed(seed);
    let fixture = RestartFixture::new(BUFFERS[rng.usize(..BUFFERS.len())]).await;
    // Events before the first session is stored would be lost.
    start_sessions_and_stop(&fixture).await;
    let load_seed = rng.u64(..);
    let runs = async {
        for _ in 0..restarts {
            let daemon = fixture.start_daemon();
            let was_listening = wait_before_stop(&fixture, &daemon, &mut rng).await;
            stop_daemon(daemon, was_listening, &mut rng).await;
            sleep(random_millis(&mut rng, 150)).await;
        }
    };
    let ((), sent) = run_load(&fixture, load_seed, runs).await;
    finish_and_check_replay(&fixture, &sent).await;
    let report = check_effects(&fixture.sim.score(), &sent);
    eprintln!("seed {seed}: {restarts} restarts, {:.0} events/s, {} effects", sent.events_per_s, report.effects);
    report
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn new_session_survives_a_graceful_stop() {
    for _ in 0..4 {
        let fixture = RestartFixture::new(4_096).await;
        start_sessions_and_stop(&fixture).await;
        let mut daemon = start_and_resume(&fixture).await;
        assert_eq!(fixture.sim.gateway_score().identifies, u64::from(SHARDS), "{}", daemon.log_tail());
        daemon.kill();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twenty_restarts_under_load_break_nothing() {
    let report = run_round(20, 11).await;
    assert!(report.violations.is_empty(), "{:#?}", report.violations);
    assert!(report.effects > 0 && report.resumes > 0 && report.replayed > 0, "{report:?}");
}

/// `scripts/soak restarts` runs this with the number of restarts and the seed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes as long as its settings say; scripts/soak restarts runs it"]
async fn soak() {
    let variable = |name: &str| env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let restarts = u32::try_from(variable("RESTARTS").unwrap_or(200)).unwrap();
    let seed = variable("RESTARTS_SEED").unwrap_or(1);
    let mut report = EventReport::default();
    let mut rounds = 0;
    while rounds * RESTARTS_PER_ROUND < restarts {
        let restarts_in_round = RESTARTS_PER_ROUND.min(restarts - rounds * RESTARTS_PER_ROUND);
        report.add(run_round(restarts_in_round, seed.wrapping_mul(1_000).wrapping_add(u64::from(rounds))).await);
        rounds += 1;
    }
    let line = serde_json::json!({
        "seed": seed,
        "restarts": restarts,
        "rounds": rounds,
        "events": report.events,
        "events_replayed": report.replayed,
        "effects": report.effects,
        "lost": report.lost,
        "duplicates": report.duplicates,
        "order_violations": report.out_of_order,
        "identifies": report.identifies,
        "resumes": report.resumes,
        "violations": report.violations.len(),
    });
    println!("{line}");
    assert!(report.violations.is_empty(), "{:#?}", report.violations);
}
