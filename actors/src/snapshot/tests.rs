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
            class: self.class,
            code: None,
            rate: Some(rate),
        };
        Box::pin(async move { Ok::<_, TransportError>(received) })
    }
}

/// A snapshot store that the test controls.
struct Notes {
    text: Mutex<Option<String>>,
    writes: Mutex<u32>,
    /// Each load and each save takes one permit.
    leave: Semaphore,
    is_lost: Mutex<bool>,
}

impl Notes {
    fn new(text: Option<&str>) -> Arc<Self> {
        Arc::new(Self {
            text: Mutex::new(text.map(str::to_owned)),
            writes: Mutex::default(),
            leave: Semaphore::new(1_000),
            is_lost: Mutex::default(),
        })
    }

    fn writes(&self) -> u32 {
        *self.writes.lock().unwrap()
    }

    fn kept(&self) -> GateSnapshot {
        GateSnapshot::decode(self.text.lock().unwrap().as_deref().unwrap()).unwrap()
    }

    fn lose(&self, is_lost: bool) {
        *self.is_lost.lock().unwrap() = is_lost;
    }

    async fn reach(&self) -> Result<(), SnapshotError> {
        self.leave.acquire().await.unwrap().forget();
        if *self.is_lost.lock().unwrap() { Err(SnapshotError("no disk".into())) } else { Ok(()) }
    }
}

impl SnapshotStore for Notes {
    fn recall(&self) -> SnapshotFuture<'_, Option<String>> {
        Box::pin(async {
            self.reach().await?;
            Ok(self.text.lock().unwrap().clone())
        })
    }

    fn keep(&self, text: String) -> SnapshotFuture<'_, ()> {
        Box::pin(async {
            *self.writes.lock().unwrap() += 1;
            self.reach().await?;
            *self.text.lock().unwrap() = Some(text);
            Ok(())
        })
    }
}

fn gate(discord: &Discord, notes: &Arc<Notes>) -> Arc<Gate> {
    let memory: Arc<dyn SnapshotStore> = notes.clone();
    let memory = SnapshotConfig {
        wall: WallClock::provided(|| UnixMs::new(1_700_000_000_000)),
        ..SnapshotConfig::new(memory, vec![(BOT, "token".into())])
    };
    Gate::start(discord.clone(), GateConfig { memory: Some(memory), ..GateConfig::default() }, LeaseGuard::always())
}

async fn call(gate: &Gate) -> CallOutcome {
    gate.call(RestRequest::new(Method::GET, "/guilds/1", BOT)).await
}

fn run<F: Future>(test: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    LocalSet::new().block_on(&runtime, test)
}

#[test]
fn nothing_is_sent_before_the_gate_has_recalled() {
    run(async {
        let (discord, notes) = (Discord::new(ResponseClass::Success), Notes::new(None));
        let _held = notes.leave.acquire_many(1_000).await.unwrap();
        let gate = gate(&discord, &notes);
        let hasty = RestRequest { max_wait: Duration::from_secs(3), ..RestRequest::new(Method::GET, "/guilds/1", BOT) };
        let CallOutcome::NotSent(why) = gate.call(hasty).await else { panic!("it was sent") };
        assert_eq!(why.reason, "recalling");
        let mut patient = Box::pin(call(&gate));
        assert!(timeout(Duration::from_millis(1_900), &mut patient).await.is_err());
        assert_eq!(discord.sent(), 0);
        notes.leave.add_permits(1);
        assert!(matches!(patient.await, CallOutcome::Answered(_)));
    });
}

#[test]
fn a_gate_starts_without_a_memory_that_cannot_be_read_and_writes_it_anew() {
    for (text, is_lost) in [(Some("no memory"), false), (Some(r#"{"version":77}"#), false), (None, true)] {
        run(async move {
            let (discord, notes) = (Discord::new(ResponseClass::Success), Notes::new(text));
            notes.lose(is_lost);
            let gate = gate(&discord, &notes);
            assert!(matches!(call(&gate).await, CallOutcome::Answered(_)), "{text:?}");
            notes.lose(false);
            sleep(Duration::from_secs(31)).await;
            assert_eq!(notes.kept().limits.routes(), 1);
        });
    }
}

#[test]
fn a_memory_that_does_not_answer_holds_the_gate_up_for_a_while_only() {
    run(async {
        let (discord, notes) = (Discord::new(ResponseClass::Success), Notes::new(None));
        let _held = notes.leave.acquire_many(1_000).await.unwrap();
        let gate = gate(&discord, &notes);
        let patient =
            RestRequest { max_wait: Duration::from_secs(30), ..RestRequest::new(Method::GET, "/guilds/1", BOT) };
        assert!(matches!(gate.call(patient).await, CallOutcome::Answered(_)));
    });
}

#[test]
fn a_block_is_kept_at_once_and_what_was_learned_in_a_while() {
    run(async {
        let (discord, notes) = (Discord::new(ResponseClass::Success), Notes::new(None));
        let first = gate(&discord, &notes);
        call(&first).await;
        assert_eq!((notes.writes(), notes.kept().limits.routes()), (1, 0), "only the start itself is saved");
        sleep(Duration::from_secs(31)).await;
        assert_eq!((notes.writes(), notes.kept().limits.routes()), (2, 1));
        drop(first);

        let retry_after = Duration::from_secs(600);
        let limited = Discord::new(ResponseClass::RateLimited { scope: RateLimitScope::Global, retry_after });
        let second = gate(&limited, &notes);
        call(&second).await;
        // Written as soon as possible, without a delay.
        sleep(Duration::from_millis(1)).await;
        assert_eq!(notes.writes(), 4);
        assert_eq!(notes.kept().limits.closed(), 1);
        drop(second);

        let third = gate(&discord, &notes);
        let sent = discord.sent();
        let CallOutcome::NotSent(why) = call(&third).await else { panic!("it was sent") };
        assert_eq!((why.reason, discord.sent()), ("global_limit", sent));
        assert!(why.retry_after.unwrap() > Duration::from_secs(590), "{why:?}");
    });
}

#[test]
fn however_much_changes_it_is_written_once_a_second() {
    run(async {
        let (discord, notes) = (Discord::new(ResponseClass::Forbidden), Notes::new(None));
        let gate = gate(&discord, &notes);
        sleep(Duration::from_secs(3)).await;
        let before = notes.writes();
        for _ in 0..100 {
            call(&gate).await;
            advance(Duration::from_millis(100)).await;
        }
        let writes = notes.writes() - before;
        assert!((5..=11).contains(&writes), "{writes} writes in ten seconds");
        sleep(Duration::from_secs(2)).await;
        assert_eq!(notes.kept().invalid.total(), 100);
    });
}

#[test]
fn a_write_that_fails_is_tried_again_and_what_changed_meanwhile_is_in_it() {
    run(async {
        let (discord, notes) = (Discord::new(ResponseClass::Forbidden), Notes::new(None));
        let gate = gate(&discord, &notes);
        sleep(Duration::from_secs(3)).await;
        notes.lose(true);
        call(&gate).await;
        sleep(Duration::from_secs(3_600)).await;
        let tries = notes.writes();
        assert!((100..140).contains(&tries), "{tries}: less often the longer it fails, but at least every half minute");
        call(&gate).await;
        notes.lose(false);
        sleep(Duration::from_secs(31)).await;
        assert_eq!(notes.kept().invalid.total(), 1, "the first is no longer in the window");
    });
}

#[test]
fn a_clean_end_keeps_everything_and_says_so() {
    run(async {
        let (discord, notes) = (Discord::new(ResponseClass::Success), Notes::new(None));
        let first = gate(&discord, &notes);
        call(&first).await;
        first.remember().await;
        let kept = notes.kept();
        assert_eq!((kept.limits.routes(), kept.ending), (1, ShutdownKind::Clean));
    });
}

#[test]
fn a_life_that_ended_suddenly_is_charged_with_what_it_may_not_have_kept() {
    run(async {
        let (discord, notes) = (Discord::new(ResponseClass::Forbidden), Notes::new(None));
        let mut counted = Vec::new();
        for is_clean in [true, false, false] {
            let gate = gate(&discord, &notes);
            call(&gate).await;
            sleep(Duration::from_millis(1)).await;
            if is_clean {
                gate.remember().await;
            }
            counted.push(notes.kept().invalid.total());
        }
        assert_eq!(counted, [1, 2, 53]);
    });
}
