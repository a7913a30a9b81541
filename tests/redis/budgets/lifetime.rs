//! Lifetime of a budget in Redis: how it is created, lost and moved to another server, and when it expires.

use std::time::Duration;

use guildhall_core::budget::{Budget, BudgetLimits, Observation, Points, SpendRequest};
use guildhall_testkit::redis::RedisServer;

use super::script::{BOOKINGS, BUDGET, MEMBERS, SPENT, ScriptCaller, SpendOutcome};

const START: u64 = 1_780_000_000_000_000;
const LIMITS: BudgetLimits = BudgetLimits { maximum: Points::whole(10), restore_per_second: Points::whole(2) };

fn caller(server: &RedisServer, member: &str) -> ScriptCaller {
    let mut caller = ScriptCaller::with_clock(server, LIMITS, START);
    caller.member = member.to_owned();
    caller
}

fn acquire(caller: &mut ScriptCaller, cost: u64, max_wait: u64) -> SpendOutcome {
    let request = SpendRequest { cost: Points::whole(cost), max_wait: Duration::from_secs(max_wait) };
    caller.acquire(&[request]).outcomes[0]
}

fn allowed(delay: u64, remaining: u64) -> SpendOutcome {
    SpendOutcome::Allowed(Duration::from_secs(delay), Points::whole(remaining))
}

fn flush(caller: &mut ScriptCaller) {
    redis::cmd("FLUSHALL").exec(caller.connection()).unwrap();
}

fn ttl(caller: &mut ScriptCaller, key: &str) -> Duration {
    let millis: i64 = redis::cmd("PTTL").arg(key).query(caller.connection()).unwrap();
    Duration::from_millis(u64::try_from(millis).expect("the key has a TTL"))
}

#[test]
fn new_budget_is_full_and_a_lost_one_is_empty() {
    let server = RedisServer::start();
    let mut one = caller(&server, "a");
    let first = one.show();
    assert_eq!(first.available, LIMITS.maximum);
    one.epoch = first.epoch;
    assert_eq!(one.show().available, LIMITS.maximum, "the epoch has not changed");
    flush(&mut one);
    (one.clock, one.booked_for) = (Some(START + 1), Duration::from_secs(3));
    let second = one.show();
    assert_ne!(second.epoch, one.epoch);
    assert_eq!((second.available, second.booked_for), (Points::ZERO, Duration::from_secs(3)));
}

#[test]
fn new_process_on_an_emptied_redis_owes_its_spend() {
    let server = RedisServer::start();
    let (mut old, mut other, mut new) = (caller(&server, "a"), caller(&server, "b"), caller(&server, "c"));
    old.epoch = old.show().epoch;
    other.epoch.clone_from(&old.epoch);
    flush(&mut old);
    assert_eq!(acquire(&mut new, 4, 0), allowed(0, 6));
    old.show();
    // The balance is 6 - 10 = -4, so the next 3 points are available after 3.5 seconds.
    assert_eq!(acquire(&mut new, 3, 60), SpendOutcome::Allowed(Duration::from_millis(3_500), Points::ZERO));
    // A further process that knew the budget only adds its booked time.
    other.booked_for = Duration::from_secs(20);
    assert_eq!(other.show().booked_for, Duration::from_secs(20));
    assert_eq!(acquire(&mut new, 2, 60), allowed(21, 0));
}

#[test]
fn observation_corrects_an_emptied_redis() {
    let server = RedisServer::start();
    let (mut old, mut new) = (caller(&server, "a"), caller(&server, "b"));
    old.epoch = old.show().epoch;
    flush(&mut old);
    new.observe(&Observation { available: Some(Points::whole(8)), ..Observation::default() });
    assert_eq!(old.show().available, Points::whole(8));
}

#[test]
fn failover_may_lose_the_last_spends() {
    let server = RedisServer::start();
    let (mut one, mut new) = (caller(&server, "a"), caller(&server, "b"));
    assert_eq!(acquire(&mut one, 4, 0), allowed(0, 6));
    one.epoch = one.show().epoch;
    (one.run_id, new.run_id) = ("promoted".to_owned(), "promoted".to_owned());
    // A new process uses what is there. A process that knew the budget reports that the last writes may be lost.
    assert_eq!(new.show().available, Points::whole(6));
    let after = one.show();
    assert_ne!(after.epoch, one.epoch);
    assert_eq!(after.available, Points::ZERO);
    one.clock = Some(START + 1_000_000);
    assert_eq!(one.show().available, Points::whole(2));
}

#[test]
fn repeated_spend_report_counts_once() {
    let server = RedisServer::start();
    let mut one = caller(&server, "a");
    one.spent = Some((1, Points::whole(3)));
    assert_eq!(one.show().available, Points::whole(7));
    assert_eq!(one.show().available, Points::whole(7));
    one.spent = Some((2, Points::whole(9)));
    one.show();
    one.spent = None;
    assert_eq!(acquire(&mut one, 1, 60), SpendOutcome::Allowed(Duration::from_millis(1_500), Points::ZERO));
}

#[test]
fn clock_that_moves_back_continues_from_its_last_time() {
    let server = RedisServer::start();
    let mut one = caller(&server, "a");
    assert_eq!(acquire(&mut one, 10, 0), allowed(0, 0));
    let before = one.show().now;
    one.clock = Some(START - 3_600_000_000);
    let after = one.show();
    assert_eq!((after.now, after.available), (before, Points::ZERO));
    one.clock = Some(START - 3_600_000_000 + 2_000_000);
    assert_eq!(one.show().available, Points::whole(4));
}

#[test]
fn keys_live_as_long_as_needed_and_expire() {
    let server = RedisServer::start();
    let mut one = caller(&server, "a");
    one.limits = BudgetLimits { restore_per_second: Points::new(0.001).unwrap(), ..LIMITS };
    one.spent = Some((1, Points::whole(1)));
    let SpendOutcome::Allowed(delay, _) = acquire(&mut one, 10, 10_000) else { panic!("refused") };
    assert_eq!(delay, Duration::from_secs(1_000));
    one.show();
    let month = Duration::from_secs(30 * 24 * 3_600);
    assert!(ttl(&mut one, BUDGET) >= delay + Duration::from_secs(10_000) + month - Duration::from_secs(60));
    assert!(ttl(&mut one, BOOKINGS) >= delay + Budget::MEMORY);
    assert!(ttl(&mut one, MEMBERS) > Duration::ZERO);
    assert!(ttl(&mut one, SPENT) > Duration::from_secs(3_000));
    one.observe(&Observation { restore_per_second: Some(Points::ZERO), ..Observation::default() });
    assert!(ttl(&mut one, BUDGET) > 100 * month, "a budget without refill does not expire soon");
    let keys: Vec<String> = redis::cmd("KEYS").arg("*").query(one.connection()).unwrap();
    assert_eq!(keys.len(), 4, "{keys:?}");
}

#[test]
fn restarted_bookings_expire_too() {
    let server = RedisServer::start();
    let mut one = caller(&server, "a");
    for round in 0..3 {
        one.clock = Some(START + round * 100_000_000);
        let fresh = [SpendRequest { cost: Points::whole(1), max_wait: Duration::ZERO }; 3];
        one.acquire(&fresh);
        let count: usize = redis::cmd("LLEN").arg(BOOKINGS).query(one.connection()).unwrap();
        assert_eq!(count, 2, "and the oldest is stored with the budget itself");
        assert!(ttl(&mut one, BOOKINGS) >= Budget::MEMORY);
    }
}

#[test]
fn processes_count_while_they_report() {
    let server = RedisServer::start();
    let (mut one, mut two) = (caller(&server, "a"), caller(&server, "b"));
    assert_eq!((one.show().members, two.show().members), (1, 2));
    two.clock = Some(START + 30_000_000);
    assert_eq!(two.show().members, 2);
    two.clock = Some(START + 30_000_001);
    assert_eq!(two.show().members, 1);
}

#[test]
fn inexact_amount_is_refused_and_nothing_is_written() {
    let server = RedisServer::start();
    let mut one = caller(&server, "a");
    one.limits.maximum = Points::whole(1_000_000_001);
    let error = one.try_call("show", &[]).unwrap_err().to_string();
    assert!(error.contains("beyond what is counted exactly"), "{error}");
    let keys: Vec<String> = redis::cmd("KEYS").arg("*").query(one.connection()).unwrap();
    assert!(keys.is_empty(), "{keys:?}");
}
