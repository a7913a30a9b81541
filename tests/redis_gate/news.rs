//! What Discord tells one process, the others know within a second.

use std::time::Duration;

use guildhall_sim::{Fault, FaultAction, Scope};

use crate::{
    fleet::{Fleet, Rules},
    full_rate, secs,
};

/// How long the others may take to hear of it.
const HEARD: Duration = Duration::from_secs(1);

/// Discord answers one call so, once.
fn strike(fleet: &Fleet, action: FaultAction) {
    let route = "POST /channels/{channel.id}/messages".to_owned();
    fleet.world.sim.add_fault(Fault { route, action, probability: 1.0, count: Some(1), skip: 0 }).unwrap();
}

#[test]
fn a_global_429_that_one_process_sees_stops_all_of_them_for_as_long() {
    let fleet = Fleet::of_three(Rules::Brisk);
    let before = fleet.now();
    strike(&fleet, FaultAction::RateLimit { scope: Scope::Global, retry_after_ms: 4_000 });
    fleet.until("one was told", |fleet| fleet.world.score().rate_limited.global == 1);
    let told = fleet.now();
    fleet.pass(secs(4));
    let stopped = fleet.between(told + HEARD, before + secs(4));
    assert_eq!(stopped.count(), 0, "{:?}", stopped.by_process());
    println!("until all had heard of it {:?} arrived", fleet.between(told, told + HEARD).by_process());
    full_rate(&fleet);
    fleet.end_after(1);
}
