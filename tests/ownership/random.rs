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
use tokio::{
    sync::Semaphore,
    time::{sleep, timeout},
};

use crate::{
    caller::STUCK,
    fleet::{BRISK, LEASE, ask_everywhere, listens, processes, room, set, slow_down, verdict},
    judge::Finding,
    life::{Life, was_killed},
    stage::{Engine, Stage},
};

/// Events for one store and one simulator: a guild has room for only so many roles and channels.
const ROUND: u32 = 25;

/// What happens to a daemon.
#[derive(Clone, Copy, Debug)]
enum Event {
    /// Suspended, usually for less than its lease.
    Halted(Duration),
    /// Suspended for longer than its lease.
    Frozen(Duration),
    Killed,
    /// Stopped gracefully.
    Ended,
}

impl Event {
    fn any(rng: &mut Rng) -> Self {
        let mut ms = |range| Duration::from_millis(rng.u64(range));
        let (short, long) = (ms(50..1_500), LEASE + ms(200..2_500));
        match rng.u8(..10) {
            0..=2 => Self::Halted(short),
            3..=5 => Self::Frozen(long),
            6..=7 => Self::Killed,
            _ => Self::Ended,
        }
    }
}

/// Result of a round.
struct Outcome {
    finding: Finding,
    /// Calls that arrived while another call of their guild was in flight.
    overlaps: u64,
}

/// Applies events to a daemon as long as any remain. Returns the daemon that runs at the end.
async fn suffers(stage: &Stage, left: &AtomicU32, permits: &Semaphore, seed: u64) -> Life {
    let mut rng = Rng::with_seed(seed);
    let mut life = stage.begin_with(&BRISK);
    while left.try_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok() {
        // Most events hit a working daemon, some a starting one.
        if rng.u8(..6) > 0 {
            listens(&life).await;
        }
        permits.add_permits(rng.usize(20..120));
        sleep(Duration::from_millis(rng.u64(..800))).await;
        match Event::any(&mut rng) {
            Event::Halted(time) | Event::Frozen(time) => {
                life.signal("STOP");
                sleep(time).await;
                life.signal("CONT");
            }
            Event::Killed => {
                assert!(was_killed(life.kill()), "it exited by itself\n{}", life.last_words());
                life = stage.begin_with(&BRISK);
            }
            Event::Ended => {
                // Signal handlers are not installed before it listens.
                listens(&life).await;
                life.signal("TERM");
                assert!(timeout(STUCK, life.ends()).await.is_ok(), "it did not exit\n{}", life.last_words());
                assert!(!was_killed(life.kill()), "it was killed\n{}", life.last_words());
                life = stage.begin_with(&BRISK);
            }
        }
    }
    listens(&life).await;
    life
}

/// Runs so many events, then waits until all accepted operations are finished.
async fn round(guilds: u32, events: u32, seed: u64) -> Outcome {
    let mut rng = Rng::with_seed(seed);
    let stage = Stage::new(Engine::Postgres, room(guilds)).await;
    slow_down(&stage, On::Effect, 0, 40);
    slow_down(&stage, On::Answer, 0, 40);
    let (permits, left) = (Semaphore::new(guilds as usize), AtomicU32::new(events));
    let daemons = (0..processes()).map(|_| suffers(&stage, &left, &permits, rng.u64(..)));
    let daemons = join_all(daemons.collect::<Vec<_>>());
    let lives = async {
        let lives = daemons.await;
        permits.close();
        lives
    };
    let (accepted, mut lives) = tokio::join!(ask_everywhere(&stage, &permits, seed), lives);
    let finding = verdict(&stage, &accepted, &mut lives).await;
    if !finding.wrong.is_empty() {
        eprintln!("seed {seed}: {:#?}", finding.wrong);
    }
    Outcome { finding, overlaps: stage.sim.score().overlaps }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twenty_events_lose_double_and_reorder_nothing_and_never_put_two_into_one_guild() {
    let Outcome { finding, overlaps } = round(200, 20, 11).await;
    println!("{} operations, {} cancelled", finding.operations, finding.cancelled);
    finding.holds("20 events");
    assert_eq!(overlaps, 0);
}

/// `scripts/soak ownership` runs this with the number of events and the seed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes as long as its settings say; scripts/soak ownership runs it"]
async fn soak() {
    let (events, guilds) = (set("OWNERSHIP_EVENTS", 500), set("OWNERSHIP_GUILDS", 200));
    let seed: u64 = env::var("OWNERSHIP_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(1);
    let mut all = Outcome { finding: Finding::default(), overlaps: 0 };
    for (number, first) in (0..).zip((0..events).step_by(ROUND as usize)) {
        let seed = seed.wrapping_mul(1_000).wrapping_add(number);
        let Outcome { finding, overlaps } = round(guilds, ROUND.min(events - first), seed).await;
        all.finding.add(finding);
        all.overlaps += overlaps;
    }
    let Outcome { finding, overlaps } = all;
    let line = serde_json::json!({
        "processes": processes(),
        "guilds": guilds,
        "seed": seed,
        "events": events,
        "operations": finding.operations,
        "lost": finding.lost,
        "duplicates": finding.duplicates,
        "order_violations": finding.out_of_order,
        "overlaps": overlaps,
        "needs_review": finding.reviewed,
        "cancelled": finding.cancelled,
        "violations": finding.wrong.len(),
    });
    println!("{line}");
    finding.holds("soak");
}
