//! Shares of the limit in normal operation.

use super::{
    assert_thirds,
    fleet::{FleetProcess, FleetTiming, LIMIT, Launch, ProcessFleet},
    secs, wait_for_full_rate,
};

#[test]
fn three_processes_at_full_demand_share_the_limit_equally() {
    let fleet = ProcessFleet::with_three_processes(FleetTiming::Default);
    // The time until all members have joined is not measured.
    fleet.observe_for(secs(5));
    let stretch = fleet.observe_for(secs(8));
    assert_thirds(&stretch);
    assert!(stretch.best_rate(secs(3)) >= 45.0, "{:.1}/s", stretch.rate());
    fleet.stop_and_check();
}

/// Processes of the following tests, and the number of gates of each.
const PROCESS_NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];
const GATES_PER_PROCESS: usize = 10;

fn fleet_of_fifty() -> ProcessFleet {
    let mut fleet = ProcessFleet::new(FleetTiming::Fast);
    for name in PROCESS_NAMES {
        fleet.launch(&Launch { gates: GATES_PER_PROCESS, channels: 8, ..Launch::named(name) });
    }
    fleet
}

#[test]
fn fifty_members_share_the_limit_and_inherit_from_leaving_ones() {
    let mut fleet = fleet_of_fifty();
    for processes in (1..=PROCESS_NAMES.len()).rev() {
        let members = u32::try_from(processes * GATES_PER_PROCESS).unwrap();
        fleet.wait_until_shared(members);
        fleet.wait_until(&format!("the shares of {members}"), |fleet| {
            let shares: Vec<u32> =
                fleet.processes.iter().flat_map(FleetProcess::observe).map(|seen| seen.share).collect();
            // The remainder of the division goes to some of them.
            let fair = LIMIT / members;
            shares.iter().all(|share| (fair..=fair + 1).contains(share)) && shares.iter().sum::<u32>() <= LIMIT
        });
        wait_for_full_rate(&fleet);
        if processes > 1 {
            let mut leaving = fleet.processes.remove(0);
            leaving.request_stop();
            leaving.wait_for_success();
        }
    }
    fleet.stop_and_check();
}

#[test]
fn none_of_fifty_members_starves() {
    let fleet = fleet_of_fifty();
    fleet.wait_until_shared(50);
    wait_for_full_rate(&fleet);
    let stretch = fleet.observe_for(secs(6));
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
    fleet.stop_and_check();
}
