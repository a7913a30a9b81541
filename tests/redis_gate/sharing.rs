//! The limit while everything is well: each process has its part of it.

use std::time::Duration;

use crate::fleet::{Fleet, Rules};

#[test]
fn three_processes_at_full_demand_have_a_third_of_the_limit_each() {
    let mut fleet = Fleet::new(Rules::Default, 3);
    for name in ["a", "b", "c"] {
        fleet.join(name);
    }
    fleet.all_share(3);
    // What they do until they have found together is not what this is about.
    fleet.pass(Duration::from_secs(5));
    let stretch = fleet.pass(Duration::from_secs(6));
    let counts = stretch.by_process();
    println!("{counts:?}, {:.1}/s", stretch.rate());
    assert_eq!(counts.len(), 3);
    for (name, count) in &counts {
        let thirds = *count as f64 * 3.0 / stretch.count() as f64;
        assert!((0.8..=1.2).contains(&thirds), "{name} has {thirds:.2} of its third: {counts:?}");
    }
    assert!(stretch.rate() >= 45.0, "{:.1}/s", stretch.rate());
    fleet.end();
}
