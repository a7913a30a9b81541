//! The servers that the daemons share restart under load.

use std::time::Duration;

use guildhall_sim::Stage as On;
use tokio::{sync::Semaphore, task::block_in_place, time::sleep};

use crate::{
    fleet::{BRISK, ask_everywhere, begin_all, room, slow_down, verdict},
    pgbouncer::PgBouncer,
    postgres::PostgresServer,
    stage::Stage,
};

const GUILDS: u32 = 30;

/// Number of operations in each of three parts: before, between and after two restarts.
const PART: usize = 90;

/// Submits operations while a server is restarted twice, and waits until all of them are finished.
async fn under_load(stage: &Stage, environment: &[(&str, &str)], mut restart: impl FnMut(), of: &str) {
    slow_down(stage, On::Effect, 0, 40);
    let mut lives = begin_all(stage, environment).await;
    let permits = Semaphore::new(PART);
    let restarts = async {
        for nth in 1..=2 {
            // Not before all permitted operations were submitted and some are done.
            stage.effects_in_all(PART * nth / 2).await;
            permits.add_permits(PART);
            sleep(Duration::from_millis(100)).await;
            block_in_place(&mut restart);
        }
        permits.close();
    };
    let (accepted, ()) = tokio::join!(ask_everywhere(stage, &permits, 5), restarts);
    assert!(accepted.len() >= PART, "there was no load");
    verdict(stage, &accepted, &mut lives).await.holds(of);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_of_postgres_under_load_loses_nothing() {
    let mut server = block_in_place(PostgresServer::start);
    let url = server.database().await;
    let stage = Stage::over(url, tempfile::tempdir().unwrap(), room(GUILDS)).await;
    let restart = || {
        server.kill();
        server.start_again();
    };
    under_load(&stage, &BRISK, restart, "postgres restarted").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_of_pgbouncer_under_load_loses_nothing() {
    let server = block_in_place(PostgresServer::start);
    let mut bouncer = block_in_place(|| PgBouncer::start(server.port()));
    let direct = server.database().await;
    let database = direct.rsplit('/').next().unwrap();
    let stage = Stage::over(bouncer.url(database), tempfile::tempdir().unwrap(), room(GUILDS)).await;
    let environment = [&BRISK[..], &[("GUILDHALL__STORE__DIRECT_URL", direct.as_str())]].concat();
    under_load(&stage, &environment, || bouncer.restart(), "pgbouncer restarted").await;
}
