//! Processes that share one bot's limit over Redis: real processes, a real Redis, and the simulator as the judge of all.

#![expect(clippy::unwrap_used, reason = "tests")]

mod clocks;
mod cut;
mod death;
mod driver;
#[path = "../support/fleet.rs"]
mod fleet;
#[path = "../support/gate.rs"]
mod gate;
mod loss;
#[path = "../support/movable_clock.rs"]
mod movable_clock;
mod news;
mod on_loss;
#[path = "../support/redis.rs"]
mod redis;
mod sharing;

use std::{panic::resume_unwind, thread, time::Duration};

use fleet::{Fleet, Stretch};

/// What a busy machine may add to a time that is promised.
const NOISE: Duration = Duration::from_secs(2);

/// The three processes that most scenarios have.
const THREE: [&str; 3] = ["a", "b", "c"];

const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Soon all that the limit allows arrives, but for a tenth, for three seconds.
fn full_rate(fleet: &Fleet) -> Stretch {
    full_rate_within(fleet, fleet.now(), secs(5))
}

/// So long after this moment at the latest, all that the limit allows arrives, but for a tenth, for three seconds.
fn full_rate_within(fleet: &Fleet, since: Duration, within: Duration) -> Stretch {
    let over = secs(3);
    let stretch = fleet.reach("the full rate", since, within + over + NOISE, |all| all.best_rate(over) >= 45.0);
    println!("full rate {:?} after: {:?}", stretch.to - since, stretch.by_process());
    stretch
}

/// Each of these sends soon what its share allows, for two seconds, and never more.
fn shares(fleet: &Fleet, names: &[&str]) -> Stretch {
    let shares: Vec<(&str, usize)> = names.iter().map(|name| (*name, fleet.share(name))).collect();
    println!("shares {shares:?}");
    let over = secs(2);
    let stretch = fleet.reach("their shares", fleet.now(), secs(2) + over + NOISE, |all| {
        shares.iter().all(|(name, share)| all.of(name).best_rate(over) >= 0.8 * *share as f64)
    });
    for (name, share) in shares {
        let most = stretch.of(name).most_in_a_second();
        assert!(most <= share, "{name} sent {most} in a second, and its share is {share}");
    }
    stretch
}

/// How much each of three sent of what would be its third.
fn thirds(stretch: &Stretch) -> Vec<f64> {
    let counts = stretch.by_process();
    println!("{counts:?}");
    assert_eq!(counts.len(), 3, "{counts:?}");
    counts.values().map(|count| *count as f64 * 3.0 / stretch.count() as f64).collect()
}

/// Each of three has a third of what arrived, and a fifth of that more or less.
fn assert_thirds(stretch: &Stretch) {
    let thirds = thirds(stretch);
    assert!(thirds.iter().all(|third| (0.8..=1.2).contains(third)), "{thirds:?}");
}

/// None of three has less than half of its third, just after something went wrong.
fn assert_all_take_part(stretch: &Stretch) {
    let thirds = thirds(stretch);
    assert!(thirds.iter().all(|third| *third >= 0.5), "{thirds:?}");
}

/// Runs scenarios at once; each has a Discord and a Redis of its own.
fn side_by_side(scenarios: &[(&str, &(dyn Fn() + Sync))]) {
    thread::scope(|scope| {
        let mut running = Vec::new();
        for (name, scenario) in scenarios {
            running.push(thread::Builder::new().name((*name).to_owned()).spawn_scoped(scope, scenario).unwrap());
        }
        // All of them end before the first failure is told.
        let ended: Vec<_> = running.into_iter().map(thread::ScopedJoinHandle::join).collect();
        ended.into_iter().for_each(|result| result.unwrap_or_else(|panic| resume_unwind(panic)));
    });
}
