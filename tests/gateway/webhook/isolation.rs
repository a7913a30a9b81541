//! A failing webhook does not affect others.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use guildhall::webhook::WebhookConfig;
use guildhall_core::breaker::BreakerConfig;
use guildhall_testkit::brain::{Action, Brain, respond};

use super::fixture::{
    FakeResolver, SHORT_TIMEOUT, TEST_TIMEOUT, call_webhook, call_webhook_with_timeout, config, disabled_breaker,
    expect_no_retry, expect_retry_later, run, target, webhooks_with,
};

/// A breaker that opens soon, and closes soon.
fn quick_breaker() -> BreakerConfig {
    let cooldown = Duration::from_millis(100);
    let (max_cooldown, probes) = (cooldown, 1);
    BreakerConfig { failures_in_row: 3, cooldown, max_cooldown, jitter_percent: 0, probes, ..BreakerConfig::default() }
}

#[test]
fn hanging_brain_delays_no_other_and_is_limited() {
    run(async {
        let hangs = Brain::always(Action::RespondAndHang(String::new())).await;
        let fine = Brain::always(respond(204, "", "")).await;
        let limited = WebhookConfig { max_in_flight: 2, max_waiting: 3, ..config() };
        let targets = vec![target("hangs", &hangs.url()), target("fine", &fine.url())];
        let webhooks = Arc::new(webhooks_with(targets, &limited, disabled_breaker(), FakeResolver::empty()));
        // On this thread, so that each has its slot before the first has sent anything.
        let stuck: Vec<_> = (0..4)
            .map(|_| {
                let webhooks = webhooks.clone();
                tokio::task::spawn_local(async move { call_webhook(&webhooks, "hangs").await })
            })
            .collect();
        hangs.wait_for_requests(2).await;

        for _ in 0..20 {
            call_webhook(&webhooks, "fine").await.unwrap();
        }

        // There is one more slot to wait in, and then none.
        let (waited, refused) = tokio::join!(
            call_webhook_with_timeout(&webhooks, "hangs", SHORT_TIMEOUT),
            call_webhook_with_timeout(&webhooks, "hangs", TEST_TIMEOUT)
        );
        assert!(expect_retry_later(waited).0.contains("are in flight"));
        assert!(expect_retry_later(refused).0.contains("are in flight"));
        assert_eq!(hangs.received().connections, 2);
        stuck.iter().for_each(tokio::task::JoinHandle::abort);
        join_all(stuck).await;

        // A call that timed out has released its slot.
        let (reason, _) = expect_retry_later(call_webhook_with_timeout(&webhooks, "hangs", SHORT_TIMEOUT).await);
        assert!(reason.contains("did not respond within"), "{reason}");
    });
}

#[test]
fn hanging_name_server_delays_only_its_lookups() {
    run(async {
        let fine = Brain::always(respond(204, "", "")).await;
        let resolver = FakeResolver::hanging("hangs");
        let soon = WebhookConfig { connect_timeout: SHORT_TIMEOUT, ..config() };
        let targets = vec![target("hangs", "http://hangs.test/"), target("fine", &fine.url())];
        let webhooks = webhooks_with(targets, &soon, disabled_breaker(), resolver.clone());
        let stuck = join_all((0..10).map(|_| call_webhook(&webhooks, "hangs")));
        let fine = join_all((0..10).map(|_| call_webhook(&webhooks, "fine")));
        let (stuck, fine) = tokio::join!(stuck, fine);
        assert!(fine.iter().all(Result::is_ok), "{fine:?}");
        for response in stuck {
            let (reason, _) = expect_retry_later(response);
            assert!(reason.contains("cannot look up the name hangs.test"), "{reason}");
        }
        assert_eq!(resolver.lookups(), 4, "no more lookups than may hang at once");
    });
}

#[test]
fn breaker_opens_for_a_failing_brain_and_closes_again() {
    run(async {
        let is_healthy = Arc::new(AtomicBool::new(false));
        let healthy = is_healthy.clone();
        let failing =
            Brain::start(move |_| respond(if healthy.load(Ordering::SeqCst) { 200 } else { 503 }, "", "")).await;
        let fine = Brain::always(respond(204, "", "")).await;
        let targets = vec![target("ill", &failing.url()), target("fine", &fine.url())];
        let webhooks = webhooks_with(targets, &config(), quick_breaker(), FakeResolver::empty());
        for _ in 0..3 {
            let (reason, _) = expect_retry_later(call_webhook(&webhooks, "ill").await);
            assert!(reason.contains("503"), "{reason}");
        }
        let (reason, wait) = expect_retry_later(call_webhook(&webhooks, "ill").await);
        assert!(reason.contains("breaker"), "{reason}");
        assert!(wait.is_some_and(|wait| wait <= quick_breaker().cooldown), "{wait:?}");
        assert_eq!(failing.received().requests.len(), 3, "nothing was sent while it was open");
        call_webhook(&webhooks, "fine").await.unwrap();

        is_healthy.store(true, Ordering::SeqCst);
        let mut response = call_webhook(&webhooks, "ill").await;
        while response.is_err() {
            let (reason, wait) = expect_retry_later(response);
            assert!(reason.contains("breaker"), "{reason}");
            tokio::time::sleep(wait.unwrap()).await;
            response = call_webhook(&webhooks, "ill").await;
        }
        let before = failing.received().requests.len();
        join_all((0..10).map(|_| call_webhook(&webhooks, "ill")))
            .await
            .into_iter()
            .for_each(|response| drop(response.unwrap()));
        assert_eq!(failing.received().requests.len(), before + 10);
    });
}

#[test]
fn timeouts_and_failed_lookups_open_the_breaker() {
    run(async {
        let hangs = Brain::always(Action::RespondAndHang(String::new())).await;
        let targets = vec![target("hangs", &hangs.url()), target("nowhere", "http://nowhere.test/")];
        let webhooks = webhooks_with(targets, &config(), quick_breaker(), FakeResolver::empty());
        for handler in ["hangs", "nowhere"] {
            for _ in 0..3 {
                let (reason, _) =
                    expect_retry_later(call_webhook_with_timeout(&webhooks, handler, Duration::from_millis(30)).await);
                assert!(!reason.contains("breaker"), "{reason}");
            }
            let (reason, _) = expect_retry_later(call_webhook_with_timeout(&webhooks, handler, TEST_TIMEOUT).await);
            assert!(reason.contains("breaker"), "{reason}");
        }
    });
}

#[test]
fn rejections_do_not_open_the_breaker() {
    run(async {
        let actions = [respond(404, "", ""), respond(200, "", "no JSON"), respond(302, "", ""), respond(410, "", "")];
        let brain = Brain::start(move |before| actions[before % actions.len()].clone()).await;
        let deferring = Brain::always(respond(429, "", "")).await;
        let targets = vec![target("greet", &brain.url()), target("defers", &deferring.url())];
        let webhooks = webhooks_with(targets, &config(), quick_breaker(), FakeResolver::empty());
        for _ in 0..40 {
            expect_no_retry(call_webhook(&webhooks, "greet").await);
            assert!(expect_retry_later(call_webhook(&webhooks, "defers").await).0.contains("429"));
        }
        assert_eq!((brain.received().requests.len(), deferring.received().requests.len()), (40, 40));
    });
}
