//! A daemon that accepts an operation for a guild of another daemon notifies that one.

use guildhall_sim::Stage as On;
use guildhall_testkit::{crash::fixture::DaemonFixture, pgbouncer::PgBouncer, postgres};
use tokio::{sync::Semaphore, task::block_in_place};

use super::fleet::{SHORT_LEASE, check_all, fixture_size, slow_down, start_daemons, submit_in_all_guilds};

const GUILDS: u32 = 12;
const ROUNDS: usize = 6;

/// No daemon polls for operations within a test.
const NO_POLLING: (&str, &str) = ("GUILDHALL__OPERATIONS__POLL_MS", "600000");

/// Submits operations in each guild to any daemon, the next after the previous one is done.
async fn submit_one_by_one(store: String, environment: &[(&str, &str)], label: &str) {
    let fixture = DaemonFixture::with_store(store, tempfile::tempdir().unwrap(), fixture_size(GUILDS)).await;
    slow_down(&fixture, On::Effect, 5, 10);
    let mut daemons = start_daemons(&fixture, environment).await;
    let permits = Semaphore::new(0);
    let submitting = async {
        for round in 1..=ROUNDS {
            permits.add_permits(GUILDS as usize);
            // Most have had their effect. Some were cancelled; those without an effect are checked at the end.
            fixture.wait_for_effects(round * GUILDS as usize / 2).await;
        }
        permits.close();
    };
    let (accepted, ()) = tokio::join!(submit_in_all_guilds(&fixture, &permits, 7), submitting);
    check_all(&fixture, &accepted, &mut daemons).await.assert_ok(label);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn accepted_operation_wakes_the_owner_of_its_guild() {
    let store = postgres::shared().create_database().await;
    let environment = [&SHORT_LEASE[..], &[NO_POLLING]].concat();
    submit_one_by_one(store, &environment, "notified directly").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn accepted_operation_wakes_the_owner_behind_pgbouncer() {
    let server = postgres::shared();
    let direct = server.create_database().await;
    let bouncer = block_in_place(|| PgBouncer::start(server.port()));
    let database = direct.rsplit('/').next().unwrap();
    let direct = ("GUILDHALL__STORE__DIRECT_URL", direct.as_str());
    let environment = [&SHORT_LEASE[..], &[NO_POLLING, direct]].concat();
    submit_one_by_one(bouncer.url(database), &environment, "notified past pgbouncer").await;
}
