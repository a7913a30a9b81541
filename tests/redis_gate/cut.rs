//! One process cannot reach Redis, and the others can: together they still keep the limit.

use crate::{
    NOISE, assert_all_take_part,
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
    let rest = LIMIT - u32::try_from(fleet.share("a")).unwrap();
    fleet.until("the others know that it is detached", |fleet| {
        fleet.processes.iter().skip(1).all(|process| {
            let seen = process.seen();
            (seen.members, seen.live, seen.pool) == (3, 2, rest)
        })
    });
    fleet.until_mode(a, "share");
    let apart = shares(&fleet, &["a"]);
    let silent = fleet.between(cut, fleet.now()).of("a").longest_gap();
    println!("it sent nothing for {silent:?}");
    assert!(silent <= secs(3) + NOISE, "it sent nothing for {silent:?}");
    let others = fleet.reach("the rest is used", apart.from, secs(4) + NOISE, |all| {
        all.but("a").best_rate(secs(2)) >= 0.9 * f64::from(rest)
    });
    let most = others.but("a").most_in_a_second();
    assert!(most <= rest as usize, "the others sent {most} in a second, and have {rest}");

    line.restore();
    fleet.all_share(3);
    full_rate(&fleet);
    assert_all_take_part(&fleet.pass(secs(4)));
    fleet.end();
}
