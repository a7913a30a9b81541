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
struct Bell {
    turned: AtomicUsize,
    counted: AtomicUsize,
}

impl BreakerReplicator for Bell {
    fn turned(&self) {
        self.turned.fetch_add(1, Ordering::Relaxed);
    }

    fn counted(&self) {
        self.counted.fetch_add(1, Ordering::Relaxed);
    }
}

impl Bell {
    /// Takes the number of calls for breakers and ledger since the last time.
    fn rang(&self) -> (usize, usize) {
        (self.turned.swap(0, Ordering::Relaxed), self.counted.swap(0, Ordering::Relaxed))
    }
}

struct Process {
    breaker: Addr<CircuitBreaker>,
    bell: Arc<Bell>,
}

/// State that all processes share.
#[derive(Default)]
struct Board {
    version: u64,
    words: BTreeMap<SharedBreakerKey, RemoteChange>,
}

impl Board {
    async fn collect(&mut self, from: &Process) -> usize {
        let turns = from.breaker.send(TakeBreakerChanges).await.unwrap();
        let count = turns.len();
        for turn in turns {
            self.version += 1;
            let news = RemoteChange { word: turn.word.clone(), version: self.version };
            self.words.insert(turn.word.matter.clone(), news);
            from.breaker.send(BreakerChangeReplicated { turn, version: self.version, instead: None }).await.unwrap();
        }
        count
    }

    async fn show(&self, to: &Process) -> usize {
        to.breaker.send(SharedStateRead(self.words.values().cloned().collect())).await.unwrap().len()
    }
}

async fn with_two<F: Future<Output = ()>>(test: impl FnOnce(Process, Process) -> F) {
    with_tokens("same", "same", test).await;
}

async fn with_tokens<F: Future<Output = ()>>(one: &str, other: &str, test: impl FnOnce(Process, Process) -> F) {
    let start = async |token: &str| {
        let config = BreakerConfig { jitter_percent: 0, ..BreakerConfig::default() };
        let breaker = CircuitBreaker::new(Clock::start(), config, InvalidConfig::default(), 1).start();
        let bell = Arc::new(Bell::default());
        let courier: Arc<dyn BreakerReplicator> = bell.clone();
        let tokens = vec![(BOT, token.to_owned())];
        breaker.send(ShareBreakers { courier, tokens, when_lost: LedgerFallback::Stop }).await.unwrap();
        Process { breaker, bell }
    };
    let body = async {
        let (one, other) = (start(one).await, start(other).await);
        for process in [&one, &other] {
            lend(process, 100).await;
            process.bell.rang();
        }
        test(one, other).await;
    };
    LocalSet::new().run_until(body).await;
}

/// Answers a process's request: it may spend `more`.
async fn lend(process: &Process, more: u64) -> LenderRequest {
    answer(process, more, 70).await
}

/// Answers a process's request: `counted` are used.
async fn sync(process: &Process, counted: u32) {
    answer(process, 100, counted).await;
}

async fn answer(process: &Process, more: u64, counted: u32) -> LenderRequest {
    let ask = process.breaker.send(TakeLedgerRequest).await.unwrap().unwrap();
    let synced = LenderReply {
        asked: ask.asked,
        acknowledged: ask.counted,
        ceiling: ask.counted + more,
        slots: vec![(Duration::from_secs(300), counted)],
        members: 2,
        holders: 2,
        elsewhere: 0,
        exposure: 100,
        elsewhere_exposure: 0,
        floor: 0,
        large: vec![],
    };
    process.breaker.send(LedgerSynced(synced)).await.unwrap();
    ask
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
async fn a_ban_here_wakes_the_courier_and_is_heard_there_as_somebody_elses() {
    with_two(|one, other| async move {
        let mut board = Board::default();
        let mut here = one.breaker.send(SubscribeBreakerChanges).await.unwrap();
        let mut there = other.breaker.send(SubscribeBreakerChanges).await.unwrap();
        run(&one, 7, BAN).await;
        assert_eq!(one.bell.rang(), (1, 0));
        assert_eq!(here.recv().await.unwrap().origin, ChangeOrigin::Here);

        assert_eq!(board.collect(&one).await, 1);
        let news = board.words.values().next().unwrap().clone();
        other.breaker.send(RemoteBreakerChanged(news.clone())).await.unwrap();
        let heard = there.recv().await.unwrap();
        assert_eq!(
            (heard.key, heard.why, heard.origin),
            (BreakerKey::Address, BreakerReason::Blocked, ChangeOrigin::Elsewhere)
        );
        assert_eq!(heard.retry_after_ms, Some(3_600_000));
        assert_eq!(reason(&other).await, Some("blocked"));
        // It is not replicated again, and its origin does not apply it again.
        assert_eq!((other.bell.rang(), board.collect(&other).await), ((0, 0), 0));
        one.breaker.send(RemoteBreakerChanged(news)).await.unwrap();
        assert!(here.try_recv().is_err());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn only_the_newest_of_each_breaker_waits_to_be_told_however_long_nobody_can_be() {
    with_two(|one, other| async move {
        let mut board = Board::default();
        for _ in 0..100 {
            one.breaker.send(ForceOpen(BreakerKey::Address)).await.unwrap().unwrap();
            one.breaker.send(ResetBreaker(BreakerKey::Address)).await.unwrap();
        }
        one.breaker.send(ForceOpen(BreakerKey::Address)).await.unwrap().unwrap();
        assert!(one.bell.rang().0 >= 100);
        sleep(Duration::from_secs(86_400)).await;
        assert_eq!(board.collect(&one).await, 1);
        board.show(&other).await;
        lend(&other, 100).await;
        assert_eq!(reason(&other).await, Some("breaker_forced_open"));
        // Reset from the other process.
        other.breaker.send(ResetBreaker(BreakerKey::Address)).await.unwrap();
        board.collect(&other).await;
        board.show(&one).await;
        lend(&one, 100).await;
        assert_eq!(reason(&one).await, None);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_reset_is_told_even_if_nothing_was_open_here() {
    with_two(|one, _| async move {
        one.breaker.send(ResetBreaker(BreakerKey::Target("crm".to_owned()))).await.unwrap();
        assert_eq!(one.bell.rang(), (1, 0));
        assert_eq!(Board::default().collect(&one).await, 1);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_board_that_lost_everything_is_made_anew_from_what_stands_open() {
    with_two(|one, other| async move {
        let mut board = Board::default();
        run(&one, 7, BAN).await;
        board.collect(&one).await;
        assert_eq!(board.show(&other).await, 0);
        assert_eq!(Board::default().show(&one).await, 1);
        let missing = other.breaker.send(SharedStateRead(Vec::new())).await.unwrap();
        assert_eq!(missing[0].word.matter.key, BreakerKey::Address);
        assert_eq!(missing[0].version, 1);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn what_stands_against_a_change_is_taken_over() {
    with_two(|one, _| async move {
        run(&one, 7, BAN).await;
        let turn = one.breaker.send(TakeBreakerChanges).await.unwrap().remove(0);
        let matter = turn.word.matter.clone();
        let word =
            BreakerStatus { matter: matter.clone(), stand: SharedBreakerState::ForcedOpen, why: BreakerReason::Forced };
        let instead = Some(RemoteChange { word, version: 9 });
        one.breaker.send(BreakerChangeReplicated { turn, version: 9, instead }).await.unwrap();
        assert_eq!(reason(&one).await, Some("breaker_forced_open"));
        one.breaker.send(ForcedBreakerEnded { matter, version: 12 }).await.unwrap();
        assert_eq!(reason(&one).await, None);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_wrong_token_concerns_only_those_who_have_it() {
    with_tokens("wrong", "right", |one, other| async move {
        let mut board = Board::default();
        run(&one, 7, UNAUTHORIZED).await;
        board.collect(&one).await;
        board.show(&other).await;
        assert_eq!(reason(&other).await, None);
        other.bell.rang();
        other.breaker.send(ReplaceToken { credential: BOT, fingerprint: "wrong".to_owned() }).await.unwrap();
        assert_eq!(other.bell.rang(), (1, 0));
        board.show(&other).await;
        assert_eq!(reason(&other).await, Some("unauthorized"));
        // Its own token is replaced by one that no other process has.
        one.breaker.send(TokenChanged(BOT)).await.unwrap();
        board.collect(&one).await;
        board.show(&one).await;
        assert_eq!((reason(&one).await, reason(&other).await), (None, Some("unauthorized")));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_bot_that_fails_here_is_left_alone_there_and_closes_with_whoever_finds_it_well() {
    with_two(|one, other| async move {
        let mut board = Board::default();
        let route = BreakerKey::Route(BOT, RouteKey::new(READ));
        for id in 0..5 {
            run(&one, id, CallResult::TimedOut).await;
        }
        board.collect(&one).await;
        board.show(&other).await;
        assert_eq!(reason(&other).await, Some("breaker_open"));
        let mut there = other.breaker.send(SubscribeBreakerChanges).await.unwrap();
        assert_eq!(there.recv().await.unwrap().to, BreakerState::HalfOpen);
        lend(&one, 100).await;
        for claim in one.breaker.send(TakeProbeClaims).await.unwrap() {
            one.breaker.send(ProbeClaimed { claim, answer: Some(ClaimResponse::Granted) }).await.unwrap();
        }
        for id in 0..3 {
            run(&one, id, CallResult::Answered(ResponseClass::Success)).await;
        }
        board.collect(&one).await;
        board.show(&other).await;
        let closed = there.recv().await.unwrap();
        assert_eq!((closed.key, closed.to, closed.origin), (route, BreakerState::Closed, ChangeOrigin::Elsewhere));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn invalid_answers_and_a_shortage_wake_the_courier() {
    with_two(|one, _| async move {
        run(&one, 1, CallResult::Answered(ResponseClass::Success)).await;
        assert_eq!(one.bell.rang(), (0, 0));
        run(&one, 1, CallResult::Answered(ResponseClass::Forbidden)).await;
        assert_eq!(one.bell.rang(), (0, 1));
        let ask = lend(&one, 4).await;
        assert_eq!((ask.counted, ask.unacknowledged, ask.in_flight), (1, 1, 0));
        let first = one.breaker.send(Admit(call(1))).await.unwrap().unwrap();
        assert_eq!(one.bell.rang(), (0, 0));
        let second = one.breaker.send(Admit(call(1))).await.unwrap().unwrap();
        assert_eq!(one.bell.rang(), (0, 1));
        assert_eq!(lend(&one, 2).await.in_flight, 2);
        assert_eq!(reason(&one).await, Some("invalid_requests_lent"));
        drop((first, second));
        assert_eq!(reason(&one).await, None);
        let shown = one.breaker.send(ObserveCircuitBreaker).await.unwrap().invalid_requests;
        assert_eq!((shown.own, shown.used), (1, 70));
        let shared = shown.shared.unwrap();
        assert_eq!((shared.total, shared.members, shared.lent), (70, 2, 2));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_ledger_that_hears_nothing_for_a_window_stops_by_itself_and_goes_on_when_it_hears_again() {
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
async fn a_breaker_that_shares_nothing_has_nothing_to_tell() {
    let body = async {
        let config = BreakerConfig::default();
        let breaker = CircuitBreaker::new(Clock::start(), config, InvalidConfig::default(), 1).start();
        let alone = Process { breaker, bell: Arc::new(Bell::default()) };
        run(&alone, 7, BAN).await;
        assert!(alone.breaker.send(TakeBreakerChanges).await.unwrap().is_empty());
        assert_eq!(alone.breaker.send(TakeLedgerRequest).await.unwrap(), None);
        assert!(alone.breaker.send(SharedStateRead(Vec::new())).await.unwrap().is_empty());
    };
    LocalSet::new().run_until(body).await;
}

#[tokio::test(start_paused = true)]
async fn budget_that_has_room_earlier_than_it_said_releases() {
    with_two(|one, _| async move {
        let released = Arc::new(AtomicUsize::new(0));
        let told = Arc::clone(&released);
        let listener: ReleaseListener = Arc::new(move |condition| {
            assert_eq!(condition, GateCondition::InvalidRequests);
            told.fetch_add(1, Ordering::Relaxed);
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
async fn half_open_breaker_asks_for_a_claim_and_is_probed_with_it_alone() {
    with_two(|one, _other| async move {
        one.breaker
            .send(ForceOpenFor { key: BreakerKey::Address, lasting: Duration::from_secs(60) })
            .await
            .unwrap()
            .unwrap();
        Board::default().collect(&one).await;
        one.bell.rang();
        sleep(Duration::from_secs(60) + Duration::from_millis(1)).await;
        assert!(one.bell.rang().0 > 0, "the adapter is not woken for a claim");
        let refused = one.breaker.send(Admit(call(7))).await.unwrap().unwrap_err();
        assert_eq!(refused.reason, "breaker_half_open");
        let claim = one.breaker.send(TakeProbeClaims).await.unwrap().remove(0);
        let elsewhere = ClaimResponse::HeldElsewhere { remaining: Duration::from_secs(1) };
        one.breaker.send(ProbeClaimed { claim, answer: Some(elsewhere) }).await.unwrap();
        assert!(one.breaker.send(TakeProbeClaims).await.unwrap().is_empty());
        sleep(Duration::from_secs(1)).await;
        lend(&one, 100).await;
        let claim = one.breaker.send(TakeProbeClaims).await.unwrap().remove(0);
        // The others cannot be reached.
        one.breaker.send(ProbeClaimed { claim, answer: None }).await.unwrap();
        assert!(one.breaker.send(Admit(call(7))).await.unwrap().unwrap().is_probe());
    })
    .await;
}
