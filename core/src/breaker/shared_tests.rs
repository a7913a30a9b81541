//! Tests of several processes that share their breakers.

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::invalid::Submitter;
use crate::lane::Lane;
use crate::response::{Credential, ResponseClass};
use crate::route::{RouteKey, TopLevelId};
use crate::time::Timestamp;

pub(super) const BOT: Credential = Credential::Application(42);
pub(super) const READ: &str = "GET /guilds/{id}/roles";
pub(super) const CREATE: &str = "POST /guilds/{id}/roles";

/// The shared store: the newest status of each key. In production it is a Redis script (`tests/redis_state/`).
#[derive(Default)]
struct Board {
    version: u64,
    words: BTreeMap<SharedBreakerKey, (BreakerStatus, u64, Timestamp)>,
    /// Which process probes, and until when.
    claims: BTreeMap<SharedBreakerKey, (usize, Timestamp)>,
}

impl Board {
    /// Stores a status, or returns the one that takes precedence.
    fn tell(&mut self, word: &BreakerStatus, now: Timestamp) -> Result<RemoteChange, RemoteChange> {
        let weak = matches!(word.stand, SharedBreakerState::Open { .. })
            || (word.stand == SharedBreakerState::Closed && word.why == BreakerReason::ProbesSucceeded);
        if let Some((kept, version, _)) = self.words.get(&word.matter)
            && kept.stand == SharedBreakerState::ForcedOpen
            && weak
        {
            return Err(RemoteChange { word: kept.clone(), version: *version });
        }
        self.version += 1;
        self.words.insert(word.matter.clone(), (word.clone(), self.version, now));
        Ok(RemoteChange { word: word.clone(), version: self.version })
    }

    /// Grants a claim, unless another process holds it.
    fn claim(&mut self, who: usize, claim: &ProbeClaim, now: Timestamp) -> ClaimResponse {
        match self.claims.get(&claim.matter) {
            Some((holder, until)) if *holder != who && *until > now => {
                ClaimResponse::HeldElsewhere { remaining: until.since(now) }
            }
            Some(_) | None => {
                self.claims.insert(claim.matter.clone(), (who, now + claim.lasting));
                ClaimResponse::Granted
            }
        }
    }

    /// All statuses, with their remaining times.
    fn read(&self, now: Timestamp) -> Vec<RemoteChange> {
        let words = self.words.values();
        words
            .map(|(word, version, told)| {
                let stand = match word.stand {
                    SharedBreakerState::Open { remaining } => {
                        SharedBreakerState::Open { remaining: remaining.saturating_sub(now.since(*told)) }
                    }
                    SharedBreakerState::Closed | SharedBreakerState::ForcedOpen => word.stand,
                };
                RemoteChange { word: BreakerStatus { stand, ..word.clone() }, version: *version }
            })
            .collect()
    }
}

pub(super) struct World {
    pub(super) now: Timestamp,
    board: Board,
    pub(super) all: Vec<Breakers>,
}

impl World {
    /// Processes with these tokens.
    pub(super) fn new(tokens: &[&str]) -> Self {
        let config = BreakerConfig { jitter_percent: 0, ..BreakerConfig::default() };
        let all = tokens.iter().map(|token| {
            let mut breakers = Breakers::new(config, 1);
            breakers.share([(BOT, *token)], Timestamp::ZERO);
            breakers
        });
        Self { now: Timestamp::from_millis(1_000), board: Board::default(), all: all.collect() }
    }

    pub(super) fn run(&mut self, who: usize, call: &CallInfo, result: CallResult) {
        if let Ok(pass) = self.all[who].admit(call, self.now) {
            self.all[who].report(pass, result, Duration::ZERO, self.now);
        }
    }

    /// Sends all pending changes of a process; returns those that were accepted.
    fn tell(&mut self, who: usize) -> Vec<RemoteChange> {
        let mut told = Vec::new();
        for turn in self.all[who].turns(self.now) {
            match self.board.tell(&turn.word, self.now) {
                Ok(news) => {
                    self.all[who].told(&turn, news.version);
                    if self.board.claims.get(&turn.word.matter).is_some_and(|(holder, _)| *holder == who) {
                        self.board.claims.remove(&turn.word.matter);
                    }
                    told.push(news);
                }
                Err(kept) => {
                    self.all[who].told(&turn, kept.version);
                    self.all[who].adopt(&kept, self.now);
                }
            }
        }
        told
    }

    /// Requests all claims of a process; returns the number of granted ones.
    pub(super) fn claim(&mut self, who: usize) -> usize {
        let mut granted = 0;
        loop {
            let claims = self.all[who].probe_claims(self.now);
            if claims.is_empty() {
                return granted;
            }
            for claim in claims {
                let answer = self.board.claim(who, &claim, self.now);
                granted += usize::from(answer == ClaimResponse::Granted);
                self.all[who].probe_claimed(&claim, answer, self.now);
            }
        }
    }

    /// The processes that may probe a breaker now.
    pub(super) fn probing(&self, key: &BreakerKey) -> Vec<usize> {
        let may_probe = |breakers: &Breakers| {
            let breaker = breakers.shelf.get(key).filter(|breaker| breaker.state() == BreakerState::HalfOpen);
            breaker.is_some_and(|breaker| breaker.check(true, &breakers.shelf.config, self.now).is_ok())
        };
        (0..self.all.len()).filter(|who| may_probe(&self.all[*who])).collect()
    }

    fn read(&mut self, who: usize) -> Vec<BreakerEffect> {
        let news = self.board.read(self.now);
        news.iter().flat_map(|news| self.all[who].adopt(news, self.now)).collect()
    }

    pub(super) fn settle(&mut self) {
        for _ in 0..2 {
            (0..self.all.len()).for_each(|who| drop(self.tell(who)));
            (0..self.all.len()).for_each(|who| drop(self.read(who)));
        }
    }

    pub(super) fn wait(&mut self, time: Duration) {
        let end = self.now + time;
        for breakers in &mut self.all {
            let mut now = self.now;
            while let Some(wake) = breakers.next_wake().filter(|wake| *wake <= end) {
                now = now.max(wake);
                breakers.on_time(now);
            }
        }
        self.now = end;
    }

    pub(super) fn states(&self, key: &BreakerKey) -> Vec<&'static str> {
        self.all.iter().map(|breakers| breakers.state(key).name()).collect()
    }
}

pub(super) fn call(route: &str, id: u64) -> CallInfo {
    CallInfo {
        credential: BOT,
        route: RouteKey::new(route),
        major: TopLevelId::of(id),
        lane: Lane::Operation,
        guild: None,
        submitter: Submitter::default(),
        may_probe: !route.starts_with("POST"),
    }
}

pub(super) fn discord() -> BreakerKey {
    BreakerKey::Discord(BOT)
}

fn whole(key: BreakerKey) -> SharedBreakerKey {
    SharedBreakerKey { key, token: None }
}

fn news(key: BreakerKey, stand: SharedBreakerState, why: BreakerReason, version: u64) -> RemoteChange {
    RemoteChange { word: BreakerStatus { matter: whole(key), stand, why }, version }
}

const HOUR: SharedBreakerState = SharedBreakerState::Open { remaining: Duration::from_secs(3_600) };
const UNAUTHORIZED: CallResult = CallResult::Answered(ResponseClass::Unauthorized);

#[test]
fn a_ban_that_one_process_sees_stops_the_others_and_is_not_told_again() {
    let mut world = World::new(&["a", "a"]);
    let ban = CallResult::Answered(ResponseClass::Blocked { retry_after: Some(Duration::from_secs(60)) });
    world.run(0, &call(READ, 7), ban);
    assert_eq!(world.tell(0).len(), 1);
    let effects = world.read(1);
    assert!(matches!(
        effects.as_slice(),
        [BreakerEffect::Transition {
            key: BreakerKey::Address,
            why: BreakerReason::Blocked,
            origin: ChangeOrigin::Elsewhere,
            ..
        }]
    ));
    let refused = world.all[1].admit(&call(READ, 8), world.now).unwrap_err();
    assert_eq!((refused.reason, refused.until), ("blocked", Some(world.now + Duration::from_secs(60))));
    assert!(world.tell(1).is_empty());
    assert!(world.read(0).is_empty() && world.read(1).is_empty());
}

#[test]
fn a_probe_that_fails_anywhere_makes_all_wait_longer() {
    let mut world = World::new(&["a", "a"]);
    for id in 0..5 {
        world.run(0, &call(READ, id), CallResult::TimedOut);
    }
    let route = BreakerKey::Route(BOT, RouteKey::new(READ));
    world.settle();
    world.wait(Duration::from_secs(30));
    world.claim(1);
    world.run(1, &call(READ, 1), CallResult::TimedOut);
    world.settle();
    let until = BreakerState::Open { until: world.now + Duration::from_secs(60) };
    assert_eq!([world.all[0].state(&route), world.all[1].state(&route)], [until, until]);
}

#[test]
fn what_fails_on_one_object_is_nobody_elses_business() {
    let mut world = World::new(&["a", "a"]);
    for _ in 0..5 {
        world.run(0, &call(READ, 7), CallResult::TimedOut);
    }
    let pair = BreakerKey::Pair(BOT, RouteKey::new(READ), TopLevelId::of(7));
    assert_eq!(world.states(&pair), ["open", "closed"]);
    assert!(world.tell(0).is_empty());
    assert!(world.all[0].standing(world.now).is_empty());
    assert!(world.all[1].adopt(&news(pair.clone(), HOUR, BreakerReason::FailureRate, 1), world.now).is_empty());
    assert_eq!(world.states(&pair), ["open", "closed"]);
}

#[test]
fn a_wrong_token_stops_those_who_have_it_and_nobody_else() {
    let mut world = World::new(&["old", "old", "new"]);
    world.run(0, &call(READ, 7), UNAUTHORIZED);
    world.settle();
    assert_eq!(world.states(&discord()), ["forced_open", "forced_open", "closed"]);
    assert_eq!(world.all[1].admit(&call(READ, 7), world.now).unwrap_err().reason, "unauthorized");
    // One of them gets the new token; the other still has the old one.
    world.all[1].token_changed(BOT, Some("new"), world.now);
    world.settle();
    assert_eq!(world.states(&discord()), ["forced_open", "closed", "closed"]);
    // The new one is invalid too.
    world.run(2, &call(READ, 7), UNAUTHORIZED);
    world.settle();
    assert_eq!(world.states(&discord()), ["forced_open"; 3]);
    // A process with a token that others found invalid receives that.
    world.all[0].token_changed(BOT, Some("new"), world.now);
    world.settle();
    assert_eq!(world.states(&discord()), ["forced_open"; 3]);
    // Setting the same token again means that it is valid again.
    world.all[2].token_changed(BOT, Some("new"), world.now);
    world.settle();
    assert_eq!(world.states(&discord()), ["closed"; 3]);
}

#[test]
fn a_wrong_token_without_a_fingerprint_stays_with_its_process() {
    let mut world = World::new(&["a", "a"]);
    world.all[0].token_changed(BOT, None, world.now);
    world.run(0, &call(READ, 7), UNAUTHORIZED);
    world.settle();
    assert_eq!(world.states(&discord()), ["forced_open", "closed"]);
}

#[test]
fn what_a_person_forces_or_resets_anywhere_holds_everywhere() {
    let mut world = World::new(&["a", "a", "a"]);
    let target = BreakerKey::Target("crm".to_owned());
    for key in [BreakerKey::Address, discord(), BreakerKey::Route(BOT, RouteKey::new(CREATE)), target] {
        world.all[0].force(&key, world.now).unwrap();
        world.settle();
        assert_eq!(world.states(&key), ["forced_open"; 3]);
        world.all[2].reset(&key, world.now);
        world.settle();
        assert_eq!(world.states(&key), ["closed"; 3]);
    }
    // Also for a limited time.
    let minute = Duration::from_secs(60);
    world.all[1].force_for(&discord(), minute, world.now).unwrap();
    world.settle();
    assert_eq!(world.states(&discord()), ["open"; 3]);
    world.all[0].reset(&discord(), world.now);
    world.settle();
    assert_eq!(world.states(&discord()), ["closed"; 3]);
    // A reset for an invalid token applies to all processes that have it, even from a process that did not know about
    // it.
    world.run(0, &call(READ, 7), UNAUTHORIZED);
    world.tell(0);
    world.read(1);
    world.all[2].reset(&discord(), world.now);
    world.settle();
    assert_eq!(world.states(&discord()), ["closed"; 3]);
}

#[test]
fn a_persons_word_stands_against_a_breaker_that_opens_at_the_same_time() {
    let mut world = World::new(&["a", "a"]);
    world.all[0].force(&discord(), world.now).unwrap();
    for (id, path) in [CREATE, READ, CREATE, READ, CREATE].iter().enumerate() {
        world.run(1, &call(path, id as u64), CallResult::TimedOut);
    }
    world.tell(0);
    world.tell(1);
    assert_eq!(world.states(&discord()), ["forced_open", "forced_open"]);
    world.wait(Duration::from_secs(600));
    world.settle();
    assert_eq!(world.states(&discord()), ["forced_open", "forced_open"]);
}

#[test]
fn a_wrong_token_is_still_wrong_after_a_person_forced_and_reset_the_bot() {
    let mut world = World::new(&["wrong", "right"]);
    world.run(0, &call(READ, 7), UNAUTHORIZED);
    world.settle();
    world.all[1].force(&discord(), world.now).unwrap();
    world.settle();
    assert_eq!(world.states(&discord()), ["forced_open", "forced_open"]);
    world.all[1].reset(&discord(), world.now);
    world.settle();
    assert_eq!(world.states(&discord()), ["forced_open", "closed"]);
    assert_eq!(world.all[0].state(&discord()), BreakerState::ForcedOpen { why: BreakerReason::Unauthorized });
}

#[test]
fn old_news_change_nothing() {
    let mut world = World::new(&["a"]);
    let key = BreakerKey::Address;
    world.all[0].adopt(&news(key.clone(), HOUR, BreakerReason::Blocked, 5), world.now);
    world.all[0].adopt(&news(key.clone(), SharedBreakerState::Closed, BreakerReason::Reset, 7), world.now);
    assert_eq!(world.states(&key), ["closed"]);
    for version in [5, 6] {
        assert!(world.all[0].adopt(&news(key.clone(), HOUR, BreakerReason::Blocked, version), world.now).is_empty());
    }
    assert_eq!(world.states(&key), ["closed"]);
}

#[test]
fn a_change_that_nobody_heard_of_yet_stands_against_all_news() {
    let mut world = World::new(&["a"]);
    let key = BreakerKey::Address;
    world.all[0].force(&key, world.now).unwrap();
    assert!(
        world.all[0]
            .adopt(&news(key.clone(), SharedBreakerState::Closed, BreakerReason::Reset, 7), world.now)
            .is_empty()
    );
    let turn = world.all[0].turns(world.now).remove(0);
    // Another change, while the first is being sent.
    world.all[0].reset(&key, world.now);
    world.all[0].told(&turn, 8);
    assert_eq!(world.all[0].turns(world.now)[0].word.stand, SharedBreakerState::Closed);
    let turn = world.all[0].turns(world.now).remove(0);
    world.all[0].told(&turn, 9);
    assert!(world.all[0].turns(world.now).is_empty());
    assert!(world.all[0].adopt(&news(key, HOUR, BreakerReason::Blocked, 8), world.now).is_empty());
}

#[test]
fn only_the_newest_change_of_a_breaker_is_told_and_none_that_time_has_undone() {
    let mut world = World::new(&["a"]);
    for _ in 0..3 {
        world.all[0].force(&discord(), world.now).unwrap();
        world.all[0].reset(&discord(), world.now);
    }
    let told: Vec<SharedBreakerState> = world.all[0].turns(world.now).iter().map(|turn| turn.word.stand).collect();
    // One for the bot, one for its token.
    assert_eq!(told, [SharedBreakerState::Closed, SharedBreakerState::Closed]);
    for id in 0..5 {
        world.run(0, &call(READ, id), CallResult::TimedOut);
    }
    assert_eq!(world.all[0].turns(world.now).len(), 3);
    world.wait(Duration::from_secs(31));
    assert_eq!(world.all[0].turns(world.now).len(), 2);
}

#[test]
fn what_stands_open_is_enough_to_make_a_lost_board_anew() {
    let mut world = World::new(&["a", "a"]);
    world.run(0, &call(READ, 7), CallResult::Answered(ResponseClass::Blocked { retry_after: None }));
    world.all[0].force(&BreakerKey::Target("crm".to_owned()), world.now).unwrap();
    assert!(world.all[0].standing(world.now).is_empty(), "it was not sent yet");
    world.settle();
    world.board = Board::default();
    let mut standing = world.all[1].standing(world.now);
    standing.sort_by(|a, b| a.word.matter.cmp(&b.word.matter));
    let told: Vec<(String, SharedBreakerState)> =
        standing.iter().map(|standing| (standing.word.matter.key.to_string(), standing.word.stand)).collect();
    assert_eq!(told, [("discord".to_owned(), HOUR), ("target:crm".to_owned(), SharedBreakerState::ForcedOpen)]);
    assert!(standing.iter().all(|standing| standing.version > 0));
    world.all[1].ended_elsewhere(&standing[1].word.matter, 9, world.now);
    assert_eq!(world.all[1].state(&standing[1].word.matter.key), BreakerState::Closed);
}

#[test]
fn what_was_open_before_there_were_others_is_told_to_them() {
    let mut breakers = Breakers::new(BreakerConfig::default(), 1);
    breakers.force(&discord(), Timestamp::ZERO).unwrap();
    assert!(breakers.turns(Timestamp::ZERO).is_empty());
    assert!(
        breakers
            .adopt(&news(discord(), SharedBreakerState::Closed, BreakerReason::Reset, 1), Timestamp::ZERO)
            .is_empty()
    );
    breakers.share([], Timestamp::ZERO);
    assert_eq!(breakers.turns(Timestamp::ZERO)[0].word.stand, SharedBreakerState::ForcedOpen);
}

#[test]
fn news_that_there_is_no_room_for_are_taken_when_there_is() {
    let mut breakers = Breakers::new(BreakerConfig { max_keys: 1, ..BreakerConfig::default() }, 1);
    breakers.share([], Timestamp::ZERO);
    let (one, other) = (BreakerKey::Target("one".to_owned()), BreakerKey::Target("other".to_owned()));
    breakers.force(&one, Timestamp::ZERO).unwrap();
    let heard = news(other.clone(), HOUR, BreakerReason::FailureRate, 1);
    assert!(breakers.adopt(&heard, Timestamp::ZERO).is_empty());
    breakers.reset(&one, Timestamp::ZERO);
    assert_eq!(breakers.adopt(&heard, Timestamp::ZERO).len(), 1);
    assert_eq!(breakers.state(&other).name(), "open");
}

#[test]
fn no_number_of_news_makes_it_grow_without_bound() {
    let mut breakers = Breakers::new(BreakerConfig { max_keys: 10, ..BreakerConfig::default() }, 1);
    breakers.share([], Timestamp::ZERO);
    for version in 1..=11_000_u64 {
        let key = BreakerKey::Target(format!("hook-{version}"));
        breakers.adopt(&news(key, SharedBreakerState::Closed, BreakerReason::Reset, version), Timestamp::ZERO);
    }
    assert!(breakers.shared.len() <= 10_000);
    assert!(breakers.len() <= 10);
}

#[derive(Clone, Debug)]
enum Action {
    Call {
        who: usize,
        route: usize,
        id: u64,
        result: CallResult,
    },
    Force {
        who: usize,
        key: usize,
    },
    Reset {
        who: usize,
        key: usize,
    },
    TokenChanged {
        who: usize,
        token: usize,
    },
    Tell {
        who: usize,
    },
    Read {
        who: usize,
    },
    /// A process receives any earlier change, perhaps an old one.
    Hear {
        who: usize,
        which: usize,
    },
    Claim {
        who: usize,
    },
    Wait {
        millis: u64,
    },
}

const TOKENS: [&str; 2] = ["a", "b"];
const ROUTES: [&str; 2] = [READ, CREATE];

fn key(number: usize) -> BreakerKey {
    let all = [BreakerKey::Address, discord(), BreakerKey::Route(BOT, RouteKey::new(READ))];
    all[number % all.len()].clone()
}

fn actions() -> impl Strategy<Value = Vec<Action>> {
    let result = prop_oneof![
        8 => Just(CallResult::TimedOut),
        6 => Just(CallResult::Answered(ResponseClass::Success)),
        1 => Just(CallResult::Answered(ResponseClass::Blocked { retry_after: Some(Duration::from_secs(20)) })),
        1 => Just(UNAUTHORIZED),
    ];
    let who = || 0..3_usize;
    let action = prop_oneof![
        30 => (who(), 0..2_usize, 0..3_u64, result)
            .prop_map(|(who, route, id, result)| Action::Call { who, route, id, result }),
        2 => (who(), 0..3_usize).prop_map(|(who, key)| Action::Force { who, key }),
        2 => (who(), 0..3_usize).prop_map(|(who, key)| Action::Reset { who, key }),
        1 => (who(), 0..2_usize).prop_map(|(who, token)| Action::TokenChanged { who, token }),
        12 => who().prop_map(|who| Action::Tell { who }),
        6 => who().prop_map(|who| Action::Read { who }),
        8 => (who(), any::<usize>()).prop_map(|(who, which)| Action::Hear { who, which }),
        10 => who().prop_map(|who| Action::Claim { who }),
        6 => (0..40_000_u64).prop_map(|millis| Action::Wait { millis }),
    ];
    prop::collection::vec(action, 1..250)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn once_all_have_told_and_read_they_agree_and_nothing_is_told_twice(actions in actions()) {
        let mut world = World::new(&["a", "a", "b"]);
        let mut tokens = [0, 0, 1];
        let mut told: Vec<RemoteChange> = Vec::new();
        for action in actions {
            match action {
                Action::Call { who, route, id, result } => world.run(who, &call(ROUTES[route], id), result),
                Action::Force { who, key: number } => drop(world.all[who].force(&key(number), world.now)),
                Action::Reset { who, key: number } => drop(world.all[who].reset(&key(number), world.now)),
                Action::TokenChanged { who, token } => {
                    tokens[who] = token;
                    world.all[who].token_changed(BOT, Some(TOKENS[token]), world.now);
                }
                Action::Tell { who } => told.extend(world.tell(who)),
                Action::Read { who } => {
                    let before = world.all[who].turns(world.now);
                    world.read(who);
                    prop_assert_eq!(before, world.all[who].turns(world.now), "a received change is sent again");
                }
                Action::Hear { who, which } => {
                    if !told.is_empty() {
                        let heard = told[which % told.len()].clone();
                        world.all[who].adopt(&heard, world.now);
                    }
                }
                Action::Claim { who } => drop(world.claim(who)),
                Action::Wait { millis } => world.wait(Duration::from_millis(millis)),
            }
            for number in 0..3 {
                let probing = world.probing(&key(number));
                prop_assert!(probing.len() <= 1, "{} is probed by {probing:?}", key(number));
            }
        }
        world.settle();
        let version = world.board.version;
        world.settle();
        prop_assert_eq!(version, world.board.version, "they continue to send changes");

        let board: BTreeMap<SharedBreakerKey, SharedBreakerState> =
            world.board.read(world.now).into_iter().map(|news| (news.word.matter, news.word.stand)).collect();
        for number in 0..3 {
            let key = key(number);
            for (who, breakers) in world.all.iter().enumerate() {
                let state = breakers.state(&key);
                let token = (key == discord()).then(|| TOKENS[tokens[who]].to_owned());
                let wrong = token.is_some_and(|token| {
                    board.get(&SharedBreakerKey { key: key.clone(), token: Some(token) }) == Some(&SharedBreakerState::ForcedOpen)
                });
                let expected: &[&str] = match board.get(&whole(key.clone())) {
                    _ if wrong => &["forced_open"],
                    Some(SharedBreakerState::ForcedOpen) => &["forced_open"],
                    // A process that was late may have closed it, or may be probing.
                    Some(SharedBreakerState::Open { remaining }) if !remaining.is_zero() => &["open", "half_open"],
                    Some(SharedBreakerState::Open { .. }) => &["open", "half_open", "closed"],
                    Some(SharedBreakerState::Closed) => &["closed"],
                    // Opened and cooled down before it was sent.
                    None => &["half_open", "closed"],
                };
                prop_assert!(expected.contains(&state.name()), "{key} is {state:?} in {who}, expected {expected:?}");
            }
        }
    }
}
