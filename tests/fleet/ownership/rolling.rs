//! All daemons are replaced one after the other, as for a new version.

use std::{collections::HashMap, time::Duration};

use futures_util::future::join_all;
use guildhall_sim::{EffectScore, Score, Stage as On};
use guildhall_testkit::crash::{
    client::{AcceptedOperation, TEST_TIMEOUT},
    fixture::{DaemonFixture, Engine},
    generator::{OperationGenerator, submit_operations},
    test_operation::TestKind,
};
use tokio::{
    sync::Semaphore,
    time::{sleep, timeout},
};

use super::fleet::{
    check_all, fixture_size, instances, processes, slow_down, start_daemons, wait_until, wait_until_listening,
};

const GUILDS: u32 = 30;

/// Duration of each call, and interval between new operations of each guild. The total rate is below the limit of one
/// process (50 calls a second), so that no guild waits for the limit.
const CALL_MS: u64 = 200;
const SUBMIT_INTERVAL: Duration = Duration::from_secs(1);

/// A lease that does not expire within the test: a guild that is not handed over would wait for it. The request timeout
/// is long, so that no call has an unknown outcome on a busy machine, because reconciliation would look like a gap.
const LONG_LEASE: [(&str, &str); 2] =
    [("GUILDHALL__OPERATIONS__LEASE_MS", "60000"), ("GUILDHALL__REST__REQUEST_TIMEOUT_MS", "10000")];

/// A hand-over takes a second at most; the rest is for a busy machine. A guild that waited for a lease to expire would
/// exceed it.
const MAX_GAP: Duration = Duration::from_secs(15);

/// When an operation was accepted: its id starts with that time.
fn accepted_at(accepted: &AcceptedOperation) -> u64 {
    let digits: String = accepted.id.chars().filter(char::is_ascii_hexdigit).take(12).collect();
    u64::from_str_radix(&digits, 16).unwrap() * 1_000
}

/// The longest time between two calls of a guild that had pending operations. All clocks are those of this machine.
fn longest_gap(score: &Score, accepted: &[AcceptedOperation]) -> Duration {
    let accepted_times: HashMap<&str, u64> =
        accepted.iter().map(|operation| (operation.operation.effect.name.as_str(), accepted_at(operation))).collect();
    let gaps = |effects: &Vec<EffectScore>| {
        let gap_between = |pair: &[EffectScore]| {
            let previous = pair[0].answered.unwrap_or(pair[0].at).micros();
            let previous = previous.max(accepted_times.get(pair[1].name.as_str()).copied().unwrap_or_default());
            Duration::from_micros(pair[1].arrived.micros().saturating_sub(previous))
        };
        effects.windows(2).map(gap_between).max()
    };
    score.effects.values().filter_map(gaps).max().unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rolling_restart_hands_guilds_over_without_long_gaps() {
    let fixture = DaemonFixture::new(Engine::Postgres, fixture_size(GUILDS)).await;
    slow_down(&fixture, On::Effect, CALL_MS, 0);
    let mut daemons = start_daemons(&fixture, &LONG_LEASE).await;
    let permits = Semaphore::new(0);
    let submissions = fixture.guilds.iter().zip(0..).map(|(guild_fixture, seed)| {
        // One call each, all in the queue of the guild.
        submit_operations(
            &fixture,
            OperationGenerator::new(guild_fixture.clone()),
            &[TestKind::SendMessage],
            &permits,
            seed,
        )
    });
    let submissions = join_all(submissions.collect::<Vec<_>>());
    let restarts = async {
        fixture.wait_for_effects(2 * GUILDS as usize).await;
        for daemon in &mut daemons {
            daemon.signal("TERM");
            assert!(
                timeout(TEST_TIMEOUT, daemon.wait_for_exit()).await.is_ok(),
                "it did not exit\n{}",
                daemon.log_tail()
            );
            assert!(daemon.kill().success(), "it did not exit gracefully\n{}", daemon.log_tail());
            *daemon = fixture.start_daemon_with(&LONG_LEASE);
            // The next daemon is stopped only when this one has its part of the queues, as in a real rolling restart.
            let address = wait_until_listening(daemon).await;
            wait_until("it has joined", async || {
                let all = instances(&fixture, address).await.unwrap_or_default();
                all.len() == processes() && all.iter().all(|one| one["arriving"] == false)
            })
            .await;
        }
    };
    let feeding = async {
        loop {
            permits.add_permits(GUILDS as usize);
            sleep(SUBMIT_INTERVAL).await;
        }
    };
    let restarting = async {
        tokio::select! {
            () = restarts => {}
            () = feeding => {}
        }
        permits.close();
    };
    let (accepted, ()) = tokio::join!(submissions, restarting);
    let accepted: Vec<_> = accepted.into_iter().flatten().collect();
    check_all(&fixture, &accepted, &mut daemons).await.assert_ok("rolling restart");
    let gap = longest_gap(&fixture.sim.score(), &accepted);
    println!("{} operations; the longest gap in a guild was {gap:?}", accepted.len());
    assert!(gap < MAX_GAP, "a guild with pending operations waited for {gap:?}");
}
