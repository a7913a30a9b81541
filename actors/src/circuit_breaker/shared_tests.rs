//! Two actors as two processes in one local set, with paused time, and shared state in memory.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering};

use actix::Addr;
use guildhall_core::breaker::{
    BreakerReason, BreakerState, BreakerStatus, ClaimResponse, RemoteChange, SharedBreakerKey, SharedBreakerState,
};
use guildhall_core::invalid::{LedgerFallback, LenderReply, LenderRequest, Submitter};
use guildhall_core::operation::GateCondition;
use guildhall_core::response::ResponseClass;
use guildhall_core::route::TopLevelId;
use tokio::task::LocalSet;
use tokio::time::{advance, sleep};

use super::*;
use crate::gate::ReleaseListener;

const BOT: Credential = Credential::Application(42);
const READ: &str = "GET /guilds/{id}/roles";

/// Counts its calls.
#[derive(Default)]
struct CountingReplicator {
    breaker_changes: AtomicUsize,
    ledger_changes: AtomicUsize,
}

impl BreakerReplicator for CountingReplicator {
    fn on_breaker_changed(&self) {
        self.breaker_changes.fetch_add(1, Ordering::Relaxed);
    }

    fn on_ledger_changed(&self) {
        self.ledger_changes.fetch_add(1, Ordering::Relaxed);
    }
}

impl CountingReplicator {
    /// Takes the number of calls for breakers and ledger since the last time.
    fn take_counts(&self) -> (usize, usize) {
        (self.breaker_changes.swap(0, Ordering::Relaxed), self.ledger_changes.swap(0, Ordering::Relaxed))
    }
}

struct Process {
    breaker: Addr<CircuitBreaker>,
    replicator: Arc<CountingReplicator>,
}

/// State that all processes share.
#[derive(Default)]
struct FakeSharedState {
    version: u64,
    changes: BTreeMap<SharedBreakerKey, RemoteChange>,
}

impl FakeSharedState {
    async fn collect(&mut self, from: &Process) -> usize {
        let changes = from.breaker.send(TakeBreakerChanges).await.unwrap();
        let count = changes.len();
        for change in changes {
            self.version += 1;
            let remote = RemoteChange { status: change.status.clone(), version: self.version };
            self.changes.insert(change.status.shared_key.clone(), remote);
            from.breaker.send(BreakerChangeReplicated { change, version: self.version, winner: None }).await.unwrap();
        }
        count
    }

    async fn deliver(&self, to: &Process) -> usize {
        to.breaker.send(SharedStateRead(self.changes.values().cloned().collect())).await.unwrap().len()
    }
}

async fn with_two<F: Future<Output = ()>>(test: impl FnOnce(Process, Process) -> F) {
    with_tokens("same", "same", test).await;
}

async fn with_tokens<F: Future<Output = ()>>(one: &str, other: &str, test: impl FnOnce(Process, Process) -> F) {
    let start = async |token: &str| {
        let config = BreakerConfig { jitter_percent: 0, ..BreakerConfig::default() };
        let breaker = CircuitBreaker::new(Clock::start(), config, InvalidConfig::default(), 1).start();
        let replicator = Arc::new(CountingReplicator::default());
        let port: Arc<dyn BreakerReplicator> = replicator.clone();
        let tokens = vec![(BOT, token.to_owned())];
        breaker.send(ShareBreakers { replicator: port, tokens, fallback: LedgerFallback::Stop }).await.unwrap();
        Process { breaker, replicator }
    };
    let body = async {
        let (one, other) = (start(one).await, start(other).await);
        for process in [&one, &other] {
            lend(process, 100).await;
            process.replicator.take_counts();
        }
        test(one, other).await;
    };
    LocalSet::new().run_until(body).await;
}

/// Answers a process's request: it may spend `more`.
async fn lend(process: &Process, more: u64) -> LenderRequest {
    reply_to_request(process, more, 70).await
}

/// Answers a process's request: `counted` are used.
async fn sync(process: &Process, counted: u32) {
    reply_to_request(process, 100, counted).await;
}

async fn reply_to_request(process: &Process, more: u64, counted: u32) -> LenderRequest {
    let request = process.breaker.send(TakeLedgerRequest).await.unwrap().unwrap();
    let synced = LenderReply {
        requested_at: request.requested_at,
        acknowledged: request.counted,
        ceiling: request.counted + more,
        slots: vec![(Duration::from_secs(300), counted)],
        members: 2,
        holders: 2,
        in_flight_elsewhere: 0,
        exposure: 100,
        elsewhere_exposure: 0,
        floor: 0,
        large: vec![],
    };
    process.breaker.send(LedgerSynced(synced)).await.unwrap();
    request
}

fn call(id: u64) -> CallInfo {
    CallInfo {
        credential: BOT,
        route: RouteKey::new(READ),
        major: TopLevelId::of(id),
        lane: Lane::Interactive,
        guild: None,
        submitter: Submitter::default(),
        may_probe: true,
    }
}

async fn run(process: &Process, id: u64, result: CallResult) {
    let pass = process.breaker.send(Admit(call(id))).await.unwrap().unwrap();
    pass.report(result, Duration::ZERO).attempt().await;
}

async fn reason(process: &Process) -> Option<&'static str> {
    process.breaker.send(Admit(call(1))).await.unwrap().err().map(|refused| refused.reason)
}

const BAN: CallResult = CallResult::Answered(ResponseClass::Blocked { retry_after: None });
const UNAUTHORIZED: CallResult = CallResult::Answered(ResponseClass::Unauthorized);

#[tokio::test(start_paused = true)]
async fn ban_is_replicated_once_and_marked_as_remote() {
    with_two(|one, other| async move {
        let mut board = FakeSharedState::default();
        let mut here = one.breaker.send(SubscribeBreakerChanges).await.unwrap();
        let mut there = other.breaker.send(SubscribeBreakerChanges).await.unwrap();
        run(&one, 7, BAN).await;
        assert_eq!(one.replicator.take_counts(), (1, 0));
        assert_eq!(here.recv().await.unwrap().origin, ChangeOrigin::Here);

        assert_eq!(board.collect(&one).await, 1);
        let change = board.changes.values().next().unwrap().clone();
        other.breaker.send(RemoteBreakerChanged(change.clone())).await.unwrap();
        let received = there.recv().await.unwrap();
        assert_eq!(
            (received.key, received.why, received.origin),
            (BreakerKey::Address, BreakerReason::Blocked, ChangeOrigin::Elsewhere)
        );
        assert_eq!(received.retry_after_ms, Some(3_600_000));
        assert_eq!(reason(&other).await, Some("blocked"));
        // It is not replicated again, and its origin does not apply it again.
        assert_eq!((other.replicator.take_counts(), board.collect(&other).await), ((0, 0), 0));
        one.breaker.send(RemoteBreakerChanged(change)).await.unwrap();
        assert!(here.try_recv().is_err());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn only_the_latest_change_of_a_breaker_stays_pending() {
    with_two(|one, other| async move {
        let mut board = FakeSharedState::default();
        for _ in 0..100 {
            one.breaker.send(ForceOpen(BreakerKey::Address)).await.unwrap().unwrap();
            one.breaker.send(ResetBreaker(BreakerKey::Address)).await.unwrap();
        }
        one.breaker.send(ForceOpen(BreakerKey::Address)).await.unwrap().unwrap();
        assert!(one.replicator.take_counts().0 >= 100);
        sleep(Duration::from_secs(86_400)).await;
        assert_eq!(board.collect(&one).await, 1);
        board.deliver(&other).await;
        lend(&other, 100).await;
        assert_eq!(reason(&other).await, Some("breaker_forced_open"));
        // Reset from the other process.
        other.breaker.send(ResetBreaker(BreakerKey::Address)).await.unwrap();
        board.collect(&other).await;
        board.deliver(&one).await;
        lend(&one, 100).await;
        assert_eq!(reason(&one).await, None);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn reset_of_a_closed_breaker_is_replicated() {
    with_two(|one, _| async move {
        one.breaker.send(ResetBreaker(BreakerKey::Target("crm".to_owned()))).await.unwrap();
        assert_eq!(one.replicator.take_counts(), (1, 0));
        assert_eq!(FakeSharedState::default().collect(&one).await, 1);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn lost_shared_state_is_rebuilt_from_open_breakers() {
    with_two(|one, other| async move {
        let mut board = FakeSharedState::default();
        run(&one, 7, BAN).await;
        board.collect(&one).await;
        assert_eq!(board.deliver(&other).await, 0);
        assert_eq!(FakeSharedState::default().deliver(&one).await, 1);
        let missing = other.breaker.send(SharedStateRead(Vec::new())).await.unwrap();
        assert_eq!(missing[0].status.shared_key.key, BreakerKey::Address);
        assert_eq!(missing[0].version, 1);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn stronger_change_is_adopted() {
    with_two(|one, _| async move {
        run(&one, 7, BAN).await;
        let change = one.breaker.send(TakeBreakerChanges).await.unwrap().remove(0);
        let key = change.status.shared_key.clone();
        let status = BreakerStatus {
            shared_key: key.clone(),
            state: SharedBreakerState::ForcedOpen,
            reason: BreakerReason::Forced,
        };
        let winner = Some(RemoteChange { status, version: 9 });
        one.breaker.send(BreakerChangeReplicated { change, version: 9, winner }).await.unwrap();
        assert_eq!(reason(&one).await, Some("breaker_forced_open"));
        one.breaker.send(ForcedBreakerEnded { key, version: 12 }).await.unwrap();
        assert_eq!(reason(&one).await, None);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn invalid_token_concerns_only_processes_that_have_it() {
    with_tokens("wrong", "right", |one, other| async move {
        let mut board = FakeSharedState::default();
        run(&one, 7, UNAUTHORIZED).await;
        board.collect(&one).await;
        board.deliver(&other).await;
        assert_eq!(reason(&other).await, None);
        other.replicator.take_counts();
        other.breaker.send(ReplaceToken { credential: BOT, fingerprint: "wrong".to_owned() }).await.unwrap();
        assert_eq!(other.replicator.take_counts(), (1, 0));
        board.deliver(&other).await;
        assert_eq!(reason(&other).await, Some("unauthorized"));
        // Its own token is replaced by one that no other process has.
        one.breaker.send(TokenChanged(BOT)).await.unwrap();
        board.collect(&one).await;
        board.deliver(&one).await;
        assert_eq!((reason(&one).await, reason(&other).await), (None, Some("unauthorized")));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn open_breaker_is_shared_and_closes_with_any_process() {
    with_two(|one, other| async move {
        let mut board = FakeSharedState::default();
        let route = BreakerKey::Route(BOT, RouteKey::new(READ));
        for id in 0..5 {
            run(&one, id, CallResult::TimedOut).await;
        }
        board.collect(&one).await;
        board.deliver(&other).await;
        assert_eq!(reason(&other).await, Some("breaker_open"));
        let mut there = other.breaker.send(SubscribeBreakerChanges).await.unwrap();
        assert_eq!(there.recv().await.unwrap().to, BreakerState::HalfOpen);
        lend(&one, 100).await;
        for claim in one.breaker.send(TakeProbeClaims).await.unwrap() {
            one.breaker.send(ProbeClaimed { claim, response: Some(ClaimResponse::Granted) }).await.unwrap();
        }
        for id in 0..3 {
            run(&one, id, CallResult::Answered(ResponseClass::Success)).await;
        }
        board.collect(&one).await;
        board.deliver(&other).await;
        let closed = there.recv().await.unwrap();
        assert_eq!((closed.key, closed.to, closed.origin), (route, BreakerState::Closed, ChangeOrigin::Elsewhere));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn invalid_responses_and_a_shortage_wake_the_replicator() {
    with_two(|one, _| async move {
        run(&one, 1, CallResult::Answered(ResponseClass::Success)).await;
        assert_eq!(one.replicator.take_counts(), (0, 0));
        run(&one, 1, CallResult::Answered(ResponseClass::Forbidden)).await;
        assert_eq!(one.replicator.take_counts(), (0, 1));
        let request = lend(&one, 4).await;
        assert_eq!((request.counted, request.unacknowledged, request.in_flight), (1, 1, 0));
        let first = one.breaker.send(Admit(call(1))).await.unwrap().unwrap();
        assert_eq!(one.replicator.take_counts(), (0, 0));
        let second = one.breaker.send(Admit(call(1))).await.unwrap().unwrap();
        assert_eq!(one.replicator.take_counts(), (0, 1));
        assert_eq!(lend(&one, 2).await.in_flight, 2);
        assert_eq!(reason(&one).await, Some("invalid_requests_lent"));
        drop((first, second));
        assert_eq!(reason(&one).await, None);
        let ledger = one.breaker.send(ObserveCircuitBreaker).await.unwrap().invalid_requests;
        assert_eq!((ledger.own, ledger.used), (1, 70));
        let shared = ledger.shared.unwrap();
        assert_eq!((shared.total, shared.members, shared.lent), (70, 2, 2));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn unsynced_ledger_stops_after_a_window_until_the_next_sync() {
    with_two(|one, _| async move {
        advance(Duration::from_secs(599)).await;
        assert_eq!(reason(&one).await, None);
        advance(Duration::from_secs(1)).await;
        assert_eq!(reason(&one).await, Some("invalid_requests_unheard"));
        lend(&one, 100).await;
        assert_eq!(reason(&one).await, None);
        one.breaker.send(LeaveLedger).await.unwrap().unwrap();
        assert_eq!(reason(&one).await, Some("invalid_requests_unheard"));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn unshared_breaker_has_nothing_to_replicate() {
    let body = async {
        let config = BreakerConfig::default();
        let breaker = CircuitBreaker::new(Clock::start(), config, InvalidConfig::default(), 1).start();
        let alone = Process { breaker, replicator: Arc::new(CountingReplicator::default()) };
        run(&alone, 7, BAN).await;
        assert!(alone.breaker.send(TakeBreakerChanges).await.unwrap().is_empty());
        assert_eq!(alone.breaker.send(TakeLedgerRequest).await.unwrap(), None);
        assert!(alone.breaker.send(SharedStateRead(Vec::new())).await.unwrap().is_empty());
    };
    LocalSet::new().run_until(body).await;
}

#[tokio::test(start_paused = true)]
async fn budget_with_early_room_releases_once() {
    with_two(|one, _| async move {
        let released = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&released);
        let listener: ReleaseListener = Arc::new(move |condition| {
            assert_eq!(condition, GateCondition::InvalidRequests);
            counter.fetch_add(1, Ordering::Relaxed);
        });
        one.breaker.send(SetReleaseListener(listener)).await.unwrap();
        // The other processes have used all of it, for another five minutes.
        sync(&one, 9_990).await;
        let refused = one.breaker.send(Admit(call(1))).await.unwrap().unwrap_err();
        assert_eq!(refused.reason, "invalid_requests");
        sync(&one, 9_980).await;
        assert_eq!(released.load(Ordering::Relaxed), 0);
        // The count is corrected: those were not used after all.
        sync(&one, 100).await;
        assert_eq!(released.load(Ordering::Relaxed), 1);
        assert_eq!(reason(&one).await, None);
        sync(&one, 90).await;
        assert_eq!(released.load(Ordering::Relaxed), 1, "once");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn half_open_breaker_is_probed_only_with_a_claim() {
    with_two(|one, _other| async move {
        one.breaker
            .send(ForceOpenFor { key: BreakerKey::Address, duration: Duration::from_secs(60) })
            .await
            .unwrap()
            .unwrap();
        FakeSharedState::default().collect(&one).await;
        one.replicator.take_counts();
        sleep(Duration::from_secs(60) + Duration::from_millis(1)).await;
        assert!(one.replicator.take_counts().0 > 0, "the adapter is not woken for a claim");
        let refused = one.breaker.send(Admit(call(7))).await.unwrap().unwrap_err();
        assert_eq!(refused.reason, "breaker_half_open");
        let claim = one.breaker.send(TakeProbeClaims).await.unwrap().remove(0);
        let elsewhere = ClaimResponse::HeldElsewhere { remaining: Duration::from_secs(1) };
        one.breaker.send(ProbeClaimed { claim, response: Some(elsewhere) }).await.unwrap();
        assert!(one.breaker.send(TakeProbeClaims).await.unwrap().is_empty());
        sleep(Duration::from_secs(1)).await;
        lend(&one, 100).await;
        let claim = one.breaker.send(TakeProbeClaims).await.unwrap().remove(0);
        // The others cannot be reached.
        one.breaker.send(ProbeClaimed { claim, response: None }).await.unwrap();
        assert!(one.breaker.send(Admit(call(7))).await.unwrap().unwrap().is_probe());
    })
    .await;
}
