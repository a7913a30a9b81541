//! The share of a rate limit that this process has: state that the heartbeat task, which talks to the store, and the
//! gate exchange.

use std::{
    collections::BTreeSet,
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use guildhall_actors::lease_guard::{LeaseCheck, LeaseGuard};
use guildhall_actors::token_bucket::DividedLimit;
use guildhall_core::{
    limit::division::{Allowance, DivisionConfig, LimitShare, ShareUsage},
    time::Timestamp,
};
use tokio::sync::watch;

use super::ClusterMember;
use crate::clock::boot_time;

/// How to divide a limit.
#[derive(Clone, Debug)]
pub struct DivisionRequest {
    /// The rules. The lease is replaced by that of the store's settings.
    pub config: DivisionConfig,
    /// Name of the limit: processes with the same name divide it.
    pub scope: String,
    /// Name of the lock that shows on this machine whether the process is alive. Empty if it has none.
    pub lock_name: String,
}

/// State that the heartbeat task and the gate exchange.
#[derive(Debug)]
pub(in crate::store) struct DivisionState {
    request: OnceLock<DivisionRequest>,
    allowance: watch::Sender<Allowance>,
    usage: watch::Sender<ShareUsage>,
    /// Time until which this process may send, in microseconds of the boot clock.
    until: AtomicU64,
    /// Locks of processes that are certainly dead.
    dead: Mutex<BTreeSet<String>>,
    /// How long the row stays after the departure. Set once nothing more is sent.
    hold: Mutex<Option<Duration>>,
}

impl Default for DivisionState {
    fn default() -> Self {
        Self {
            request: OnceLock::new(),
            allowance: watch::Sender::default(),
            usage: watch::Sender::default(),
            until: AtomicU64::new(0),
            dead: Mutex::default(),
            hold: Mutex::default(),
        }
    }
}

impl DivisionState {
    pub(super) fn request(&self) -> Option<&DivisionRequest> {
        self.request.get()
    }

    pub(super) fn usage(&self) -> watch::Receiver<ShareUsage> {
        self.usage.subscribe()
    }

    pub(super) fn is_dead(&self, lock_name: &str) -> bool {
        self.dead.lock().unwrap_or_else(PoisonError::into_inner).contains(lock_name)
    }

    pub(super) fn departure_hold(&self) -> Option<Duration> {
        *self.hold.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Publishes to the gate what it may use: nothing after the departure. Returns the allowance if it has changed.
    pub(super) fn publish(&self, share: &LimitShare) -> Option<Allowance> {
        let has_left = self.departure_hold().is_some();
        let until = share.sends_until().filter(|_| !has_left);
        self.until.store(until.map_or(0, Timestamp::micros), Ordering::Release);
        let allowance = share.allowance();
        self.allowance
            .send_if_modified(|current| std::mem::replace(current, allowance) != allowance)
            .then_some(allowance)
    }

    /// From now on nothing may be sent, whatever is in flight.
    pub(super) fn stop(&self) {
        let config = self.request().map(|request| &request.config);
        self.depart(config.map_or(Duration::ZERO, |config| config.hold_after_leave(1)));
    }

    fn depart(&self, hold: Duration) {
        self.hold.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(hold);
        self.until.store(0, Ordering::Release);
    }
}

impl LeaseCheck for DivisionState {
    fn holds(&self) -> bool {
        now().micros() < self.until.load(Ordering::Acquire)
    }
}

/// Present time on the clock of divided limits.
pub(super) fn now() -> Timestamp {
    timestamp(boot_time())
}

pub(super) fn timestamp(time: Duration) -> Timestamp {
    Timestamp::from_micros(u64::try_from(time.as_micros()).unwrap_or(u64::MAX))
}

/// A rate limit that this process divides with the other processes of its store.
#[derive(Clone, Debug)]
pub struct LimitDivision {
    members: Arc<ClusterMember>,
    config: DivisionConfig,
}

impl LimitDivision {
    /// Joins the processes that divide a limit. Only the first request of a process has an effect.
    pub(in crate::store) fn join(members: Arc<ClusterMember>, request: DivisionRequest) -> Self {
        let config = request.config.clone();
        let _ = members.division.request.set(request);
        members.heartbeat_now.notify_one();
        Self { members, config }
    }

    /// Input of the token bucket.
    #[must_use]
    pub fn limit(&self) -> DividedLimit {
        let division = &self.members.division;
        DividedLimit { allowance: division.allowance.subscribe(), usage: division.usage.clone() }
    }

    /// The right to send. It ends with the lease, and when the share is lost.
    #[must_use]
    pub fn lease_guard(&self) -> LeaseGuard {
        LeaseGuard::while_held(Arc::clone(&self.members.division) as Arc<_>)
    }

    /// Reports the locks of processes of this machine that are certainly dead: no process has to wait for their leases.
    pub fn report_dead(&self, lock_names: Vec<String>) {
        let mut dead = self.members.division.dead.lock().unwrap_or_else(PoisonError::into_inner);
        let is_new = lock_names.iter().any(|lock_name| !dead.contains(lock_name));
        *dead = lock_names.into_iter().collect();
        if is_new {
            self.members.heartbeat_now.notify_one();
        }
    }

    /// Nothing more is sent; `in_flight` calls have no response yet. The store is notified when it is closed.
    pub fn depart(&self, in_flight: u32) {
        self.members.division.depart(self.config.hold_after_leave(in_flight));
    }
}
