//! Tests of probe claims: one process probes for several.

use std::time::Duration;

use super::shared_tests::{BOT, READ, World, call, discord};
use super::*;
use crate::response::ResponseClass;
use crate::route::RouteKey;

const SUCCESS: CallResult = CallResult::Answered(ResponseClass::Success);
const MINUTE: Duration = Duration::from_secs(60);

/// Three processes, one of which was banned for a minute that has just ended.
fn banned() -> World {
    let mut world = World::new(&["a", "a", "a"]);
    let ban = CallResult::Answered(ResponseClass::Blocked { retry_after: Some(MINUTE) });
    world.run(0, &call(READ, 7), ban);
    world.settle();
    assert_eq!(world.states(&BreakerKey::Address), ["open"; 3]);
    world.wait(MINUTE);
    assert_eq!(world.states(&BreakerKey::Address), ["half_open"; 3]);
    world
}

fn rejection_reason(world: &mut World, index: usize) -> Option<&'static str> {
    let now = world.now;
    world.all[index].admit(&call(READ, 1), now).err().map(|refused| refused.reason)
}

#[test]
fn one_process_probes_after_a_ban_and_closes_it_for_all() {
    let mut world = banned();
    assert!(world.probing(&BreakerKey::Address).is_empty());
    assert_eq!(rejection_reason(&mut world, 1), Some("breaker_half_open"));
    let granted: Vec<usize> = [1, 0, 2].into_iter().map(|index| world.claim(index)).collect();
    assert_eq!(granted, [1, 0, 0]);
    assert_eq!(world.probing(&BreakerKey::Address), [1]);
    assert_eq!(rejection_reason(&mut world, 0), Some("breaker_half_open"));
    for _ in 0..3 {
        world.run(1, &call(READ, 1), SUCCESS);
    }
    world.settle();
    assert_eq!(world.states(&BreakerKey::Address), ["closed"; 3]);
    assert_eq!(rejection_reason(&mut world, 2), None);
}

#[test]
fn failed_probe_opens_it_for_all_and_the_next_claim_is_free() {
    let mut world = banned();
    world.claim(0);
    let again = CallResult::Answered(ResponseClass::Blocked { retry_after: Some(MINUTE) });
    world.run(0, &call(READ, 1), again);
    world.settle();
    assert_eq!(world.states(&BreakerKey::Address), ["open"; 3]);
    world.wait(MINUTE);
    assert_eq!(world.claim(2), 1, "the process that shared the result has released the claim");
    assert_eq!(world.probing(&BreakerKey::Address), [2]);
}

#[test]
fn claim_of_a_process_that_is_gone_expires() {
    let mut world = banned();
    world.claim(0);
    assert_eq!((world.claim(1), world.claim(2)), (0, 0));
    // Its own probe is lost with it, so it reports nothing, and the others receive nothing.
    world.all.remove(0);
    let lasting = BreakerConfig::default().probe_timeout + BreakerConfig::default().probe_after;
    world.wait(lasting.saturating_sub(Duration::from_millis(1)));
    assert!(world.all.iter().all(|breakers| breakers.probe_claims(world.now).is_empty()));
    world.wait(Duration::from_millis(1));
    // The indexes moved by one: the store has the claim under the first.
    assert_eq!(world.claim(1), 1);
    assert_eq!(world.probing(&BreakerKey::Address), [1]);
}

#[test]
fn holder_without_calls_sends_a_probe_of_its_own() {
    let mut world = banned();
    world.claim(0);
    let soon = world.now + BreakerConfig::default().probe_after;
    let sends = |breakers: &mut Breakers| {
        let effects = breakers.on_time(soon);
        effects.iter().filter(|effect| matches!(effect, BreakerEffect::SendProbe { .. })).count()
    };
    let sent: Vec<usize> = world.all.iter_mut().map(sends).collect();
    assert_eq!(sent, [1, 0, 0]);
}

#[test]
fn unanswered_claim_is_requested_again() {
    let mut world = banned();
    let soon = world.now + BreakerConfig::default().probe_after;
    assert!(world.all[0].next_wake().is_some_and(|wake| wake <= soon));
    let effects = world.all[0].on_time(soon);
    assert!(matches!(effects.as_slice(), [BreakerEffect::ClaimProbe]), "{effects:?}");
}

#[test]
fn late_response_does_not_grant_a_later_probe() {
    let mut world = banned();
    let now = world.now;
    let claim = world.all[0].probe_claims(now).remove(0);
    world.all[0].reset(&BreakerKey::Address, now);
    world.all[0].force_for(&BreakerKey::Address, MINUTE, now).unwrap();
    world.wait(MINUTE);
    let now = world.now;
    world.all[0].on_claim_response(&claim, ClaimResponse::Granted, now);
    assert!(world.probing(&BreakerKey::Address).is_empty());
}

#[test]
fn claim_of_a_wider_breaker_comes_first() {
    let mut world = World::new(&["a", "a"]);
    let now = world.now;
    let route = BreakerKey::Route(BOT, RouteKey::new(READ));
    for key in [BreakerKey::Address, discord(), route.clone()] {
        world.all[0].force_for(&key, MINUTE, now).unwrap();
    }
    world.settle();
    world.wait(MINUTE);
    assert_eq!(world.claim(0), 3);
    assert_eq!(world.claim(1), 0);
    assert_eq!(world.probing(&route), [0]);
    assert!(world.all[1].probe_claims(world.now).is_empty(), "it would hold what the other process needs");
    for _ in 0..3 {
        world.run(0, &call(READ, 1), SUCCESS);
    }
    world.settle();
    assert_eq!(world.states(&route), ["closed"; 2]);
}

#[test]
fn webhook_target_is_probed_by_each_process_that_has_deliveries() {
    let mut world = World::new(&["a", "a"]);
    let target = BreakerKey::Target("hook".to_owned());
    let now = world.now;
    world.all[0].force_for(&target, MINUTE, now).unwrap();
    world.settle();
    world.wait(MINUTE);
    assert_eq!(world.probing(&target), [0, 1]);
}
