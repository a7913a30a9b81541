//! One process cannot reach Redis, and the others can: together they still keep the limit.

use crate::{
    NOISE, SHARE, assert_all_take_part,
    fleet::{Fleet, LIMIT, Rules},
    full_rate,
    redis::Relay,
    secs, shares,
};

#[test]
fn a_process_that_is_cut_off_has_its_share_and_the_others_have_the_rest_until_it_is_back() {
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
    fleet.until("the others know that it is detached", |fleet| {
        fleet.processes.iter().skip(1).all(|process| {
            let seen = process.seen();
            (seen.members, seen.live, seen.pool) == (3, 2, LIMIT - 16)
        })
    });
    fleet.until_mode(a, "share");
    let apart = shares(&fleet, &["a"], SHARE);
    let silent = fleet.between(cut, fleet.now()).of("a").longest_gap();
    println!("it sent nothing for {silent:?}");
    assert!(silent <= secs(4) + NOISE, "it sent nothing for {silent:?}");
    let rest = apart.but("a");
    println!("the others {:.1}/s, most in a second {}", rest.best_rate(secs(2)), rest.most_in_a_second());
    assert!(rest.most_in_a_second() <= 50 - SHARE, "they use its share, too: {}", rest.most_in_a_second());
    assert!(rest.best_rate(secs(2)) >= 0.9 * 34.0, "they do not use the rest: {:.1}/s", rest.best_rate(secs(2)));

    line.restore();
    fleet.all_share(3);
    full_rate(&fleet);
    assert_all_take_part(&fleet.pass(secs(4)));
    fleet.end();
}
