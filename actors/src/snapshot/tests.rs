//! A gate with snapshots, with paused time, and a fake Discord with a fixed response.

use std::future::Future;
use std::sync::Mutex;

use crate::ports::{SnapshotError, SnapshotFuture, SnapshotStore};
use bytes::Bytes;
use guildhall_core::response::{RateHeaders, RateLimitScope, ResponseClass};
use guildhall_core::snapshot::{GateSnapshot, ShutdownKind};
use guildhall_core::time::UnixMs;
use http::{HeaderMap, Method, StatusCode};
use tokio::sync::Semaphore;
use tokio::task::LocalSet;
use tokio::time::{advance, sleep, timeout};

use super::*;
use crate::gate::{
    CallOutcome, ClearedRequest, Gate, GateConfig, RawResponse, Rest as _, RestRequest, SendFuture, Transport,
    TransportError,
};
use crate::lease_guard::LeaseGuard;

const BOT: Credential = Credential::Application(42);

/// Responds at once.
#[derive(Clone)]
struct Discord {
    class: ResponseClass,
    sent: Arc<Mutex<u32>>,
}

impl Discord {
    fn new(class: ResponseClass) -> Self {
        Self { class, sent: Arc::default() }
    }

    fn sent(&self) -> u32 {
        *self.sent.lock().unwrap()
    }
}

impl Transport for Discord {
    fn send(&self, _: ClearedRequest) -> SendFuture<'_> {
        *self.sent.lock().unwrap() += 1;
        let reset_after = Duration::from_secs(1);
        let rate = RateHeaders { bucket: "hash".into(), limit: 50, remaining: 40, reset_ms: 1_000_000, reset_after };
        let received = RawResponse {
            status: StatusCode::OK,
            headers: HeaderMap::new(),
            body: Bytes::new(),
            stream: None,
            upload: Duration::ZERO,
            class: self.class,
            code: None,
            rate: Some(rate),
        };
        Box::pin(async move { Ok::<_, TransportError>(received) })
    }
}

/// A snapshot store that the test controls.
struct FakeSnapshotStore {
    text: Mutex<Option<String>>,
    writes: Mutex<u32>,
    /// Each load and each save takes one permit.
    permits: Semaphore,
    is_failing: Mutex<bool>,
}

impl FakeSnapshotStore {
    fn new(text: Option<&str>) -> Arc<Self> {
        Arc::new(Self {
            text: Mutex::new(text.map(str::to_owned)),
            writes: Mutex::default(),
            permits: Semaphore::new(1_000),
            is_failing: Mutex::default(),
        })
    }

    fn writes(&self) -> u32 {
        *self.writes.lock().unwrap()
    }

    fn saved(&self) -> GateSnapshot {
        GateSnapshot::decode(self.text.lock().unwrap().as_deref().unwrap()).unwrap()
    }

    fn set_failing(&self, is_lost: bool) {
        *self.is_failing.lock().unwrap() = is_lost;
    }

    async fn access(&self) -> Result<(), SnapshotError> {
        self.permits.acquire().await.unwrap().forget();
        if *self.is_failing.lock().unwrap() { Err(SnapshotError("no disk".into())) } else { Ok(()) }
    }
}

impl SnapshotStore for FakeSnapshotStore {
    fn load(&self) -> SnapshotFuture<'_, Option<String>> {
        Box::pin(async {
            self.access().await?;
            Ok(self.text.lock().unwrap().clone())
        })
    }

    fn save(&self, text: String) -> SnapshotFuture<'_, ()> {
        Box::pin(async {
            *self.writes.lock().unwrap() += 1;
            self.access().await?;
            *self.text.lock().unwrap() = Some(text);
            Ok(())
        })
    }
}

fn gate(discord: &Discord, store: &Arc<FakeSnapshotStore>) -> Arc<Gate> {
    let config: Arc<dyn SnapshotStore> = store.clone();
    let config = SnapshotConfig {
        wall: WallClock::provided(|| UnixMs::new(1_700_000_000_000)),
        ..SnapshotConfig::new(config, vec![(BOT, "token".into())])
    };
    Gate::start(discord.clone(), GateConfig { snapshot: Some(config), ..GateConfig::default() }, LeaseGuard::always())
}

async fn call(gate: &Gate) -> CallOutcome {
    // After a crash it waits until its bucket must be free.
    let patient = Duration::from_secs(30);
    gate.call(RestRequest {
        max_wait: patient,
        ..RestRequest::new(Method::GET, "/guilds/1", BOT, LeaseGuard::always())
    })
    .await
}

fn run<F: Future>(test: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    LocalSet::new().block_on(&runtime, test)
}

#[test]
fn nothing_is_sent_before_the_snapshot_is_restored() {
    run(async {
        let (discord, store) = (Discord::new(ResponseClass::Success), FakeSnapshotStore::new(None));
        let _held = store.permits.acquire_many(1_000).await.unwrap();
        let gate = gate(&discord, &store);
        let hasty = RestRequest {
            max_wait: Duration::from_secs(3),
            ..RestRequest::new(Method::GET, "/guilds/1", BOT, LeaseGuard::always())
        };
        let CallOutcome::NotSent(refused) = gate.call(hasty).await else { panic!("it was sent") };
        assert_eq!(refused.reason, "recalling");
        let mut patient = Box::pin(call(&gate));
        assert!(timeout(Duration::from_millis(1_900), &mut patient).await.is_err());
        assert_eq!(discord.sent(), 0);
        store.permits.add_permits(1);
        assert!(matches!(patient.await, CallOutcome::Answered(_)));
    });
}

#[test]
fn gate_replaces_an_unreadable_snapshot() {
    for (text, is_lost) in [(Some("no memory"), false), (Some(r#"{"version":77}"#), false), (None, true)] {
        run(async move {
            let (discord, store) = (Discord::new(ResponseClass::Success), FakeSnapshotStore::new(text));
            store.set_failing(is_lost);
            let gate = gate(&discord, &store);
            assert!(matches!(call(&gate).await, CallOutcome::Answered(_)), "{text:?}");
            store.set_failing(false);
            sleep(Duration::from_secs(31)).await;
            assert_eq!(store.saved().limits.routes(), 1);
        });
    }
}

#[test]
fn unresponsive_snapshot_store_delays_the_gate_only_briefly() {
    run(async {
        let (discord, store) = (Discord::new(ResponseClass::Success), FakeSnapshotStore::new(None));
        let _held = store.permits.acquire_many(1_000).await.unwrap();
        let gate = gate(&discord, &store);
        let patient = RestRequest {
            max_wait: Duration::from_secs(30),
            ..RestRequest::new(Method::GET, "/guilds/1", BOT, LeaseGuard::always())
        };
        assert!(matches!(gate.call(patient).await, CallOutcome::Answered(_)));
    });
}

#[test]
fn new_route_and_block_are_saved_at_once() {
    run(async {
        let (discord, store) = (Discord::new(ResponseClass::Success), FakeSnapshotStore::new(None));
        let first = gate(&discord, &store);
        call(&first).await;
        // Written as soon as possible, without a delay.
        sleep(Duration::from_millis(1)).await;
        assert_eq!((store.writes(), store.saved().limits.routes()), (2, 1), "the start itself is saved as well");
        drop(first);

        let retry_after = Duration::from_secs(600);
        let limited = Discord::new(ResponseClass::RateLimited { scope: RateLimitScope::Global, retry_after });
        let second = gate(&limited, &store);
        call(&second).await;
        sleep(Duration::from_millis(1)).await;
        assert_eq!(store.writes(), 4);
        assert_eq!(store.saved().limits.closed(), 1);
        drop(second);

        let third = gate(&discord, &store);
        let sent = discord.sent();
        let CallOutcome::NotSent(refused) = call(&third).await else { panic!("it was sent") };
        assert_eq!((refused.reason, discord.sent()), ("global_limit", sent));
        assert!(refused.retry_after.unwrap() > Duration::from_secs(590), "{refused:?}");
    });
}

#[test]
fn snapshot_is_saved_at_most_once_a_second() {
    run(async {
        let (discord, store) = (Discord::new(ResponseClass::Forbidden), FakeSnapshotStore::new(None));
        let gate = gate(&discord, &store);
        sleep(Duration::from_secs(3)).await;
        let before = store.writes();
        for _ in 0..100 {
            call(&gate).await;
            advance(Duration::from_millis(100)).await;
        }
        let writes = store.writes() - before;
        assert!((5..=11).contains(&writes), "{writes} writes in ten seconds");
        sleep(Duration::from_secs(2)).await;
        assert_eq!(store.saved().invalid.total(), 100);
    });
}

#[test]
fn failed_save_is_retried_with_later_changes() {
    run(async {
        let (discord, store) = (Discord::new(ResponseClass::Forbidden), FakeSnapshotStore::new(None));
        let gate = gate(&discord, &store);
        sleep(Duration::from_secs(3)).await;
        store.set_failing(true);
        call(&gate).await;
        sleep(Duration::from_secs(3_600)).await;
        let tries = store.writes();
        assert!((100..140).contains(&tries), "{tries}: less often the longer it fails, but at least every half minute");
        call(&gate).await;
        store.set_failing(false);
        sleep(Duration::from_secs(31)).await;
        assert_eq!(store.saved().invalid.total(), 1, "the first is no longer in the window");
    });
}

#[test]
fn clean_shutdown_saves_everything_and_is_marked() {
    run(async {
        let (discord, store) = (Discord::new(ResponseClass::Success), FakeSnapshotStore::new(None));
        let first = gate(&discord, &store);
        call(&first).await;
        first.save_snapshot().await;
        let saved = store.saved();
        assert_eq!((saved.limits.routes(), saved.ending), (1, ShutdownKind::Clean));
    });
}

#[test]
fn crash_is_charged_with_requests_that_may_not_be_saved() {
    run(async {
        let (discord, store) = (Discord::new(ResponseClass::Forbidden), FakeSnapshotStore::new(None));
        let mut counted = Vec::new();
        for is_clean in [true, false, false] {
            let gate = gate(&discord, &store);
            call(&gate).await;
            sleep(Duration::from_millis(1)).await;
            if is_clean {
                gate.save_snapshot().await;
            }
            counted.push(store.saved().invalid.total());
        }
        assert_eq!(counted, [1, 2, 53]);
    });
}
