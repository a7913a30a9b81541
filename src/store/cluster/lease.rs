//! What this process may do, and until when. It is checked before every send, so it does not wait for anything.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use guildhall_actors::lease_guard::LeaseCheck;
use guildhall_actors::shard::ShardClaim;

use crate::{clock::boot_time, store::write::signed};

/// Lease of this process, and the queues and shards that it owns.
#[derive(Debug)]
pub(in crate::store) struct ProcessLease {
    /// Time until which it may send, in microseconds of the boot clock.
    until: AtomicU64,
    /// Owned queues and their fences.
    held: Mutex<HashMap<i64, i64>>,
    /// Owned shards, as shard count and shard ID, and their fences.
    shards: Mutex<HashMap<(u32, u32), i64>>,
}

impl ProcessLease {
    /// Lease of a process that does not share its store.
    pub(super) fn forever() -> Self {
        Self { until: AtomicU64::new(u64::MAX), held: Mutex::default(), shards: Mutex::default() }
    }

    /// Lease of a process that has not renewed it yet.
    pub(super) fn none() -> Self {
        Self { until: AtomicU64::new(0), held: Mutex::default(), shards: Mutex::default() }
    }

    pub(super) fn extend(&self, until: Duration) {
        self.until.store(u64::try_from(until.as_micros()).unwrap_or(u64::MAX), Ordering::Release);
    }

    /// Ends the lease: from now on nothing may be sent.
    pub(super) fn end(&self) {
        self.extend(Duration::ZERO);
        self.clear();
    }

    /// Remaining time of the lease. `None` if it has ended.
    pub(super) fn remaining(&self) -> Option<Duration> {
        let until = Duration::from_micros(self.until.load(Ordering::Acquire));
        until.checked_sub(boot_time()).filter(|remaining| !remaining.is_zero())
    }

    pub(in crate::store) fn add_queue(&self, queue: i64, fence: i64) {
        self.held().insert(queue, fence);
    }

    pub(in crate::store) fn remove_queue(&self, queue: i64, fence: i64) {
        let mut held = self.held();
        if held.get(&queue) == Some(&fence) {
            held.remove(&queue);
        }
    }

    pub(in crate::store) fn has_queue(&self, queue: i64, fence: i64) -> bool {
        self.held().get(&queue) == Some(&fence)
    }

    pub(in crate::store) fn add_shard(&self, claim: &ShardClaim) {
        self.shards().insert((claim.shards, claim.shard), signed(claim.fence));
    }

    pub(in crate::store) fn remove_shard(&self, claim: &ShardClaim) {
        let (mut shards, key) = (self.shards(), (claim.shards, claim.shard));
        if shards.get(&key) == Some(&signed(claim.fence)) {
            shards.remove(&key);
        }
    }

    pub(in crate::store) fn has_shard(&self, key: (u32, u32), fence: i64) -> bool {
        self.shards().get(&key) == Some(&fence)
    }

    /// Forgets all queues and shards: other processes may own them.
    pub(super) fn clear(&self) {
        self.held().clear();
        self.shards().clear();
    }

    fn shards(&self) -> MutexGuard<'_, HashMap<(u32, u32), i64>> {
        self.shards.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn held(&self) -> MutexGuard<'_, HashMap<i64, i64>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LeaseCheck for ProcessLease {
    fn holds(&self) -> bool {
        self.remaining().is_some()
    }
}

/// The right to act for one queue.
#[derive(Debug)]
pub(in crate::store) struct QueueLease {
    pub(in crate::store) process_lease: Arc<ProcessLease>,
    pub(in crate::store) queue: i64,
    pub(in crate::store) fence: i64,
}

impl LeaseCheck for QueueLease {
    fn holds(&self) -> bool {
        self.process_lease.remaining().is_some() && self.process_lease.has_queue(self.queue, self.fence)
    }
}

/// The right to be connected for one shard.
#[derive(Debug)]
pub(in crate::store) struct ShardLease {
    pub(in crate::store) process_lease: Arc<ProcessLease>,
    pub(in crate::store) claim: ShardClaim,
}

impl LeaseCheck for ShardLease {
    fn holds(&self) -> bool {
        let ShardClaim { shards, shard, fence } = self.claim;
        self.process_lease.remaining().is_some() && self.process_lease.has_shard((shards, shard), signed(fence))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guard_ends_with_the_lease_and_with_the_queue() {
        let lease = Arc::new(ProcessLease::none());
        let guard = QueueLease { process_lease: Arc::clone(&lease), queue: 1, fence: 7 };
        lease.add_queue(1, 7);
        assert!(!guard.holds());
        lease.extend(boot_time() + Duration::from_secs(60));
        assert!(guard.holds());
        // A later claim of the same process is another right.
        lease.add_queue(1, 8);
        assert!(!guard.holds());
        lease.remove_queue(1, 7);
        assert!(lease.has_queue(1, 8));
        lease.add_queue(1, 7);
        lease.extend(boot_time());
        assert!(!guard.holds());
        let alone = ProcessLease::forever();
        assert!(alone.remaining().is_some());
    }
}
