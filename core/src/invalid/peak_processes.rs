//! Number of processes that may have used the budget of one address, without a common count.
//!
//! Each process then multiplies its own invalid requests by the number of processes: the same as a share of the budget
//! for each. What a process that has ended spent still counts for a window, so the maximum within the last window is
//! used.

use std::collections::VecDeque;
use std::time::Duration;

use crate::time::Timestamp;

/// The maximum number of processes within the last window.
#[derive(Debug)]
pub(super) struct PeakProcesses {
    window: Duration,
    current: u32,
    /// Numbers larger than the current one, largest first, with their expiry.
    before: VecDeque<(Timestamp, u32)>,
}

impl PeakProcesses {
    pub(super) fn single_process(window: Duration) -> Self {
        Self { window, current: 1, before: VecDeque::new() }
    }

    pub(super) fn set(&mut self, count: u32, now: Timestamp) {
        let (old, new) = (self.current, count.max(1));
        if new < old {
            self.before.push_back((now + self.window, old));
        } else {
            self.before.retain(|(_, larger)| *larger > new);
        }
        self.current = new;
    }

    pub(super) fn peak(&self, now: Timestamp) -> u32 {
        let before = self.before.iter().filter(|(until, _)| *until > now).map(|(_, count)| *count);
        before.chain([self.current]).max().unwrap_or(1)
    }

    pub(super) fn forget(&mut self, now: Timestamp) {
        self.before.retain(|(until, _)| *until > now);
    }

    /// When the peak may decrease by expiry alone.
    pub(super) fn next_end(&self) -> Option<Timestamp> {
        self.before.iter().map(|(until, _)| *until).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ended_process_counts_for_one_more_window() {
        let at = Timestamp::from_millis;
        let mut processes = PeakProcesses::single_process(Duration::from_secs(10));
        processes.set(3, at(0));
        processes.set(2, at(1_000));
        processes.set(1, at(5_000));
        assert_eq!([processes.peak(at(10_999)), processes.peak(at(11_000)), processes.peak(at(15_000))], [3, 2, 1]);
        assert_eq!(processes.next_end(), Some(at(11_000)));
        processes.forget(at(11_000));
        processes.set(4, at(11_000));
        assert_eq!((processes.peak(at(11_000)), processes.next_end()), (4, None));
    }
}
