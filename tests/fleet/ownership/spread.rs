//! How guilds are divided among daemons.

use guildhall_sim::Stage as On;
use guildhall_testkit::crash::fixture::{DaemonFixture, Engine};
use tokio::sync::Semaphore;

use super::fleet::{
    SHORT_LEASE, check_all, fixture_size, instances, processes, slow_down, start_daemons, submit_in_all_guilds,
    wait_until, wait_until_listening,
};

const GUILDS: u32 = 36;

/// Minimum number of guilds of each daemon, as a part of an even share: with few guilds, the division is uneven.
fn min_share(daemons: usize) -> u64 {
    u64::from(GUILDS) / daemons as u64 / 4
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn guilds_are_spread_over_live_daemons_and_taken_from_dead_ones() {
    let fixture = DaemonFixture::new(Engine::Postgres, fixture_size(GUILDS)).await;
    slow_down(&fixture, On::Effect, 300, 0);
    let mut daemons = start_daemons(&fixture, &SHORT_LEASE).await;
    let permits = Semaphore::new(0);
    let queues = async |at| -> Vec<u64> {
        let instances_found = instances(&fixture, at).await.unwrap_or_default();
        instances_found.iter().map(|instance| instance["queues"].as_u64().unwrap()).collect()
    };
    let events = async {
        permits.add_permits(GUILDS as usize * 8);
        let first = wait_until_listening(&daemons[0]).await;
        wait_until("each daemon has its share", || async {
            let queues = queues(first).await;
            queues.len() == processes() && queues.iter().all(|queues| *queues >= min_share(processes()))
        })
        .await;
        let mut killed = daemons.pop().unwrap();
        killed.kill();
        permits.add_permits(GUILDS as usize * 8);
        wait_until("the others have the queues of the dead daemon", || async {
            let queues = queues(first).await;
            queues.iter().filter(|queues| **queues >= min_share(processes() - 1)).count() == processes() - 1
                && queues.iter().filter(|queues| **queues > 0).count() == processes() - 1
        })
        .await;
        permits.close();
        daemons
    };
    let (accepted, mut daemons) = tokio::join!(submit_in_all_guilds(&fixture, &permits, 3), events);
    check_all(&fixture, &accepted, &mut daemons).await.assert_ok("spread");
}
