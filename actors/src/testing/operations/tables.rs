//! Tables of the in-memory store.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use guildhall_core::operation::{ManagedKind, OperationId, OperationState, Progress, Queue};
use guildhall_core::time::UnixMs;

use crate::ports::{Attempt, Claim, Fence, IntentUpdate, NewOperation, OperationUpdate, StoredOperation, UpdateResult};

#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) stored: StoredOperation,
    pub(crate) result: Option<String>,
    pub(crate) created: Option<u64>,
    pub(crate) attempts: Vec<Attempt>,
}

/// Guild, kind and key of a managed object.
type ObjectKey = (Option<u64>, ManagedKind, String);

#[derive(Debug, Default)]
pub(crate) struct QueueRow {
    pub(crate) next_seq: u64,
    pub(crate) owner: Option<u32>,
    pub(crate) fence: u64,
    pub(crate) paused: bool,
    /// Scheduled operations, by the time at which they join and by order of acceptance.
    pub(crate) scheduled: BTreeMap<(UnixMs, u64), OperationId>,
}

#[derive(Debug, Default)]
pub(crate) struct Tables {
    pub(crate) rows: BTreeMap<OperationId, Row>,
    /// Unfinished operations.
    pub(crate) orders: BTreeMap<Queue, BTreeMap<u64, OperationId>>,
    pub(crate) queues: BTreeMap<Queue, QueueRow>,
    pub(crate) bindings: HashMap<ObjectKey, (u64, Option<u64>)>,
    pub(crate) all_paused: bool,
    pub(crate) commits: u64,
    /// Unreadable rows, with the problem.
    pub(crate) damaged: HashMap<OperationId, String>,
    /// Claims whose result was received.
    pub(crate) delivered: HashSet<(Queue, u64)>,
    /// Queues that were made due regardless of their operations.
    pub(crate) ready: HashSet<Queue>,
}

impl Tables {
    /// Makes free queues due in which an operation waits for the gate.
    pub(crate) fn release_held(&mut self, now: UnixMs, limit: usize) -> usize {
        let is_held = |id: &OperationId| {
            let stored = &self.rows[id].stored;
            let waits = matches!(stored.state, OperationState::Delayed | OperationState::Reconciling);
            waits && stored.error.as_ref().is_some_and(|error| error.held_by.is_some())
        };
        let held: Vec<Queue> = self
            .orders
            .iter()
            .filter(|(queue, order)| {
                let is_later = self.due(**queue).is_some_and(|due| due > now);
                self.is_free(**queue) && is_later && order.values().any(is_held)
            })
            .map(|(queue, _)| *queue)
            .take(limit)
            .collect();
        self.ready.extend(&held);
        held.len()
    }

    pub(crate) fn due(&self, queue: Queue) -> Option<UnixMs> {
        if self.ready.contains(&queue) {
            return Some(UnixMs::new(0));
        }
        let order = self.orders.get(&queue).into_iter().flat_map(BTreeMap::values);
        let waiting = order.map(|id| self.rows[id].stored.operation.eligible_at).min();
        [waiting, self.first_scheduled(queue)].into_iter().flatten().min()
    }

    pub(crate) fn first_scheduled(&self, queue: Queue) -> Option<UnixMs> {
        self.queues.get(&queue)?.scheduled.first_key_value().map(|((joins_at, _), _)| *joins_at)
    }

    /// Stores a new operation: in its queue, or scheduled.
    pub(crate) fn accept(&mut self, operation: NewOperation) {
        let queue = operation.queue.queue(&operation.tenant);
        self.join(queue, operation.created_at, usize::MAX);
        let own = Some(operation.eligible_at).filter(|due| *due > operation.created_at);
        let joins_at = self.held_by(&operation).into_iter().chain(own).max();
        let joins_at = joins_at.map(|at| operation.deadline_at.map_or(at, |deadline| at.min(deadline)));
        let row = self.queues.entry(queue).or_default();
        row.next_seq += 1;
        let (id, n) = (operation.id, row.next_seq);
        let (seq, state) = match joins_at {
            Some(joins_at) => {
                row.scheduled.insert((joins_at, n), id);
                (0, OperationState::Scheduled)
            }
            None => {
                self.orders.entry(queue).or_default().insert(n, id);
                (n, OperationState::Queued)
            }
        };
        let stored = StoredOperation {
            operation,
            seq,
            state,
            attempts: 0,
            delays: 0,
            parked: false,
            intent: None,
            progress: Progress::default(),
            error: None,
            unknown_outcome: None,
        };
        self.rows.insert(id, Row { stored, result: None, created: None, attempts: Vec::new() });
    }

    /// When the last of the scheduled operations joins that an operation refers to.
    fn held_by(&self, operation: &NewOperation) -> Option<UnixMs> {
        let scheduled = |id: &OperationId| {
            let row = self.rows.get(id).filter(|row| row.stored.state == OperationState::Scheduled)?;
            let queue = row.stored.operation.queue.queue(&row.stored.operation.tenant);
            let scheduled = &self.queues.get(&queue)?.scheduled;
            scheduled.iter().find(|(_, other)| *other == id).map(|((joins_at, _), _)| *joins_at)
        };
        operation.refers_to.iter().filter_map(scheduled).max()
    }

    /// Moves due operations into their queue.
    pub(crate) fn join(&mut self, queue: Queue, now: UnixMs, limit: usize) -> Option<UnixMs> {
        for _ in 0..limit {
            let first = self.queues.get(&queue).and_then(|row| row.scheduled.first_key_value());
            let Some((&(joins_at, n), &id)) = first.filter(|((joins_at, _), _)| *joins_at <= now) else { break };
            let operation = self.rows[&id].stored.operation.clone();
            let expired = operation.deadline_at.is_some_and(|deadline| deadline <= now);
            let later = self.held_by(&operation).filter(|_| !expired);
            let row = self.queues.entry(queue).or_default();
            row.scheduled.remove(&(joins_at, n));
            if let Some(later) = later {
                row.scheduled.insert((later.max(now + Duration::from_secs(1)), n), id);
            } else {
                self.enqueue(queue, id, now);
            }
        }
        self.first_scheduled(queue)
    }

    fn enqueue(&mut self, queue: Queue, id: OperationId, now: UnixMs) {
        let queue_row = self.queues.entry(queue).or_default();
        queue_row.next_seq += 1;
        let seq = queue_row.next_seq;
        self.orders.entry(queue).or_default().insert(seq, id);
        let row = self.rows.get_mut(&id).unwrap();
        (row.stored.seq, row.stored.state) = (seq, OperationState::Queued);
        self.release(id, now);
    }

    /// Reschedules the operations that refer to one that is no longer scheduled.
    fn release(&mut self, target: OperationId, now: UnixMs) {
        let follows = |row: &&Row| {
            row.stored.state == OperationState::Scheduled && row.stored.operation.refers_to.contains(&target)
        };
        let follow: Vec<NewOperation> =
            self.rows.values().filter(follows).map(|row| row.stored.operation.clone()).collect();
        for operation in follow {
            let held = self.held_by(&operation).unwrap_or_default();
            let row = self.queues.get_mut(&operation.queue.queue(&operation.tenant)).unwrap();
            let key = *row.scheduled.iter().find(|(_, id)| **id == operation.id).unwrap().0;
            let later = operation.eligible_at.max(now).min(key.0).max(held);
            let later = operation.deadline_at.map_or(later, |deadline| later.min(deadline));
            row.scheduled.remove(&key);
            row.scheduled.insert((later, key.1), operation.id);
        }
    }

    /// Cancels a scheduled operation, or lets it join now if it may.
    pub(crate) fn unschedule(&mut self, id: OperationId, now: UnixMs, to: OperationState) -> OperationState {
        let operation = self.rows[&id].stored.operation.clone();
        let queue = operation.queue.queue(&operation.tenant);
        let scheduled = &mut self.queues.get_mut(&queue).unwrap().scheduled;
        let key = *scheduled.iter().find(|(_, other)| **other == id).unwrap().0;
        if to == OperationState::Cancelled {
            scheduled.remove(&key);
            self.rows.get_mut(&id).unwrap().stored.state = OperationState::Cancelled;
            self.release(id, now);
            return OperationState::Cancelled;
        }
        self.rows.get_mut(&id).unwrap().stored.operation.eligible_at = now;
        if self.held_by(&operation).is_some() {
            return OperationState::Scheduled;
        }
        self.queues.get_mut(&queue).unwrap().scheduled.remove(&key);
        self.enqueue(queue, id, now);
        OperationState::Queued
    }

    pub(crate) fn is_free(&self, queue: Queue) -> bool {
        self.queues.get(&queue).is_some_and(|row| row.owner.is_none() && !row.paused)
    }

    pub(crate) fn claim(&mut self, queue: Queue, owner: u32) -> Option<Claim> {
        let paused = self.all_paused;
        let row = self.queues.entry(queue).or_default();
        if row.owner.is_some() {
            return None;
        }
        row.owner = Some(owner);
        row.fence += 1;
        self.ready.remove(&queue);
        Some(Claim { queue, fence: Fence(row.fence), paused: row.paused || paused })
    }

    /// Releases the claims of a lost response.
    pub(crate) fn release_unreceived(&mut self, owner: u32) {
        for (queue, row) in &mut self.queues {
            if row.owner == Some(owner) && !self.delivered.contains(&(*queue, row.fence)) {
                (row.owner, row.fence) = (None, row.fence + 1);
            }
        }
    }

    pub(crate) fn record(&mut self, update: &OperationUpdate) -> UpdateResult {
        if self.queues.get(&update.queue).map(|queue_row| queue_row.fence) != Some(update.fence.0) {
            return UpdateResult::Fenced;
        }
        let Some(row) = self.rows.get_mut(&update.id) else { return UpdateResult::Finished };
        if row.stored.state.is_final() {
            return UpdateResult::Finished;
        }
        let stored = &mut row.stored;
        // A repeated update after a lost response is no transition.
        assert!(
            stored.state == update.state || stored.state.check_transition(update.state).is_ok(),
            "{:?} {update:?}",
            stored.state
        );
        (stored.state, stored.attempts, stored.delays) = (update.state, update.attempts, update.delays);
        (stored.parked, stored.error, stored.operation.eligible_at) =
            (update.parked, update.error.clone(), update.eligible_at);
        if update.unknown_outcome.is_some() {
            stored.unknown_outcome.clone_from(&update.unknown_outcome);
        }
        match update.intent {
            IntentUpdate::Unchanged => {}
            IntentUpdate::Open(at) => stored.intent = stored.intent.or(Some(at)),
            IntentUpdate::Close => stored.intent = None,
        }
        stored.intent = stored.intent.filter(|_| !update.state.is_final());
        if let Some(progress) = &update.progress {
            stored.progress = serde_json::from_str(&progress.json).unwrap();
        }
        let seq = stored.seq;
        row.result = update.result.clone();
        row.created = update.created;
        row.attempts.extend(update.attempt.clone());
        for binding in &update.bind {
            let key = (update.guild, binding.kind, binding.key.clone());
            self.bindings.insert(key, (binding.discord_id, binding.channel));
        }
        if update.state.is_final() {
            self.orders.entry(update.queue).or_default().remove(&seq);
        }
        UpdateResult::Done
    }
}
