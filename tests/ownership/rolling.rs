//! All daemons are replaced, one after the other, as one does for a new version.

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

/// How long each call takes, and how often each guild is given something more to do: all of it together is within what one
/// process may send (50 calls a second), so that no guild waits for that.
const CALL_MS: u64 = 200;
const MORE_EVERY: Duration = Duration::from_secs(1);

/// A lease so long that nobody lives to see one end: a guild that is not handed over waits for it. And calls have so much time
/// that none is in doubt on a busy machine, since looking for it would be taken for a gap.
const PATIENT: [(&str, &str); 2] =
    [("GUILDHALL__OPERATIONS__LEASE_MS", "60000"), ("GUILDHALL__REST__REQUEST_TIMEOUT_MS", "10000")];

/// What a hand-over takes is a second at most; the rest is for a machine that is busy with other things. A guild that waited
/// for a lease to end would show.
const LONGEST: Duration = Duration::from_secs(15);

/// When an operation was accepted: its id begins with that.
fn accepted_at(accepted: &Accepted) -> u64 {
    let digits: String = accepted.id.chars().filter(char::is_ascii_hexdigit).take(12).collect();
    u64::from_str_radix(&digits, 16).unwrap() * 1_000
}

/// The longest that a guild with something to do was left alone between two calls. All clocks are this machine's.
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
        // One call each, all in the guild itself.
        asks(&stage, Asker::new(place.clone()), &[Sort::SendMessage], &permits, seed)
    });
    let asked = join_all(asked.collect::<Vec<_>>());
    let rolls = async {
        stage.effects_in_all(2 * GUILDS as usize).await;
        for life in &mut lives {
            life.signal("TERM");
            assert!(timeout(STUCK, life.ends()).await.is_ok(), "it does not end\n{}", life.last_words());
            assert!(life.kill().success(), "it did not end in order\n{}", life.last_words());
            *life = stage.begin_with(&PATIENT);
            // The next one ends when this one does its part, as one would replace them.
            let address = listens(life).await;
            until("it has arrived", async || {
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
    println!("{} operations; no guild was left alone for longer than {gap:?}", accepted.len());
    assert!(gap < LONGEST, "a guild with work waited for {gap:?}");
}
