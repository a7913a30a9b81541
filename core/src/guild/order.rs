//! The order of a guild's operations: decides which one is next.

use std::collections::BTreeSet;
use std::time::Duration;

use super::conflict::{ConflictIndex as _, Conflicts, FastMap, SeqsByName};
use super::entry::{DelayScope, OrderedOperation, QueueEntry, WaitPhase};
use super::position::Positions;
use crate::operation::OperationId;
use crate::time::UnixMs;

/// Settings of the order.
#[derive(Clone, Copy, Debug)]
pub struct OrderConfig {
    /// How long an operation is delayed before others may pass it.
    pub park_after: Duration,
    /// Maximum number of loaded operations. If this many wait, no later operation can pass them.
    pub lookahead: usize,
}

impl Default for OrderConfig {
    fn default() -> Self {
        Self { park_after: Duration::from_secs(60), lookahead: 1_000 }
    }
}

/// The next step. Operations are identified by their sequence numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OrderStep {
    /// Run this operation.
    Run(u64),
    /// The deadline of this operation has passed: it must expire.
    Expire(u64),
    /// Others may pass this operation from now on: store that.
    Park(u64),
    /// Nothing to do before this time.
    WaitUntil(UnixMs),
    /// Scheduled operations are due: they have to join the queue.
    Join,
    /// Load the operations after the last one.
    NeedMore,
    /// Nothing to do until the next event: the order is empty, full of waiting operations, or one is running.
    Idle,
}

/// The unfinished operations of one queue, in order. One runs at a time.
///
/// A waiting operation blocks all later ones, unless it is parked: delayed alone for longer than `park_after`. Then
/// later operations pass if they conflict with no unfinished one. An operation that has to stay behind a parked one
/// blocks those that conflict with it, and no others.
///
/// The cost of a decision does not depend on the number of waiting operations. An operation is compared with others
/// through an index of their objects: when no earlier one blocks it, and when the one that it stays behind has
/// finished. The index contains only operations that others have passed or tried to pass, so it is empty while none is
/// parked.
#[derive(Clone, Debug)]
pub struct OperationOrder<O: Conflicts> {
    config: OrderConfig,
    operations: FastMap<u64, OrderedOperation<O>>,
    positions: Positions,
    /// The last operation that was compared with earlier ones. All before it are in the index. It is added when the
    /// next one is compared.
    examined: u64,
    running: Option<u64>,
    index: O::Index,
    /// Number of operations in the index.
    indexed: usize,
    deployments: SeqsByName<OperationId>,
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

impl<O: Conflicts> OperationOrder<O> {
    /// Creates an order that has loaded nothing.
    #[must_use]
    pub fn new(config: OrderConfig) -> Self {
        Self {
            config,
            operations: FastMap::default(),
            positions: Positions::default(),
            examined: 0,
            running: None,
            index: O::Index::default(),
            indexed: 0,
            deployments: SeqsByName::default(),
            deadlines: BTreeSet::new(),
            last: 0,
            more: true,
            woken: false,
            scheduled: None,
        }
    }

    /// Returns the next step. [`OrderStep::Run`] or [`OrderStep::Expire`] is returned again until the operation is
    /// reported as started, waiting or finished.
    pub fn next(&mut self, now: UnixMs) -> OrderStep {
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
        loop {
            if let Some(seq) = self.positions.first_due(now) {
                return OrderStep::Run(seq);
            }
            if let Some(seq) = self.positions.first_head() {
                let due = self.operations[&seq].entry.eligible_at;
                return if due <= now { OrderStep::Run(seq) } else { self.wait_or_park(seq, due, now) };
            }
            if !self.examine_next() {
                break;
            }
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
            self.positions.update(operation);
            return OrderStep::Park(seq);
        }
        let until = park_at.min(due);
        OrderStep::WaitUntil(self.earliest(Some(until)).unwrap_or(until))
    }

    /// The next time at which a step is due without an event.
    fn earliest(&self, head: Option<UnixMs>) -> Option<UnixMs> {
        let first = |set: &BTreeSet<(UnixMs, u64)>| set.first().map(|&(at, _)| at);
        [head, self.positions.next_due(), first(&self.deadlines), self.scheduled].into_iter().flatten().min()
    }

    /// The latest operation before this one that it has to stay behind: they share an object or a deployment.
    fn latest_before(&self, entry: &QueueEntry<O>) -> Option<u64> {
        if self.indexed == 0 {
            return None;
        }
        let deployed = entry.deployment.and_then(|deployment| self.deployments.latest_before(&deployment, entry.seq));
        self.index.latest_before(entry.seq, &entry.objects).max(deployed)
    }

    /// Compares the first unexamined operation with those before it. Returns whether there was one.
    fn examine_next(&mut self) -> bool {
        let Some(seq) = self.positions.first_unexamined() else { return false };
        if let Some(OrderedOperation { entry, .. }) = self.operations.get(&self.examined) {
            self.index.insert(entry.seq, &entry.objects);
            self.indexed += 1;
            if let Some(deployment) = entry.deployment {
                self.deployments.insert(&deployment, entry.seq);
            }
        }
        self.examined = seq;
        self.examine(seq);
        true
    }

    /// Determines whether an operation has to stay behind another.
    fn examine(&mut self, seq: u64) {
        let behind = self.operations.get(&seq).and_then(|operation| self.latest_before(&operation.entry));
        if let Some(operation) = self.operations.get_mut(&seq) {
            self.positions.set_position(operation, behind);
        }
    }

    /// Adds loaded operations after the last sequence number, in order. `more` is whether there are more after them.
    pub fn on_loaded(&mut self, page: impl IntoIterator<Item = QueueEntry<O>>, more: bool) {
        (self.more, self.woken) = (more, false);
        for entry in page {
            if entry.seq <= self.last {
                continue;
            }
            self.last = entry.seq;
            let operation = OrderedOperation::new(entry);
            if let Some(deadline) = operation.deadline() {
                self.deadlines.insert((deadline, self.last));
            }
            self.positions.insert(self.last, operation.position);
            self.operations.insert(self.last, operation);
        }
    }

    /// There may be more operations after the last one, and more scheduled ones.
    pub const fn on_woken(&mut self) {
        (self.more, self.woken) = (true, true);
    }

    /// Sets when the first scheduled operation of the queue is due, if there is one.
    pub const fn on_scheduled(&mut self, due: Option<UnixMs>) {
        self.scheduled = due;
    }

    /// Scheduled operations have joined after the last one. `next` is when the next one is due.
    pub const fn on_joined(&mut self, next: Option<UnixMs>) {
        (self.more, self.scheduled) = (true, next);
    }

    /// The operation has started.
    pub fn on_started(&mut self, seq: u64) {
        if let Some(operation) = self.operations.get(&seq) {
            if let Some(deadline) = operation.entry.deadline {
                self.deadlines.remove(&(deadline, seq));
            }
            self.running = Some(seq);
        }
    }

    /// The operation was about to start, and did not: it waits as before.
    pub fn on_not_started(&mut self, seq: u64) {
        if let Some(operation) = self.operations.get(&seq) {
            if let Some(deadline) = operation.deadline() {
                self.deadlines.insert((deadline, seq));
            }
            self.clear_running(seq);
        }
    }

    /// The operation has finished.
    pub fn on_finished(&mut self, seq: u64) {
        let Some(operation) = self.operations.remove(&seq) else { return };
        if let Some(deadline) = operation.entry.deadline {
            self.deadlines.remove(&(deadline, seq));
        }
        self.positions.remove(seq, operation.position);
        if seq < self.examined {
            self.index.remove(seq, &operation.entry.objects);
            self.indexed -= 1;
            if let Some(deployment) = operation.entry.deployment {
                self.deployments.remove(&deployment, seq);
            }
            for later in self.positions.behind(seq) {
                self.examine(later);
            }
        }
        self.clear_running(seq);
    }

    /// A limit or a breaker delayed the operation. Returns whether others may pass it from now on.
    pub fn on_delayed(&mut self, seq: u64, until: UnixMs, held: DelayScope, now: UnixMs) -> bool {
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
    pub fn on_waiting(&mut self, seq: u64, phase: WaitPhase, until: UnixMs) {
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
        self.positions.update(operation);
        self.clear_running(seq);
    }

    fn clear_running(&mut self, seq: u64) {
        if self.running == Some(seq) {
            self.running = None;
        }
    }

    /// The operation was cancelled. No effect if it is running.
    pub fn on_cancelled(&mut self, seq: u64) {
        if self.running != Some(seq) {
            self.on_finished(seq);
        }
    }

    /// The operation was expedited. No effect if it is running or being reconciled.
    pub fn on_expedited(&mut self, seq: u64, now: UnixMs) {
        if self.running == Some(seq) {
            return;
        }
        if let Some(operation) = self.operations.get_mut(&seq)
            && operation.entry.phase.may_expire()
        {
            operation.entry.eligible_at = operation.entry.eligible_at.min(now);
            self.positions.update(operation);
        }
    }

    /// The reason of its delay has ended: the operation is due now. No effect if it is running.
    pub fn on_released(&mut self, seq: u64, now: UnixMs) {
        if self.running == Some(seq) {
            return;
        }
        if let Some(operation) = self.operations.get_mut(&seq) {
            operation.entry.eligible_at = operation.entry.eligible_at.min(now);
            self.positions.update(operation);
        }
    }

    /// The sequence number of this operation, if it is loaded. Linear search.
    #[must_use]
    pub fn find(&self, id: OperationId) -> Option<u64> {
        self.operations.values().find(|operation| operation.entry.id == id).map(|operation| operation.entry.seq)
    }

    /// The operation with this sequence number.
    #[must_use]
    pub fn entry(&self, seq: u64) -> Option<&QueueEntry<O>> {
        self.operations.get(&seq).map(|operation| &operation.entry)
    }

    /// The last loaded sequence number.
    #[must_use]
    pub const fn last(&self) -> u64 {
        self.last
    }

    /// The running operation.
    #[must_use]
    pub const fn running(&self) -> Option<u64> {
        self.running
    }

    /// Number of loaded operations.
    #[must_use]
    pub fn len(&self) -> usize {
        self.operations.len()
    }

    /// Whether no operation is loaded.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.operations.is_empty()
    }

    /// Number of parked operations.
    #[must_use]
    pub fn parked(&self) -> usize {
        self.operations.values().filter(|operation| operation.is_parked()).count()
    }
}
