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
    Expedited(OperationId),
}

/// Maximum number of pending signals of one queue. A lost one is noticed when the operation is next.
const MAX_SIGNALS: usize = 256;

/// Maximum number of separate conditions of the gate. Beyond it, all count as changed.
const MAX_CONDITIONS: usize = 64;

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
            Self::By(conditions) if conditions.len() >= MAX_CONDITIONS && !conditions.contains(&condition) => {
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
    max_queues: usize,
    pending: Mutex<Wakeups>,
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
    pub(crate) fn new(max_queues: usize) -> Self {
        Self { max_queues, pending: Mutex::default(), notify: Notify::new() }
    }

    pub(crate) fn wake(&self, queue: Queue, signal: Option<QueueSignal>) {
        let mut pending = self.pending();
        if pending.queues.len() >= self.max_queues && !pending.queues.contains_key(&queue) {
            pending.all = true;
        } else {
            let signals = pending.queues.entry(queue).or_default();
            if let Some(signal) = signal
                && signals.len() < MAX_SIGNALS
            {
                signals.push(signal);
            }
        }
        drop(pending);
        self.notify.notify_one();
    }

    /// Adds a changed condition of the gate: operations that it delayed are due.
    pub(crate) fn release(&self, condition: GateCondition) {
        self.pending().released.add(condition);
        self.notify.notify_one();
    }

    /// Wakes all queues.
    pub(crate) fn wake_all(&self) {
        self.pending().all = true;
        self.notify.notify_one();
    }

    /// Waits for wake-ups, and takes them.
    pub(crate) async fn next(&self) -> Wakeups {
        self.notify.notified().await;
        std::mem::take(&mut *self.pending())
    }

    fn pending(&self) -> MutexGuard<'_, Wakeups> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn releases_are_merged_and_too_many_mean_all() {
        let wakeups = WakeupSet::new(2);
        for _ in 0..2 {
            wakeups.release(GateCondition::GlobalLimit);
        }
        let released = wakeups.next().await.released;
        assert_eq!(released, ReleasedConditions::By(HashSet::from([GateCondition::GlobalLimit])));
        assert!(!released.includes(&GateCondition::Token));
        for key in 0..=MAX_CONDITIONS {
            wakeups.release(GateCondition::Breaker(key.to_string()));
        }
        assert_eq!(wakeups.next().await.released, ReleasedConditions::All);
        assert_eq!(Wakeups::default().released, ReleasedConditions::Nothing);
    }

    #[tokio::test]
    async fn wakeups_are_coalesced_and_too_many_mean_all() {
        let wakeups = WakeupSet::new(2);
        let id = OperationId::new(1, [0; 10]);
        wakeups.wake(Queue::Guild(1), None);
        wakeups.wake(Queue::Guild(1), Some(QueueSignal::Expedited(id)));
        wakeups.wake(Queue::Guild(2), None);
        let pending = wakeups.next().await;
        assert_eq!(pending.queues[&Queue::Guild(1)], [QueueSignal::Expedited(id)]);
        assert!(pending.queues.len() == 2 && !pending.all);
        for guild in 1..=3 {
            wakeups.wake(Queue::Guild(guild), None);
        }
        let pending = wakeups.next().await;
        assert!(pending.queues.len() == 2 && pending.all);
    }
}
