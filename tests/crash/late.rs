//! A call takes effect in Discord after the process that made it has ended.

use guildhall_sim::{Fault, FaultAction, Stage as On};

use crate::{
    asker::Asker,
    errand::Sort,
    judge::judge,
    stage::{Engine, Furniture, Stage},
};

const ROOM: Furniture = Furniture { guilds: 1, roles: 1, doomed: 0, permissions: None };

/// Longer than a new process waits before its first call, and shorter than the request timeout.
const LATE_MS: u64 = 2_000;
const TIMEOUT: (&str, &str) = ("GUILDHALL__REST__REQUEST_TIMEOUT_MS", "2500");

/// A role is assigned by a call that takes effect late, the process ends, and then the role is to be removed again.
async fn overtaken(engine: Engine) {
    let stage = Stage::new(engine, ROOM).await;
    let action = FaultAction::Latency { fixed_ms: LATE_MS, jitter_ms: 0, at: On::Effect };
    let route = "PUT /guilds/{guild.id}/members/{user.id}/roles/{role.id}".to_owned();
    stage.sim.add_fault(Fault { route, action, probability: 1.0, count: Some(1), skip: 0 }).unwrap();
    let mut life = stage.begin_with(&[TIMEOUT]);
    let give = Asker::new(stage.places[0].clone()).next(Sort::AssignRole, &stage).await;
    let take = give.undone();
    let mut accepted = vec![stage.submit(&give).await];
    stage.arrival().await;
    life.kill();
    let _life = stage.begin_with(&[TIMEOUT]);
    accepted.push(stage.submit(&take).await);
    let became = stage.all_became(&accepted).await;
    // Waits until the late call is finished as well.
    stage.at_rest().await;
    judge(&stage.sim.score(), &accepted, &became).holds(engine.name());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_follows_does_not_overtake_a_call_that_outlived_its_process() {
    tokio::join!(overtaken(Engine::Sqlite), overtaken(Engine::Postgres));
}
