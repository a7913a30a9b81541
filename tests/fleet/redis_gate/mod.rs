//! Processes that share one bot's limit over Redis: real processes, a real Redis, and a simulator that checks the
//! limit.

mod clocks;
mod death;
mod disconnect;
mod driver;
mod fleet;
mod loss;
mod notifications;
mod on_loss;
mod sharing;

use std::{panic::resume_unwind, thread, time::Duration};

use fleet::{ArrivalWindow, ProcessFleet};

/// Tolerance for the load of the machine.
const TOLERANCE: Duration = Duration::from_secs(2);

/// The three processes of most scenarios.
const THREE: [&str; 3] = ["a", "b", "c"];

const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Waits until at least 90 percent of the limit arrives for three seconds.
fn wait_for_full_rate(fleet: &ProcessFleet) -> ArrivalWindow {
    wait_for_full_rate_within(fleet, fleet.now(), secs(5))
}

/// Like `wait_for_full_rate`, with a time limit that starts at `since`.
fn wait_for_full_rate_within(fleet: &ProcessFleet, since: Duration, timeout: Duration) -> ArrivalWindow {
    let duration = secs(3);
    let stretch = fleet.wait_for_arrivals("the full rate", since, timeout + duration + TOLERANCE, |all| {
        all.best_rate(duration) >= 45.0
    });
    println!("full rate after {:?}: {:?}", stretch.to - since, stretch.by_process());
    stretch
}

/// Waits until each of these processes sends what its share allows for two seconds, and asserts that none sends more.
fn wait_for_shares(fleet: &ProcessFleet, names: &[&str]) -> ArrivalWindow {
    let shares: Vec<(&str, usize)> = names.iter().map(|name| (*name, fleet.share(name))).collect();
    println!("shares {shares:?}");
    let duration = secs(2);
    let stretch = fleet.wait_for_arrivals("their shares", fleet.now(), secs(2) + duration + TOLERANCE, |all| {
        shares.iter().all(|(name, share)| all.of_process(name).best_rate(duration) >= 0.8 * *share as f64)
    });
    for (name, share) in shares {
        let max_sent = stretch.of_process(name).max_per_second();
        assert!(max_sent <= share, "{name} sent {max_sent} in a second, but its share is {share}");
    }
    stretch
}

/// Relation between the calls of each of three processes and an exact third.
fn thirds(stretch: &ArrivalWindow) -> Vec<f64> {
    let counts = stretch.by_process();
    println!("{counts:?}");
    assert_eq!(counts.len(), 3, "{counts:?}");
    counts.values().map(|count| *count as f64 * 3.0 / stretch.count() as f64).collect()
}

/// Asserts that each of three processes has a third of the arrivals, within 20 percent.
fn assert_thirds(stretch: &ArrivalWindow) {
    let thirds = thirds(stretch);
    assert!(thirds.iter().all(|third| (0.8..=1.2).contains(third)), "{thirds:?}");
}

/// Asserts that each of three processes has at least half of its third, even after a failure.
fn assert_all_take_part(stretch: &ArrivalWindow) {
    let thirds = thirds(stretch);
    assert!(thirds.iter().all(|third| *third >= 0.5), "{thirds:?}");
}

/// Runs scenarios concurrently. Each has its own simulator and Redis.
fn run_concurrently(scenarios: &[(&str, &(dyn Fn() + Sync))]) {
    thread::scope(|scope| {
        let mut running = Vec::new();
        for (name, scenario) in scenarios {
            running.push(thread::Builder::new().name((*name).to_owned()).spawn_scoped(scope, scenario).unwrap());
        }
        // All scenarios end before the first failure is reported.
        let results: Vec<_> = running.into_iter().map(thread::ScopedJoinHandle::join).collect();
        results.into_iter().for_each(|result| result.unwrap_or_else(|panic| resume_unwind(panic)));
    });
}
