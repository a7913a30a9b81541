//! What the simulator received from a fleet, and diagnostics for a failed test.

use std::{collections::BTreeMap, time::Duration};

use super::ProcessFleet;

const SECOND: Duration = Duration::from_secs(1);

/// Number of log lines of each process in the diagnostics.
const LOG_TAIL_LINES: usize = 60;

/// A call that arrived: its time by the simulator's clock since the start, and its sender.
#[derive(Clone, Debug)]
pub(crate) struct Arrival {
    pub(crate) at: Duration,
    pub(crate) process: String,
}

/// The arrivals in a period.
#[derive(Clone, Debug)]
pub(crate) struct ArrivalWindow {
    pub(crate) from: Duration,
    pub(crate) to: Duration,
    pub(crate) arrivals: Vec<Arrival>,
}

impl ArrivalWindow {
    pub(super) fn new(from: Duration, to: Duration, mut arrivals: Vec<Arrival>) -> Self {
        arrivals.retain(|arrival| from <= arrival.at && arrival.at < to);
        Self { from, to, arrivals }
    }

    /// Only what one process sent.
    pub(crate) fn of_process(&self, name: &str) -> Self {
        let mut own = self.clone();
        own.arrivals.retain(|arrival| arrival.process == name);
        own
    }

    /// Only what the other processes sent.
    pub(crate) fn except_process(&self, name: &str) -> Self {
        let mut others = self.clone();
        others.arrivals.retain(|arrival| arrival.process != name);
        others
    }

    pub(crate) fn count(&self) -> usize {
        self.arrivals.len()
    }

    /// Average number of calls a second.
    pub(crate) fn rate(&self) -> f64 {
        rate(self.count(), self.to.saturating_sub(self.from))
    }

    /// The highest average rate over any part of this length.
    pub(crate) fn best_rate(&self, period: Duration) -> f64 {
        rate(self.max_in(period), period)
    }

    /// The maximum number of arrivals in any part of this length.
    pub(crate) fn max_in(&self, length: Duration) -> usize {
        let starts = self.arrivals.iter().enumerate();
        let ends = |from: Duration| self.arrivals.partition_point(|arrival| arrival.at < from + length);
        starts.map(|(index, arrival)| ends(arrival.at) - index).max().unwrap_or(0)
    }

    pub(crate) fn max_per_second(&self) -> usize {
        self.max_in(SECOND)
    }

    /// The longest time without an arrival.
    pub(crate) fn longest_gap(&self) -> Duration {
        let times = self.arrivals.iter().map(|arrival| arrival.at);
        let times: Vec<Duration> = [self.from].into_iter().chain(times).chain([self.to]).collect();
        times.windows(2).map(|pair| pair[1].saturating_sub(pair[0])).max().unwrap_or_default()
    }

    /// Number of arrivals by process.
    pub(crate) fn by_process(&self) -> BTreeMap<String, usize> {
        let mut counts = BTreeMap::new();
        for arrival in &self.arrivals {
            *counts.entry(arrival.process.clone()).or_default() += 1;
        }
        counts
    }
}

#[expect(clippy::cast_precision_loss, reason = "a few thousand at most")]
fn rate(count: usize, period: Duration) -> f64 {
    count as f64 / period.as_secs_f64()
}

impl ProcessFleet {
    /// The second with the most arrivals: its start, and the number of arrivals by process.
    pub(crate) fn worst_second(&self) -> (Duration, BTreeMap<String, usize>) {
        let all = self.arrivals_between(Duration::ZERO, self.now());
        let ends = |from: Duration| all.arrivals.partition_point(|arrival| arrival.at < from + SECOND);
        let counts = all.arrivals.iter().enumerate().map(|(index, arrival)| (ends(arrival.at) - index, arrival.at));
        let (_, from) = counts.max().unwrap_or_default();
        (from, self.arrivals_between(from, from + SECOND).by_process())
    }

    /// Prints what all processes did.
    pub(super) fn print_diagnostics(&self) {
        let all = self.arrivals_between(Duration::ZERO, self.now());
        eprintln!("the fleet started at {} us since the epoch", self.started.1);
        let (worst, counts) = self.worst_second();
        eprintln!("the worst second started after {worst:?}: {counts:?}");
        for second in 0..=all.to.as_secs() {
            let from = Duration::from_secs(second);
            eprintln!("second {second:3}: {:?}", self.arrivals_between(from, from + SECOND).by_process());
        }
        for process in &self.processes {
            let log = process.log();
            eprintln!("--- {}, {} lines: {:?}", process.name, log.len(), process.try_observe(SECOND));
            log.iter().rev().take(LOG_TAIL_LINES).rev().for_each(|line| eprintln!("{line}"));
        }
    }
}
