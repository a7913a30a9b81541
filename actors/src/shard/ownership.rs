//! The shards that this process has: each belongs to one process at a time, by a claim that the store keeps.
//!
//! ```text
//!  claim ──▶ ShardClaim { fence } ──▶ its events are handled, its session is kept ──release──▶ another claims it
//!                                └── the process is taken for dead: what it still writes changes nothing
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
    /// Of how many.
    pub shards: u32,
    /// Which one.
    pub shard: u32,
    /// Grows with every claim of it: what is written under an older one changes nothing.
    pub fence: u64,
}

/// Which shards a process would have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DesiredShards {
    /// Of how many.
    pub shards: u32,
    /// The first.
    pub first: u32,
    /// The last.
    pub last: u32,
    /// Whether others want the same ones, so that it takes no more than its part of them while there are others; what nobody
    /// takes for the time of a lease is anybody's.
    pub shared: bool,
}

/// What came of asking for shards.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClaimedShards {
    /// Those that are this process's own from now on.
    pub claims: Vec<ShardClaim>,
    /// How many of those that it would have are somebody else's, or not for it to take yet.
    pub elsewhere: u32,
    /// How many of its own it should give back: another process has none, or fewer than its part.
    pub too_many: u32,
}

/// Where it is kept which shard belongs to which process.
pub trait ShardStore: Send + Sync {
    /// Takes shards that nobody has.
    fn claim_shards(&self, wanted: DesiredShards) -> StoreFuture<'_, ClaimedShards>;

    /// Gives shards back, for others to take at once. Those that were lost before stay whose they are.
    fn release_shards(&self, claims: Vec<ShardClaim>) -> StoreFuture<'_, ()>;

    /// The right to be connected for a shard: it ends before anybody else can have the shard.
    fn shard_right(&self, claim: ShardClaim) -> LeaseGuard;
}

/// The shards of this process, and the sessions that they have had since they are its own.
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
    /// None yet, of so many.
    pub(crate) fn none(shards: u32) -> Self {
        Self { shards: shards.max(1), held: RwLock::default(), changes: AtomicU64::new(0) }
    }

    /// A shard is this process's own.
    pub(crate) fn add(&self, claim: ShardClaim) {
        self.write().fences.insert(claim.shard, claim.fence);
        self.changes.fetch_add(1, Ordering::AcqRel);
    }

    /// It is not any more, nor are its sessions.
    pub(crate) fn remove(&self, shard: u32) {
        let mut held = self.write();
        held.fences.remove(&shard);
        held.sessions.retain(|_, of| *of != shard);
        drop(held);
        self.changes.fetch_add(1, Ordering::AcqRel);
    }

    /// A shard has this session, beside those before it whose events may not be done.
    pub(crate) fn has_session(&self, shard: u32, session: &Arc<str>) {
        self.write().sessions.insert(Arc::clone(session), shard);
    }

    /// All events of a session are done, and another has taken its place.
    pub(crate) fn forget_session(&self, session: &str) {
        self.write().sessions.remove(session);
    }

    /// How often shards have come and gone.
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// The fence of a shard, if it is this process's own.
    pub(crate) fn fence(&self, shard: u32) -> Option<u64> {
        self.read().fences.get(&shard).copied()
    }

    /// Under which claim something is kept of a session; under none, if it came over HTTP. What is left of a shard that was
    /// lost is kept under a claim that nobody has.
    pub(crate) fn claim_of(&self, session: &str) -> Option<ShardClaim> {
        if session == HTTP_SESSION {
            return None;
        }
        let held = self.read();
        let shard = held.sessions.get(session).copied();
        let fence = shard.and_then(|shard| held.fences.get(&shard).copied());
        Some(ShardClaim { shards: self.shards, shard: shard.unwrap_or(0), fence: fence.unwrap_or(0) })
    }

    /// Whether this process looks after an event: it has the shard of its guild.
    pub(crate) fn has(&self, event: &Event) -> bool {
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
    fn what_is_left_of_a_shard_that_was_lost_is_kept_under_no_claim_even_when_the_shard_comes_back() {
        let own = ShardOwnership::none(2);
        let claim = |fence| ShardClaim { shards: 2, shard: 1, fence };
        own.add(claim(5));
        own.has_session(1, &"s".into());
        assert_eq!((own.claim_of("s"), own.fence(1)), (Some(claim(5)), Some(5)));
        assert_eq!(own.claim_of(HTTP_SESSION), None);
        own.remove(1);
        own.add(claim(7));
        assert_eq!(own.claim_of("s").map(|claim| claim.fence), Some(0));
        own.has_session(1, &"t".into());
        assert_eq!(own.claim_of("t"), Some(claim(7)));
        assert_eq!(own.changes(), 3);
    }
}
