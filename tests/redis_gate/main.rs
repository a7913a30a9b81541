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

use fleet::Stretch;

/// What a busy machine may add to a time that is promised.
const NOISE: Duration = Duration::from_secs(1);

/// What each of three has without the others.
const SHARE: usize = 16;

const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// For so long at least, what arrived was all that the limit allows, but for a tenth.
fn assert_full_rate(stretch: &Stretch) {
    let rate = stretch.best_rate(secs(3));
    println!("together {rate:.1}/s: {:?}", stretch.by_process());
    assert!(rate >= 45.0, "only {rate:.1}/s: {:?}", stretch.by_process());
}

/// For two seconds at least, each of these sent what its share allows, and never more.
fn assert_shares(stretch: &Stretch, names: &[&str], share: usize) {
    for name in names {
        let own = stretch.of(name);
        let (rate, most) = (own.best_rate(secs(2)), own.most_in_a_second());
        println!("{name} by itself {rate:.1}/s, most in a second {most}");
        assert!(most <= share, "{name} sent {most} in a second");
        assert!(rate >= 0.8 * share as f64, "{name} sent only {rate:.1}/s");
    }
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
