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
    heartbeat::{HeartbeatTask, NOW, instance_name},
    lease::{ProcessLease, QueueLease, ShardLease},
    listener::listen,
    notification::Notification,
    slots::{SLOT, Slots},
};
use super::write::signed;

/// Capacity of the event channel. A receiver that lags behind further checks everything.
const NOTICES: usize = 1_024;

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
    Disowned,
    /// Anything may have changed.
    Anything,
}

/// Whether a process takes its part of the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum MemberPhase {
    Here = 0,
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
    me: Uuid,
    tenure: Arc<ProcessLease>,
    /// The share of a rate limit that this process has, if it divides one.
    division: Arc<DivisionState>,
    slots: RwLock<Slots>,
    /// Whether there are other processes.
    shared: AtomicBool,
    standing: AtomicU8,
    /// Whether this process has given up everything. Locked for reading during writes, so that nothing is claimed
    /// afterwards.
    given_up: RwLockAsync<bool>,
    /// Whether the other processes know that it is leaving.
    left: watch::Sender<bool>,
    /// Requests a heartbeat now.
    hurry: Notify,
    notices: broadcast::Sender<ClusterEvent>,
    /// Increments when operations may have changed.
    ticks: watch::Sender<u64>,
}

impl ClusterMember {
    /// A process that does not share its store.
    pub(super) fn alone() -> Arc<Self> {
        Self::new(ProcessLease::forever(), Slots::ALL, MemberPhase::Here)
    }

    /// A process that may share its store. It may do nothing before its first heartbeat.
    pub(super) fn among_others(standing: MemberPhase) -> Arc<Self> {
        Self::new(ProcessLease::none(), Slots::NONE, standing)
    }

    fn new(tenure: ProcessLease, slots: Slots, standing: MemberPhase) -> Arc<Self> {
        Arc::new(Self {
            me: Uuid::from_u128(fastrand::u128(..)),
            tenure: Arc::new(tenure),
            division: Arc::default(),
            slots: RwLock::new(slots),
            shared: AtomicBool::new(false),
            standing: AtomicU8::new(standing as u8),
            given_up: RwLockAsync::new(false),
            left: watch::Sender::new(false),
            hurry: Notify::new(),
            notices: broadcast::Sender::new(NOTICES),
            ticks: watch::Sender::new(0),
        })
    }

    pub(super) fn me(&self) -> Uuid {
        self.me
    }

    pub(super) fn tenure(&self) -> &ProcessLease {
        &self.tenure
    }

    /// Guard to hold during a write. `None` once everything was given up.
    pub(super) async fn writes(&self) -> Option<RwLockReadGuard<'_, bool>> {
        let given_up = self.given_up.read().await;
        (!*given_up).then_some(given_up)
    }

    /// From now on this process sends and writes nothing. Waits for the write in progress.
    pub(super) async fn give_up(&self) {
        self.tenure.end();
        self.division.end();
        *self.given_up.write().await = true;
    }

    pub(super) fn lease(&self) -> LeaseGuard {
        LeaseGuard::while_held(Arc::clone(&self.tenure) as Arc<_>)
    }

    pub(super) fn right(&self, queue: Queue, Fence(fence): Fence) -> LeaseGuard {
        let held = QueueLease { tenure: Arc::clone(&self.tenure), queue: queue.number(), fence: signed(fence) };
        LeaseGuard::while_held(Arc::new(held))
    }

    pub(super) fn shard_right(&self, claim: ShardClaim) -> LeaseGuard {
        LeaseGuard::while_held(Arc::new(ShardLease { tenure: Arc::clone(&self.tenure), claim }))
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

    fn standing(&self) -> MemberPhase {
        [MemberPhase::Here, MemberPhase::Leaving, MemberPhase::Arriving]
            .into_iter()
            .find(|standing| *standing as u8 == self.standing.load(Ordering::Acquire))
            .expect("invariant: only these values are stored")
    }

    pub(super) fn notices(&self) -> broadcast::Receiver<ClusterEvent> {
        self.notices.subscribe()
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
            self.tell(ClusterEvent::Queues(queues));
        }
    }

    fn tell(&self, notice: ClusterEvent) {
        // Without a receiver this process executes nothing.
        let _ = self.notices.send(notice);
    }

    /// From now on this process takes its part of the work.
    pub(super) fn arrive(&self) {
        let (from, to) = (MemberPhase::Arriving as u8, MemberPhase::Here as u8);
        if self.standing.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).is_ok() {
            self.hurry.notify_one();
        }
    }

    /// Notifies the other processes that this one is about to end, so that they take the queues that it releases. Waits
    /// until they can know it, up to the timeout.
    pub(super) async fn leave(&self, within: Duration) {
        if !self.has_others() {
            return;
        }
        self.standing.store(MemberPhase::Leaving as u8, Ordering::Release);
        self.hurry.notify_one();
        let mut left = self.left.subscribe();
        // If the notification fails, they find out later.
        let _ = tokio::time::timeout(within, left.wait_for(|left| *left)).await;
    }
}
