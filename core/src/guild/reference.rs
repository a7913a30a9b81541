//! The order by comparing all pairs: the reference that the indexed line is held against.

use std::collections::{BTreeMap, BTreeSet};

use super::entry::{DelayScope, OrderedOperation, QueueEntry, WaitPhase};
use super::order::{OrderConfig, OrderStep};
use crate::operation::payload::Objects;
use crate::time::UnixMs;

/// What can share something with its like: the objects of two operations.
pub(super) trait ConflictsWith {
    /// Whether the order of the two matters.
    fn meets(&self, other: &Self) -> bool;
}

impl ConflictsWith for Objects {
    fn meets(&self, other: &Self) -> bool {
        Self::meets(self, other)
    }
}

/// Whether one has to stay behind an earlier one that is not done.
fn stays_behind<O: ConflictsWith>(one: &OrderedOperation<O>, earlier: &OrderedOperation<O>) -> bool {
    let (own, other) = (&one.entry, &earlier.entry);
    (own.deployment.is_some() && own.deployment == other.deployment) || own.objects.meets(&other.objects)
}

/// The operations of one queue that are not done, in order. One runs at a time.
///
/// Whoever waits holds up all behind it, unless it is parked: held back alone for longer than `park_after`. Then those
/// pass that have to stay behind nobody who is not done. Whoever has to stay behind a parked one holds up its like in
/// turn, and no others.
#[derive(Clone, Debug)]
pub(super) struct QuadraticOrder<O> {
    config: OrderConfig,
    standing: BTreeMap<u64, OrderedOperation<O>>,
    running: Option<u64>,
    /// All before this place are parked and not due, or have to stay behind one that is.
    passed: u64,
    /// The parked ones among them that stay behind nobody, by when they are due.
    parked: BTreeSet<(UnixMs, u64)>,
    deadlines: BTreeSet<(UnixMs, u64)>,
    /// The last place that was loaded.
    last: u64,
    /// Whether there may be more behind it.
    more: bool,
    /// Whether something is new since the last page was loaded.
    woken: bool,
    /// When the first scheduled operation is due. Scheduled ones are not in the line.
    scheduled: Option<UnixMs>,
}

impl<O: ConflictsWith> QuadraticOrder<O> {
    /// A line of which nothing is known.
    pub(super) const fn new(config: OrderConfig) -> Self {
        Self {
            config,
            standing: BTreeMap::new(),
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

    /// What is to be done next. An answer of [`Step::Run`] or [`Step::Expire`] stands until its operation is told to have
    /// started, to wait or to have ended.
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
        while let Some((&seq, candidate)) = self.standing.range(self.passed..).next() {
            let stays_behind = self.standing.range(..seq).any(|(_, earlier)| stays_behind(candidate, earlier));
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
        self.standing.len() < self.config.lookahead
    }

    fn wait_or_park(&mut self, seq: u64, due: UnixMs, now: UnixMs) -> OrderStep {
        if self.woken && self.may_load() {
            // What is new may have a deadline, or be scheduled for before the one that waits is due.
            return OrderStep::NeedMore;
        }
        let standing = self.standing.get_mut(&seq).expect("invariant: it was found here");
        let Some(park_at) = standing.park_at else {
            return OrderStep::WaitUntil(self.earliest(Some(due)).unwrap_or(due));
        };
        if park_at <= now {
            standing.entry.phase = WaitPhase::Delayed { parked: true };
            standing.park_at = None;
            return OrderStep::Park(seq);
        }
        let until = park_at.min(due);
        OrderStep::WaitUntil(self.earliest(Some(until)).unwrap_or(until))
    }

    /// When something happens by itself.
    fn earliest(&self, head: Option<UnixMs>) -> Option<UnixMs> {
        let first = |set: &BTreeSet<(UnixMs, u64)>| set.first().map(|&(at, _)| at);
        [head, first(&self.parked), first(&self.deadlines), self.scheduled].into_iter().flatten().min()
    }

    /// Looks at all again: one of those that were passed has changed.
    fn rewind(&mut self) {
        self.passed = 0;
        self.parked.clear();
    }

    /// Operations behind the last place, in order; and whether there are more behind them.
    pub(super) fn on_loaded(&mut self, page: impl IntoIterator<Item = QueueEntry<O>>, more: bool) {
        (self.more, self.woken) = (more, false);
        for entry in page {
            if entry.seq <= self.last {
                continue;
            }
            self.last = entry.seq;
            let standing = OrderedOperation::new(entry);
            if let Some(deadline) = standing.deadline() {
                self.deadlines.insert((deadline, standing.entry.seq));
            }
            self.standing.insert(standing.entry.seq, standing);
        }
    }

    /// There may be more behind the last place, and more that is scheduled.
    pub(super) const fn on_woken(&mut self) {
        (self.more, self.woken) = (true, true);
    }

    /// When the first scheduled operation of the queue is due, if there is one.
    pub(super) const fn on_scheduled(&mut self, due: Option<UnixMs>) {
        self.scheduled = due;
    }

    /// Scheduled operations have joined behind the last place; and when the next one is due.
    pub(super) const fn on_joined(&mut self, next: Option<UnixMs>) {
        (self.more, self.scheduled) = (true, next);
    }

    /// It is being done.
    pub(super) fn on_started(&mut self, seq: u64) {
        if let Some(standing) = self.standing.get(&seq) {
            if let Some(deadline) = standing.entry.deadline {
                self.deadlines.remove(&(deadline, seq));
            }
            self.running = Some(seq);
        }
    }

    /// It was about to be done, and was not: it waits as it did before.
    pub(super) fn on_not_started(&mut self, seq: u64) {
        if let Some(standing) = self.standing.get(&seq) {
            if let Some(deadline) = standing.deadline() {
                self.deadlines.insert((deadline, seq));
            }
            self.changed(seq);
        }
    }

    /// Nothing more will become of it.
    pub(super) fn on_ended(&mut self, seq: u64) {
        if let Some(standing) = self.standing.remove(&seq) {
            if let Some(deadline) = standing.entry.deadline {
                self.deadlines.remove(&(deadline, seq));
            }
            self.changed(seq);
        }
    }

    /// A limit or a breaker held it back. Whether others may pass it from now on.
    pub(super) fn on_delayed(&mut self, seq: u64, until: UnixMs, held: DelayScope, now: UnixMs) -> bool {
        let park_after = self.config.park_after;
        let Some(standing) = self.standing.get_mut(&seq) else { return false };
        let parked = match held {
            DelayScope::WithAll => {
                (standing.held_since, standing.park_at) = (None, None);
                false
            }
            DelayScope::ByCaller => {
                standing.held_since.get_or_insert(now);
                standing.park_at = None;
                true
            }
            DelayScope::Alone => {
                let since = *standing.held_since.get_or_insert(now);
                let was_parked = standing.is_parked();
                let parked = was_parked || until.since(now) > park_after || now.since(since) >= park_after;
                standing.park_at = (!parked && until > since + park_after).then(|| since + park_after);
                parked
            }
        };
        self.wait(seq, WaitPhase::Delayed { parked }, until);
        parked
    }

    /// It waits for something of its own: its turn, the next try, or to be looked for.
    pub(super) fn on_waiting(&mut self, seq: u64, phase: WaitPhase, until: UnixMs) {
        if let Some(standing) = self.standing.get_mut(&seq) {
            (standing.held_since, standing.park_at) = (None, None);
            self.wait(seq, phase, until);
        }
    }

    fn wait(&mut self, seq: u64, phase: WaitPhase, until: UnixMs) {
        let Some(standing) = self.standing.get_mut(&seq) else { return };
        (standing.entry.phase, standing.entry.eligible_at) = (phase, until);
        let deadline = standing.deadline();
        if let Some(deadline) = deadline {
            self.deadlines.insert((deadline, seq));
        } else if let Some(deadline) = standing.entry.deadline {
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

    /// Somebody took it back; nothing happens if it is running.
    pub(super) fn on_cancelled(&mut self, seq: u64) {
        if self.running != Some(seq) {
            self.on_ended(seq);
        }
    }

    /// Somebody wants it done now; nothing happens if it is running or being looked for.
    pub(super) fn on_hastened(&mut self, seq: u64, now: UnixMs) {
        if self.running == Some(seq) {
            return;
        }
        if let Some(standing) = self.standing.get_mut(&seq)
            && standing.entry.phase.may_expire()
        {
            standing.entry.eligible_at = standing.entry.eligible_at.min(now);
            self.changed(seq);
        }
    }
}

impl<O> QuadraticOrder<O> {
    pub(super) fn len(&self) -> usize {
        self.standing.len()
    }

    pub(super) const fn running(&self) -> Option<u64> {
        self.running
    }
}
