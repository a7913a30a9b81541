//! The servers that the daemons share restart under load.

use std::time::Duration;

use guildhall_sim::Stage as On;
use guildhall_testkit::{crash::fixture::DaemonFixture, pgbouncer::PgBouncer, postgres::PostgresServer};
use tokio::{sync::Semaphore, task::block_in_place, time::sleep};

use super::fleet::{SHORT_LEASE, check_all, fixture_size, slow_down, start_daemons, submit_in_all_guilds};

const GUILDS: u32 = 30;

/// Number of operations in each of three parts: before, between and after two restarts.
const BATCH_SIZE: usize = 90;

/// Submits operations while a server is restarted twice, and waits until all of them are finished.
async fn restart_under_load(
    fixture: &DaemonFixture,
    environment: &[(&str, &str)],
    mut restart: impl FnMut(),
    label: &str,
) {
    slow_down(fixture, On::Effect, 0, 40);
    let mut daemons = start_daemons(fixture, environment).await;
    let permits = Semaphore::new(BATCH_SIZE);
    let restarts = async {
        for nth in 1..=2 {
            // Not before all permitted operations were submitted and some are done.
            fixture.wait_for_effects(BATCH_SIZE * nth / 2).await;
            permits.add_permits(BATCH_SIZE);
            sleep(Duration::from_millis(100)).await;
            block_in_place(&mut restart);
        }
        permits.close();
    };
    let (accepted, ()) = tokio::join!(submit_in_all_guilds(fixture, &permits, 5), restarts);
    assert!(accepted.len() >= BATCH_SIZE, "there was no load");
    check_all(fixture, &accepted, &mut daemons).await.assert_ok(label);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_restart_under_load_loses_nothing() {
    let mut server = block_in_place(PostgresServer::start);
    let url = server.create_database().await;
    let fixture = DaemonFixture::with_store(url, tempfile::tempdir().unwrap(), fixture_size(GUILDS)).await;
    let restart = || {
        server.kill();
        server.start_again();
    };
    restart_under_load(&fixture, &SHORT_LEASE, restart, "postgres restarted").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pgbouncer_restart_under_load_loses_nothing() {
    let server = block_in_place(PostgresServer::start);
    let mut bouncer = block_in_place(|| PgBouncer::start(server.port()));
    let direct = server.create_database().await;
    let database = direct.rsplit('/').next().unwrap();
    let fixture =
        DaemonFixture::with_store(bouncer.url(database), tempfile::tempdir().unwrap(), fixture_size(GUILDS)).await;
    let environment = [&SHORT_LEASE[..], &[("GUILDHALL__STORE__DIRECT_URL", direct.as_str())]].concat();
    restart_under_load(&fixture, &environment, || bouncer.restart(), "pgbouncer restarted").await;
}
