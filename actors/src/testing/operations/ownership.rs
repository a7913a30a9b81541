//! Which process a queue belongs to, and which leases have ended.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard};

use guildhall_core::operation::Queue;

use crate::lease_guard::{LeaseCheck, LeaseGuard};
use crate::ports::Fence;

#[derive(Debug, Default)]
struct Inner {
    /// Queues assigned to one process.
    belongs: BTreeMap<Queue, u32>,
    /// Claims whose lease has ended.
    lost: HashSet<(Queue, Fence)>,
}

/// What processes that share a store know of each other.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ownership(Arc<Mutex<Inner>>);

impl Ownership {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap()
    }

    /// Assigns a queue to this process.
    pub(crate) fn assign(&self, queue: Queue, process: u32) {
        self.inner().belongs.insert(queue, process);
    }

    /// Whether a queue is assigned to another process.
    pub(crate) fn is_owned_elsewhere(&self, queue: Queue, process: u32) -> bool {
        self.inner().belongs.get(&queue).is_some_and(|other| *other != process)
    }

    /// Ends the lease of a claim.
    pub(crate) fn end_lease(&self, queue: Queue, fence: Fence) {
        self.inner().lost.insert((queue, fence));
    }

    pub(crate) fn lease(&self, queue: Queue, fence: Fence) -> LeaseGuard {
        LeaseGuard::while_held(Arc::new(OwnershipCheck { ownership: self.clone(), queue, fence }))
    }
}

/// The lease of a claim.
struct OwnershipCheck {
    ownership: Ownership,
    queue: Queue,
    fence: Fence,
}

impl LeaseCheck for OwnershipCheck {
    fn holds(&self) -> bool {
        !self.ownership.inner().lost.contains(&(self.queue, self.fence))
    }
}
