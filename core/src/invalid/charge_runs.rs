//! Owners of invalid responses that are not in the common count yet.

use std::collections::VecDeque;

use super::owner::CallOwner;
use crate::time::Timestamp;

/// Consecutive invalid responses of one owner: those after number `start`, up to number `end`, counted since the
/// process started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChargeRun {
    /// The owner that they are charged to.
    pub owner: CallOwner,
    /// Number of the last one before them.
    pub start: u64,
    /// Number of the last of them.
    pub end: u64,
}

impl ChargeRun {
    /// How many of them come after this number.
    #[must_use]
    pub fn after(&self, number: u64) -> u64 {
        self.end.saturating_sub(self.start.max(number))
    }
}

/// Runs that the lender has not acknowledged, oldest first.
#[derive(Debug, Default)]
pub(super) struct ChargeRuns(VecDeque<(Timestamp, ChargeRun)>);

impl ChargeRuns {
    /// Charges the invalid response with this number to this owner.
    pub(super) fn add(&mut self, owner: &CallOwner, number: u64, now: Timestamp) {
        if owner.holders().next().is_none() {
            return;
        }
        match self.0.back_mut() {
            Some((at, last)) if last.end + 1 == number && last.owner == *owner => (*at, last.end) = (now, number),
            Some(_) | None => {
                self.0
                    .push_back((now, ChargeRun { owner: owner.clone(), start: number.saturating_sub(1), end: number }));
            }
        }
    }

    /// Adds a run as a whole.
    pub(super) fn push(&mut self, run: ChargeRun, now: Timestamp) {
        self.0.push_back((now, run));
    }

    /// Removes and returns what was acknowledged up to this number.
    pub(super) fn acknowledge(&mut self, number: u64) -> Vec<(CallOwner, u32)> {
        let mut taken = Vec::new();
        for (_, run) in &mut self.0 {
            let count = (run.end - run.start) - run.after(number);
            if count > 0 {
                taken.push((run.owner.clone(), u32::try_from(count).unwrap_or(u32::MAX)));
                run.start = number.min(run.end);
            }
        }
        self.0.retain(|(_, run)| run.start < run.end);
        taken
    }

    /// Removes and returns what was counted before `then`.
    pub(super) fn forget(&mut self, then: Timestamp) -> Vec<(CallOwner, u32)> {
        let mut taken = Vec::new();
        while let Some((_, run)) = self.0.pop_front_if(|(at, _)| *at < then) {
            taken.push((run.owner, u32::try_from(run.end - run.start).unwrap_or(u32::MAX)));
        }
        taken
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &ChargeRun> {
        self.0.iter().map(|(_, run)| run)
    }
}
