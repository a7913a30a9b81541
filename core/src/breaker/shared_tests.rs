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

/// The shared store: the newest status of each key. In production it is a Redis script (`tests/redis/state`).
#[derive(Default)]
struct SharedStore {
    version: u64,
    statuses: BTreeMap<SharedBreakerKey, (BreakerStatus, u64, Timestamp)>,
    /// Which process probes, and until when.
    claims: BTreeMap<SharedBreakerKey, (usize, Timestamp)>,
}

impl SharedStore {
    /// Stores a status, or returns the one that takes precedence.
    fn publish(&mut self, status: &BreakerStatus, now: Timestamp) -> Result<RemoteChange, RemoteChange> {
        let weak = matches!(status.state, SharedBreakerState::Open { .. })
            || (status.state == SharedBreakerState::Closed && status.reason == BreakerReason::ProbesSucceeded);
        if let Some((existing, version, _)) = self.statuses.get(&status.shared_key)
            && existing.state == SharedBreakerState::ForcedOpen
            && weak
        {
            return Err(RemoteChange { status: existing.clone(), version: *version });
        }
        self.version += 1;
        self.statuses.insert(status.shared_key.clone(), (status.clone(), self.version, now));
        Ok(RemoteChange { status: status.clone(), version: self.version })
    }

    /// Grants a claim, unless another process holds it.
    fn claim(&mut self, index: usize, claim: &ProbeClaim, now: Timestamp) -> ClaimResponse {
        match self.claims.get(&claim.shared_key) {
            Some((holder, until)) if *holder != index && *until > now => {
                ClaimResponse::HeldElsewhere { remaining: until.since(now) }
            }
            Some(_) | None => {
                self.claims.insert(claim.shared_key.clone(), (index, now + claim.duration));
                ClaimResponse::Granted
            }
        }
    }

    /// All statuses, with their remaining times.
    fn read(&self, now: Timestamp) -> Vec<RemoteChange> {
        let statuses = self.statuses.values();
        statuses
            .map(|(status, version, stored_at)| {
                let state = match status.state {
                    SharedBreakerState::Open { remaining } => {
                        SharedBreakerState::Open { remaining: remaining.saturating_sub(now.since(*stored_at)) }
                    }
                    SharedBreakerState::Closed | SharedBreakerState::ForcedOpen => status.state,
                };
                RemoteChange { status: BreakerStatus { state, ..status.clone() }, version: *version }
            })
            .collect()
    }
}

pub(super) struct World {
    pub(super) now: Timestamp,
    shared_store: SharedStore,
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
        Self { now: Timestamp::from_millis(1_000), shared_store: SharedStore::default(), all: all.collect() }
    }

    pub(super) fn run(&mut self, index: usize, call: &CallInfo, result: CallResult) {
        if let Ok(pass) = self.all[index].admit(call, self.now) {
            self.all[index].report(pass, result, Duration::ZERO, self.now);
        }
    }

    /// Sends all pending changes of a process; returns those that were accepted.
    fn publish(&mut self, index: usize) -> Vec<RemoteChange> {
        let mut sent = Vec::new();
        for change in self.all[index].pending_changes(self.now) {
            match self.shared_store.publish(&change.status, self.now) {
                Ok(remote) => {
                    self.all[index].on_sent(&change, remote.version);
                    if self
                        .shared_store
                        .claims
                        .get(&change.status.shared_key)
                        .is_some_and(|(holder, _)| *holder == index)
                    {
                        self.shared_store.claims.remove(&change.status.shared_key);
                    }
                    sent.push(remote);
                }
                Err(existing) => {
                    self.all[index].on_sent(&change, existing.version);
                    self.all[index].apply_remote(&existing, self.now);
                }
            }
        }
        sent
    }

    /// Requests all claims of a process; returns the number of granted ones.
    pub(super) fn claim(&mut self, index: usize) -> usize {
        let mut granted = 0;
        loop {
            let claims = self.all[index].probe_claims(self.now);
            if claims.is_empty() {
                return granted;
            }
            for claim in claims {
                let response = self.shared_store.claim(index, &claim, self.now);
                granted += usize::from(response == ClaimResponse::Granted);
                self.all[index].on_claim_response(&claim, response, self.now);
            }
        }
    }

    /// The processes that may probe a breaker now.
    pub(super) fn probing(&self, key: &BreakerKey) -> Vec<usize> {
        let may_probe = |breakers: &Breakers| {
            let breaker = breakers.table.get(key).filter(|breaker| breaker.state() == BreakerState::HalfOpen);
            breaker.is_some_and(|breaker| breaker.check(true, &breakers.table.config, self.now).is_ok())
        };
        (0..self.all.len()).filter(|index| may_probe(&self.all[*index])).collect()
    }

    fn read(&mut self, index: usize) -> Vec<BreakerEffect> {
        let changes = self.shared_store.read(self.now);
        changes.iter().flat_map(|changes| self.all[index].apply_remote(changes, self.now)).collect()
    }

    pub(super) fn settle(&mut self) {
        for _ in 0..2 {
            (0..self.all.len()).for_each(|index| drop(self.publish(index)));
            (0..self.all.len()).for_each(|index| drop(self.read(index)));
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

fn remote_change(key: BreakerKey, state: SharedBreakerState, reason: BreakerReason, version: u64) -> RemoteChange {
    RemoteChange { status: BreakerStatus { shared_key: whole(key), state, reason }, version }
}

const HOUR: SharedBreakerState = SharedBreakerState::Open { remaining: Duration::from_secs(3_600) };
const UNAUTHORIZED: CallResult = CallResult::Answered(ResponseClass::Unauthorized);

#[test]
fn ban_stops_other_processes_and_is_not_sent_again() {
    let mut world = World::new(&["a", "a"]);
    let ban = CallResult::Answered(ResponseClass::Blocked { retry_after: Some(Duration::from_secs(60)) });
    world.run(0, &call(READ, 7), ban);
    assert_eq!(world.publish(0).len(), 1);
    let effects = world.read(1);
    assert!(matches!(
        effects.as_slice(),
        [BreakerEffect::Transition {
            key: BreakerKey::Address,
            reason: BreakerReason::Blocked,
            origin: ChangeOrigin::Elsewhere,
            ..
        }]
    ));
    let refused = world.all[1].admit(&call(READ, 8), world.now).unwrap_err();
    assert_eq!((refused.reason, refused.until), ("blocked", Some(world.now + Duration::from_secs(60))));
    assert!(world.publish(1).is_empty());
    assert!(world.read(0).is_empty() && world.read(1).is_empty());
}

#[test]
fn failed_probe_extends_the_cooldown_everywhere() {
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
fn breaker_of_one_object_is_not_shared() {
    let mut world = World::new(&["a", "a"]);
    for _ in 0..5 {
        world.run(0, &call(READ, 7), CallResult::TimedOut);
    }
    let pair = BreakerKey::Pair(BOT, RouteKey::new(READ), TopLevelId::of(7));
    assert_eq!(world.states(&pair), ["open", "closed"]);
    assert!(world.publish(0).is_empty());
    assert!(world.all[0].open_breakers(world.now).is_empty());
    assert!(
        world.all[1]
            .apply_remote(&remote_change(pair.clone(), HOUR, BreakerReason::FailureRate, 1), world.now)
            .is_empty()
    );
    assert_eq!(world.states(&pair), ["open", "closed"]);
}

#[test]
fn invalid_token_stops_only_processes_that_have_it() {
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
fn invalid_token_without_fingerprint_is_not_shared() {
    let mut world = World::new(&["a", "a"]);
    world.all[0].token_changed(BOT, None, world.now);
    world.run(0, &call(READ, 7), UNAUTHORIZED);
    world.settle();
    assert_eq!(world.states(&discord()), ["forced_open", "closed"]);
}

#[test]
fn manual_force_and_reset_apply_everywhere() {
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
    world.publish(0);
    world.read(1);
    world.all[2].reset(&discord(), world.now);
    world.settle();
    assert_eq!(world.states(&discord()), ["closed"; 3]);
}

#[test]
fn manual_force_wins_over_a_concurrent_opening() {
    let mut world = World::new(&["a", "a"]);
    world.all[0].force(&discord(), world.now).unwrap();
    for (id, path) in [CREATE, READ, CREATE, READ, CREATE].iter().enumerate() {
        world.run(1, &call(path, id as u64), CallResult::TimedOut);
    }
    world.publish(0);
    world.publish(1);
    assert_eq!(world.states(&discord()), ["forced_open", "forced_open"]);
    world.wait(Duration::from_secs(600));
    world.settle();
    assert_eq!(world.states(&discord()), ["forced_open", "forced_open"]);
}

#[test]
fn invalid_token_survives_a_manual_force_and_reset() {
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
fn old_versions_change_nothing() {
    let mut world = World::new(&["a"]);
    let key = BreakerKey::Address;
    world.all[0].apply_remote(&remote_change(key.clone(), HOUR, BreakerReason::Blocked, 5), world.now);
    world.all[0]
        .apply_remote(&remote_change(key.clone(), SharedBreakerState::Closed, BreakerReason::Reset, 7), world.now);
    assert_eq!(world.states(&key), ["closed"]);
    for version in [5, 6] {
        assert!(
            world.all[0]
                .apply_remote(&remote_change(key.clone(), HOUR, BreakerReason::Blocked, version), world.now)
                .is_empty()
        );
    }
    assert_eq!(world.states(&key), ["closed"]);
}

#[test]
fn pending_change_wins_over_remote_changes() {
    let mut world = World::new(&["a"]);
    let key = BreakerKey::Address;
    world.all[0].force(&key, world.now).unwrap();
    assert!(
        world.all[0]
            .apply_remote(&remote_change(key.clone(), SharedBreakerState::Closed, BreakerReason::Reset, 7), world.now)
            .is_empty()
    );
    let turn = world.all[0].pending_changes(world.now).remove(0);
    // Another change, while the first is being sent.
    world.all[0].reset(&key, world.now);
    world.all[0].on_sent(&turn, 8);
    assert_eq!(world.all[0].pending_changes(world.now)[0].status.state, SharedBreakerState::Closed);
    let turn = world.all[0].pending_changes(world.now).remove(0);
    world.all[0].on_sent(&turn, 9);
    assert!(world.all[0].pending_changes(world.now).is_empty());
    assert!(world.all[0].apply_remote(&remote_change(key, HOUR, BreakerReason::Blocked, 8), world.now).is_empty());
}

#[test]
fn only_the_newest_unexpired_change_is_sent() {
    let mut world = World::new(&["a"]);
    for _ in 0..3 {
        world.all[0].force(&discord(), world.now).unwrap();
        world.all[0].reset(&discord(), world.now);
    }
    let sent: Vec<SharedBreakerState> =
        world.all[0].pending_changes(world.now).iter().map(|turn| turn.status.state).collect();
    // One for the bot, one for its token.
    assert_eq!(sent, [SharedBreakerState::Closed, SharedBreakerState::Closed]);
    for id in 0..5 {
        world.run(0, &call(READ, id), CallResult::TimedOut);
    }
    assert_eq!(world.all[0].pending_changes(world.now).len(), 3);
    world.wait(Duration::from_secs(31));
    assert_eq!(world.all[0].pending_changes(world.now).len(), 2);
}

#[test]
fn open_breakers_rebuild_a_lost_store() {
    let mut world = World::new(&["a", "a"]);
    world.run(0, &call(READ, 7), CallResult::Answered(ResponseClass::Blocked { retry_after: None }));
    world.all[0].force(&BreakerKey::Target("crm".to_owned()), world.now).unwrap();
    assert!(world.all[0].open_breakers(world.now).is_empty(), "it was not sent yet");
    world.settle();
    world.shared_store = SharedStore::default();
    let mut open = world.all[1].open_breakers(world.now);
    open.sort_by(|a, b| a.status.shared_key.cmp(&b.status.shared_key));
    let reported: Vec<(String, SharedBreakerState)> =
        open.iter().map(|open| (open.status.shared_key.key.to_string(), open.status.state)).collect();
    assert_eq!(reported, [("discord".to_owned(), HOUR), ("target:crm".to_owned(), SharedBreakerState::ForcedOpen)]);
    assert!(open.iter().all(|open| open.version > 0));
    world.all[1].on_closed_elsewhere(&open[1].status.shared_key, 9, world.now);
    assert_eq!(world.all[1].state(&open[1].status.shared_key.key), BreakerState::Closed);
}

#[test]
fn breakers_opened_before_sharing_are_sent() {
    let mut breakers = Breakers::new(BreakerConfig::default(), 1);
    breakers.force(&discord(), Timestamp::ZERO).unwrap();
    assert!(breakers.pending_changes(Timestamp::ZERO).is_empty());
    assert!(
        breakers
            .apply_remote(
                &remote_change(discord(), SharedBreakerState::Closed, BreakerReason::Reset, 1),
                Timestamp::ZERO
            )
            .is_empty()
    );
    breakers.share([], Timestamp::ZERO);
    assert_eq!(breakers.pending_changes(Timestamp::ZERO)[0].status.state, SharedBreakerState::ForcedOpen);
}

#[test]
fn remote_change_without_room_is_applied_later() {
    let mut breakers = Breakers::new(BreakerConfig { max_keys: 1, ..BreakerConfig::default() }, 1);
    breakers.share([], Timestamp::ZERO);
    let (one, other) = (BreakerKey::Target("one".to_owned()), BreakerKey::Target("other".to_owned()));
    breakers.force(&one, Timestamp::ZERO).unwrap();
    let change = remote_change(other.clone(), HOUR, BreakerReason::FailureRate, 1);
    assert!(breakers.apply_remote(&change, Timestamp::ZERO).is_empty());
    breakers.reset(&one, Timestamp::ZERO);
    assert_eq!(breakers.apply_remote(&change, Timestamp::ZERO).len(), 1);
    assert_eq!(breakers.state(&other).name(), "open");
}

#[test]
fn remote_changes_use_bounded_memory() {
    let mut breakers = Breakers::new(BreakerConfig { max_keys: 10, ..BreakerConfig::default() }, 1);
    breakers.share([], Timestamp::ZERO);
    for version in 1..=11_000_u64 {
        let key = BreakerKey::Target(format!("hook-{version}"));
        breakers.apply_remote(
            &remote_change(key, SharedBreakerState::Closed, BreakerReason::Reset, version),
            Timestamp::ZERO,
        );
    }
    assert!(breakers.shared.len() <= 10_000);
    assert!(breakers.len() <= 10);
}

#[derive(Clone, Debug)]
enum Action {
    Call {
        process: usize,
        route: usize,
        id: u64,
        result: CallResult,
    },
    Force {
        process: usize,
        key: usize,
    },
    Reset {
        process: usize,
        key: usize,
    },
    TokenChanged {
        process: usize,
        token: usize,
    },
    Publish {
        process: usize,
    },
    Read {
        process: usize,
    },
    /// A process receives any earlier change, perhaps an old one.
    Receive {
        process: usize,
        which: usize,
    },
    Claim {
        process: usize,
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
    let process = || 0..3_usize;
    let action = prop_oneof![
        30 => (process(), 0..2_usize, 0..3_u64, result)
            .prop_map(|(process, route, id, result)| Action::Call { process, route, id, result }),
        2 => (process(), 0..3_usize).prop_map(|(process, key)| Action::Force { process, key }),
        2 => (process(), 0..3_usize).prop_map(|(process, key)| Action::Reset { process, key }),
        1 => (process(), 0..2_usize).prop_map(|(process, token)| Action::TokenChanged { process, token }),
        12 => process().prop_map(|process| Action::Publish { process }),
        6 => process().prop_map(|process| Action::Read { process }),
        8 => (process(), any::<usize>()).prop_map(|(process, which)| Action::Receive { process, which }),
        10 => process().prop_map(|process| Action::Claim { process }),
        6 => (0..40_000_u64).prop_map(|millis| Action::Wait { millis }),
    ];
    prop::collection::vec(action, 1..250)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn processes_agree_after_sync_and_send_nothing_twice(actions in actions()) {
        let mut world = World::new(&["a", "a", "b"]);
        let mut tokens = [0, 0, 1];
        let mut published: Vec<RemoteChange> = Vec::new();
        for action in actions {
            match action {
                Action::Call { process, route, id, result } => world.run(process, &call(ROUTES[route], id), result),
                Action::Force { process, key: number } => drop(world.all[process].force(&key(number), world.now)),
                Action::Reset { process, key: number } => drop(world.all[process].reset(&key(number), world.now)),
                Action::TokenChanged { process, token } => {
                    tokens[process] = token;
                    world.all[process].token_changed(BOT, Some(TOKENS[token]), world.now);
                }
                Action::Publish { process } => published.extend(world.publish(process)),
                Action::Read { process } => {
                    let before = world.all[process].pending_changes(world.now);
                    world.read(process);
                    prop_assert_eq!(before, world.all[process].pending_changes(world.now), "a received change is sent again");
                }
                Action::Receive { process, which } => {
                    if !published.is_empty() {
                        let received = published[which % published.len()].clone();
                        world.all[process].apply_remote(&received, world.now);
                    }
                }
                Action::Claim { process } => drop(world.claim(process)),
                Action::Wait { millis } => world.wait(Duration::from_millis(millis)),
            }
            for number in 0..3 {
                let probing = world.probing(&key(number));
                prop_assert!(probing.len() <= 1, "{} is probed by {probing:?}", key(number));
            }
        }
        world.settle();
        let version = world.shared_store.version;
        world.settle();
        prop_assert_eq!(version, world.shared_store.version, "they continue to send changes");

        let stored: BTreeMap<SharedBreakerKey, SharedBreakerState> =
            world.shared_store.read(world.now).into_iter().map(|news| (news.status.shared_key, news.status.state)).collect();
        for number in 0..3 {
            let key = key(number);
            for (process, breakers) in world.all.iter().enumerate() {
                let state = breakers.state(&key);
                let token = (key == discord()).then(|| TOKENS[tokens[process]].to_owned());
                let is_forced_by_token = token.is_some_and(|token| {
                    stored.get(&SharedBreakerKey { key: key.clone(), token: Some(token) }) == Some(&SharedBreakerState::ForcedOpen)
                });
                let expected: &[&str] = match stored.get(&whole(key.clone())) {
                    _ if is_forced_by_token => &["forced_open"],
                    Some(SharedBreakerState::ForcedOpen) => &["forced_open"],
                    // A process that was late may have closed it, or may be probing.
                    Some(SharedBreakerState::Open { remaining }) if !remaining.is_zero() => &["open", "half_open"],
                    Some(SharedBreakerState::Open { .. }) => &["open", "half_open", "closed"],
                    Some(SharedBreakerState::Closed) => &["closed"],
                    // Opened and cooled down before it was sent.
                    None => &["half_open", "closed"],
                };
                prop_assert!(expected.contains(&state.name()), "{key} is {state:?} in {process}, expected {expected:?}");
            }
        }
    }
}
