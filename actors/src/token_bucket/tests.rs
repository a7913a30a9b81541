//! The actor in one local set, with paused time.

use std::future::Future;
use std::time::Duration;

use futures_util::FutureExt;
use guildhall_core::limit::division::ShareUsage;
use guildhall_core::response::Credential;
use guildhall_core::route::Route;
use tokio::task::LocalSet;
use tokio::time::{Instant, sleep};

use super::*;

const BOT: Credential = Credential::Application(42);
const LONG_WAIT: Duration = Duration::from_secs(3_600);
const SUCCESS: ResponseInfo = ResponseInfo { class: ResponseClass::Success, rate: None };

/// A limiter with one token, after its first quiet window: a caller either holds the token or waits.
async fn with_one_token<F: Future<Output = ()>>(config: LimitConfig, test: impl FnOnce(TokenBucketHandle) -> F) {
    let config = LimitConfig { global: 1, margin: Duration::ZERO, settling: Duration::ZERO, ..config };
    let body = async {
        let clock = Clock::start();
        let tokens = TokenBucketHandle::new(TokenBucket::new(clock, config).run(), clock);
        sleep(Duration::from_secs(1)).await;
        test(tokens).await;
    };
    LocalSet::new().run_until(body).await;
}

fn route(guild: u64) -> Route {
    Route::parse("GET", &format!("/guilds/{guild}"), 42, 0)
}

async fn acquire(tokens: &TokenBucketHandle, guild: u64, max_wait: Duration) -> Result<Permit, PermitError> {
    tokens.acquire(BOT, route(guild), Lane::Operation, max_wait).await
}

async fn waiting(tokens: &TokenBucketHandle) -> usize {
    tokens.observe().await.unwrap().waiting
}

#[tokio::test(start_paused = true)]
async fn unreachable_deadline_is_refused_at_once_with_retry_after() {
    with_one_token(LimitConfig::default(), |tokens| async move {
        acquire(&tokens, 1, Duration::ZERO).await.unwrap().sent_and_answered();
        tokens.observe().await.unwrap();
        let began = Instant::now();
        let refused = acquire(&tokens, 2, Duration::from_millis(999)).await.unwrap_err();
        assert_eq!(refused, PermitError { retry_after: Some(Duration::from_secs(1)), reason: "global_limit" });
        assert_eq!(began.elapsed(), Duration::ZERO);
        // A retry at the given time is served.
        sleep(Duration::from_secs(1)).await;
        drop(acquire(&tokens, 2, Duration::ZERO).await.unwrap());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn deadline_that_passes_while_waiting_ends_the_wait() {
    with_one_token(LimitConfig::default(), |tokens| async move {
        let _in_flight = acquire(&tokens, 1, Duration::ZERO).await.unwrap();
        let began = Instant::now();
        let refused = acquire(&tokens, 2, Duration::from_secs(7)).await.unwrap_err();
        assert_eq!(began.elapsed(), Duration::from_secs(7));
        assert!(refused.retry_after.is_some());
        assert_eq!(waiting(&tokens).await, 0);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn dropped_request_leaves_the_queue() {
    with_one_token(LimitConfig::default(), |tokens| async move {
        let first = acquire(&tokens, 1, Duration::ZERO).await.unwrap();
        let mut second = Box::pin(acquire(&tokens, 2, LONG_WAIT));
        let mut third = Box::pin(acquire(&tokens, 3, LONG_WAIT));
        assert!((&mut second).now_or_never().is_none() && (&mut third).now_or_never().is_none());
        assert_eq!(waiting(&tokens).await, 2);
        drop(second);
        assert_eq!(waiting(&tokens).await, 1);
        drop(first);
        // The cancelled request did not use the token.
        let began = Instant::now();
        drop(third.await.unwrap());
        assert_eq!(began.elapsed(), Duration::ZERO);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn unused_permit_is_returned_at_once() {
    with_one_token(LimitConfig::default(), |tokens| async move {
        let first = acquire(&tokens, 1, Duration::ZERO).await.unwrap();
        let mut second = Box::pin(acquire(&tokens, 2, LONG_WAIT));
        assert!((&mut second).now_or_never().is_none());
        drop(first);
        // Granted, but the caller drops its request before it receives the permit.
        assert_eq!(tokens.observe().await.unwrap().under_way, 1);
        drop(second);
        drop(acquire(&tokens, 3, Duration::ZERO).await.unwrap());
        let unused = acquire(&tokens, 4, Duration::ZERO).await.unwrap();
        unused.unused();
        drop(acquire(&tokens, 5, Duration::ZERO).await.unwrap());
        assert_eq!(tokens.observe().await.unwrap().under_way, 0);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn permit_dropped_after_the_send_counts_until_timeout_and_window() {
    let config = LimitConfig { request_timeout: Duration::from_secs(9), ..LimitConfig::default() };
    with_one_token(config, |tokens| async move {
        let began = Instant::now();
        let mut first = acquire(&tokens, 1, Duration::ZERO).await.unwrap();
        first.sent();
        sleep(Duration::from_secs(2)).await;
        drop(first);
        let refused = acquire(&tokens, 2, Duration::from_secs(5)).await.unwrap_err();
        assert_eq!(refused.retry_after, Some(Duration::from_secs(8)));
        drop(acquire(&tokens, 2, LONG_WAIT).await.unwrap());
        assert_eq!(began.elapsed(), Duration::from_secs(9 + 1));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn full_queue_refuses_and_serves_its_waiters() {
    let config = LimitConfig { max_waiters: 3, ..LimitConfig::default() };
    with_one_token(config, |tokens| async move {
        let first = acquire(&tokens, 1, Duration::ZERO).await.unwrap();
        let mut queue: Vec<_> = (2..5).map(|guild| Box::pin(acquire(&tokens, guild, LONG_WAIT))).collect();
        for waiting in &mut queue {
            assert!(waiting.now_or_never().is_none());
        }
        let refused = acquire(&tokens, 5, LONG_WAIT).await.unwrap_err();
        assert_eq!(refused.reason, "queue_full");
        assert!(refused.retry_after.is_some_and(|wait| wait > Duration::ZERO));
        first.sent_and_answered();
        for waiter in queue {
            waiter.await.unwrap().sent_and_answered();
        }
        assert_eq!(waiting(&tokens).await, 0);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn stopped_actor_refuses_requests() {
    let clock = Clock::start();
    let bucket = LocalSet::new().run_until(async { TokenBucket::new(clock, LimitConfig::default()).run() }).await;
    // The local set has ended, and the actor with it.
    let tokens = TokenBucketHandle::new(bucket, clock);
    let refused = acquire(&tokens, 1, LONG_WAIT).await.unwrap_err();
    assert_eq!((refused.reason, refused.retry_after), ("shutting_down", Some(Duration::from_secs(1))));
    assert!(tokens.observe().await.is_none());
}

impl Permit {
    fn sent_and_answered(mut self) {
        self.sent();
        self.answered(SUCCESS);
    }
}

#[tokio::test(start_paused = true)]
async fn share_is_applied_at_run_time_and_its_usage_reported() {
    let config = LimitConfig { margin: Duration::ZERO, settling: Duration::ZERO, ..LimitConfig::default() };
    let body = async {
        let clock = Clock::start();
        let (allowances, allowance) = watch::channel(Allowance { share: 2, members: 1, version: 1 });
        let (usage, mut used) = watch::channel(ShareUsage::default());
        let bucket = TokenBucket::new(clock, config).with_divided_limit(DividedLimit { allowance, usage });
        let tokens = TokenBucketHandle::new(bucket.run(), clock);
        sleep(Duration::from_secs(1)).await;
        assert_eq!(*used.borrow_and_update(), ShareUsage { version: 1, is_within: true });
        // A route with unknown limits has one call in flight, so each call has its own route.
        let other = Route::parse("GET", "/users/@me", 42, 0);
        let first = tokens.acquire(BOT, other, Lane::Operation, LONG_WAIT).await.unwrap();
        let second = acquire(&tokens, 2, LONG_WAIT).await.unwrap();
        allowances.send_replace(Allowance { share: 1, members: 2, version: 2 });
        used.changed().await.unwrap();
        assert_eq!(*used.borrow_and_update(), ShareUsage { version: 2, is_within: false });
        let began = Instant::now();
        first.sent_and_answered();
        used.changed().await.unwrap();
        assert_eq!(*used.borrow_and_update(), ShareUsage { version: 2, is_within: true });
        assert_eq!(began.elapsed(), Duration::from_secs(1));
        // The only token of the smaller share is in use.
        let third = Route::parse("GET", "/channels/3", 42, 0);
        let refused = tokens.acquire(BOT, third.clone(), Lane::Operation, Duration::from_millis(500)).await;
        assert_eq!(refused.unwrap_err().reason, "global_limit");
        drop(second);
        drop(tokens.acquire(BOT, third, Lane::Operation, LONG_WAIT).await.unwrap());
        let division = tokens.observe().await.unwrap().division.unwrap();
        assert_eq!((division.share, division.members), (1, 2));
    };
    LocalSet::new().run_until(body).await;
}
