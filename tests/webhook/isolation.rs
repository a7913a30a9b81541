//! A failing webhook does not affect others.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use guildhall::webhook::WebhookConfig;
use guildhall_core::breaker::BreakerConfig;

use crate::brain::{Act, Brain, says};
use crate::stage::{Names, SOON, STUCK, ask, ask_within, config, later, never, patient, run, target, webhooks_with};

/// A breaker that opens soon, and closes soon.
fn quick() -> BreakerConfig {
    let cooldown = Duration::from_millis(100);
    let (max_cooldown, probes) = (cooldown, 1);
    BreakerConfig { failures_in_row: 3, cooldown, max_cooldown, jitter_percent: 0, probes, ..BreakerConfig::default() }
}

#[test]
fn a_brain_that_hangs_delays_no_other_and_is_asked_no_more_at_once_than_allowed() {
    run(async {
        let hangs = Brain::always(Act::SaysAndHangs(String::new())).await;
        let fine = Brain::always(says(204, "", "")).await;
        let few = WebhookConfig { max_in_flight: 2, max_waiting: 3, ..config() };
        let targets = vec![target("hangs", &hangs.url()), target("fine", &fine.url())];
        let webhooks = Arc::new(webhooks_with(targets, &few, patient(), Names::none()));
        // On this thread, so that each has its slot before the first has sent anything.
        let stuck: Vec<_> = (0..4)
            .map(|_| {
                let webhooks = webhooks.clone();
                tokio::task::spawn_local(async move { ask(&webhooks, "hangs").await })
            })
            .collect();
        hangs.saw(2).await;

        for _ in 0..20 {
            ask(&webhooks, "fine").await.unwrap();
        }

        // There is one more slot to wait in, and then none.
        let (waited, refused) =
            tokio::join!(ask_within(&webhooks, "hangs", SOON), ask_within(&webhooks, "hangs", STUCK));
        assert!(later(waited).0.contains("are in flight"));
        assert!(later(refused).0.contains("are in flight"));
        assert_eq!(hangs.seen().connections, 2);
        stuck.iter().for_each(tokio::task::JoinHandle::abort);
        join_all(stuck).await;

        // A call that timed out has released its slot.
        let (why, _) = later(ask_within(&webhooks, "hangs", SOON).await);
        assert!(why.contains("did not respond within"), "{why}");
    });
}

#[test]
fn a_name_server_that_hangs_delays_only_those_who_ask_it() {
    run(async {
        let fine = Brain::always(says(204, "", "")).await;
        let names = Names::hanging("hangs");
        let soon = WebhookConfig { connect_timeout: SOON, ..config() };
        let targets = vec![target("hangs", "http://hangs.test/"), target("fine", &fine.url())];
        let webhooks = webhooks_with(targets, &soon, patient(), names.clone());
        let stuck = join_all((0..10).map(|_| ask(&webhooks, "hangs")));
        let fine = join_all((0..10).map(|_| ask(&webhooks, "fine")));
        let (stuck, fine) = tokio::join!(stuck, fine);
        assert!(fine.iter().all(Result::is_ok), "{fine:?}");
        for answer in stuck {
            let (why, _) = later(answer);
            assert!(why.contains("cannot look up the name hangs.test"), "{why}");
        }
        assert_eq!(names.asked(), 4, "no more lookups than may hang at once");
    });
}

#[test]
fn a_brain_that_fails_is_left_alone_for_a_while_and_found_again() {
    run(async {
        let well = Arc::new(AtomicBool::new(false));
        let heals = well.clone();
        let ill = Brain::start(move |_| says(if heals.load(Ordering::SeqCst) { 200 } else { 503 }, "", "")).await;
        let fine = Brain::always(says(204, "", "")).await;
        let targets = vec![target("ill", &ill.url()), target("fine", &fine.url())];
        let webhooks = webhooks_with(targets, &config(), quick(), Names::none());
        for _ in 0..3 {
            let (why, _) = later(ask(&webhooks, "ill").await);
            assert!(why.contains("503"), "{why}");
        }
        let (why, wait) = later(ask(&webhooks, "ill").await);
        assert!(why.contains("breaker"), "{why}");
        assert!(wait.is_some_and(|wait| wait <= quick().cooldown), "{wait:?}");
        assert_eq!(ill.seen().requests.len(), 3, "nothing was sent while it was open");
        ask(&webhooks, "fine").await.unwrap();

        well.store(true, Ordering::SeqCst);
        let mut answer = ask(&webhooks, "ill").await;
        while answer.is_err() {
            let (why, wait) = later(answer);
            assert!(why.contains("breaker"), "{why}");
            tokio::time::sleep(wait.unwrap()).await;
            answer = ask(&webhooks, "ill").await;
        }
        let before = ill.seen().requests.len();
        join_all((0..10).map(|_| ask(&webhooks, "ill"))).await.into_iter().for_each(|answer| drop(answer.unwrap()));
        assert_eq!(ill.seen().requests.len(), before + 10);
    });
}

#[test]
fn brains_that_hang_or_cannot_be_reached_are_left_alone_too() {
    run(async {
        let hangs = Brain::always(Act::SaysAndHangs(String::new())).await;
        let targets = vec![target("hangs", &hangs.url()), target("nowhere", "http://nowhere.test/")];
        let webhooks = webhooks_with(targets, &config(), quick(), Names::none());
        for handler in ["hangs", "nowhere"] {
            for _ in 0..3 {
                let (why, _) = later(ask_within(&webhooks, handler, Duration::from_millis(30)).await);
                assert!(!why.contains("breaker"), "{why}");
            }
            let (why, _) = later(ask_within(&webhooks, handler, STUCK).await);
            assert!(why.contains("breaker"), "{why}");
        }
    });
}

#[test]
fn a_brain_that_is_only_of_another_mind_is_never_left_alone() {
    run(async {
        let acts = [says(404, "", ""), says(200, "", "no JSON"), says(302, "", ""), says(410, "", "")];
        let brain = Brain::start(move |before| acts[before % acts.len()].clone()).await;
        let deferring = Brain::always(says(429, "", "")).await;
        let targets = vec![target("greet", &brain.url()), target("defers", &deferring.url())];
        let webhooks = webhooks_with(targets, &config(), quick(), Names::none());
        for _ in 0..40 {
            never(ask(&webhooks, "greet").await);
            assert!(later(ask(&webhooks, "defers").await).0.contains("429"));
        }
        assert_eq!((brain.seen().requests.len(), deferring.seen().requests.len()), (40, 40));
    });
}
