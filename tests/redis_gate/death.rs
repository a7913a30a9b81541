//! A process that is killed.

use crate::{
    NOISE,
    fleet::{Fleet, LIMIT, Launch, Process, Rules},
    full_rate, secs, side_by_side,
};

const SEATS: &str = "GUILDHALL__REDIS__SEAT_DIR";

/// Processes on the same machine detect its death and share the whole limit again.
fn among_others() {
    let mut fleet = Fleet::of_three(Rules::Default);
    full_rate(&fleet);
    let died = fleet.now();
    fleet.processes.remove(0).kill();
    fleet.all_share(2);
    let buried = fleet.now() - died;
    println!("the others have the whole limit {buried:?} after its death");
    assert!(buried <= secs(3) + NOISE, "{buried:?}");
    full_rate(&fleet);
    // Only its bookings and its calls in flight are unavailable for a while.
    let since = fleet.between(died, fleet.now());
    println!("{:.1}/s since its death", since.rate());
    assert!(since.rate() >= 40.0, "only {:.1}/s since its death", since.rate());

    fleet.join("d");
    fleet.all_share(3);
    full_rate(&fleet);
    fleet.end();
}

/// Processes on another machine cannot distinguish death from a lost connection: its share stays reserved until another
/// process starts on its machine.
fn on_another_machine() {
    let mut fleet = Fleet::new(Rules::Brisk);
    let elsewhere = tempfile::tempdir().unwrap();
    let there = |name: &str| Launch::named(name).set(SEATS, elsewhere.path().to_str().unwrap());
    let lonely = fleet.launch(&there("a"));
    fleet.join("b");
    fleet.join("c");
    fleet.all_share(3);
    full_rate(&fleet);
    let rest = LIMIT - u32::try_from(fleet.share("a")).unwrap();
    fleet.processes.remove(lonely).kill();
    fleet.until("it is detached", |fleet| {
        let all = fleet.processes.iter().map(Process::seen);
        all.map(|seen| (seen.members, seen.live, seen.pool)).all(|seen| seen == (3, 2, rest))
    });
    fleet.launch(&there("d"));
    fleet.all_share(3);
    full_rate(&fleet);
    fleet.end();
}

#[test]
fn a_process_that_is_killed_costs_the_others_no_more_than_what_it_had_booked() {
    side_by_side(&[("among others", &among_others), ("on another machine", &on_another_machine)]);
}
