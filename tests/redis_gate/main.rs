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
mod news;
mod on_loss;
#[path = "../support/redis.rs"]
mod redis;
mod sharing;

use std::{panic::resume_unwind, thread, time::Duration};

use fleet::{Fleet, Stretch};

/// What a busy machine may add to a time that is promised.
const NOISE: Duration = Duration::from_secs(2);

/// What each of three has without the others.
const SHARE: usize = 16;

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
fn shares(fleet: &Fleet, names: &[&str], share: usize) -> Stretch {
    let (over, enough) = (secs(2), 0.8 * share as f64);
    let stretch = fleet.reach("their shares", fleet.now(), secs(2) + over + NOISE, |all| {
        names.iter().all(|name| all.of(name).best_rate(over) >= enough)
    });
    for name in names {
        let most = stretch.of(name).most_in_a_second();
        println!("{name} by itself, most in a second {most}");
        assert!(most <= share, "{name} sent {most} in a second");
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
fn side_by_side<const N: usize>(scenarios: [&(dyn Fn() + Sync); N]) {
    thread::scope(|scope| {
        let running = scenarios.map(|scenario| scope.spawn(scenario));
        for result in running.map(thread::ScopedJoinHandle::join) {
            result.unwrap_or_else(|panic| resume_unwind(panic));
        }
    });
}
