//! Redis dies, hangs, slows down, fails and loses its data: the limit holds, and capacity that can be used is used.

use std::time::Duration;

use crate::{
    NOISE, THREE,
    fleet::{Fleet, Rules},
    full_rate, full_rate_within,
    redis::Relay,
    secs, shares, side_by_side,
};

/// Waits until all processes share the limit again and use all of it.
fn all_is_well(fleet: &Fleet) {
    fleet.all_share(3);
    full_rate(fleet);
}

/// Waits until all processes have lost Redis and use only their shares.
fn all_are_apart(fleet: &Fleet) {
    fleet.until_all("share");
    shares(fleet, &THREE);
}

/// Runs an administrative command on the fleet's Redis.
fn tell_redis(fleet: &Fleet, words: &[&str]) {
    let mut connection = fleet.redis.client().get_connection().unwrap();
    let (command, rest) = words.split_first().unwrap();
    let answer: ::redis::Value = ::redis::cmd(command).arg(rest).query(&mut connection).unwrap();
    println!("{words:?}: {answer:?}");
}

#[test]
fn a_redis_that_dies_under_load_costs_six_seconds_then_each_has_its_share_until_it_is_back() {
    let mut fleet = Fleet::of_three(Rules::Default);
    full_rate(&fleet);
    let died = fleet.now();
    fleet.redis.kill();
    all_are_apart(&fleet);
    for name in THREE {
        let gap = fleet.between(died, fleet.now()).of(name).longest_gap();
        println!("{name} sent nothing for {gap:?}");
        assert!(gap <= secs(6) + NOISE, "{name} sent nothing for {gap:?}");
    }
    fleet.redis.restart_empty();
    full_rate_within(&fleet, fleet.now(), secs(5));
    fleet.all_share(3);
    fleet.end();
}

#[test]
fn a_redis_that_stands_still_is_a_lost_one_and_a_short_stop_costs_little() {
    let long = || {
        let fleet = Fleet::of_three(Rules::Brisk);
        fleet.redis.stop();
        all_are_apart(&fleet);
        fleet.redis.resume();
        all_is_well(&fleet);
        fleet.end();
    };
    let short = || {
        let fleet = Fleet::of_three(Rules::Default);
        let stopped = fleet.now();
        fleet.redis.stop();
        fleet.pass(secs(1));
        fleet.redis.resume();
        all_is_well(&fleet);
        // No process had to wait until Redis counted as lost.
        let gap = fleet.between(stopped, fleet.now()).longest_gap();
        println!("nothing was sent for {gap:?}");
        assert!(gap <= secs(3) + NOISE, "nothing was sent for {gap:?}");
        fleet.end();
    };
    side_by_side(&[("long", &long), ("short", &short)]);
}

/// A connection with 100 ms each way is used, one with 400 ms counts as lost.
fn slow() {
    let mut fleet = Fleet::new(Rules::Brisk);
    let line = Relay::to(&fleet.redis);
    for name in THREE {
        fleet.join_over(name, line.url());
    }
    fleet.all_share(3);
    line.delay(Duration::from_millis(200));
    let slow = fleet.now();
    fleet.until("a slow connection is used", |fleet| fleet.between(slow, fleet.now()).best_rate(secs(3)) >= 20.0);
    line.delay(Duration::from_millis(800));
    all_are_apart(&fleet);
    line.delay(Duration::ZERO);
    all_is_well(&fleet);
    fleet.end();
}

/// Redis refuses commands, and later accepts them again.
fn refused(refuse: &[&str], allow: &[&str]) {
    let fleet = Fleet::of_three(Rules::Brisk);
    tell_redis(&fleet, refuse);
    all_are_apart(&fleet);
    tell_redis(&fleet, allow);
    all_is_well(&fleet);
    fleet.end();
}

/// Redis loses all data, which costs no more than the loss of the connection.
fn flushed() {
    let fleet = Fleet::of_three(Rules::Brisk);
    for _ in 0..2 {
        let flushed = fleet.now();
        tell_redis(&fleet, &["FLUSHALL"]);
        all_is_well(&fleet);
        let gap = fleet.between(flushed, fleet.now()).longest_gap();
        println!("nothing was sent for {gap:?}");
        assert!(gap <= secs(3) + NOISE, "nothing was sent for {gap:?}");
    }
    fleet.end();
}

#[test]
fn a_redis_that_is_slow_or_answers_with_errors_or_forgets_everything_passes_no_limit() {
    let not_allowed =
        || refused(&["ACL", "SETUSER", "default", "-@scripting"], &["ACL", "SETUSER", "default", "+@scripting"]);
    side_by_side(&[("slow", &slow), ("not allowed", &not_allowed), ("flushed", &flushed)]);
}

#[test]
fn a_redis_that_takes_no_writes_is_a_lost_one() {
    let set =
        |setting: &str, value: &str| refused(&["CONFIG", "SET", setting, value], &["CONFIG", "SET", setting, "0"]);
    side_by_side(&[("full", &|| set("maxmemory", "1")), ("without replicas", &|| set("min-replicas-to-write", "1"))]);
}
