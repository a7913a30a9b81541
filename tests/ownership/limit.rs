//! Daemons on one PostgreSQL without Redis divide the global limit: together they never exceed it, even if one joins,
//! dies or freezes.

use std::{collections::BTreeMap, time::Duration};

use futures_util::future::join_all;
use guildhall_sim::Stage as On;
use http::Method;
use serde_json::Value;
use tokio::time::sleep;

use crate::{
    asker::Asker,
    caller::Accepted,
    errand::Sort,
    fleet::{BRISK, LEASE, listens, room, slow_down, until, verdict},
    life::{Life, was_killed},
    stage::{Engine, Stage},
};

const LIMIT: u32 = 50;
const GUILDS: u32 = 120;
const EACH: usize = 5;

fn begin(stage: &Stage) -> Life {
    let own = [("GUILDHALL__LIMITS__GLOBAL", "50"), ("GUILDHALL__LIMITS__MARGIN_MS", "10")];
    let environment: Vec<_> = BRISK.into_iter().chain(own).collect();
    stage.begin_with(&environment)
}

/// A daemon's part of the limit, and the number of members that share it.
async fn division(stage: &Stage, life: &Life) -> Option<(u64, u64)> {
    let told = stage.ask_at(listens(life).await, Method::GET, "/v1/limits", None, None).await;
    let (200, told) = told.ok()? else { return None };
    let global: &Value = &told["global"];
    assert_eq!(global["sharing"], "store");
    Some((global["limit"].as_u64()?, global["members"].as_u64()?))
}

/// Waits until the whole limit is divided among these.
async fn is_divided(stage: &Stage, lives: &[Life]) {
    until("the whole limit is divided", || async {
        let all = join_all(lives.iter().map(|life| division(stage, life))).await;
        let shares: Option<Vec<(u64, u64)>> = all.into_iter().collect();
        shares.is_some_and(|shares| {
            let is_complete = shares.iter().all(|(_, members)| *members == lives.len() as u64);
            is_complete && shares.iter().map(|(share, _)| share).sum::<u64>() == u64::from(LIMIT)
        })
    })
    .await;
}

async fn ask(stage: &Stage) -> Vec<Accepted> {
    let asked = stage.places.iter().map(|place| async move {
        let mut asker = Asker::new(place.clone());
        let mut accepted = Vec::new();
        for sort in [Sort::CreateRole, Sort::SendMessage, Sort::AssignRole].into_iter().cycle().take(EACH) {
            let errand = asker.next(sort, stage).await;
            accepted.push(stage.submit(&errand).await);
        }
        accepted
    });
    join_all(asked).await.into_iter().flatten().collect()
}

fn busiest_second(stage: &Stage) -> BTreeMap<String, u32> {
    stage.sim.score().max_per_second
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn daemons_without_redis_never_exceed_the_limit_together() {
    let stage = Stage::new(Engine::Postgres, room(GUILDS)).await;
    slow_down(&stage, On::Answer, 0, 30);
    let mut lives = vec![begin(&stage), begin(&stage)];
    let (accepted, mut lives) = tokio::join!(ask(&stage), async {
        is_divided(&stage, &lives).await;
        stage.effects(40, Duration::from_secs(5)).await;
        // One joins.
        lives.push(begin(&stage));
        is_divided(&stage, &lives).await;
        stage.effects(40, Duration::from_secs(5)).await;
        // One freezes beyond its lease. Meanwhile another dies, and its successor joins.
        let frozen = listens(&lives[0]).await;
        stage.close_to_callers(frozen);
        lives[0].signal("STOP");
        let mut killed = lives.remove(1);
        assert!(was_killed(killed.kill()), "it exited by itself");
        lives.push(begin(&stage));
        sleep(LEASE + Duration::from_secs(1)).await;
        lives[0].signal("CONT");
        stage.open_to_callers(frozen);
        lives
    });
    verdict(&stage, &accepted, &mut lives).await.holds("without Redis");
    is_divided(&stage, &lives).await;
    let busiest = busiest_second(&stage);
    println!("{} operations, at most in a second: {busiest:?}", accepted.len());
    assert!(busiest.values().all(|most| *most <= LIMIT), "{busiest:?}");
}
