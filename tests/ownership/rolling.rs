//! All daemons are replaced one after the other, as for a new version.

use std::{collections::HashMap, time::Duration};

use futures_util::future::join_all;
use guildhall_sim::{EffectScore, Score, Stage as On};
use tokio::{
    sync::Semaphore,
    time::{sleep, timeout},
};

use crate::{
    asker::{Asker, asks},
    caller::{Accepted, STUCK},
    errand::Sort,
    fleet::{begin_all, instances, listens, processes, room, slow_down, until, verdict},
    stage::{Engine, Stage},
};

const GUILDS: u32 = 30;

/// Duration of each call, and interval between new operations of each guild. The total rate is below the limit of one
/// process (50 calls a second), so that no guild waits for the limit.
const CALL_MS: u64 = 200;
const MORE_EVERY: Duration = Duration::from_secs(1);

/// A lease that does not expire within the test: a guild that is not handed over would wait for it. The request timeout
/// is long, so that no call has an unknown outcome on a busy machine, because reconciliation would look like a gap.
const PATIENT: [(&str, &str); 2] =
    [("GUILDHALL__OPERATIONS__LEASE_MS", "60000"), ("GUILDHALL__REST__REQUEST_TIMEOUT_MS", "10000")];

/// A hand-over takes a second at most; the rest is for a busy machine. A guild that waited for a lease to expire would
/// exceed it.
const LONGEST: Duration = Duration::from_secs(15);

/// When an operation was accepted: its id starts with that time.
fn accepted_at(accepted: &Accepted) -> u64 {
    let digits: String = accepted.id.chars().filter(char::is_ascii_hexdigit).take(12).collect();
    u64::from_str_radix(&digits, 16).unwrap() * 1_000
}

/// The longest time between two calls of a guild that had pending operations. All clocks are those of this machine.
fn longest_gap(score: &Score, accepted: &[Accepted]) -> Duration {
    let asked: HashMap<&str, u64> =
        accepted.iter().map(|one| (one.errand.sign.name.as_str(), accepted_at(one))).collect();
    let gaps = |effects: &Vec<EffectScore>| {
        let since = |pair: &[EffectScore]| {
            let before = pair[0].answered.unwrap_or(pair[0].at).micros();
            let before = before.max(asked.get(pair[1].name.as_str()).copied().unwrap_or_default());
            Duration::from_micros(pair[1].arrived.micros().saturating_sub(before))
        };
        effects.windows(2).map(since).max()
    };
    score.effects.values().filter_map(gaps).max().unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rolling_restart_hands_guilds_over_and_leaves_none_alone() {
    let stage = Stage::new(Engine::Postgres, room(GUILDS)).await;
    slow_down(&stage, On::Effect, CALL_MS, 0);
    let mut lives = begin_all(&stage, &PATIENT).await;
    let permits = Semaphore::new(0);
    let asked = stage.places.iter().zip(0..).map(|(place, seed)| {
        // One call each, all in the queue of the guild.
        asks(&stage, Asker::new(place.clone()), &[Sort::SendMessage], &permits, seed)
    });
    let asked = join_all(asked.collect::<Vec<_>>());
    let rolls = async {
        stage.effects_in_all(2 * GUILDS as usize).await;
        for life in &mut lives {
            life.signal("TERM");
            assert!(timeout(STUCK, life.ends()).await.is_ok(), "it did not exit\n{}", life.last_words());
            assert!(life.kill().success(), "it did not exit gracefully\n{}", life.last_words());
            *life = stage.begin_with(&PATIENT);
            // The next daemon is stopped only when this one has its part of the queues, as in a real rolling restart.
            let address = listens(life).await;
            until("it has joined", async || {
                let all = instances(&stage, address).await.unwrap_or_default();
                all.len() == processes() && all.iter().all(|one| one["arriving"] == false)
            })
            .await;
        }
    };
    let feeds = async {
        loop {
            permits.add_permits(GUILDS as usize);
            sleep(MORE_EVERY).await;
        }
    };
    let rolled = async {
        tokio::select! {
            () = rolls => {}
            () = feeds => {}
        }
        permits.close();
    };
    let (accepted, ()) = tokio::join!(asked, rolled);
    let accepted: Vec<_> = accepted.into_iter().flatten().collect();
    verdict(&stage, &accepted, &mut lives).await.holds("rolling restart");
    let gap = longest_gap(&stage.sim.score(), &accepted);
    println!("{} operations; the longest gap in a guild was {gap:?}", accepted.len());
    assert!(gap < LONGEST, "a guild with pending operations waited for {gap:?}");
}
