//! How guilds are divided among daemons.

use guildhall_sim::Stage as On;
use tokio::sync::Semaphore;

use crate::{
    fleet::{BRISK, ask_everywhere, begin_all, instances, listens, processes, room, slow_down, until, verdict},
    stage::{Engine, Stage},
};

const GUILDS: u32 = 36;

/// Minimum number of guilds of each daemon, as a part of an even share: with few guilds, the division is uneven.
fn fair(among: usize) -> u64 {
    u64::from(GUILDS) / among as u64 / 4
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn guilds_are_spread_over_those_who_live_and_taken_from_those_who_do_not() {
    let stage = Stage::new(Engine::Postgres, room(GUILDS)).await;
    slow_down(&stage, On::Effect, 300, 0);
    let mut lives = begin_all(&stage, &BRISK).await;
    let permits = Semaphore::new(0);
    let queues = async |at| -> Vec<u64> {
        let told = instances(&stage, at).await.unwrap_or_default();
        told.iter().map(|instance| instance["queues"].as_u64().unwrap()).collect()
    };
    let events = async {
        permits.add_permits(GUILDS as usize * 8);
        let first = listens(&lives[0]).await;
        until("each daemon has its share", || async {
            let queues = queues(first).await;
            queues.len() == processes() && queues.iter().all(|queues| *queues >= fair(processes()))
        })
        .await;
        let mut dead = lives.pop().unwrap();
        dead.kill();
        permits.add_permits(GUILDS as usize * 8);
        until("the others have the queues of the dead daemon", || async {
            let queues = queues(first).await;
            queues.iter().filter(|queues| **queues >= fair(processes() - 1)).count() == processes() - 1
                && queues.iter().filter(|queues| **queues > 0).count() == processes() - 1
        })
        .await;
        permits.close();
        lives
    };
    let (accepted, mut lives) = tokio::join!(ask_everywhere(&stage, &permits, 3), events);
    verdict(&stage, &accepted, &mut lives).await.holds("spread");
}
