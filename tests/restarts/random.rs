//! The daemon is stopped at random moments, again and again, under a load of events.

use std::{env, process::ExitStatus, time::Duration};

use fastrand::Rng;
use tokio::time::{sleep, timeout};

use crate::{
    judge::{Finding, judge},
    life::Life,
    stage::{SHARDS, STUCK, Stage, undone},
    weather::{Sent, rages},
};

/// Restarts for one store and one simulator: a guild has room for only so many roles.
const ROUND: u32 = 40;
/// Maximum time to wait for effects in a run.
const LONGEST: Duration = Duration::from_secs(4);

/// Event buffers: so small that shards sometimes disconnect because it is full, or large.
const BUFFERS: [u32; 2] = [256, 4_096];

/// How a daemon is stopped.
#[derive(Clone, Copy, Debug)]
enum End {
    /// By SIGTERM.
    Term,
    /// By SIGTERM, and killed while it stops.
    TermThenKill,
    Kill,
}

fn chance(rng: &mut Rng, most: u64) -> Duration {
    Duration::from_millis(rng.u64(..most))
}

/// Waits for a random time or event. Returns whether the daemon listens.
async fn lasts(stage: &Stage, life: &Life, rng: &mut Rng) -> bool {
    let when = rng.u8(..6);
    if when == 0 {
        // While it starts.
        sleep(chance(rng, 600)).await;
        return false;
    }
    let listens = timeout(STUCK, life.listens()).await;
    assert!(matches!(listens, Ok(Some(_))), "it did not start\n{}", life.last_words());
    if when == 1 {
        // While it resumes.
        sleep(chance(rng, 300)).await;
    } else {
        // While it works.
        let enough = stage.seen() + rng.usize(1..60);
        stage.within(LONGEST, |stage| stage.seen() >= enough).await;
        sleep(chance(rng, 60)).await;
    }
    true
}

/// Stops a daemon.
async fn ends(mut life: Life, listened: bool, rng: &mut Rng) {
    let end = match rng.u8(..8) {
        0..3 => End::Term,
        3 => End::TermThenKill,
        _ => End::Kill,
    };
    match end {
        End::Term => {
            let status = told_to_end(&mut life).await;
            // A daemon that is still starting cannot stop gracefully.
            assert!(status.success() || !listened, "{status}\n{}", life.last_words());
        }
        End::TermThenKill => {
            life.signal("TERM");
            sleep(chance(rng, 100)).await;
            life.kill();
        }
        End::Kill => drop(life.kill()),
    }
}

/// Stops a daemon gracefully, and waits until it has exited.
async fn told_to_end(life: &mut Life) -> ExitStatus {
    life.signal("TERM");
    let ended = timeout(STUCK, life.ends()).await;
    assert!(ended.is_ok(), "it did not exit\n{}", life.last_words());
    life.kill()
}

/// Starts a daemon, and waits until all its shards have resumed their sessions.
async fn resumed(stage: &Stage) -> Life {
    let enough = stage.resumes() + u64::from(SHARDS);
    let life = stage.begin();
    let resumed = stage.within(STUCK, |stage| stage.resumes() >= enough).await;
    assert!(resumed, "it did not resume\n{}", life.last_words());
    life
}

/// Waits until everything is finished, and checks that nothing is done again after restarts.
pub(crate) async fn comes_to_rest(stage: &Stage, sent: &Sent) {
    let mut life = resumed(stage).await;
    let done = stage.within(STUCK, |stage| stage.seen() >= sent.effects()).await;
    if !done {
        eprintln!("{} effects, not {}\n{}", stage.seen(), sent.effects(), stage.tells_of(&life).await);
    }
    // Confirmations are stored with a delay, so the next process receives the last events again.
    life.kill();
    let mut life = resumed(stage).await;
    let read = stage.within(STUCK, Stage::all_sent).await;
    assert!(read, "not every event was read\n{}", stage.tells_of(&life).await);
    let status = told_to_end(&mut life).await;
    assert!(status.success(), "{status}\n{}", life.last_words());
    let mut life = resumed(stage).await;
    let address = life.listens().await.unwrap();
    let idle = stage.within(STUCK, |_| undone(address).is_empty()).await;
    assert!(idle, "{:#?}\n{}", undone(address), life.last_words());
    assert!(told_to_end(&mut life).await.success(), "{}", life.last_words());
}

/// Starts the sessions with a first daemon, and stops it at once: new sessions are stored.
pub(crate) async fn begins_and_ends(stage: &Stage) {
    let mut life = stage.begin();
    let began = |stage: &Stage| stage.sim.gateway_score().sessions_started == u64::from(SHARDS) && stage.all_sent();
    assert!(stage.within(STUCK, began).await, "it did not start its sessions\n{}", life.last_words());
    assert!(told_to_end(&mut life).await.success(), "{}", life.last_words());
}

/// Restarts the daemon so often under load, then waits until everything is finished.
async fn round(restarts: u32, seed: u64) -> Finding {
    let mut rng = Rng::with_seed(seed);
    let stage = Stage::new(BUFFERS[rng.usize(..BUFFERS.len())]).await;
    // Events before the first session is stored would be lost.
    begins_and_ends(&stage).await;
    let weather = rng.u64(..);
    let lives = async {
        for _ in 0..restarts {
            let life = stage.begin();
            let listened = lasts(&stage, &life, &mut rng).await;
            ends(life, listened, &mut rng).await;
            sleep(chance(&mut rng, 150)).await;
        }
    };
    let ((), sent) = rages(&stage, weather, lives).await;
    comes_to_rest(&stage, &sent).await;
    let finding = judge(&stage.sim.score(), &sent);
    eprintln!("seed {seed}: {restarts} restarts, {:.0} events/s, {} effects", sent.events_per_s, finding.effects);
    finding
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_has_just_begun_outlives_an_end_in_order() {
    for _ in 0..4 {
        let stage = Stage::new(4_096).await;
        begins_and_ends(&stage).await;
        let mut life = resumed(&stage).await;
        assert_eq!(stage.sim.gateway_score().identifies, u64::from(SHARDS), "{}", life.last_words());
        life.kill();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twenty_restarts_in_a_storm_lose_double_and_reorder_nothing() {
    let finding = round(20, 11).await;
    assert!(finding.wrong.is_empty(), "{:#?}", finding.wrong);
    assert!(finding.effects > 0 && finding.resumes > 0 && finding.replayed > 0, "{finding:?}");
}

/// `scripts/soak restarts` runs this with the number of restarts and the seed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes as long as its settings say; scripts/soak restarts runs it"]
async fn soak() {
    let set = |name: &str| env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let restarts = u32::try_from(set("RESTARTS").unwrap_or(200)).unwrap();
    let seed = set("RESTARTS_SEED").unwrap_or(1);
    let mut finding = Finding::default();
    let mut rounds = 0;
    while rounds * ROUND < restarts {
        let these = ROUND.min(restarts - rounds * ROUND);
        finding.add(round(these, seed.wrapping_mul(1_000).wrapping_add(u64::from(rounds))).await);
        rounds += 1;
    }
    let line = serde_json::json!({
        "seed": seed,
        "restarts": restarts,
        "rounds": rounds,
        "events": finding.events,
        "events_replayed": finding.replayed,
        "effects": finding.effects,
        "lost": finding.lost,
        "duplicates": finding.duplicates,
        "order_violations": finding.out_of_order,
        "identifies": finding.identifies,
        "resumes": finding.resumes,
        "violations": finding.wrong.len(),
    });
    println!("{line}");
    assert!(finding.wrong.is_empty(), "{:#?}", finding.wrong);
}
