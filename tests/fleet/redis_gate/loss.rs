//! Redis dies, hangs, slows down, fails and loses its data: the limit holds, and capacity that can be used is used.

use std::time::Duration;

use guildhall_testkit::redis::Relay;

use super::{
    THREE, TOLERANCE,
    fleet::{FleetTiming, ProcessFleet},
    run_concurrently, secs, wait_for_full_rate, wait_for_full_rate_within, wait_for_shares,
};

/// Waits until all processes share the limit again and use all of it.
fn wait_for_full_sharing(fleet: &ProcessFleet) {
    fleet.wait_until_shared(3);
    wait_for_full_rate(fleet);
}

/// Waits until all processes have lost Redis and use only their shares.
fn wait_for_fallback_shares(fleet: &ProcessFleet) {
    fleet.wait_until_all_in_mode("share");
    wait_for_shares(fleet, &THREE);
}

/// Runs an administrative command on the fleet's Redis.
fn run_on_redis(fleet: &ProcessFleet, args: &[&str]) {
    let mut connection = fleet.redis.client().get_connection().unwrap();
    let (command, rest) = args.split_first().unwrap();
    let reply: ::redis::Value = ::redis::cmd(command).arg(rest).query(&mut connection).unwrap();
    println!("{args:?}: {reply:?}");
}

#[test]
fn dead_redis_costs_six_seconds_then_each_process_has_its_share() {
    let mut fleet = ProcessFleet::with_three_processes(FleetTiming::Default);
    wait_for_full_rate(&fleet);
    let died = fleet.now();
    fleet.redis.kill();
    wait_for_fallback_shares(&fleet);
    for name in THREE {
        let gap = fleet.arrivals_between(died, fleet.now()).of_process(name).longest_gap();
        println!("{name} sent nothing for {gap:?}");
        assert!(gap <= secs(6) + TOLERANCE, "{name} sent nothing for {gap:?}");
    }
    fleet.redis.restart_empty();
    wait_for_full_rate_within(&fleet, fleet.now(), secs(5));
    fleet.wait_until_shared(3);
    fleet.stop_and_check();
}

#[test]
fn suspended_redis_counts_as_lost_and_a_short_stop_costs_little() {
    let long = || {
        let fleet = ProcessFleet::with_three_processes(FleetTiming::Fast);
        fleet.redis.stop();
        wait_for_fallback_shares(&fleet);
        fleet.redis.resume();
        wait_for_full_sharing(&fleet);
        fleet.stop_and_check();
    };
    let short = || {
        let fleet = ProcessFleet::with_three_processes(FleetTiming::Default);
        let stopped = fleet.now();
        fleet.redis.stop();
        fleet.observe_for(secs(1));
        fleet.redis.resume();
        wait_for_full_sharing(&fleet);
        // No process had to wait until Redis counted as lost.
        let gap = fleet.arrivals_between(stopped, fleet.now()).longest_gap();
        println!("nothing was sent for {gap:?}");
        assert!(gap <= secs(3) + TOLERANCE, "nothing was sent for {gap:?}");
        fleet.stop_and_check();
    };
    run_concurrently(&[("long", &long), ("short", &short)]);
}

/// A connection with 100 ms each way is used, one with 400 ms counts as lost.
fn slow_connection() {
    let mut fleet = ProcessFleet::new(FleetTiming::Fast);
    let relay = Relay::to(&fleet.redis);
    for name in THREE {
        fleet.join_through(name, relay.url());
    }
    fleet.wait_until_shared(3);
    relay.delay(Duration::from_millis(200));
    let slow = fleet.now();
    fleet.wait_until("a slow connection is used", |fleet| {
        fleet.arrivals_between(slow, fleet.now()).best_rate(secs(3)) >= 20.0
    });
    relay.delay(Duration::from_millis(800));
    wait_for_fallback_shares(&fleet);
    relay.delay(Duration::ZERO);
    wait_for_full_sharing(&fleet);
    fleet.stop_and_check();
}

/// Redis refuses commands, and later accepts them again.
fn refuse_commands(refuse: &[&str], allow: &[&str]) {
    let fleet = ProcessFleet::with_three_processes(FleetTiming::Fast);
    run_on_redis(&fleet, refuse);
    wait_for_fallback_shares(&fleet);
    run_on_redis(&fleet, allow);
    wait_for_full_sharing(&fleet);
    fleet.stop_and_check();
}

/// Redis loses all data, which costs no more than the loss of the connection.
fn flush_redis() {
    let fleet = ProcessFleet::with_three_processes(FleetTiming::Fast);
    for _ in 0..2 {
        let flushed = fleet.now();
        run_on_redis(&fleet, &["FLUSHALL"]);
        wait_for_full_sharing(&fleet);
        let gap = fleet.arrivals_between(flushed, fleet.now()).longest_gap();
        println!("nothing was sent for {gap:?}");
        assert!(gap <= secs(3) + TOLERANCE, "nothing was sent for {gap:?}");
    }
    fleet.stop_and_check();
}

#[test]
fn slow_failing_or_emptied_redis_never_exceeds_the_limit() {
    let not_allowed = || {
        refuse_commands(&["ACL", "SETUSER", "default", "-@scripting"], &["ACL", "SETUSER", "default", "+@scripting"]);
    };
    run_concurrently(&[("slow", &slow_connection), ("not allowed", &not_allowed), ("flushed", &flush_redis)]);
}

#[test]
fn redis_without_writes_counts_as_lost() {
    let set = |setting: &str, value: &str| {
        refuse_commands(&["CONFIG", "SET", setting, value], &["CONFIG", "SET", setting, "0"]);
    };
    run_concurrently(&[
        ("full", &|| set("maxmemory", "1")),
        ("without replicas", &|| set("min-replicas-to-write", "1")),
    ]);
}
