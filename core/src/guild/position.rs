//! Positions of operations in the order.

use std::collections::{BTreeSet, VecDeque};

use super::entry::OrderedOperation;
use super::parked::Parked;
use crate::time::UnixMs;

/// The position of an operation in the order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Position {
    /// Not compared with earlier operations yet.
    Unexamined,
    /// Has to stay behind an unfinished earlier operation: this is the latest one.
    Behind(u64),
    /// Stays behind none and is not parked.
    Head,
    /// Stays behind none, and is parked until this time.
    Parked(UnixMs),
}

/// The operations by position. Each operation is in the collection of its position, so a change of position touches at
/// most two collections.
#[derive(Clone, Debug, Default)]
pub(super) struct Positions {
    /// In order.
    unexamined: VecDeque<u64>,
    /// The latest operation that each has to stay behind, and its own sequence number.
    behind: BTreeSet<(u64, u64)>,
    /// The first of them blocks all later ones.
    heads: BTreeSet<u64>,
    parked: Parked,
}

impl Positions {
    /// Adds an operation. An unexamined one must be later than all others.
    pub(super) fn insert(&mut self, seq: u64, position: Position) {
        match position {
            Position::Unexamined => self.unexamined.push_back(seq),
            Position::Behind(earlier) => {
                self.behind.insert((earlier, seq));
            }
            Position::Head => {
                self.heads.insert(seq);
            }
            Position::Parked(due) => self.parked.insert(seq, due),
        }
    }

    /// Removes an operation that is at this position.
    pub(super) fn remove(&mut self, seq: u64, position: Position) {
        match position {
            Position::Unexamined => {
                if let Ok(index) = self.unexamined.binary_search(&seq) {
                    self.unexamined.remove(index);
                }
            }
            Position::Behind(earlier) => {
                self.behind.remove(&(earlier, seq));
            }
            Position::Head => {
                self.heads.remove(&seq);
            }
            Position::Parked(due) => self.parked.remove(seq, due),
        }
    }

    /// Moves an operation to its new position. `behind` is the operation that it has to stay behind.
    pub(super) fn set_position<O>(&mut self, operation: &mut OrderedOperation<O>, behind: Option<u64>) {
        let position = match behind {
            Some(earlier) => Position::Behind(earlier),
            None if operation.is_parked() => Position::Parked(operation.entry.eligible_at),
            None => Position::Head,
        };
        if position != operation.position {
            self.remove(operation.entry.seq, operation.position);
            self.insert(operation.entry.seq, position);
            operation.position = position;
        }
    }

    /// Moves an operation that stays behind none, after its phase or its time has changed.
    pub(super) fn update<O>(&mut self, operation: &mut OrderedOperation<O>) {
        match operation.position {
            Position::Unexamined | Position::Behind(_) => {}
            Position::Head | Position::Parked(_) => self.set_position(operation, None),
        }
    }

    pub(super) fn first_unexamined(&self) -> Option<u64> {
        self.unexamined.front().copied()
    }

    pub(super) fn first_head(&self) -> Option<u64> {
        self.heads.first().copied()
    }

    /// The first parked operation that is due, of those that the first head does not block.
    pub(super) fn first_due(&mut self, now: UnixMs) -> Option<u64> {
        self.parked.set_bound(self.first_head().unwrap_or(u64::MAX));
        self.parked.first_due(now)
    }

    /// When the next parked operation is due, if [`Positions::first_due`] has found none.
    pub(super) fn next_due(&self) -> Option<UnixMs> {
        self.parked.next_due()
    }

    /// Operations whose latest conflict is with this one.
    pub(super) fn behind(&self, seq: u64) -> Vec<u64> {
        self.behind.range((seq, 0)..=(seq, u64::MAX)).map(|(_, later)| *later).collect()
    }
}
