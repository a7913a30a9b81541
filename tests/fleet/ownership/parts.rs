//! A part of one daemon panics under load, another part in each round: the daemon ends, and the others take over.

use std::time::Duration;

use futures_util::future::join_all;
use guildhall_sim::Stage as On;
use guildhall_testkit::crash::{
    fixture::{DaemonFixture, Engine},
    killed_parts,
    part_exit::{assert_ended_by, failpoint},
};
use tokio::{sync::Semaphore, time::sleep};

use super::fleet::{
    SHORT_LEASE, check_all, fixture_size, instances, slow_down, submit_in_all_guilds, wait_until, wait_until_listening,
};

const GUILDS: u32 = 30;

/// Number of operations that are permitted at once, and the interval.
const BATCH_SIZE: usize = 4;
const BATCH_INTERVAL: Duration = Duration::from_millis(50);

/// Adds permits for operations until it is cancelled.
async fn add_permits_forever(permits: &Semaphore) {
    loop {
        permits.add_permits(BATCH_SIZE);
        sleep(BATCH_INTERVAL).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn panic_in_one_of_several_daemons_loses_and_duplicates_nothing() {
    let fixture = DaemonFixture::new(Engine::Postgres, fixture_size(GUILDS)).await;
    slow_down(&fixture, On::Effect, 0, 20);
    // With the one that is killed, there are three.
    let mut daemons = vec![fixture.start_daemon_with(&SHORT_LEASE), fixture.start_daemon_with(&SHORT_LEASE)];
    join_all(daemons.iter().map(wait_until_listening)).await;
    let permits = Semaphore::new(BATCH_SIZE);
    let rounds = async {
        for &(part, messages) in killed_parts::FLEET {
            let failpoint_setting = failpoint(part, messages);
            let environment = [&SHORT_LEASE[..], &[("GUILDHALL_FAILPOINT", failpoint_setting.as_str())]].concat();
            let mut daemon = fixture.start_daemon_with(&environment);
            tokio::select! {
                () = assert_ended_by(&mut daemon, part) => {}
                () = add_permits_forever(&permits) => {}
            }
            // It deleted its own row before its lease expired, so no take-over was necessary.
            let address = wait_until_listening(&daemons[0]).await;
            wait_until("only two daemons are left", || async {
                instances(&fixture, address).await.is_some_and(|all| all.len() == daemons.len())
            })
            .await;
        }
        permits.close();
    };
    let (accepted, ()) = tokio::join!(submit_in_all_guilds(&fixture, &permits, 3), rounds);
    assert!(accepted.len() >= 100, "there was no load");
    for daemon in &daemons {
        assert!(
            daemon.log_lines_with("lease of another process expired").is_empty(),
            "a lease expired\n{}",
            daemon.log_tail()
        );
    }
    check_all(&fixture, &accepted, &mut daemons).await.assert_ok("parts killed in a fleet");
    assert_eq!(fixture.sim.score().overlaps, 0);
}
