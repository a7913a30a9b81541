//! Invariants of breakers, for any sequence of events.

use std::collections::HashMap;
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::invalid::Submitter;
use crate::lane::Lane;
use crate::response::{Credential, ResponseClass};
use crate::route::{RouteKey, TopLevelId};
use crate::time::Timestamp;

const ROUTES: [&str; 3] = ["GET /guilds/{id}/roles", "PUT /guilds/{id}/bans/{id}", "POST /guilds/{id}/roles"];

#[derive(Clone, Debug)]
enum Action {
    Admit {
        route: usize,
        id: u64,
        bot: u64,
    },
    /// Ends one of the outstanding permits, however old it is.
    Report {
        which: usize,
        result: CallResult,
        slow: bool,
    },
    Abandon {
        which: usize,
    },
    Wait {
        millis: u64,
    },
    Force {
        route: usize,
        id: u64,
        duration: Option<u64>,
    },
    Reset {
        route: usize,
        id: u64,
    },
    TokenChanged {
        bot: u64,
    },
    Adopt {
        route: Option<usize>,
        state: SharedBreakerState,
        version: u64,
    },
}

fn shared_states() -> impl Strategy<Value = SharedBreakerState> {
    prop_oneof![
        Just(SharedBreakerState::Closed),
        Just(SharedBreakerState::ForcedOpen),
        (0..40_u64).prop_map(|seconds| SharedBreakerState::Open { remaining: Duration::from_secs(seconds) }),
    ]
}

fn results() -> impl Strategy<Value = CallResult> {
    prop_oneof![
        6 => Just(CallResult::Answered(ResponseClass::ServerError)),
        3 => Just(CallResult::Answered(ResponseClass::Success)),
        2 => Just(CallResult::TimedOut),
        1 => Just(CallResult::Unreachable),
        1 => Just(CallResult::Answered(ResponseClass::NotFound)),
        1 => Just(CallResult::Answered(ResponseClass::Blocked { retry_after: Some(Duration::from_secs(20)) })),
        1 => Just(CallResult::Answered(ResponseClass::Unauthorized)),
    ]
}

fn actions() -> impl Strategy<Value = Vec<Action>> {
    let route = 0..ROUTES.len();
    let action = prop_oneof![
        20 => (route.clone(), 0..3_u64, 0..2_u64).prop_map(|(route, id, bot)| Action::Admit { route, id, bot }),
        20 => (any::<prop::sample::Index>(), results(), prop::bool::weighted(0.1)).prop_map(|(which, result, slow)| {
            Action::Report { which: which.index(usize::MAX), result, slow }
        }),
        2 => any::<prop::sample::Index>().prop_map(|which| Action::Abandon { which: which.index(usize::MAX) }),
        6 => (0..45_000_u64).prop_map(|millis| Action::Wait { millis }),
        1 => (route.clone(), 0..3_u64, prop::option::of(0..60_000_u64))
            .prop_map(|(route, id, duration)| Action::Force { route, id, duration }),
        1 => (route.clone(), 0..3_u64).prop_map(|(route, id)| Action::Reset { route, id }),
        1 => (0..2_u64).prop_map(|bot| Action::TokenChanged { bot }),
        2 => (prop::option::of(route), shared_states(), 0..50_u64)
            .prop_map(|(route, state, version)| Action::Adopt { route, state, version }),
    ];
    prop::collection::vec(action, 1..300)
}

fn info(route: usize, id: u64, bot: u64) -> CallInfo {
    CallInfo {
        credential: Credential::Application(bot),
        route: RouteKey::new(ROUTES[route]),
        major: TopLevelId::of(id),
        lane: Lane::Operation,
        guild: None,
        submitter: Submitter::default(),
        may_probe: !ROUTES[route].starts_with("POST"),
    }
}

/// State of an outside observer: each outstanding permit, and the last change of each breaker as the number of permits
/// before it.
#[derive(Default)]
struct Observer {
    passes: Vec<CallPermit>,
    changes: HashMap<BreakerKey, u64>,
    states: HashMap<BreakerKey, BreakerState>,
    handed_out: u64,
}

impl Observer {
    fn hand_out(&mut self, pass: CallPermit) {
        self.handed_out += 1;
        self.passes.push(pass);
    }

    fn observe(&mut self, effects: Vec<BreakerEffect>) -> Result<(), TestCaseError> {
        for effect in effects {
            match effect {
                BreakerEffect::Transition { key, from, to, .. } => {
                    let previous = self.states.insert(key.clone(), to).unwrap_or(BreakerState::Closed);
                    prop_assert_eq!(previous.name(), from.name(), "a change of {} was not reported", key);
                    self.changes.insert(key, self.handed_out);
                }
                BreakerEffect::SendProbe { key, permit: pass, .. } => {
                    prop_assert!(pass.is_probe(), "an own probe of {} is not a probe", key);
                    self.hand_out(pass);
                }
                BreakerEffect::ClaimProbe => {}
            }
        }
        Ok(())
    }

    /// Whether a permit is older than the last change of every breaker on its path.
    fn is_old_everywhere(&self, pass: &CallPermit) -> bool {
        pass.path.keys().iter().all(|key| self.changes.get(key).is_some_and(|change| pass.ticket <= *change))
    }

    fn probes_of(&self, breakers: &Breakers, key: &BreakerKey) -> usize {
        let outstanding = self.passes.iter().filter(|pass| {
            pass.path.keys().iter().enumerate().any(|(level, at)| at == key && pass.probes_at(level))
                && pass.ticket > *self.changes.get(key).unwrap_or(&0)
        });
        if breakers.state(key) == BreakerState::HalfOpen { outstanding.count() } else { 0 }
    }
}

fn states(breakers: &Breakers, now: Timestamp) -> Vec<(BreakerKey, &'static str, usize)> {
    breakers.snapshot(now).breakers.into_iter().map(|breaker| (breaker.key, breaker.state, breaker.probes)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn invariants_hold_in_any_order_of_events(actions in actions(), seed: u64) {
        let config = BreakerConfig { max_keys: 8, ..BreakerConfig::default() };
        let mut breakers = Breakers::new(config, seed);
        breakers.share([], Timestamp::ZERO);
        let mut observer = Observer::default();
        let mut now = Timestamp::ZERO;
        for action in actions {
            match action {
                Action::Admit { route, id, bot } => {
                    let call = info(route, id, bot);
                    let before = states(&breakers, now);
                    match breakers.admit(&call, now) {
                        Ok(pass) => {
                            prop_assert!(call.may_probe || !pass.is_probe(), "a create is a probe");
                            for key in pass.path.keys() {
                                let state = breakers.state(&key);
                                prop_assert!(matches!(state, BreakerState::Closed | BreakerState::HalfOpen), "{key} is {state:?}");
                            }
                            observer.hand_out(pass);
                        }
                        Err(refused) => {
                            prop_assert_eq!(before, states(&breakers, now), "a rejection changed something");
                            prop_assert!(refused.until.is_none_or(|until| until >= now));
                        }
                    }
                }
                Action::Report { which, result, slow } => {
                    if !observer.passes.is_empty() {
                        let permit = observer.passes.swap_remove(which % observer.passes.len());
                        let old = observer.is_old_everywhere(&permit);
                        let before = states(&breakers, now);
                        let took = if slow { Duration::from_secs(6) } else { Duration::from_millis(50) };
                        let reported = breakers.report(permit, result, took, now);
                        if old {
                            prop_assert_eq!(before, states(&breakers, now), "an obsolete result changed something");
                            prop_assert!(reported.effects.is_empty());
                        }
                        observer.observe(reported.effects)?;
                    }
                }
                Action::Abandon { which } => {
                    if !observer.passes.is_empty() {
                        let permit = observer.passes.swap_remove(which % observer.passes.len());
                        let before: Vec<_> = breakers.snapshot(now).breakers;
                        breakers.abandon(permit, now);
                        for shown in before {
                            prop_assert_eq!(shown.state, breakers.state(&shown.key).name());
                        }
                    }
                }
                Action::Wait { millis } => {
                    let end = now + Duration::from_millis(millis);
                    while let Some(wake) = breakers.next_wake().filter(|wake| *wake <= end) {
                        now = now.max(wake);
                        observer.observe(breakers.on_time(now))?;
                        prop_assert!(breakers.next_wake().is_none_or(|next| next > now), "it would wake forever");
                    }
                    now = end;
                }
                Action::Force { route, id, duration } => {
                    let key = BreakerKey::Pair(Credential::Application(0), RouteKey::new(ROUTES[route]), TopLevelId::of(id));
                    let duration = duration.map(Duration::from_millis);
                    let may = breakers.may_force(&key, duration).is_ok();
                    let forced = match duration {
                        Some(duration) => breakers.force_for(&key, duration, now).ok(),
                        None => breakers.force(&key, now).ok(),
                    };
                    prop_assert_eq!(forced.is_some(), may, "it contradicts may_force");
                    observer.observe(forced.unwrap_or_default())?;
                }
                Action::Reset { route, id } => {
                    let key = BreakerKey::Pair(Credential::Application(0), RouteKey::new(ROUTES[route]), TopLevelId::of(id));
                    observer.observe(breakers.reset(&key, now))?;
                }
                Action::TokenChanged { bot } => {
                    observer.observe(breakers.token_changed(Credential::Application(bot), None, now))?;
                }
                Action::Adopt { route, state, version } => {
                    let bot = Credential::Application(0);
                    let key = route.map_or(BreakerKey::Discord(bot), |route| {
                        BreakerKey::Route(bot, RouteKey::new(ROUTES[route]))
                    });
                    let status = BreakerStatus { shared_key: SharedBreakerKey { key, token: None }, state, reason: BreakerReason::FailureRate };
                    let pending = breakers.pending_changes(now);
                    observer.observe(breakers.apply_remote(&RemoteChange { status, version }, now))?;
                    prop_assert_eq!(pending, breakers.pending_changes(now), "a received change is shared again");
                }
            }
            for claim in breakers.probe_claims(now) {
                let elsewhere = ClaimResponse::HeldElsewhere { remaining: Duration::from_secs(1) };
                let answer = if observer.handed_out.is_multiple_of(2) { ClaimResponse::Granted } else { elsewhere };
                breakers.on_claim_response(&claim, answer, now);
            }
            for shown in breakers.snapshot(now).breakers {
                prop_assert!(shown.probes <= 3, "{} has {} probes", shown.key, shown.probes);
                prop_assert!(observer.probes_of(&breakers, &shown.key) <= 3);
            }
            // The address, two bots, and the maximum number of keys.
            prop_assert!(breakers.len() <= 3 + 8);
        }
    }

    #[test]
    fn open_breaker_finally_probes_and_closes(actions in actions(), seed: u64) {
        let mut breakers = Breakers::new(BreakerConfig::default(), seed);
        let mut passes = Vec::new();
        let mut now = Timestamp::ZERO;
        for action in actions {
            match action {
                Action::Admit { route, id, bot } => passes.extend(breakers.admit(&info(route, id, bot), now)),
                Action::Report { which, result, .. } if !passes.is_empty() => {
                    // An invalid token never recovers by itself.
                    if result != CallResult::Answered(ResponseClass::Unauthorized) {
                        let permit = passes.swap_remove(which % passes.len());
                        let _ = breakers.report(permit, result, Duration::ZERO, now);
                    }
                }
                Action::Wait { millis } => {
                    now = now + Duration::from_millis(millis);
                    let _ = breakers.on_time(now);
                }
                Action::Report { .. }
                | Action::Abandon { .. }
                | Action::Force { .. }
                | Action::Reset { .. }
                | Action::TokenChanged { .. }
                | Action::Adopt { .. } => {}
            }
        }
        // From here on Discord works, and there are no calls: only the breakers' own probes are sent.
        let end = now + Duration::from_secs(3_600);
        while let Some(wake) = breakers.next_wake().filter(|wake| *wake <= end) {
            now = now.max(wake);
            for effect in breakers.on_time(now) {
                if let BreakerEffect::SendProbe { permit, .. } = effect {
                    let _ = breakers.report(permit, CallResult::Answered(ResponseClass::Success), Duration::ZERO, now);
                }
            }
        }
        for shown in breakers.snapshot(now).breakers {
            prop_assert_eq!(shown.state, "closed", "{} is still {}", shown.key, shown.state);
        }
    }
}
