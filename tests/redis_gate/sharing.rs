//! Shares of the limit in normal operation.

use crate::{
    assert_thirds,
    fleet::{Fleet, LIMIT, Launch, Process, Rules},
    full_rate, secs,
};

#[test]
fn three_processes_at_full_demand_have_a_third_of_the_limit_each() {
    let fleet = Fleet::of_three(Rules::Default);
    // The time until all members have joined is not measured.
    fleet.pass(secs(5));
    let stretch = fleet.pass(secs(8));
    assert_thirds(&stretch);
    assert!(stretch.best_rate(secs(3)) >= 45.0, "{:.1}/s", stretch.rate());
    fleet.end();
}

/// Processes of the following tests, and the number of gates of each.
const CROWDS: [&str; 5] = ["a", "b", "c", "d", "e"];
const CROWD: usize = 10;

fn fifty() -> Fleet {
    let mut fleet = Fleet::new(Rules::Brisk);
    for name in CROWDS {
        fleet.launch(&Launch { gates: CROWD, channels: 8, ..Launch::named(name) });
    }
    fleet
}

#[test]
fn fifty_members_have_one_call_a_second_each_and_those_who_stay_have_what_others_leave() {
    let mut fleet = fifty();
    for crowds in (1..=CROWDS.len()).rev() {
        let members = u32::try_from(crowds * CROWD).unwrap();
        fleet.all_share(members);
        fleet.until(&format!("the shares of {members}"), |fleet| {
            let shares: Vec<u32> = fleet.processes.iter().flat_map(Process::observe).map(|seen| seen.share).collect();
            // The remainder of the division goes to some of them.
            let fair = LIMIT / members;
            shares.iter().all(|share| (fair..=fair + 1).contains(share)) && shares.iter().sum::<u32>() <= LIMIT
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

#[test]
fn none_of_fifty_members_starves() {
    let fleet = fifty();
    fleet.all_share(50);
    full_rate(&fleet);
    let stretch = fleet.pass(secs(6));
    let counts = stretch.by_process();
    println!(
        "{} members, from {:?} to {:?}, {} in total",
        counts.len(),
        counts.values().min(),
        counts.values().max(),
        counts.values().sum::<usize>()
    );
    assert_eq!(counts.len(), 50, "{counts:?}");
    let even = stretch.count() / counts.len();
    assert!(counts.values().all(|count| count * 2 >= even), "{counts:?}");
    fleet.end();
}
