//! A part of one daemon panics under load, another part in each round: the daemon ends, and the others take over.

use std::time::Duration;

use futures_util::future::join_all;
use guildhall_sim::Stage as On;
use tokio::{sync::Semaphore, time::sleep};

use crate::{
    ended::{ended_by, failpoint},
    fleet::{BRISK, ask_everywhere, instances, listens, room, slow_down, until, verdict},
    killed,
    stage::{Engine, Stage},
};

const GUILDS: u32 = 30;

/// Number of operations that are permitted at once, and the interval.
const LOAD: usize = 4;
const EVERY: Duration = Duration::from_millis(50);

/// Adds permits for operations until it is cancelled.
async fn goes_on(permits: &Semaphore) {
    loop {
        permits.add_permits(LOAD);
        sleep(EVERY).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_part_that_panics_in_a_fleet_loses_and_doubles_nothing() {
    let stage = Stage::new(Engine::Postgres, room(GUILDS)).await;
    slow_down(&stage, On::Effect, 0, 20);
    // With the one that is killed, there are three.
    let mut lives = vec![stage.begin_with(&BRISK), stage.begin_with(&BRISK)];
    join_all(lives.iter().map(listens)).await;
    let permits = Semaphore::new(LOAD);
    let rounds = async {
        for &(part, messages) in killed::FLEET {
            let kills = failpoint(part, messages);
            let environment = [&BRISK[..], &[("GUILDHALL_FAILPOINT", kills.as_str())]].concat();
            let mut life = stage.begin_with(&environment);
            tokio::select! {
                () = ended_by(&mut life, part) => {}
                () = goes_on(&permits) => {}
            }
            // It deleted its own row before its lease expired, so no take-over was necessary.
            let at = listens(&lives[0]).await;
            until("only two daemons are left", || async {
                instances(&stage, at).await.is_some_and(|all| all.len() == lives.len())
            })
            .await;
        }
        permits.close();
    };
    let (accepted, ()) = tokio::join!(ask_everywhere(&stage, &permits, 3), rounds);
    assert!(accepted.len() >= 100, "there was no load");
    for life in &lives {
        assert!(
            life.lines_with("lease of another process expired").is_empty(),
            "a lease expired\n{}",
            life.last_words()
        );
    }
    verdict(&stage, &accepted, &mut lives).await.holds("parts killed in a fleet");
    assert_eq!(stage.sim.score().overlaps, 0);
}
