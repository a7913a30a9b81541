//! A process that dies without a word.

use crate::{
    fleet::{Fleet, Rules},
    full_rate,
};

#[test]
fn a_process_that_is_killed_costs_the_others_no_more_than_what_it_had_booked() {
    let mut fleet = Fleet::of_three(Rules::Default);
    full_rate(&fleet);
    let died = fleet.now();
    fleet.processes.remove(0).kill();
    fleet.all_share(2);
    println!("the others have all of it {:?} after its death", fleet.now() - died);
    full_rate(&fleet);
    let since = fleet.between(died, fleet.now());
    println!("since its death {:.1}/s", since.rate());
    fleet.end();
}
