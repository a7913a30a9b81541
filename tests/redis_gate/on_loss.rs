//! Behavior without Redis, by setting.

use std::time::Duration;

use crate::{
    THREE,
    fleet::{Fleet, Launch, Rules},
    full_rate, secs, side_by_side,
};

const ON_LOSS: &str = "GUILDHALL__REDIS__ON_LOSS";

/// Slots that were booked before Redis was lost are used within this time, or never.
const BOOKED: Duration = Duration::from_millis(1_200);

fn closed() {
    let mut fleet = Fleet::new(Rules::Brisk);
    fleet.set(ON_LOSS, "closed");
    for name in THREE {
        fleet.join(name);
    }
    fleet.all_share(3);
    full_rate(&fleet);
    fleet.redis.kill();
    fleet.until_all("closed");
    fleet.pass(BOOKED);
    let lost = fleet.pass(secs(5));
    assert_eq!(lost.count(), 0, "{:?}", lost.by_process());
    fleet.redis.restart_empty();
    fleet.all_share(3);
    full_rate(&fleet);
    fleet.end();
}

/// Only one process: two that fail open would exceed the limit, as documented.
fn open() {
    let mut fleet = Fleet::new(Rules::Brisk);
    let a = fleet.launch(&Launch::named("a").set(ON_LOSS, "open"));
    fleet.all_share(1);
    full_rate(&fleet);
    fleet.redis.kill();
    fleet.until_mode(a, "open");
    full_rate(&fleet);
    fleet.redis.restart_empty();
    fleet.all_share(1);
    full_rate(&fleet);
    fleet.end();
}

fn never_reached(on_loss: &str) {
    let mut fleet = Fleet::new(Rules::Brisk);
    // Redis is not running yet.
    fleet.redis.kill();
    let a = fleet.launch(&Launch::named("a").set(ON_LOSS, on_loss));
    fleet.until_mode(a, "unreached");
    let alone = fleet.pass(secs(5));
    assert_eq!(alone.count(), 0, "{:?}", alone.by_process());
    assert_eq!(fleet.processes[a].seen().mode, "unreached");
    fleet.redis.restart_empty();
    fleet.all_share(1);
    full_rate(&fleet);
    fleet.end();
}

#[test]
fn without_redis_closed_sends_nothing_and_open_goes_on_and_who_never_reached_it_waits() {
    side_by_side(&[
        ("closed", &closed),
        ("open", &open),
        ("never reached, share", &|| never_reached("share")),
        ("never reached, closed", &|| never_reached("closed")),
    ]);
}
