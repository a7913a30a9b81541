//! One process cannot reach Redis, or is suspended for a while, and the others continue: together they stay within the
//! limit.

use crate::{
    NOISE, assert_all_take_part,
    fleet::{Fleet, LIMIT, Process, Rules},
    full_rate,
    redis::Relay,
    secs, shares, side_by_side,
};

/// Waits until the others know that the first of three processes is detached, and share the rest of the limit. Returns
/// the rest.
fn the_others_go_on(fleet: &Fleet, share: usize) -> u32 {
    let rest = LIMIT - u32::try_from(share).unwrap();
    fleet.until("the others know that it is detached", |fleet| {
        let others = fleet.processes.iter().skip(1).map(Process::seen);
        others.map(|seen| (seen.members, seen.live, seen.pool)).all(|seen| seen == (3, 2, rest))
    });
    rest
}

/// The connection is cut and restored.
fn cut_off() {
    let mut fleet = Fleet::new(Rules::Brisk);
    let line = Relay::to(&fleet.redis);
    let a = fleet.join_over("a", line.url());
    fleet.join("b");
    fleet.join("c");
    fleet.all_share(3);
    full_rate(&fleet);

    line.cut();
    let cut = fleet.now();
    fleet.until_mode(a, "waiting");
    let rest = the_others_go_on(&fleet, fleet.share("a"));
    fleet.until_mode(a, "share");
    let apart = shares(&fleet, &["a"]);
    let silent = fleet.between(cut, fleet.now()).of("a").longest_gap();
    println!("it sent nothing for {silent:?}");
    assert!(silent <= secs(3) + NOISE, "it sent nothing for {silent:?}");
    let others = fleet.reach("the rest is used", apart.from, secs(4) + NOISE, |all| {
        all.but("a").best_rate(secs(2)) >= 0.9 * f64::from(rest)
    });
    let most = others.but("a").most_in_a_second();
    assert!(most <= rest as usize, "the others sent {most} in a second, but only {rest} remain for them");

    line.restore();
    fleet.all_share(3);
    full_rate(&fleet);
    assert_all_take_part(&fleet.pass(secs(4)));
    fleet.end();
}

/// The process is suspended and resumed, with calls that it was about to send.
fn held_still() {
    let fleet = Fleet::of_three(Rules::Brisk);
    for _ in 0..2 {
        full_rate(&fleet);
        let share = fleet.share("a");
        fleet.processes[0].signal("STOP");
        the_others_go_on(&fleet, share);
        fleet.processes[0].signal("CONT");
        fleet.all_share(3);
    }
    full_rate(&fleet);
    fleet.end();
}

#[test]
fn a_process_that_is_cut_off_has_its_share_and_the_others_have_the_rest_until_it_is_back() {
    side_by_side(&[("cut off", &cut_off), ("suspended", &held_still)]);
}
