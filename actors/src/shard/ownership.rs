//! The shards of this process. Each shard belongs to one process at a time, by a claim in the store.
//!
//! ```text
//!  claim ──▶ ShardClaim { fence } ──▶ its events are handled, its session is stored ──release──▶ another process claims it
//!                                └── the lease of the process expires: its later writes change nothing
//! ```

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use guildhall_core::event::{Event, HTTP_SESSION};

use crate::lease_guard::LeaseGuard;
use crate::ports::StoreFuture;

/// A shard that belongs to this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ShardClaim {
    /// Total number of shards.
    pub shards: u32,
    /// Number of this shard.
    pub shard: u32,
    /// Grows with every claim of the shard. Writes under an older fence change nothing.
    pub fence: u64,
}

/// The shards that a process requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DesiredShards {
    /// Total number of shards.
    pub shards: u32,
    /// The first shard.
    pub first: u32,
    /// The last shard.
    pub last: u32,
    /// Whether other processes request the same shards. Then a process takes only its part of them while there are
    /// others. A shard that no process takes for the duration of a lease is free for all.
    pub shared: bool,
}

/// Result of a request for shards.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClaimedShards {
    /// The shards that belong to this process from now on.
    pub claims: Vec<ShardClaim>,
    /// How many of the requested shards belong to other processes, or may not be taken yet.
    pub elsewhere: u32,
    /// How many shards this process should release, because another process has none, or fewer than its part.
    pub too_many: u32,
}

/// Stores which shard belongs to which process.
pub trait ShardStore: Send + Sync {
    /// Claims shards that have no owner.
    fn claim_shards(&self, desired: DesiredShards) -> StoreFuture<'_, ClaimedShards>;

    /// Releases shards, so that others can claim them at once. Shards that were lost before keep their new owner.
    fn release_shards(&self, claims: Vec<ShardClaim>) -> StoreFuture<'_, ()>;

    /// Permission to be connected for a shard. It ends before another process can own the shard.
    fn shard_lease(&self, claim: ShardClaim) -> LeaseGuard;
}

/// The shards of this process, and the sessions that they have had since they were claimed.
#[derive(Debug)]
pub(crate) struct ShardOwnership {
    shards: u32,
    held: RwLock<OwnedShards>,
    changes: AtomicU64,
}

#[derive(Debug, Default)]
struct OwnedShards {
    fences: BTreeMap<u32, u64>,
    sessions: HashMap<Arc<str>, u32>,
}

impl ShardOwnership {
    /// No shards yet, of this total.
    pub(crate) fn new(shards: u32) -> Self {
        Self { shards: shards.max(1), held: RwLock::default(), changes: AtomicU64::new(0) }
    }

    /// Adds a claimed shard.
    pub(crate) fn add(&self, claim: ShardClaim) {
        self.write().fences.insert(claim.shard, claim.fence);
        self.changes.fetch_add(1, Ordering::AcqRel);
    }

    /// Removes a shard and its sessions.
    pub(crate) fn remove(&self, shard: u32) {
        let mut held = self.write();
        held.fences.remove(&shard);
        held.sessions.retain(|_, owner| *owner != shard);
        drop(held);
        self.changes.fetch_add(1, Ordering::AcqRel);
    }

    /// Adds a session of a shard. Earlier sessions remain: their events may not be handled yet.
    pub(crate) fn add_session(&self, shard: u32, session: &Arc<str>) {
        self.write().sessions.insert(Arc::clone(session), shard);
    }

    /// Removes a session that was replaced and whose events are all handled.
    pub(crate) fn remove_session(&self, session: &str) {
        self.write().sessions.remove(session);
    }

    /// How many times shards were added or removed.
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// The fence of a shard, if this process owns it.
    pub(crate) fn fence(&self, shard: u32) -> Option<u64> {
        self.read().fences.get(&shard).copied()
    }

    /// The claim under which data of a session is written; none for HTTP. For a lost shard, it is a claim that no
    /// process has.
    pub(crate) fn claim_of(&self, session: &str) -> Option<ShardClaim> {
        if session == HTTP_SESSION {
            return None;
        }
        let held = self.read();
        let shard = held.sessions.get(session).copied();
        let fence = shard.and_then(|shard| held.fences.get(&shard).copied());
        Some(ShardClaim { shards: self.shards, shard: shard.unwrap_or(0), fence: fence.unwrap_or(0) })
    }

    /// Whether this process owns the shard of the event's guild.
    pub(crate) fn owns(&self, event: &Event) -> bool {
        let shard = event.guild.map_or(0, |guild| (guild >> 22) % u64::from(self.shards));
        u32::try_from(shard).is_ok_and(|shard| self.read().fences.contains_key(&shard))
    }

    fn read(&self) -> RwLockReadGuard<'_, OwnedShards> {
        self.held.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, OwnedShards> {
        self.held.write().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn session_of_a_lost_shard_has_no_claim_after_the_shard_is_reclaimed() {
        let ownership = ShardOwnership::new(2);
        let claim = |fence| ShardClaim { shards: 2, shard: 1, fence };
        ownership.add(claim(5));
        ownership.add_session(1, &"s".into());
        assert_eq!((ownership.claim_of("s"), ownership.fence(1)), (Some(claim(5)), Some(5)));
        assert_eq!(ownership.claim_of(HTTP_SESSION), None);
        ownership.remove(1);
        ownership.add(claim(7));
        assert_eq!(ownership.claim_of("s").map(|claim| claim.fence), Some(0));
        ownership.add_session(1, &"t".into());
        assert_eq!(ownership.claim_of("t"), Some(claim(7)));
        assert_eq!(ownership.changes(), 3);
    }
}
