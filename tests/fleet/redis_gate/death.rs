//! A process that is killed.

use super::{
    TOLERANCE,
    fleet::{FleetProcess, FleetTiming, LIMIT, Launch, ProcessFleet},
    run_concurrently, secs, wait_for_full_rate,
};

const SEAT_DIR: &str = "GUILDHALL__REDIS__SEAT_DIR";

/// Processes on the same machine detect its death and share the whole limit again.
fn among_others() {
    let mut fleet = ProcessFleet::with_three_processes(FleetTiming::Default);
    wait_for_full_rate(&fleet);
    let died = fleet.now();
    fleet.processes.remove(0).kill();
    fleet.wait_until_shared(2);
    let recovery = fleet.now() - died;
    println!("the others have the whole limit {recovery:?} after its death");
    assert!(recovery <= secs(3) + TOLERANCE, "{recovery:?}");
    wait_for_full_rate(&fleet);
    // Only its bookings and its calls in flight are unavailable for a while.
    let since = fleet.arrivals_between(died, fleet.now());
    println!("{:.1}/s since its death", since.rate());
    assert!(since.rate() >= 40.0, "only {:.1}/s since its death", since.rate());

    fleet.join("d");
    fleet.wait_until_shared(3);
    wait_for_full_rate(&fleet);
    fleet.stop_and_check();
}

/// Processes on another machine cannot distinguish death from a lost connection: its share stays reserved until another
/// process starts on its machine.
fn on_another_machine() {
    let mut fleet = ProcessFleet::new(FleetTiming::Fast);
    let elsewhere = tempfile::tempdir().unwrap();
    let remote_launch = |name: &str| Launch::named(name).set(SEAT_DIR, elsewhere.path().to_str().unwrap());
    let remote = fleet.launch(&remote_launch("a"));
    fleet.join("b");
    fleet.join("c");
    fleet.wait_until_shared(3);
    wait_for_full_rate(&fleet);
    let rest = LIMIT - u32::try_from(fleet.share("a")).unwrap();
    fleet.processes.remove(remote).kill();
    fleet.wait_until("it is detached", |fleet| {
        let all = fleet.processes.iter().map(FleetProcess::observe_single);
        all.map(|seen| (seen.members, seen.live, seen.pool)).all(|seen| seen == (3, 2, rest))
    });
    fleet.launch(&remote_launch("d"));
    fleet.wait_until_shared(3);
    wait_for_full_rate(&fleet);
    fleet.stop_and_check();
}

#[test]
fn killed_process_costs_the_others_only_its_bookings() {
    run_concurrently(&[("among others", &among_others), ("on another machine", &on_another_machine)]);
}
