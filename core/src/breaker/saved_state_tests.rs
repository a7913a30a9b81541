//! Compares breakers with others that were restored from their saved state.

use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::invalid::Submitter;
use crate::lane::Lane;
use crate::response::{Credential, ResponseClass};
use crate::route::{RouteKey, TopLevelId};
use crate::snapshot::SnapshotAge;
use crate::time::{Timestamp, UnixMs};

const BOT: Credential = Credential::Application(7);

const ROUTES: [&str; 3] = ["GET /guilds/{id}/roles", "PUT /guilds/{id}/bans/{id}", "POST /guilds/{id}/roles"];

fn at(ms: u64) -> Timestamp {
    Timestamp::from_millis(ms)
}

fn breakers(seed: u64) -> Breakers {
    Breakers::new(BreakerConfig::default(), seed)
}

fn call(route: usize, id: u64) -> CallInfo {
    CallInfo {
        credential: BOT,
        route: RouteKey::new(ROUTES[route]),
        major: TopLevelId::of(id),
        lane: Lane::Operation,
        guild: None,
        submitter: Submitter::default(),
        may_probe: route != 2,
    }
}

fn answer(breakers: &mut Breakers, class: ResponseClass, now: Timestamp) {
    let pass = breakers.admit(&call(0, 1), now).unwrap();
    let _ = breakers.report(pass, CallResult::Answered(class), Duration::ZERO, now);
}

fn save_and_parse(breakers: &Breakers, now: Timestamp) -> SavedBreakers {
    serde_json::from_str(&serde_json::to_string(&breakers.save(now)).unwrap()).unwrap()
}

/// Breakers that start at `now`, `after_ms` after others were saved, with a token of this fingerprint.
fn restarted(saved: &SavedBreakers, token: &str, after_ms: u64, now: Timestamp) -> Breakers {
    let mut breakers = breakers(9);
    let age = SnapshotAge::of(UnixMs::new(5_000), UnixMs::new(5_000 + after_ms));
    let effects = breakers.restore(saved, [(BOT, token)], age, now);
    assert!(
        effects.iter().all(|effect| matches!(effect, BreakerEffect::Transition { origin: ChangeOrigin::Before, .. }))
    );
    breakers
}

/// Advances time. Own probes are abandoned, because there is no sender.
fn wait(breakers: &mut Breakers, until: Timestamp) {
    while let Some(wake) = breakers.next_wake().filter(|wake| *wake <= until) {
        for effect in breakers.on_time(wake) {
            if let BreakerEffect::SendProbe { permit: pass, .. } = effect {
                breakers.abandon(pass, wake);
            }
        }
    }
}

fn admits(breakers: &mut Breakers, call: &CallInfo, now: Timestamp) -> bool {
    match breakers.admit(call, now) {
        Ok(pass) => {
            breakers.abandon(pass, now);
            true
        }
        Err(_) => false,
    }
}

/// Breakers that know their token.
fn with_token(token: &str) -> Breakers {
    restarted(&SavedBreakers::default(), token, 0, at(0))
}

#[test]
fn ban_survives_a_restart_and_is_probed_afterwards() {
    let mut before = breakers(1);
    answer(&mut before, ResponseClass::Blocked { retry_after: Some(Duration::from_secs(3_600)) }, at(0));
    let mut after = restarted(&save_and_parse(&before, at(0)), "t", 600_000, at(0));
    let refused = after.admit(&call(2, 1), at(0)).unwrap_err();
    assert_eq!((refused.until, refused.reason), (Some(at(3_000_000)), "blocked"));
    wait(&mut after, at(2_999_999));
    let effects = after.on_time(at(3_000_000));
    assert!(matches!(effects[..], [BreakerEffect::Transition { to: BreakerState::HalfOpen, .. }]), "{effects:?}");
    let effects = after.on_time(at(3_001_000));
    let [BreakerEffect::SendProbe { .. }] = effects[..] else {
        panic!("no credential is known for a probe: {effects:?}")
    };
    assert_eq!(after.state(&BreakerKey::Address), BreakerState::HalfOpen);
    assert!(!admits(&mut after, &call(2, 1), at(3_000_000)), "a create does not probe");
    assert!(admits(&mut after, &call(0, 1), at(3_000_000)));
}

#[test]
fn invalid_token_stays_invalid_and_a_new_one_works() {
    let mut before = with_token("wrong");
    answer(&mut before, ResponseClass::Unauthorized, at(0));
    let saved = save_and_parse(&before, at(0));
    assert!(!admits(&mut restarted(&saved, "wrong", 90_000_000, at(0)), &call(0, 1), at(0)));
    let mut renewed = restarted(&saved, "new", 0, at(0));
    assert!(admits(&mut renewed, &call(2, 1), at(0)));
    assert!(renewed.save(at(0)).is_empty());
}

#[test]
fn forced_open_breaker_stays_until_reset() {
    let mut before = breakers(1);
    before.force(&BreakerKey::Discord(BOT), at(0)).unwrap();
    let mut after = restarted(&save_and_parse(&before, at(0)), "t", 90_000_000, at(0));
    assert!(!admits(&mut after, &call(0, 1), at(0)));
    after.reset(&BreakerKey::Discord(BOT), at(1));
    assert!(after.save(at(1)).is_empty());
}

#[test]
fn old_cooldown_is_not_restored() {
    let mut before = breakers(1);
    answer(&mut before, ResponseClass::Blocked { retry_after: Some(Duration::from_secs(60)) }, at(0));
    let saved = save_and_parse(&before, at(0));
    assert!(!admits(&mut restarted(&saved, "t", 359_999, at(0)), &call(2, 1), at(0)), "it must be probed first");
    assert!(admits(&mut restarted(&saved, "t", 360_000, at(0)), &call(2, 1), at(0)));
}

#[test]
fn restored_time_is_limited() {
    let mut before = breakers(1);
    answer(&mut before, ResponseClass::Blocked { retry_after: Some(Duration::from_secs(86_400 * 365)) }, at(0));
    let saved = save_and_parse(&before, at(0));
    let mut after = restarted(&saved, "t", 0, at(0));
    assert_eq!(after.admit(&call(0, 1), at(0)).unwrap_err().until, Some(at(7 * 86_400_000)));
    // Saved in the future: the clock was set back by an unknown amount.
    let mut breakers = breakers(2);
    breakers.restore(&saved, [], SnapshotAge::of(UnixMs::new(1_000_000_000_000), UnixMs::new(0)), at(0));
    assert_eq!(breakers.admit(&call(0, 1), at(0)).unwrap_err().until, Some(at(7 * 86_400_000)));
}

#[test]
fn restored_state_is_not_sent_and_remote_state_wins() {
    let mut before = breakers(1);
    before.force(&BreakerKey::Discord(BOT), at(0)).unwrap();
    answer_banned(&mut before);
    let saved = save_and_parse(&before, at(0));
    for recall_first in [true, false] {
        let mut after = breakers(2);
        let recall = |after: &mut Breakers| {
            let _ = after.restore(&saved, [(BOT, "t")], SnapshotAge::of(UnixMs::new(0), UnixMs::new(0)), at(0));
        };
        if recall_first {
            recall(&mut after);
        }
        after.share([(BOT, "t")], at(0));
        if !recall_first {
            recall(&mut after);
        }
        assert_eq!(after.pending_changes(at(0)), [], "the others have newer information");
        assert_eq!(after.open_breakers(at(0)).len(), 2, "but if they have lost it, it can be rebuilt");
        let shared_key = SharedBreakerKey { key: BreakerKey::Discord(BOT), token: None };
        let status = BreakerStatus { shared_key, state: SharedBreakerState::Closed, reason: BreakerReason::Reset };
        after.apply_remote(&RemoteChange { status, version: 1 }, at(0));
        assert_eq!(after.state(&BreakerKey::Discord(BOT)), BreakerState::Closed);
    }
}

/// The address is banned while a call is in flight.
fn answer_banned(breakers: &mut Breakers) {
    breakers.reset(&BreakerKey::Discord(BOT), at(0));
    answer(breakers, ResponseClass::Blocked { retry_after: None }, at(0));
    breakers.force(&BreakerKey::Discord(BOT), at(0)).unwrap();
}

#[derive(Clone, Copy, Debug)]
enum Action {
    Call(usize, u64, CallResult, bool),
    Wait(u64),
    Force(usize, u64),
}

fn actions() -> impl Strategy<Value = Vec<Action>> {
    let results = prop_oneof![
        8 => Just(CallResult::Answered(ResponseClass::ServerError)),
        3 => Just(CallResult::Answered(ResponseClass::Success)),
        2 => Just(CallResult::TimedOut),
        1 => Just(CallResult::Answered(ResponseClass::Blocked { retry_after: Some(Duration::from_secs(90)) })),
        1 => Just(CallResult::Answered(ResponseClass::Unauthorized)),
    ];
    let action = prop_oneof![
        30 => (0..ROUTES.len(), 0..3_u64, results, prop::bool::weighted(0.1))
            .prop_map(|(route, id, result, slow)| Action::Call(route, id, result, slow)),
        4 => (0..45_000_u64).prop_map(Action::Wait),
        1 => (0..ROUTES.len(), 0..3_u64).prop_map(|(route, id)| Action::Force(route, id)),
    ];
    prop::collection::vec(action, 1..150)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases / 2, ..ProptestConfig::default() })]

    #[test]
    fn rejections_are_the_same_after_a_restart(actions in actions()) {
        let mut before = with_token("t");
        let mut now = 0;
        for action in actions {
            match action {
                Action::Wait(ms) => {
                    now += ms;
                    wait(&mut before, at(now));
                }
                Action::Force(route, id) => {
                    let key = BreakerKey::Pair(BOT, RouteKey::new(ROUTES[route]), TopLevelId::of(id));
                    before.force(&key, at(now)).unwrap();
                }
                Action::Call(route, id, result, slow) => {
                    if let Ok(pass) = before.admit(&call(route, id), at(now)) {
                        let took = if slow { Duration::from_secs(9) } else { Duration::ZERO };
                        let _ = before.report(pass, result, took, at(now));
                    }
                }
            }
        }
        let saved = save_and_parse(&before, at(now));
        let mut after = restarted(&saved, "t", 0, at(now));
        for step in 0..45 {
            let then = at(now + step * 10_000);
            wait(&mut before, then);
            wait(&mut after, then);
            for route in 0..ROUTES.len() {
                for id in 0..3 {
                    let admitted = admits(&mut after, &call(route, id), then);
                    prop_assert_eq!(admitted, admits(&mut before, &call(route, id), then), "{} {} {:?}", route, id, saved);
                }
            }
        }
    }
}
