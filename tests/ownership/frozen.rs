//! A daemon is suspended for so long that others take over its queues, and then continues.

use futures_util::future::join_all;
use guildhall_sim::Stage as On;
use http::Method;

use crate::{
    asker::Asker,
    caller::Accepted,
    errand::Sort,
    fleet::{BRISK, SORTS, begin_all, listens, own_queues, room, slow_down, until, verdict},
    stage::{Engine, Stage},
};

const GUILDS: u32 = 24;

/// Submits so many operations in each guild.
async fn ask(stage: &Stage, askers: &mut [Asker], each: usize, accepted: &mut [Vec<Accepted>]) {
    let asked = askers.iter_mut().zip(accepted).map(|(asker, accepted)| async move {
        for nth in 0..each {
            let errand = asker.next(SORTS[(nth + accepted.len()) % SORTS.len()], stage).await;
            accepted.push(stage.submit(&errand).await);
        }
    });
    join_all(asked).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_was_frozen_beyond_its_lease_changes_nothing_when_it_goes_on() {
    let stage = Stage::new(Engine::Postgres, room(GUILDS)).await;
    slow_down(&stage, On::Effect, 60, 60);
    let mut lives = begin_all(&stage, &BRISK).await;
    let frozen = listens(&lives[0]).await;
    let mut askers: Vec<Asker> = stage.places.iter().cloned().map(Asker::new).collect();
    let mut accepted: Vec<Vec<Accepted>> = askers.iter().map(|_| Vec::new()).collect();

    ask(&stage, &mut askers, 4, &mut accepted).await;
    until("it has queues", || async { own_queues(&stage, frozen).await.is_some_and(|queues| queues > 0) }).await;
    stage.close_to_callers(frozen);
    lives[0].signal("STOP");
    ask(&stage, &mut askers, 2, &mut accepted).await;
    // The others do all of it, including the work of the frozen daemon.
    let before: Vec<Accepted> = accepted.iter().flatten().cloned().collect();
    let became = stage.all_became(&before).await;
    assert!(became.iter().all(Result::is_ok), "no take-over\n{}", lives[1].last_words());

    lives[0].signal("CONT");
    stage.open_to_callers(frozen);
    until("it continues", || async {
        let ready = stage.ask_at(frozen, Method::GET, "/readyz", None, None).await;
        ready.is_ok_and(|(status, _)| status == 200) && own_queues(&stage, frozen).await.is_some()
    })
    .await;
    ask(&stage, &mut askers, 2, &mut accepted).await;
    let accepted: Vec<Accepted> = accepted.into_iter().flatten().collect();
    verdict(&stage, &accepted, &mut lives).await.holds("frozen");
}

/// A single daemon has sent a call for each guild when it is suspended. The calls take effect, but it gets the
/// responses only after others have taken over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_frozen_one_had_sent_is_found_and_not_made_again() {
    let stage = Stage::new(Engine::Postgres, room(6)).await;
    // Long enough to suspend a process meanwhile, and shorter than the request timeout.
    slow_down(&stage, On::Effect, 250, 0);
    let frozen = stage.begin_with(&BRISK);
    let address = listens(&frozen).await;
    let mut accepted: Vec<Accepted> = Vec::new();
    for (place, sort) in stage.places.iter().zip([Sort::CreateRole, Sort::CreateChannel].into_iter().cycle()) {
        let mut asker = Asker::new(place.clone());
        for sort in [sort, Sort::SendMessage] {
            let errand = asker.next(sort, &stage).await;
            accepted.push(stage.submit(&errand).await);
        }
    }
    stage.arrival().await;
    frozen.signal("STOP");
    stage.close_to_callers(address);
    let mut lives = vec![stage.begin_with(&BRISK), stage.begin_with(&BRISK)];
    let became = stage.all_became(&accepted).await;
    assert!(became.iter().all(Result::is_ok), "no take-over\n{}", lives[0].last_words());
    frozen.signal("CONT");
    until("it continues", || async { own_queues(&stage, address).await.is_some() }).await;
    lives.push(frozen);
    verdict(&stage, &accepted, &mut lives).await.holds("calls in flight");
}
