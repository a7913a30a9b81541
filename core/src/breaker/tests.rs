//! Tests of breakers, one behaviour at a time.

use std::time::Duration;

use super::*;
use crate::invalid::Submitter;
use crate::lane::Lane;
use crate::response::{Credential, RateLimitScope, ResponseClass};
use crate::route::{RouteKey, TopLevelId};
use crate::time::Timestamp;

const BOT: Credential = Credential::Application(42);
const OTHER_BOT: Credential = Credential::Application(43);
const QUICK: Duration = Duration::from_millis(80);
const SERVER_ERROR: CallResult = CallResult::Answered(ResponseClass::ServerError);
const SUCCESS: CallResult = CallResult::Answered(ResponseClass::Success);
const CREATE: &str = "POST /guilds/{id}/roles";
const READ: &str = "GET /guilds/{id}/roles";

/// Breakers with a clock.
struct World {
    breakers: Breakers,
    now: Timestamp,
    effects: Vec<BreakerEffect>,
}

impl World {
    fn new() -> Self {
        Self::with(BreakerConfig { jitter_percent: 0, ..BreakerConfig::default() })
    }

    fn with(config: BreakerConfig) -> Self {
        Self { breakers: Breakers::new(config, 1), now: Timestamp::from_millis(1_000), effects: Vec::new() }
    }

    fn wait(&mut self, time: Duration) {
        let end = self.now + time;
        while let Some(wake) = self.breakers.next_wake().filter(|wake| *wake <= end) {
            self.now = self.now.max(wake);
            self.effects.extend(self.breakers.on_time(self.now));
        }
        self.now = end;
    }

    fn wait_secs(&mut self, seconds: u64) {
        self.wait(Duration::from_secs(seconds));
    }

    fn admit(&mut self, call: &CallInfo) -> Result<CallPermit, CallRejection> {
        self.breakers.admit(call, self.now)
    }

    fn report(&mut self, pass: CallPermit, result: CallResult) -> Attempt {
        let reported = self.breakers.report(pass, result, QUICK, self.now);
        self.effects.extend(reported.effects);
        reported.attempt
    }

    fn run(&mut self, call: &CallInfo, result: CallResult) -> Attempt {
        let pass = self.admit(call).unwrap();
        self.report(pass, result)
    }

    fn state(&self, key: &BreakerKey) -> &'static str {
        self.breakers.state(key).name()
    }

    fn reason(&mut self, call: &CallInfo) -> &'static str {
        self.admit(call).unwrap_err().reason
    }

    /// The breaker's own probes since the last call.
    fn own_probes(&mut self) -> Vec<(BreakerKey, CallPermit)> {
        let effects = std::mem::take(&mut self.effects);
        effects
            .into_iter()
            .filter_map(|effect| match effect {
                BreakerEffect::SendProbe { key, permit: pass, .. } => Some((key, pass)),
                BreakerEffect::Transition { .. } | BreakerEffect::ClaimProbe => None,
            })
            .collect()
    }
}

fn call(route: &str, id: u64) -> CallInfo {
    CallInfo {
        credential: BOT,
        route: RouteKey::new(route),
        major: TopLevelId::of(id),
        lane: Lane::Operation,
        guild: Some(id),
        submitter: Submitter::default(),
        may_probe: !route.starts_with("POST"),
    }
}

fn pair(route: &str, id: u64) -> BreakerKey {
    BreakerKey::Pair(BOT, RouteKey::new(route), TopLevelId::of(id))
}

fn route(route: &str) -> BreakerKey {
    BreakerKey::Route(BOT, RouteKey::new(route))
}

fn discord() -> BreakerKey {
    BreakerKey::Discord(BOT)
}

#[test]
fn failures_of_one_object_open_that_object_alone() {
    let mut world = World::new();
    for _ in 0..5 {
        world.run(&call(READ, 7), SERVER_ERROR);
    }
    assert_eq!(world.state(&pair(READ, 7)), "open");
    assert_eq!(world.state(&route(READ)), "closed");
    assert_eq!(world.state(&discord()), "closed");
    assert_eq!(world.reason(&call(READ, 7)), "breaker_open");
    world.run(&call(READ, 8), SUCCESS);
}

#[test]
fn a_broken_object_and_one_failure_elsewhere_open_nothing_more() {
    let mut world = World::new();
    for _ in 0..5 {
        world.run(&call(READ, 7), SERVER_ERROR);
    }
    world.run(&call(READ, 8), SERVER_ERROR);
    world.run(&call("GET /channels/{id}", 9), SERVER_ERROR);
    assert_eq!(world.state(&route(READ)), "closed");
    assert_eq!(world.state(&discord()), "closed");
}

#[test]
fn failures_over_several_objects_open_the_route_and_not_discord() {
    let mut world = World::new();
    for id in 0..5 {
        world.run(&call(CREATE, id), SERVER_ERROR);
    }
    assert_eq!(world.state(&route(CREATE)), "open");
    assert_eq!(world.state(&discord()), "closed");
    assert_eq!(world.reason(&call(CREATE, 99)), "breaker_open");
    for _ in 0..50 {
        world.run(&call(READ, 1), SUCCESS);
    }
}

#[test]
fn failures_over_several_routes_open_discord_for_that_bot() {
    let mut world = World::new();
    for (id, path) in [CREATE, READ, "GET /channels/{id}", READ, CREATE].iter().enumerate() {
        world.run(&call(path, id as u64), CallResult::TimedOut);
    }
    assert_eq!(world.state(&discord()), "open");
    assert_eq!(world.reason(&call("GET /users/@me", 0)), "breaker_open");
    let other = CallInfo { credential: OTHER_BOT, ..call(READ, 1) };
    world.run(&other, SUCCESS);
}

#[test]
fn routes_that_fail_one_after_another_open_discord_too() {
    let mut world = World::new();
    for _ in 0..5 {
        world.run(&call(READ, 7), CallResult::Unreachable);
    }
    for _ in 0..4 {
        world.run(&call(CREATE, 7), CallResult::Unreachable);
    }
    assert_eq!(world.state(&discord()), "open");
}

#[test]
fn caller_errors_never_open_a_breaker() {
    let mut world = World::new();
    let results = [
        ResponseClass::Rejected,
        ResponseClass::Forbidden,
        ResponseClass::NotFound,
        ResponseClass::RateLimited { scope: RateLimitScope::User, retry_after: QUICK },
        ResponseClass::InteractionEnded,
    ];
    for (id, class) in (0..500_u64).zip(results.into_iter().cycle()) {
        world.run(&call(READ, id), CallResult::Answered(class));
    }
    // Only the address and the bot: without failures there is no breaker.
    assert_eq!(world.breakers.len(), 2);
    assert!(world.effects.is_empty());
}

#[test]
fn slow_calls_open_it_although_they_succeed() {
    let mut world = World::new();
    let slow = Duration::from_secs(6);
    for _ in 0..20 {
        let pass = world.admit(&call(READ, 7)).unwrap();
        world.effects.extend(world.breakers.report(pass, SUCCESS, slow, world.now).effects);
    }
    assert!(matches!(world.effects[0], BreakerEffect::Transition { reason: BreakerReason::SlowRate, .. }));
    assert_eq!(world.state(&pair(READ, 7)), "open");
}

#[test]
fn three_successful_probes_close_it() {
    let mut world = World::new();
    for _ in 0..5 {
        world.run(&call(READ, 7), SERVER_ERROR);
    }
    world.wait_secs(30);
    assert_eq!(world.state(&pair(READ, 7)), "half_open");
    let probes: Vec<CallPermit> = (0..3).map(|_| world.admit(&call(READ, 7)).unwrap()).collect();
    assert!(probes.iter().all(CallPermit::is_probe));
    assert_eq!(world.reason(&call(READ, 7)), "breaker_half_open");
    for probe in probes {
        assert_eq!(world.reason(&call(READ, 7)), "breaker_half_open");
        world.report(probe, SUCCESS);
    }
    assert_eq!(world.state(&pair(READ, 7)), "closed");
    assert!(!world.admit(&call(READ, 7)).unwrap().is_probe());
}

#[test]
fn failed_probe_doubles_the_cooldown_and_uses_no_attempt() {
    let mut world = World::new();
    for _ in 0..5 {
        world.run(&call(READ, 7), SERVER_ERROR);
    }
    for cooldown in [30, 60, 120, 240, 300, 300] {
        let until = world.admit(&call(READ, 7)).unwrap_err().until.unwrap();
        assert_eq!(until.since(world.now), Duration::from_secs(cooldown));
        world.wait_secs(cooldown);
        assert_eq!(world.run(&call(READ, 7), SERVER_ERROR), Attempt::Free);
    }
}

#[test]
fn after_a_calm_time_it_starts_from_the_first_cooldown() {
    let mut world = World::new();
    let open = |world: &mut World| {
        for _ in 0..5 {
            world.run(&call(READ, 7), SERVER_ERROR);
        }
        let until = world.admit(&call(READ, 7)).unwrap_err().until.unwrap();
        let cooldown = until.since(world.now);
        world.wait(cooldown);
        for _ in 0..3 {
            world.run(&call(READ, 7), SUCCESS);
        }
        cooldown.as_secs()
    };
    assert_eq!(open(&mut world), 30);
    world.wait_secs(10);
    assert_eq!(open(&mut world), 60);
    world.wait_secs(301);
    assert_eq!(open(&mut world), 30);
}

#[test]
fn a_create_never_probes_and_the_breaker_sends_one_itself() {
    let mut world = World::new();
    for _ in 0..5 {
        world.run(&call(CREATE, 7), SERVER_ERROR);
    }
    world.wait_secs(30);
    assert_eq!(world.reason(&call(CREATE, 7)), "breaker_half_open");
    assert!(world.own_probes().is_empty());
    for _ in 0..3 {
        world.wait_secs(1);
        let mut probes = world.own_probes();
        let (key, pass) = probes.pop().unwrap();
        assert!(probes.is_empty());
        assert_eq!(key, pair(CREATE, 7));
        world.report(pass, SUCCESS);
    }
    assert_eq!(world.state(&pair(CREATE, 7)), "closed");
    world.run(&call(CREATE, 7), SUCCESS);
}

#[test]
fn abandoned_probe_frees_its_slot() {
    let mut world = World::new();
    for _ in 0..5 {
        world.run(&call(READ, 7), SERVER_ERROR);
    }
    world.wait_secs(30);
    for _ in 0..10 {
        let pass = world.admit(&call(READ, 7)).unwrap();
        world.breakers.abandon(pass, world.now);
    }
    assert_eq!(world.state(&pair(READ, 7)), "half_open");
}

#[test]
fn a_lost_probe_counts_as_failed() {
    let mut world = World::new();
    for _ in 0..5 {
        world.run(&call(READ, 7), SERVER_ERROR);
    }
    world.wait_secs(30);
    let lost = world.admit(&call(READ, 7)).unwrap();
    for _ in 0..14 {
        world.wait_secs(1);
        for (_, own) in world.own_probes() {
            world.breakers.abandon(own, world.now);
        }
    }
    assert_eq!(world.state(&pair(READ, 7)), "half_open");
    world.wait_secs(1);
    assert_eq!(world.state(&pair(READ, 7)), "open");
    // Its late success belongs to an older generation.
    world.wait_secs(60);
    for _ in 0..2 {
        world.run(&call(READ, 7), SUCCESS);
    }
    world.report(lost, SUCCESS);
    assert_eq!(world.state(&pair(READ, 7)), "half_open");
}

#[test]
fn the_call_that_opens_it_uses_no_attempt_and_those_before_it_do() {
    let mut world = World::new();
    let late = world.admit(&call(READ, 7)).unwrap();
    let attempts: Vec<Attempt> = (0..5).map(|_| world.run(&call(READ, 7), SERVER_ERROR)).collect();
    assert_eq!(attempts, [Attempt::Used, Attempt::Used, Attempt::Used, Attempt::Used, Attempt::Free]);
    assert_eq!(world.report(late, SERVER_ERROR), Attempt::Free);
}

#[test]
fn invalid_token_stops_the_bot_until_it_changes() {
    let mut world = World::new();
    let late = world.admit(&call(READ, 7)).unwrap();
    world.run(&call(READ, 7), CallResult::Answered(ResponseClass::Unauthorized));
    let refused = world.admit(&call(READ, 8)).unwrap_err();
    assert_eq!((refused.reason, refused.until), ("unauthorized", None));
    world.run(&CallInfo { credential: OTHER_BOT, ..call(READ, 7) }, SUCCESS);
    world.wait_secs(86_400);
    assert!(world.own_probes().is_empty());
    assert_eq!(world.state(&discord()), "forced_open");

    world.breakers.token_changed(BOT, None, world.now);
    assert_eq!(world.state(&discord()), "closed");
    // Responses to the old token show nothing about the new one.
    world.report(late, CallResult::Answered(ResponseClass::Unauthorized));
    assert_eq!(world.state(&discord()), "closed");
}

#[test]
fn new_token_is_not_affected_by_late_responses() {
    let mut world = World::new();
    let late = world.admit(&call(READ, 7)).unwrap();
    world.breakers.token_changed(BOT, None, world.now);
    world.report(late, CallResult::Answered(ResponseClass::Unauthorized));
    assert_eq!(world.state(&discord()), "closed");
}

#[test]
fn unauthorized_webhook_stops_only_itself() {
    let mut world = World::new();
    let webhook = |token: &str| CallInfo {
        credential: Credential::Anonymous,
        major: TopLevelId::with_token(7, token),
        ..call("POST /webhooks/{id}/{token}", 0)
    };
    world.run(&webhook("gone"), CallResult::Answered(ResponseClass::Unauthorized));
    assert_eq!(world.reason(&webhook("gone")), "interaction_ended");
    world.run(&webhook("alive"), SUCCESS);
}

#[test]
fn expired_interaction_is_rejected_for_its_lifetime() {
    let mut world = World::new();
    let followup =
        |token: &str| CallInfo { major: TopLevelId::with_token(42, token), ..call("POST /webhooks/{id}/{token}", 0) };
    world.run(&followup("gone"), CallResult::Answered(ResponseClass::InteractionEnded));
    let refused = world.admit(&followup("gone")).unwrap_err();
    assert_eq!((refused.reason, refused.until), ("interaction_ended", None));
    world.run(&followup("alive"), SUCCESS);
    world.wait_secs(900);
    world.run(&followup("gone"), SUCCESS);
    assert!(world.effects.is_empty());
}

#[test]
fn deleted_webhook_is_rejected_until_its_end_or_until_it_is_cleared() {
    const EXECUTE: &str = "POST /webhooks/{id}/{token}";
    let mut world = World::new();
    let webhook = |token: &str| CallInfo { major: TopLevelId::with_token(42, token), ..call(EXECUTE, 0) };
    let gone = CallResult::Answered(ResponseClass::WebhookGone);
    let now = world.now;
    world.run(&webhook("gone"), gone);
    let refused = world.admit(&webhook("gone")).unwrap_err();
    assert_eq!((refused.reason, refused.until), ("webhook_gone", Some(now + Duration::from_secs(3_600))));
    // Without a token in the path, the id is that of any object.
    world.run(&call("GET /webhooks/{id}", 42), gone);
    world.run(&call("GET /channels/{id}", 42), SUCCESS);
    world.run(&webhook("another"), gone);
    assert_eq!(world.breakers.snapshot(world.now).gone_webhooks, 2);
    assert_eq!((world.breakers.clear_webhook(42), world.breakers.clear_webhook(42)), (2, 0));
    world.run(&webhook("gone"), gone);
    world.wait_secs(3_600);
    world.run(&webhook("gone"), SUCCESS);
    assert!(world.effects.is_empty());
}

#[test]
fn refused_token_of_a_caller_stops_only_its_calls_and_heals() {
    let mut world = World::new();
    let with =
        |token: u64| CallInfo { credential: Credential::Token(token), ..call("POST /channels/{id}/messages", 1) };
    let unauthorized = CallResult::Answered(ResponseClass::Unauthorized);
    world.run(&with(1), unauthorized);
    let refused = world.admit(&with(1)).unwrap_err();
    assert_eq!((refused.reason, refused.until), ("unauthorized", Some(world.now + Duration::from_secs(600))));
    world.run(&with(2), SUCCESS);
    world.run(&call(READ, 7), SUCCESS);
    world.wait_secs(600);
    // A probe that was not sent leaves its place to the next call.
    let unsent = world.admit(&with(1)).unwrap();
    assert_eq!(world.reason(&with(1)), "unauthorized");
    world.breakers.abandon(unsent, world.now);
    world.run(&with(1), unauthorized);
    assert_eq!(world.reason(&with(1)), "unauthorized");
    world.wait_secs(600);
    world.run(&with(1), SUCCESS);
    world.run(&with(1), SUCCESS);
    assert_eq!(world.breakers.snapshot(world.now).refused_tokens, 0);
    assert!(world.effects.is_empty(), "no breaker was forced open: {:?}", world.effects);
}

#[test]
fn breaker_of_a_callers_token_is_probed_by_its_own_calls() {
    let mut world = World::new();
    let create = CallInfo { credential: Credential::Token(1), ..call("POST /channels/{id}/messages", 1) };
    for _ in 0..5 {
        world.run(&create, CallResult::TimedOut);
    }
    assert_eq!(world.reason(&create), "breaker_open");
    world.wait_secs(60);
    assert!(world.own_probes().is_empty(), "only the caller has the token");
    for _ in 0..3 {
        world.run(&create, SUCCESS);
    }
    world.run(&call(READ, 7), SUCCESS);
    let key = BreakerKey::Pair(create.credential, create.route.clone(), create.major);
    assert_eq!(world.state(&key), "closed");
}

#[test]
fn ban_stops_every_bot_for_its_duration() {
    let mut world = World::new();
    let retry_after = Some(Duration::from_secs(600));
    assert_eq!(world.run(&call(READ, 7), CallResult::Answered(ResponseClass::Blocked { retry_after })), Attempt::Free);
    let other = CallInfo { credential: OTHER_BOT, ..call(READ, 7) };
    for caller in [&call(READ, 8), &other] {
        let refused = world.admit(caller).unwrap_err();
        assert_eq!(refused.reason, "blocked");
        assert_eq!(refused.until, Some(world.now + Duration::from_secs(600)));
    }
    world.wait_secs(600);
    for _ in 0..3 {
        world.wait_secs(1);
        let (key, pass) = world.own_probes().pop().unwrap();
        assert_eq!(key, BreakerKey::Address);
        world.report(pass, SUCCESS);
    }
    world.run(&other, SUCCESS);
}

#[test]
fn ban_without_duration_lasts_an_hour() {
    let mut world = World::new();
    for _ in 0..2 {
        world.run(&call(READ, 7), CallResult::Answered(ResponseClass::Blocked { retry_after: None }));
        assert_eq!(world.state(&BreakerKey::Address), "open");
        assert_eq!(world.state(&pair(READ, 7)), "closed");
        world.wait_secs(3_600);
        assert_eq!(world.state(&BreakerKey::Address), "half_open");
    }
}

#[test]
fn manual_force_is_not_undone_by_a_new_token() {
    let mut world = World::new();
    for key in [BreakerKey::Address, discord(), route(READ), pair(READ, 7)] {
        assert_eq!(world.breakers.force(&key, world.now).unwrap().len(), 1);
        assert!(world.breakers.force(&key, world.now).unwrap().is_empty());
        world.breakers.token_changed(BOT, None, world.now);
        let refused = world.admit(&call(READ, 7)).unwrap_err();
        assert_eq!((refused.reason, refused.until, refused.key), ("breaker_forced_open", None, key.to_string()));
        assert_eq!(world.breakers.reset(&key, world.now).len(), 1);
        world.run(&call(READ, 7), SUCCESS);
    }
}

#[test]
fn manual_opening_for_a_time_is_probed_afterwards() {
    let mut world = World::new();
    for key in [discord(), route(READ), pair(READ, 7)] {
        let minute = Duration::from_secs(60);
        assert_eq!(world.breakers.force_for(&key, minute, world.now).unwrap().len(), 1);
        let refused = world.admit(&call(READ, 7)).unwrap_err();
        assert_eq!((refused.reason, refused.until), ("breaker_open", Some(world.now + minute)));
        // A shorter time changes nothing, a longer one does.
        assert!(world.breakers.force_for(&key, minute / 2, world.now).unwrap().is_empty());
        world.wait_secs(60);
        assert_eq!(world.state(&key), "half_open");
        for _ in 0..3 {
            world.run(&call(READ, 7), SUCCESS);
        }
        assert_eq!(world.state(&key), "closed");
    }
}

#[test]
fn forced_open_breaker_cannot_be_opened_for_a_time() {
    let mut world = World::new();
    let refused = CallResult::Answered(ResponseClass::Unauthorized);
    world.run(&call(READ, 7), refused);
    world.breakers.force(&route(READ), world.now).unwrap();
    for key in [discord(), route(READ)] {
        let minute = Duration::from_secs(60);
        assert_eq!(world.breakers.may_force(&key, Some(minute)), Err(ForceError::Forced));
        assert_eq!(world.breakers.force_for(&key, minute, world.now).unwrap_err(), ForceError::Forced);
        assert_eq!(world.state(&key), "forced_open");
        assert_eq!(world.breakers.may_force(&key, None), Ok(()));
    }
}

#[test]
fn while_discord_is_open_a_pair_below_it_sends_no_probe() {
    let mut world = World::new();
    for _ in 0..5 {
        world.run(&call(CREATE, 7), SERVER_ERROR);
    }
    world.breakers.force(&discord(), world.now).unwrap();
    world.wait_secs(120);
    assert_eq!(world.state(&pair(CREATE, 7)), "half_open");
    assert!(world.own_probes().is_empty());
    world.breakers.reset(&discord(), world.now);
    world.wait_secs(30);
    assert!(!world.own_probes().is_empty());
}

#[test]
fn another_upstream_has_one_level_and_any_call_probes_it() {
    let mut world = World::new();
    let crm = BreakerKey::Target("crm".to_owned());
    for _ in 0..5 {
        let pass = world.breakers.admit_target("crm", world.now).unwrap();
        world.report(pass, CallResult::Broken);
    }
    assert_eq!(world.state(&crm), "open");
    assert!(world.breakers.admit_target("crm", world.now).is_err());
    let pass = world.breakers.admit_target("billing", world.now).unwrap();
    world.report(pass, SUCCESS);
    world.wait_secs(90);
    assert!(world.own_probes().is_empty());
    for _ in 0..3 {
        let pass = world.breakers.admit_target("crm", world.now).unwrap();
        assert!(pass.is_probe());
        world.report(pass, SUCCESS);
    }
    assert_eq!(world.state(&crm), "closed");
}

#[test]
fn quiet_breakers_are_forgotten() {
    let mut world = World::new();
    world.run(&call(READ, 7), SERVER_ERROR);
    assert_eq!(world.breakers.len(), 4);
    world.wait_secs(300);
    assert_eq!(world.breakers.len(), 2);
    assert_eq!(world.breakers.next_wake(), None);
}

#[test]
fn closed_breakers_are_evicted_and_open_ones_stay() {
    let mut world = World::with(BreakerConfig { max_keys: 4, ..BreakerConfig::default() });
    for _ in 0..5 {
        world.run(&call(READ, 1), SERVER_ERROR);
    }
    for id in 2..50 {
        world.wait_secs(1);
        world.run(&call(READ, id), SERVER_ERROR);
        for _ in 0..2 {
            world.run(&call(READ, id), SUCCESS);
        }
        assert!(world.breakers.len() <= 4 + 2);
    }
    assert_ne!(world.state(&pair(READ, 1)), "closed");
    assert!(world.breakers.snapshot(world.now).evicted > 0);
}

#[test]
fn with_no_room_left_a_failure_still_counts_where_there_is_a_breaker() {
    let mut world = World::with(BreakerConfig { max_keys: 2, ..BreakerConfig::default() });
    for id in [1, 2] {
        world.breakers.force(&pair(READ, id), world.now).unwrap();
    }
    assert_eq!(world.breakers.force(&pair(READ, 3), world.now).unwrap_err(), TooManyKeys);
    assert_eq!(world.breakers.may_force(&pair(READ, 3), None), Err(TooManyKeys.into()));
    assert_eq!(world.breakers.may_force(&discord(), None), Ok(()));
    for path in [CREATE, READ, CREATE, READ, CREATE] {
        world.run(&call(path, 9), SERVER_ERROR);
    }
    assert_eq!(world.state(&discord()), "open");
    assert!(world.breakers.snapshot(world.now).unwatched > 0);
}

#[test]
fn the_snapshot_shows_what_is_open_first() {
    let mut world = World::new();
    for _ in 0..5 {
        world.run(&call(READ, 7), SERVER_ERROR);
    }
    world.run(&call(CREATE, 7), SERVER_ERROR);
    let snapshot = world.breakers.snapshot(world.now);
    assert_eq!(snapshot.breakers[0].key, pair(READ, 7));
    assert_eq!(snapshot.breakers[0].state, "open");
    assert_eq!(snapshot.breakers[0].retry_after_ms, Some(30_000));
    assert_eq!(snapshot.watched, snapshot.breakers.len());
    let states = StateCounts { closed: snapshot.watched - 1, open: 1, ..StateCounts::default() };
    assert_eq!((snapshot.states, snapshot.breakers[0].for_ms), (states, 0));
    assert_eq!(world.breakers.snapshot(world.now + Duration::from_secs(2)).breakers[0].for_ms, 2_000);
    assert_eq!(world.breakers.severity(BreakerKind::Pair), 2);
    assert_eq!(world.breakers.severity(BreakerKind::Route), 0);
}
