//! Coalescing, lossless wake-ups.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use guildhall_core::operation::{GateCondition, OperationId, Queue};
use tokio::sync::Notify;

/// A change of an operation by another component.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueSignal {
    /// It was cancelled.
    Cancelled(OperationId),
    /// It was expedited: it is due now.
    Hastened(OperationId),
}

/// Maximum number of pending signals of one queue. A lost one is noticed when the operation is next.
const WORDS: usize = 256;

/// Maximum number of separate conditions of the gate. Beyond it, all count as changed.
const CONDITIONS: usize = 64;

/// Conditions of the gate that have changed, so that operations which they delayed are due.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum ReleasedConditions {
    #[default]
    Nothing,
    By(HashSet<GateCondition>),
    All,
}

impl ReleasedConditions {
    pub(crate) fn includes(&self, condition: &GateCondition) -> bool {
        match self {
            Self::Nothing => false,
            Self::By(conditions) => conditions.contains(condition),
            Self::All => true,
        }
    }

    pub(crate) fn add(&mut self, condition: GateCondition) {
        match self {
            Self::Nothing => *self = Self::By(HashSet::from([condition])),
            Self::By(conditions) if conditions.len() >= CONDITIONS && !conditions.contains(&condition) => {
                *self = Self::All;
            }
            Self::By(conditions) => {
                conditions.insert(condition);
            }
            Self::All => {}
        }
    }

    pub(crate) fn merge(&mut self, other: &Self) {
        match other {
            Self::Nothing => {}
            Self::By(conditions) => conditions.iter().for_each(|condition| self.add(condition.clone())),
            Self::All => *self = Self::All,
        }
    }
}

/// Woken queues. Repeated wake-ups of a queue take no more room, so a wake-up is never lost. Beyond its capacity, the
/// set only records that all queues must be checked.
#[derive(Debug)]
pub(crate) struct WakeupSet {
    most: usize,
    rung: Mutex<Wakeups>,
    notify: Notify,
}

#[derive(Debug, Default)]
pub(crate) struct Wakeups {
    /// Woken queues, with the signals about their operations.
    pub(crate) queues: HashMap<Queue, Vec<QueueSignal>>,
    /// There were too many: any queue may have changed.
    pub(crate) all: bool,
    /// Changed conditions of the gate.
    pub(crate) released: ReleasedConditions,
}

impl WakeupSet {
    pub(crate) fn new(most: usize) -> Self {
        Self { most, rung: Mutex::default(), notify: Notify::new() }
    }

    pub(crate) fn ring(&self, queue: Queue, word: Option<QueueSignal>) {
        let mut rung = self.rung();
        if rung.queues.len() >= self.most && !rung.queues.contains_key(&queue) {
            rung.all = true;
        } else {
            let words = rung.queues.entry(queue).or_default();
            if let Some(word) = word
                && words.len() < WORDS
            {
                words.push(word);
            }
        }
        drop(rung);
        self.notify.notify_one();
    }

    /// Adds a changed condition of the gate: operations that it delayed are due.
    pub(crate) fn release(&self, condition: GateCondition) {
        self.rung().released.add(condition);
        self.notify.notify_one();
    }

    /// Wakes all queues.
    pub(crate) fn ring_all(&self) {
        self.rung().all = true;
        self.notify.notify_one();
    }

    /// Waits for wake-ups, and takes them.
    pub(crate) async fn heard(&self) -> Wakeups {
        self.notify.notified().await;
        std::mem::take(&mut *self.rung())
    }

    fn rung(&self) -> MutexGuard<'_, Wakeups> {
        self.rung.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn releases_are_merged_and_too_many_mean_all() {
        let bell = WakeupSet::new(2);
        for _ in 0..2 {
            bell.release(GateCondition::GlobalLimit);
        }
        let released = bell.heard().await.released;
        assert_eq!(released, ReleasedConditions::By(HashSet::from([GateCondition::GlobalLimit])));
        assert!(!released.includes(&GateCondition::Token));
        for key in 0..=CONDITIONS {
            bell.release(GateCondition::Breaker(key.to_string()));
        }
        assert_eq!(bell.heard().await.released, ReleasedConditions::All);
        assert_eq!(Wakeups::default().released, ReleasedConditions::Nothing);
    }

    #[tokio::test]
    async fn a_bell_keeps_every_queue_once_and_says_so_when_there_are_too_many() {
        let bell = WakeupSet::new(2);
        let id = OperationId::new(1, [0; 10]);
        bell.ring(Queue::Guild(1), None);
        bell.ring(Queue::Guild(1), Some(QueueSignal::Hastened(id)));
        bell.ring(Queue::Guild(2), None);
        let rung = bell.heard().await;
        assert_eq!(rung.queues[&Queue::Guild(1)], [QueueSignal::Hastened(id)]);
        assert!(rung.queues.len() == 2 && !rung.all);
        for guild in 1..=3 {
            bell.ring(Queue::Guild(guild), None);
        }
        let rung = bell.heard().await;
        assert!(rung.queues.len() == 2 && rung.all);
    }
}
