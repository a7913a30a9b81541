//! Behavior without Redis, by setting.

use std::time::Duration;

use super::{
    THREE,
    fleet::{FleetTiming, Launch, ProcessFleet},
    run_concurrently, secs, wait_for_full_rate,
};

const ON_LOSS: &str = "GUILDHALL__REDIS__ON_LOSS";

/// Slots that were booked before Redis was lost are used within this time, or never.
const BOOKED: Duration = Duration::from_millis(1_200);

fn closed() {
    let mut fleet = ProcessFleet::new(FleetTiming::Fast);
    fleet.set(ON_LOSS, "closed");
    for name in THREE {
        fleet.join(name);
    }
    fleet.wait_until_shared(3);
    wait_for_full_rate(&fleet);
    fleet.redis.kill();
    fleet.wait_until_all_in_mode("closed");
    fleet.observe_for(BOOKED);
    let lost = fleet.observe_for(secs(5));
    assert_eq!(lost.count(), 0, "{:?}", lost.by_process());
    fleet.redis.restart_empty();
    fleet.wait_until_shared(3);
    wait_for_full_rate(&fleet);
    fleet.stop_and_check();
}

/// Only one process: two that fail open would exceed the limit, as documented.
fn open() {
    let mut fleet = ProcessFleet::new(FleetTiming::Fast);
    let a = fleet.launch(&Launch::named("a").set(ON_LOSS, "open"));
    fleet.wait_until_shared(1);
    wait_for_full_rate(&fleet);
    fleet.redis.kill();
    fleet.wait_for_mode(a, "open");
    wait_for_full_rate(&fleet);
    fleet.redis.restart_empty();
    fleet.wait_until_shared(1);
    wait_for_full_rate(&fleet);
    fleet.stop_and_check();
}

fn never_reached(on_loss: &str) {
    let mut fleet = ProcessFleet::new(FleetTiming::Fast);
    // Redis is not running yet.
    fleet.redis.kill();
    let a = fleet.launch(&Launch::named("a").set(ON_LOSS, on_loss));
    fleet.wait_for_mode(a, "unreached");
    let alone = fleet.observe_for(secs(5));
    assert_eq!(alone.count(), 0, "{:?}", alone.by_process());
    assert_eq!(fleet.processes[a].observe_single().mode, "unreached");
    fleet.redis.restart_empty();
    fleet.wait_until_shared(1);
    wait_for_full_rate(&fleet);
    fleet.stop_and_check();
}

#[test]
fn without_redis_closed_stops_open_continues_and_newcomers_wait() {
    run_concurrently(&[
        ("closed", &closed),
        ("open", &open),
        ("never reached, share", &|| never_reached("share")),
        ("never reached, closed", &|| never_reached("closed")),
    ]);
}
