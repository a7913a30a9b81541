//! One process cannot reach Redis, or is suspended for a while, and the others continue: together they stay within the
//! limit.

use guildhall_testkit::redis::Relay;

use super::{
    TOLERANCE, assert_all_take_part,
    fleet::{FleetProcess, FleetTiming, LIMIT, ProcessFleet},
    run_concurrently, secs, wait_for_full_rate, wait_for_shares,
};

/// Waits until the others know that the first of three processes is detached, and share the rest of the limit. Returns
/// the rest.
fn wait_until_others_continue(fleet: &ProcessFleet, share: usize) -> u32 {
    let rest = LIMIT - u32::try_from(share).unwrap();
    fleet.wait_until("the others know that it is detached", |fleet| {
        let others = fleet.processes.iter().skip(1).map(FleetProcess::observe_single);
        others.map(|seen| (seen.members, seen.live, seen.pool)).all(|seen| seen == (3, 2, rest))
    });
    rest
}

/// The connection is cut and restored.
fn disconnect() {
    let mut fleet = ProcessFleet::new(FleetTiming::Fast);
    let relay = Relay::to(&fleet.redis);
    let a = fleet.join_through("a", relay.url());
    fleet.join("b");
    fleet.join("c");
    fleet.wait_until_shared(3);
    wait_for_full_rate(&fleet);

    relay.cut();
    let cut = fleet.now();
    fleet.wait_for_mode(a, "waiting");
    let rest = wait_until_others_continue(&fleet, fleet.share("a"));
    fleet.wait_for_mode(a, "share");
    let stretch = wait_for_shares(&fleet, &["a"]);
    let gap = fleet.arrivals_between(cut, fleet.now()).of_process("a").longest_gap();
    println!("it sent nothing for {gap:?}");
    assert!(gap <= secs(3) + TOLERANCE, "it sent nothing for {gap:?}");
    let others = fleet.wait_for_arrivals("the rest is used", stretch.from, secs(4) + TOLERANCE, |all| {
        all.except_process("a").best_rate(secs(2)) >= 0.9 * f64::from(rest)
    });
    let max_sent = others.except_process("a").max_per_second();
    assert!(max_sent <= rest as usize, "the others sent {max_sent} in a second, but only {rest} remain for them");

    relay.restore();
    fleet.wait_until_shared(3);
    wait_for_full_rate(&fleet);
    assert_all_take_part(&fleet.observe_for(secs(4)));
    fleet.stop_and_check();
}

/// The process is suspended and resumed, with calls that it was about to send.
fn suspend() {
    let fleet = ProcessFleet::with_three_processes(FleetTiming::Fast);
    for _ in 0..2 {
        wait_for_full_rate(&fleet);
        let share = fleet.share("a");
        fleet.processes[0].signal("STOP");
        wait_until_others_continue(&fleet, share);
        fleet.processes[0].signal("CONT");
        fleet.wait_until_shared(3);
    }
    wait_for_full_rate(&fleet);
    fleet.stop_and_check();
}

#[test]
fn disconnected_process_keeps_its_share_until_it_is_back() {
    run_concurrently(&[("cut off", &disconnect), ("suspended", &suspend)]);
}
