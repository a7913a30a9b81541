//! The limit while everything is well: each process has its part of it.

use crate::{
    assert_thirds,
    fleet::{Fleet, LIMIT, Launch, Process, Rules},
    full_rate, secs,
};

#[test]
fn three_processes_at_full_demand_have_a_third_of_the_limit_each() {
    let fleet = Fleet::of_three(Rules::Default);
    // What they do until they have found together is not what this is about.
    fleet.pass(secs(5));
    assert_thirds(&fleet.pass(secs(8)));
    full_rate(&fleet);
    fleet.end();
}

/// Processes of the next test, and gates of each.
const CROWDS: usize = 5;
const CROWD: usize = 10;

#[test]
fn fifty_members_have_one_call_a_second_each_and_those_who_stay_have_what_others_leave() {
    let mut fleet = Fleet::new(Rules::Brisk);
    for name in ["a", "b", "c", "d", "e"] {
        fleet.launch(&Launch { gates: CROWD, channels: 8, ..Launch::named(name) });
    }
    for crowds in (1..=CROWDS).rev() {
        let members = u32::try_from(crowds * CROWD).unwrap();
        fleet.all_share(members);
        fleet.until(&format!("the share of one of {members}"), |fleet| {
            let all = fleet.processes.iter().flat_map(Process::observe);
            all.map(|seen| seen.share).all(|share| share == LIMIT / members)
        });
        full_rate(&fleet);
        if crowds > 1 {
            let mut leaves = fleet.processes.remove(0);
            leaves.hang_up();
            leaves.ended();
        }
    }
    fleet.end();
}
