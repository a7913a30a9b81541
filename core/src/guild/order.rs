//! A guild's line: who is next.

use std::collections::BTreeSet;
use std::time::Duration;

use super::conflict::{ConflictIndex as _, Conflicts, FastMap, Named};
use super::entry::{DelayScope, OrderedOperation, QueueEntry, WaitPhase};
use super::position::Positions;
use crate::operation::OperationId;
use crate::time::UnixMs;

/// How long a line holds together.
#[derive(Clone, Copy, Debug)]
pub struct OrderConfig {
    /// How long an operation is held back before others may pass it.
    pub park_after: Duration,
    /// How many operations a line knows. Behind so many that wait, nothing passes.
    pub lookahead: usize,
}

impl Default for OrderConfig {
    fn default() -> Self {
        Self { park_after: Duration::from_secs(60), lookahead: 1_000 }
    }
}

/// What is to be done next. Operations go by their places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OrderStep {
    /// It is this one's turn.
    Run(u64),
    /// This one's time is up: it has to end.
    Expire(u64),
    /// Others may pass this one from now on: that has to be kept.
    Park(u64),
    /// Nothing before then.
    WaitUntil(UnixMs),
    /// Scheduled operations are due: they have to join.
    Join,
    /// Those behind the last one have to be loaded.
    NeedMore,
    /// Nothing until something happens: the line is empty, full of those who wait for others, or one is running.
    Idle,
}

/// The operations of one queue that are not done, in order. One runs at a time.
///
/// Whoever waits holds up all behind it, unless it is parked: held back alone for longer than `park_after`. Then those
/// pass that have to stay behind nobody who is not done. Whoever has to stay behind a parked one holds up its like in
/// turn, and no others.
///
/// A decision costs the same however many wait: an operation is compared with others by an index of their objects, when
/// no earlier one holds it up and when the one that it stays behind has ended. The index holds only operations that others
/// have passed or tried to pass, so it is empty while none is parked.
#[derive(Clone, Debug)]
pub struct OperationOrder<O: Conflicts> {
    config: OrderConfig,
    standing: FastMap<u64, OrderedOperation<O>>,
    positions: Positions,
    /// The last operation that was compared with earlier ones. All before it are in the index. It is added when the next
    /// one is compared.
    examined: u64,
    running: Option<u64>,
    index: O::Index,
    /// How many operations are in the index.
    indexed: usize,
    deployments: Named<OperationId>,
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

impl<O: Conflicts> OperationOrder<O> {
    /// A line of which nothing is known.
    #[must_use]
    pub fn new(config: OrderConfig) -> Self {
        Self {
            config,
            standing: FastMap::default(),
            positions: Positions::default(),
            examined: 0,
            running: None,
            index: O::Index::default(),
            indexed: 0,
            deployments: Named::default(),
            deadlines: BTreeSet::new(),
            last: 0,
            more: true,
            woken: false,
            scheduled: None,
        }
    }

    /// What is to be done next. An answer of [`OrderStep::Run`] or [`OrderStep::Expire`] stands until its operation is told to have
    /// started, to wait or to have ended.
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
                let due = self.standing[&seq].entry.eligible_at;
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
            self.positions.update(standing);
            return OrderStep::Park(seq);
        }
        let until = park_at.min(due);
        OrderStep::WaitUntil(self.earliest(Some(until)).unwrap_or(until))
    }

    /// When something happens by itself.
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
        if let Some(OrderedOperation { entry, .. }) = self.standing.get(&self.examined) {
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

    /// Finds out whether one has to stay behind another.
    fn examine(&mut self, seq: u64) {
        let behind = self.standing.get(&seq).and_then(|standing| self.latest_before(&standing.entry));
        if let Some(standing) = self.standing.get_mut(&seq) {
            self.positions.place(standing, behind);
        }
    }

    /// Operations behind the last place, in order; and whether there are more behind them.
    pub fn on_loaded(&mut self, page: impl IntoIterator<Item = QueueEntry<O>>, more: bool) {
        (self.more, self.woken) = (more, false);
        for entry in page {
            if entry.seq <= self.last {
                continue;
            }
            self.last = entry.seq;
            let standing = OrderedOperation::new(entry);
            if let Some(deadline) = standing.deadline() {
                self.deadlines.insert((deadline, self.last));
            }
            self.positions.insert(self.last, standing.position);
            self.standing.insert(self.last, standing);
        }
    }

    /// There may be more behind the last place, and more that is scheduled.
    pub const fn on_woken(&mut self) {
        (self.more, self.woken) = (true, true);
    }

    /// When the first scheduled operation of the queue is due, if there is one.
    pub const fn on_scheduled(&mut self, due: Option<UnixMs>) {
        self.scheduled = due;
    }

    /// Scheduled operations have joined behind the last place; and when the next one is due.
    pub const fn on_joined(&mut self, next: Option<UnixMs>) {
        (self.more, self.scheduled) = (true, next);
    }

    /// It is being done.
    pub fn on_started(&mut self, seq: u64) {
        if let Some(standing) = self.standing.get(&seq) {
            if let Some(deadline) = standing.entry.deadline {
                self.deadlines.remove(&(deadline, seq));
            }
            self.running = Some(seq);
        }
    }

    /// It was about to be done, and was not: it waits as it did before.
    pub fn on_not_started(&mut self, seq: u64) {
        if let Some(standing) = self.standing.get(&seq) {
            if let Some(deadline) = standing.deadline() {
                self.deadlines.insert((deadline, seq));
            }
            self.not_running(seq);
        }
    }

    /// Nothing more will become of it.
    pub fn on_ended(&mut self, seq: u64) {
        let Some(standing) = self.standing.remove(&seq) else { return };
        if let Some(deadline) = standing.entry.deadline {
            self.deadlines.remove(&(deadline, seq));
        }
        self.positions.remove(seq, standing.position);
        if seq < self.examined {
            self.index.remove(seq, &standing.entry.objects);
            self.indexed -= 1;
            if let Some(deployment) = standing.entry.deployment {
                self.deployments.remove(&deployment, seq);
            }
            for later in self.positions.behind(seq) {
                self.examine(later);
            }
        }
        self.not_running(seq);
    }

    /// A limit or a breaker held it back. Whether others may pass it from now on.
    pub fn on_delayed(&mut self, seq: u64, until: UnixMs, held: DelayScope, now: UnixMs) -> bool {
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
    pub fn on_waiting(&mut self, seq: u64, phase: WaitPhase, until: UnixMs) {
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
        self.positions.update(standing);
        self.not_running(seq);
    }

    fn not_running(&mut self, seq: u64) {
        if self.running == Some(seq) {
            self.running = None;
        }
    }

    /// Somebody took it back; nothing happens if it is running.
    pub fn on_cancelled(&mut self, seq: u64) {
        if self.running != Some(seq) {
            self.on_ended(seq);
        }
    }

    /// Somebody wants it done now; nothing happens if it is running or being looked for.
    pub fn on_hastened(&mut self, seq: u64, now: UnixMs) {
        if self.running == Some(seq) {
            return;
        }
        if let Some(standing) = self.standing.get_mut(&seq)
            && standing.entry.phase.may_expire()
        {
            standing.entry.eligible_at = standing.entry.eligible_at.min(now);
            self.positions.update(standing);
        }
    }

    /// What held it back has changed: it is due now. Nothing happens if it is running.
    pub fn on_released(&mut self, seq: u64, now: UnixMs) {
        if self.running == Some(seq) {
            return;
        }
        if let Some(standing) = self.standing.get_mut(&seq) {
            standing.entry.eligible_at = standing.entry.eligible_at.min(now);
            self.positions.update(standing);
        }
    }

    /// The place of this operation, if it is known here. Looks at all of them.
    #[must_use]
    pub fn place(&self, id: OperationId) -> Option<u64> {
        self.standing.values().find(|standing| standing.entry.id == id).map(|standing| standing.entry.seq)
    }

    /// The operation at this place.
    #[must_use]
    pub fn entry(&self, seq: u64) -> Option<&QueueEntry<O>> {
        self.standing.get(&seq).map(|standing| &standing.entry)
    }

    /// The last place that was loaded.
    #[must_use]
    pub const fn last(&self) -> u64 {
        self.last
    }

    /// The one that is running.
    #[must_use]
    pub const fn running(&self) -> Option<u64> {
        self.running
    }

    /// How many are known here.
    #[must_use]
    pub fn len(&self) -> usize {
        self.standing.len()
    }

    /// Whether none is known here.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.standing.is_empty()
    }

    /// How many others may pass.
    #[must_use]
    pub fn parked(&self) -> usize {
        self.standing.values().filter(|standing| standing.is_parked()).count()
    }
}
