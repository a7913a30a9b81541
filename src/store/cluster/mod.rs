//! The processes that share a PostgreSQL store: which are alive, which queues they own, and their notifications.
//!
//! ```text
//!  heartbeat task ──heartbeat──▶ instances ◀──heartbeat── heartbeat tasks of the others
//!    │ live processes                                   │
//!    ├──▶ slots: which queues this process claims       │
//!    ├──▶ lease: until when it may send                 ▼
//!    └──▶ events ◀── listener ◀──NOTIFY── writes of the others, joins and leaves
//! ```
//!
//! A store that serves one process needs none of this: the process has every slot, and its lease never ends.

mod division;
mod heartbeat;
mod lease;
mod listener;
mod notification;
mod share_rows;
mod slots;

use std::{
    collections::BTreeSet,
    sync::{
        Arc, PoisonError, RwLock,
        atomic::{AtomicBool, AtomicU8, Ordering},
    },
    time::Duration,
};

use guildhall_actors::lease_guard::LeaseGuard;
use guildhall_actors::ports::Fence;
use guildhall_actors::shard::ShardClaim;
use guildhall_actors::supervisor::QueueSignal;
use guildhall_core::operation::Queue;
use tokio::sync::{Notify, RwLock as RwLockAsync, RwLockReadGuard, broadcast, watch};
use uuid::Uuid;

use self::division::DivisionState;
pub use self::division::{DivisionRequest, LimitDivision};
pub(super) use self::{
    heartbeat::{HeartbeatTask, instance_name},
    lease::{ProcessLease, QueueLease, ShardLease},
    listener::listen,
    notification::Notification,
    slots::{SLOT, Slots},
};
use super::{failures::StoreFailures, write::signed};

/// Capacity of the event channel. A receiver that lags behind further checks everything.
const EVENT_CAPACITY: usize = 1_024;

/// A change that another process made, or a change of membership.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClusterEvent {
    /// These queues have changed. Contains what was done to an operation of each, if anything.
    Queues(Vec<(Queue, Option<QueueSignal>)>),
    /// Something was paused or resumed.
    Pauses,
    /// Processes have joined or left.
    Members,
    /// Shards were freed, or are requested.
    Shards,
    /// This process was considered dead, and its queues are free or belong to others.
    LeaseLost,
    /// Anything may have changed.
    Anything,
}

/// Whether a process takes its part of the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum MemberPhase {
    Active = 0,
    /// It is about to end.
    Leaving = 1,
    /// It cannot send anything yet.
    Arriving = 2,
}

impl MemberPhase {
    /// The stored value.
    pub(super) const fn number(self) -> i64 {
        self as i64
    }
}

/// Membership state of this process.
#[derive(Debug)]
pub(super) struct ClusterMember {
    id: Uuid,
    process_lease: Arc<ProcessLease>,
    /// The share of a rate limit that this process has, if it divides one.
    division: Arc<DivisionState>,
    slots: RwLock<Slots>,
    /// Whether there are other processes.
    shared: AtomicBool,
    phase: AtomicU8,
    /// Whether this process has given up everything. Locked for reading during writes, so that nothing is claimed
    /// afterwards.
    writes_stopped: RwLockAsync<bool>,
    /// Whether the other processes know that it is leaving.
    leave_announced: watch::Sender<bool>,
    /// Requests a heartbeat now.
    heartbeat_now: Notify,
    events: broadcast::Sender<ClusterEvent>,
    /// Increments when operations may have changed.
    ticks: watch::Sender<u64>,
    /// Failed accesses of this process to the store.
    failures: StoreFailures,
}

impl ClusterMember {
    /// A process that does not share its store.
    pub(super) fn alone() -> Arc<Self> {
        Self::new(ProcessLease::forever(), Slots::ALL, MemberPhase::Active)
    }

    /// A process that may share its store. It may do nothing before its first heartbeat.
    pub(super) fn among_others(phase: MemberPhase) -> Arc<Self> {
        Self::new(ProcessLease::none(), Slots::NONE, phase)
    }

    fn new(process_lease: ProcessLease, slots: Slots, phase: MemberPhase) -> Arc<Self> {
        Arc::new(Self {
            id: Uuid::from_u128(fastrand::u128(..)),
            process_lease: Arc::new(process_lease),
            division: Arc::default(),
            slots: RwLock::new(slots),
            shared: AtomicBool::new(false),
            phase: AtomicU8::new(phase as u8),
            writes_stopped: RwLockAsync::new(false),
            leave_announced: watch::Sender::new(false),
            heartbeat_now: Notify::new(),
            events: broadcast::Sender::new(EVENT_CAPACITY),
            ticks: watch::Sender::new(0),
            failures: StoreFailures::default(),
        })
    }

    pub(super) fn id(&self) -> Uuid {
        self.id
    }

    /// Reports accesses to the store.
    pub(super) const fn failures(&self) -> &StoreFailures {
        &self.failures
    }

    pub(super) fn process_lease(&self) -> &ProcessLease {
        &self.process_lease
    }

    /// Guard to hold during a write. `None` once everything was given up.
    pub(super) async fn write_guard(&self) -> Option<RwLockReadGuard<'_, bool>> {
        let stopped = self.writes_stopped.read().await;
        (!*stopped).then_some(stopped)
    }

    /// From now on this process sends and writes nothing. Waits for the write in progress.
    pub(super) async fn stop_writes(&self) {
        self.process_lease.end();
        self.division.stop();
        *self.writes_stopped.write().await = true;
    }

    pub(super) fn lease(&self) -> LeaseGuard {
        LeaseGuard::while_held(Arc::clone(&self.process_lease) as Arc<_>)
    }

    pub(super) fn queue_guard(&self, queue: Queue, Fence(fence): Fence) -> LeaseGuard {
        let held =
            QueueLease { process_lease: Arc::clone(&self.process_lease), queue: queue.number(), fence: signed(fence) };
        LeaseGuard::while_held(Arc::new(held))
    }

    pub(super) fn shard_guard(&self, claim: ShardClaim) -> LeaseGuard {
        LeaseGuard::while_held(Arc::new(ShardLease { process_lease: Arc::clone(&self.process_lease), claim }))
    }

    pub(super) fn slots(&self) -> Slots {
        self.slots.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether this process should own a queue.
    pub(super) fn is_ours(&self, queue: i64) -> bool {
        self.slots.read().unwrap_or_else(PoisonError::into_inner).has(queue)
    }

    fn set_slots(&self, slots: Slots) {
        *self.slots.write().unwrap_or_else(PoisonError::into_inner) = slots;
    }

    /// Whether other processes may need notifications of what this process does.
    pub(super) fn has_others(&self) -> bool {
        self.shared.load(Ordering::Acquire)
    }

    fn phase(&self) -> MemberPhase {
        [MemberPhase::Active, MemberPhase::Leaving, MemberPhase::Arriving]
            .into_iter()
            .find(|phase| *phase as u8 == self.phase.load(Ordering::Acquire))
            .expect("invariant: only these values are stored")
    }

    pub(super) fn events(&self) -> broadcast::Receiver<ClusterEvent> {
        self.events.subscribe()
    }

    /// Signals that operations may have changed, here or in another process.
    pub(super) fn tick(&self) {
        self.ticks.send_modify(|tick| *tick = tick.wrapping_add(1));
    }

    pub(super) fn ticks(&self) -> watch::Receiver<u64> {
        self.ticks.subscribe()
    }

    /// Signals that operations in these queues may be due because of what this process has done in other queues.
    pub(super) fn wake(&self, queues: BTreeSet<i64>) {
        if !queues.is_empty() {
            let queues = queues.into_iter().map(|queue| (Queue::from_number(queue), None)).collect();
            self.send_event(ClusterEvent::Queues(queues));
        }
    }

    fn send_event(&self, event: ClusterEvent) {
        // Without a receiver this process executes nothing.
        let _ = self.events.send(event);
    }

    /// From now on this process takes its part of the work.
    pub(super) fn arrive(&self) {
        let (from, to) = (MemberPhase::Arriving as u8, MemberPhase::Active as u8);
        if self.phase.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).is_ok() {
            self.heartbeat_now.notify_one();
        }
    }

    /// Notifies the other processes that this one is about to end, so that they take the queues that it releases. Waits
    /// until they can know it, up to the timeout.
    pub(super) async fn leave(&self, timeout: Duration) {
        if !self.has_others() {
            return;
        }
        self.phase.store(MemberPhase::Leaving as u8, Ordering::Release);
        self.heartbeat_now.notify_one();
        let mut announced = self.leave_announced.subscribe();
        // If the notification fails, they find out later.
        let _ = tokio::time::timeout(timeout, announced.wait_for(|announced| *announced)).await;
    }
}
