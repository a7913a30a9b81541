//! The order computed by comparing all pairs: the reference for the indexed order.

use std::collections::{BTreeMap, BTreeSet};

use super::entry::{DelayScope, OrderedOperation, QueueEntry, WaitPhase};
use super::order::{OrderConfig, OrderStep};
use crate::operation::payload::Objects;
use crate::time::UnixMs;

/// Conflict check between the objects of two operations.
pub(super) trait ConflictsWith {
    /// Whether the order of the two matters.
    fn conflicts_with(&self, other: &Self) -> bool;
}

impl ConflictsWith for Objects {
    fn conflicts_with(&self, other: &Self) -> bool {
        Self::meets(self, other)
    }
}

/// Whether an operation has to stay behind an unfinished earlier one.
fn stays_behind<O: ConflictsWith>(operation: &OrderedOperation<O>, earlier: &OrderedOperation<O>) -> bool {
    let (entry, other) = (&operation.entry, &earlier.entry);
    (entry.deployment.is_some() && entry.deployment == other.deployment) || entry.objects.conflicts_with(&other.objects)
}

/// The unfinished operations of one queue, in order. One runs at a time.
///
/// A waiting operation blocks all later ones, unless it is parked: delayed alone for longer than `park_after`. Then
/// later operations pass if they conflict with no unfinished one. An operation that has to stay behind a parked one
/// blocks those that conflict with it, and no others.
#[derive(Clone, Debug)]
pub(super) struct QuadraticOrder<O> {
    config: OrderConfig,
    operations: BTreeMap<u64, OrderedOperation<O>>,
    running: Option<u64>,
    /// All before this sequence number are parked and not due, or have to stay behind one that is.
    passed: u64,
    /// The parked ones among them that stay behind none, by due time.
    parked: BTreeSet<(UnixMs, u64)>,
    deadlines: BTreeSet<(UnixMs, u64)>,
    /// The last loaded sequence number.
    last: u64,
    /// Whether there may be more after it.
    more: bool,
    /// Whether there may be new operations since the last page was loaded.
    woken: bool,
    /// When the first scheduled operation is due. Scheduled operations are not in the order.
    scheduled: Option<UnixMs>,
}

impl<O: ConflictsWith> QuadraticOrder<O> {
    /// Creates an order that has loaded nothing.
    pub(super) const fn new(config: OrderConfig) -> Self {
        Self {
            config,
            operations: BTreeMap::new(),
            running: None,
            passed: 0,
            parked: BTreeSet::new(),
            deadlines: BTreeSet::new(),
            last: 0,
            more: true,
            woken: false,
            scheduled: None,
        }
    }

    /// Returns the next step. `Run` or `Expire` is returned again until the operation is reported as started, waiting
    /// or finished.
    pub(super) fn next(&mut self, now: UnixMs) -> OrderStep {
        if self.running.is_some() {
            return OrderStep::Idle;
        }
        if let Some(&(deadline, seq)) = self.deadlines.first()
            && deadline <= now
        {
            return OrderStep::Expire(seq);
        }
        if self.scheduled.is_some_and(|due| due <= now) {
            return OrderStep::Join;
        }
        if self.parked.first().is_some_and(|&(due, _)| due <= now) {
            self.rewind();
        }
        while let Some((&seq, candidate)) = self.operations.range(self.passed..).next() {
            let stays_behind = self.operations.range(..seq).any(|(_, earlier)| stays_behind(candidate, earlier));
            if !stays_behind {
                let due = candidate.entry.eligible_at;
                if due <= now {
                    return OrderStep::Run(seq);
                }
                if !candidate.is_parked() {
                    return self.wait_or_park(seq, due, now);
                }
                self.parked.insert((due, seq));
            }
            self.passed = seq + 1;
        }
        if self.may_load() && self.more {
            return OrderStep::NeedMore;
        }
        self.earliest(None).map_or(OrderStep::Idle, OrderStep::WaitUntil)
    }

    fn may_load(&self) -> bool {
        self.operations.len() < self.config.lookahead
    }

    fn wait_or_park(&mut self, seq: u64, due: UnixMs, now: UnixMs) -> OrderStep {
        if self.woken && self.may_load() {
            // A new operation may have a deadline, or be scheduled before the waiting one is due.
            return OrderStep::NeedMore;
        }
        let operation = self.operations.get_mut(&seq).expect("invariant: the operation was found above");
        let Some(park_at) = operation.park_at else {
            return OrderStep::WaitUntil(self.earliest(Some(due)).unwrap_or(due));
        };
        if park_at <= now {
            operation.entry.phase = WaitPhase::Delayed { parked: true };
            operation.park_at = None;
            return OrderStep::Park(seq);
        }
        let until = park_at.min(due);
        OrderStep::WaitUntil(self.earliest(Some(until)).unwrap_or(until))
    }

    /// The next time at which a step is due without an event.
    fn earliest(&self, head: Option<UnixMs>) -> Option<UnixMs> {
        let first = |set: &BTreeSet<(UnixMs, u64)>| set.first().map(|&(at, _)| at);
        [head, first(&self.parked), first(&self.deadlines), self.scheduled].into_iter().flatten().min()
    }

    /// Starts from the first operation again: one of those that were passed has changed.
    fn rewind(&mut self) {
        self.passed = 0;
        self.parked.clear();
    }

    /// Adds loaded operations after the last sequence number, in order. `more` is whether there are more after them.
    pub(super) fn on_loaded(&mut self, page: impl IntoIterator<Item = QueueEntry<O>>, more: bool) {
        (self.more, self.woken) = (more, false);
        for entry in page {
            if entry.seq <= self.last {
                continue;
            }
            self.last = entry.seq;
            let operation = OrderedOperation::new(entry);
            if let Some(deadline) = operation.deadline() {
                self.deadlines.insert((deadline, operation.entry.seq));
            }
            self.operations.insert(operation.entry.seq, operation);
        }
    }

    /// There may be more operations after the last one, and more scheduled ones.
    pub(super) const fn on_woken(&mut self) {
        (self.more, self.woken) = (true, true);
    }

    /// Sets when the first scheduled operation of the queue is due, if there is one.
    pub(super) const fn on_scheduled(&mut self, due: Option<UnixMs>) {
        self.scheduled = due;
    }

    /// Scheduled operations have joined after the last one. `next` is when the next one is due.
    pub(super) const fn on_joined(&mut self, next: Option<UnixMs>) {
        (self.more, self.scheduled) = (true, next);
    }

    /// The operation has started.
    pub(super) fn on_started(&mut self, seq: u64) {
        if let Some(operation) = self.operations.get(&seq) {
            if let Some(deadline) = operation.entry.deadline {
                self.deadlines.remove(&(deadline, seq));
            }
            self.running = Some(seq);
        }
    }

    /// The operation was about to start, and did not: it waits as before.
    pub(super) fn on_not_started(&mut self, seq: u64) {
        if let Some(operation) = self.operations.get(&seq) {
            if let Some(deadline) = operation.deadline() {
                self.deadlines.insert((deadline, seq));
            }
            self.changed(seq);
        }
    }

    /// The operation has finished.
    pub(super) fn on_finished(&mut self, seq: u64) {
        if let Some(operation) = self.operations.remove(&seq) {
            if let Some(deadline) = operation.entry.deadline {
                self.deadlines.remove(&(deadline, seq));
            }
            self.changed(seq);
        }
    }

    /// A limit or a breaker delayed the operation. Returns whether others may pass it from now on.
    pub(super) fn on_delayed(&mut self, seq: u64, until: UnixMs, held: DelayScope, now: UnixMs) -> bool {
        let park_after = self.config.park_after;
        let Some(operation) = self.operations.get_mut(&seq) else { return false };
        let parked = match held {
            DelayScope::WithAll => {
                (operation.held_since, operation.park_at) = (None, None);
                false
            }
            DelayScope::ByCaller => {
                operation.held_since.get_or_insert(now);
                operation.park_at = None;
                true
            }
            DelayScope::Alone => {
                let since = *operation.held_since.get_or_insert(now);
                let was_parked = operation.is_parked();
                let parked = was_parked || until.since(now) > park_after || now.since(since) >= park_after;
                operation.park_at = (!parked && until > since + park_after).then(|| since + park_after);
                parked
            }
        };
        self.wait(seq, WaitPhase::Delayed { parked }, until);
        parked
    }

    /// The operation waits for its turn, its next attempt, or its reconciliation.
    pub(super) fn on_waiting(&mut self, seq: u64, phase: WaitPhase, until: UnixMs) {
        if let Some(operation) = self.operations.get_mut(&seq) {
            (operation.held_since, operation.park_at) = (None, None);
            self.wait(seq, phase, until);
        }
    }

    fn wait(&mut self, seq: u64, phase: WaitPhase, until: UnixMs) {
        let Some(operation) = self.operations.get_mut(&seq) else { return };
        (operation.entry.phase, operation.entry.eligible_at) = (phase, until);
        let deadline = operation.deadline();
        if let Some(deadline) = deadline {
            self.deadlines.insert((deadline, seq));
        } else if let Some(deadline) = operation.entry.deadline {
            self.deadlines.remove(&(deadline, seq));
        }
        self.changed(seq);
    }

    fn changed(&mut self, seq: u64) {
        if self.running == Some(seq) {
            self.running = None;
        }
        if seq < self.passed {
            self.rewind();
        }
    }

    /// The operation was cancelled. No effect if it is running.
    pub(super) fn on_cancelled(&mut self, seq: u64) {
        if self.running != Some(seq) {
            self.on_finished(seq);
        }
    }

    /// The operation was expedited. No effect if it is running or being reconciled.
    pub(super) fn on_expedited(&mut self, seq: u64, now: UnixMs) {
        if self.running == Some(seq) {
            return;
        }
        if let Some(operation) = self.operations.get_mut(&seq)
            && operation.entry.phase.may_expire()
        {
            operation.entry.eligible_at = operation.entry.eligible_at.min(now);
            self.changed(seq);
        }
    }
}

impl<O> QuadraticOrder<O> {
    pub(super) fn len(&self) -> usize {
        self.operations.len()
    }

    pub(super) const fn running(&self) -> Option<u64> {
        self.running
    }
}
