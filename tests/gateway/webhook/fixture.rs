//! Shared fixtures: webhooks with their own breaker, a scripted resolver, and events to send.

use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use actix::Actor as _;
use guildhall::webhook::{LookupFuture, Resolver, Secret, WebhookConfig, WebhookTarget, Webhooks};
use guildhall_actors::circuit_breaker::CircuitBreaker;
use guildhall_actors::clock::Clock;
use guildhall_actors::ports::{WebhookBody, WebhookCall, WebhookCallError, WebhookClient as _, WebhookResponse};
use guildhall_core::breaker::BreakerConfig;
use guildhall_core::event::handler::ResponsePolicy;
use guildhall_core::invalid::InvalidConfig;
use guildhall_core::trace::TraceContext;
use tokio::task::LocalSet;

/// Upper bound for operations that end only when something is broken. No test waits for it.
pub(crate) const TEST_TIMEOUT: Duration = Duration::from_secs(60);
/// Timeout for a response that never comes.
pub(crate) const SHORT_TIMEOUT: Duration = Duration::from_millis(150);

/// The trace of the events.
pub(crate) const TRACE: u128 = 0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736;

pub(crate) const SECRET: &str = "whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5";

/// Runs a test: brains on their own threads, the breaker's actor on the thread of the test.
pub(crate) fn run<F: Future>(test: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    LocalSet::new().block_on(&runtime, async { tokio::time::timeout(TEST_TIMEOUT, test).await.unwrap() })
}

/// A webhook that may have any address.
pub(crate) fn target(handler: &str, url: &str) -> WebhookTarget {
    let secrets: Vec<Secret> = vec![SECRET.parse().unwrap()];
    let answers = ResponsePolicy::default();
    WebhookTarget {
        handler: handler.into(),
        url: url.parse().unwrap(),
        secrets,
        allow_private: true,
        response_policy: answers,
    }
}

/// Timeouts that no test reaches, unless it sets its own.
pub(crate) fn config() -> WebhookConfig {
    WebhookConfig { connect_timeout: TEST_TIMEOUT, ..WebhookConfig::default() }
}

/// A breaker that never opens by itself.
pub(crate) fn disabled_breaker() -> BreakerConfig {
    BreakerConfig { failures_in_row: u32::MAX, min_calls: u32::MAX, ..BreakerConfig::default() }
}

pub(crate) fn webhooks(targets: Vec<WebhookTarget>) -> Webhooks {
    webhooks_with(targets, &config(), disabled_breaker(), FakeResolver::empty())
}

pub(crate) fn webhooks_with(
    targets: Vec<WebhookTarget>,
    config: &WebhookConfig,
    breaker: BreakerConfig,
    resolver: Arc<FakeResolver>,
) -> Webhooks {
    let breaker = CircuitBreaker::new(Clock::start(), breaker, InvalidConfig::default(), 1).start();
    Webhooks::with_resolver(targets, config, breaker, &(resolver as Arc<dyn Resolver>)).unwrap()
}

/// Sends an event to the webhook of a handler.
pub(crate) async fn call_webhook(webhooks: &Webhooks, handler: &str) -> Result<WebhookResponse, WebhookCallError> {
    call_webhook_with_timeout(webhooks, handler, TEST_TIMEOUT).await
}

pub(crate) async fn call_webhook_with_timeout(
    webhooks: &Webhooks,
    handler: &str,
    timeout: Duration,
) -> Result<WebhookResponse, WebhookCallError> {
    let body = WebhookBody { id: format!("event:session:7:{handler}"), json: r#"{"event_type":"member.join"}"#.into() };
    let trace = TraceContext::start(TRACE, 1);
    webhooks.call(WebhookCall { handler: handler.into(), timeout, trace }, body).await
}

/// Asserts that it is to be retried. Returns the reason, and the minimum delay.
#[track_caller]
pub(crate) fn expect_retry_later(result: Result<WebhookResponse, WebhookCallError>) -> (String, Option<Duration>) {
    match result {
        Err(WebhookCallError::Retryable { reason, retry_after }) => (reason, retry_after),
        other => panic!("expected a retry later, got {other:?}"),
    }
}

/// Asserts that it is not to be retried. Returns the reason.
#[track_caller]
pub(crate) fn expect_no_retry(result: Result<WebhookResponse, WebhookCallError>) -> String {
    match result {
        Err(WebhookCallError::Permanent { reason }) => reason,
        other => panic!("expected no retry, got {other:?}"),
    }
}

/// Results of lookups: each list in turn, and the last one from then on.
#[derive(Default)]
pub(crate) struct FakeResolver {
    lists: Mutex<Vec<Vec<SocketAddr>>>,
    /// Lookups of names with this prefix never end.
    hanging_prefix: Option<&'static str>,
    lookups: AtomicUsize,
}

impl FakeResolver {
    /// No name resolves.
    pub(crate) fn empty() -> Arc<Self> {
        Arc::default()
    }

    /// Every name resolves to these, with the port of the URL.
    pub(crate) fn returning(lists: &[&[&str]]) -> Arc<Self> {
        let address = |text: &&str| SocketAddr::from((text.parse::<IpAddr>().unwrap(), 0));
        let lists = lists.iter().map(|list| list.iter().map(address).collect()).collect();
        Arc::new(Self { lists: Mutex::new(lists), ..Self::default() })
    }

    /// Lookups of names with this prefix never end.
    pub(crate) fn hanging(name: &'static str) -> Arc<Self> {
        Arc::new(Self { hanging_prefix: Some(name), ..Self::default() })
    }

    pub(crate) fn lookups(&self) -> usize {
        self.lookups.load(Ordering::SeqCst)
    }
}

impl Resolver for FakeResolver {
    fn resolve(&self, name: &str, port: u16) -> LookupFuture {
        self.lookups.fetch_add(1, Ordering::SeqCst);
        if self.hanging_prefix.is_some_and(|prefix| name.starts_with(prefix)) {
            return Box::pin(std::future::pending());
        }
        let mut lists = self.lists.lock().unwrap();
        let found = if lists.len() > 1 { Some(lists.remove(0)) } else { lists.first().cloned() };
        let found = found.map(|list| list.iter().map(|address| SocketAddr::new(address.ip(), port)).collect());
        Box::pin(async move { found.ok_or_else(|| io::Error::other("no such name")) })
    }
}
