//! A process that dies without a word.

use crate::{
    NOISE,
    fleet::{Fleet, LIMIT, Launch, Process, Rules},
    full_rate, secs, side_by_side,
};

const SEATS: &str = "GUILDHALL__REDIS__SEAT_DIR";

/// The others on its machine see that it is dead, and have everything again.
fn among_others() {
    let mut fleet = Fleet::of_three(Rules::Default);
    full_rate(&fleet);
    let died = fleet.now();
    fleet.processes.remove(0).kill();
    fleet.all_share(2);
    let buried = fleet.now() - died;
    println!("the others have all of it {buried:?} after its death");
    assert!(buried <= secs(3) + NOISE, "{buried:?}");
    full_rate(&fleet);
    // What it had booked and what it had under way stay away for a while, and nothing else.
    let since = fleet.between(died, fleet.now());
    println!("since its death {:.1}/s", since.rate());
    assert!(since.rate() >= 40.0, "only {:.1}/s since its death", since.rate());

    fleet.join("d");
    fleet.all_share(3);
    full_rate(&fleet);
    fleet.end();
}

/// Nobody on another machine can know that it is dead and not cut off: it keeps its share, until the next one starts where
/// it was.
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
