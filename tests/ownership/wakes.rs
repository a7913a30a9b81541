//! A daemon that accepts an operation for a guild of another daemon notifies that one.

use guildhall_sim::Stage as On;
use tokio::{sync::Semaphore, task::block_in_place};

use crate::{
    fleet::{BRISK, ask_everywhere, begin_all, room, slow_down, verdict},
    pgbouncer::PgBouncer,
    postgres,
    stage::Stage,
};

const GUILDS: u32 = 12;
const EACH: usize = 6;

/// No daemon polls for operations within a test.
const NO_LOOKING: (&str, &str) = ("GUILDHALL__OPERATIONS__POLL_MS", "600000");

/// Submits operations in each guild to any daemon, the next after the previous one is done.
async fn one_by_one(store: String, environment: &[(&str, &str)], of: &str) {
    let stage = Stage::over(store, tempfile::tempdir().unwrap(), room(GUILDS)).await;
    slow_down(&stage, On::Effect, 5, 10);
    let mut lives = begin_all(&stage, environment).await;
    let permits = Semaphore::new(0);
    let paces = async {
        for round in 1..=EACH {
            permits.add_permits(GUILDS as usize);
            // Most have had their effect. Some were cancelled; those without an effect are checked at the end.
            stage.effects_in_all(round * GUILDS as usize / 2).await;
        }
        permits.close();
    };
    let (accepted, ()) = tokio::join!(ask_everywhere(&stage, &permits, 7), paces);
    verdict(&stage, &accepted, &mut lives).await.holds(of);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_one_accepts_another_does_at_once() {
    let store = postgres::shared().database().await;
    let environment = [&BRISK[..], &[NO_LOOKING]].concat();
    one_by_one(store, &environment, "notified directly").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_one_accepts_another_does_at_once_behind_a_pgbouncer() {
    let server = postgres::shared();
    let direct = server.database().await;
    let bouncer = block_in_place(|| PgBouncer::start(server.port()));
    let database = direct.rsplit('/').next().unwrap();
    let direct = ("GUILDHALL__STORE__DIRECT_URL", direct.as_str());
    let environment = [&BRISK[..], &[NO_LOOKING, direct]].concat();
    one_by_one(bouncer.url(database), &environment, "notified past pgbouncer").await;
}
