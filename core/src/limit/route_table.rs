//! What is known about routes: the bucket hash of each route, and the specification of each hash.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use super::bucket::{Bucket, BucketSpec};
use super::config::LimitConfig;
use crate::response::Credential;
use crate::route::RouteKey;
use crate::snapshot::ShutdownKind;
use crate::time::Timestamp;

/// Index of a bucket hash in the route table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct HashId(u32);

/// Index of a credential in the route table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct CredentialId(u16);

/// The process before this one.
#[derive(Clone, Copy, Debug)]
struct Predecessor {
    /// When its last call has arrived.
    arrived: Timestamp,
    ending: ShutdownKind,
}

/// Longest wait for a bucket because a process that ended suddenly may have used it up. One that takes longer to be free
/// again is saved at once when it is used up.
const MAX_BLIND_WAIT: Duration = Duration::from_secs(20);

/// What is known about a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RouteLimit {
    /// Nothing: one call, the probe, must be sent first.
    Unknown,
    /// The hash of its bucket.
    Hash(HashId),
    /// Its responses carry no bucket: it is assumed to have no limit until this time.
    Free(Timestamp),
}

/// Table of routes and hashes.
#[derive(Debug)]
pub(super) struct RouteTable {
    /// `None` for one that was forgotten, whose index is free.
    credentials: Vec<Option<Credential>>,
    /// What each credential knows about a route. Credentials are few, so the route alone is the key.
    routes: HashMap<RouteKey, Vec<(Credential, RouteLimit)>>,
    /// Total number of entries in `routes`.
    entry_count: usize,
    hashes: HashMap<Arc<str>, HashId>,
    /// By hash id.
    names: Vec<Arc<str>>,
    spec: Vec<BucketSpec>,
    /// The process whose state was restored, if there was one.
    predecessor: Option<Predecessor>,
    max_routes: usize,
    /// Routes evicted for lack of space.
    pub(super) evicted: u64,
}

impl RouteTable {
    pub(super) fn new(config: &LimitConfig) -> Self {
        Self {
            credentials: Vec::new(),
            routes: HashMap::new(),
            entry_count: 0,
            hashes: HashMap::new(),
            names: Vec::new(),
            spec: Vec::new(),
            predecessor: None,
            max_routes: config.max_routes.max(16),
            evicted: 0,
        }
    }

    /// Returns the id of a credential and adds it if needed; `None` if the table is full.
    pub(super) fn credential_id(&mut self, credential: Credential) -> Option<CredentialId> {
        // There are as many credentials as bots, and few tokens of callers.
        if let Some(existing) = self.credentials.iter().position(|existing| *existing == Some(credential)) {
            return u16::try_from(existing).ok().map(CredentialId);
        }
        let free = self.credentials.iter().position(Option::is_none);
        let index = u16::try_from(free.unwrap_or(self.credentials.len())).ok()?;
        match free {
            Some(free) => self.credentials[free] = Some(credential),
            None => self.credentials.push(Some(credential)),
        }
        Some(CredentialId(index))
    }

    /// Forgets a credential and its routes. Returns the id that it had; nothing may refer to it any more once another
    /// credential is added.
    pub(super) fn forget_credential(&mut self, credential: Credential) -> Option<CredentialId> {
        let index = self.credentials.iter().position(|existing| *existing == Some(credential))?;
        self.credentials[index] = None;
        let mut removed = 0;
        self.routes.retain(|_, entries| {
            let before = entries.len();
            entries.retain(|(owner, _)| *owner != credential);
            removed += before - entries.len();
            !entries.is_empty()
        });
        self.entry_count -= removed;
        u16::try_from(index).ok().map(CredentialId)
    }

    pub(super) fn limit_of(&self, credential: Credential, route: &RouteKey, now: Timestamp) -> RouteLimit {
        match self.find(credential, route) {
            Some(RouteLimit::Free(until)) if until <= now => RouteLimit::Unknown,
            Some(found) => found,
            None => RouteLimit::Unknown,
        }
    }

    fn find(&self, credential: Credential, route: &RouteKey) -> Option<RouteLimit> {
        let entries = self.routes.get(route)?;
        entries.iter().find(|(owner, _)| *owner == credential).map(|(_, entries)| *entries)
    }

    /// The hashes of other methods on the same path, which may turn out to be the hash of this route. Reads are left
    /// out: no read is known to share a bucket with a write.
    pub(super) fn related_hashes(&self, credential: Credential, route: &RouteKey) -> impl Iterator<Item = HashId> + '_ {
        let template = route.template().to_owned();
        let methods = if route.is_read() { &[][..] } else { &["POST", "PUT", "PATCH", "DELETE"][..] };
        methods.iter().filter_map(move |method| {
            let other = RouteKey::new(&format!("{method} {template}"));
            match self.find(credential, &other) {
                Some(RouteLimit::Hash(hash)) => Some(hash),
                Some(RouteLimit::Unknown | RouteLimit::Free(_)) | None => None,
            }
        })
    }

    pub(super) fn observe(&mut self, credential: Credential, route: &RouteKey, limit: RouteLimit) {
        if let Some(entries) = self.routes.get_mut(route)
            && let Some((_, before)) = entries.iter_mut().find(|(owner, _)| *owner == credential)
        {
            *before = limit;
            return;
        }
        if self.entry_count >= self.max_routes {
            self.evict_some();
        }
        self.routes.entry(route.clone()).or_default().push((credential, limit));
        self.entry_count += 1;
    }

    /// Evicts arbitrary routes: an evicted route costs one probe and causes no error.
    fn evict_some(&mut self) {
        let evicted: Vec<RouteKey> = self.routes.keys().take(self.max_routes / 16).cloned().collect();
        for route in evicted {
            let count = self.routes.remove(&route).map_or(0, |entries| entries.len());
            self.entry_count -= count;
            self.evicted += count as u64;
        }
    }

    /// Returns the id of a hash and adds it if needed; `None` if the table is full.
    pub(super) fn intern_hash(&mut self, name: &str, spec: BucketSpec) -> Option<HashId> {
        if let Some(id) = self.hashes.get(name) {
            return Some(*id);
        }
        if self.hashes.len() >= self.max_routes {
            return None;
        }
        let id = HashId(u32::try_from(self.spec.len()).ok()?);
        let name: Arc<str> = name.into();
        self.spec.push(spec);
        self.names.push(Arc::clone(&name));
        self.hashes.insert(name, id);
        Some(id)
    }

    /// A process came before this one: its last call arrives before `arrived`.
    pub(super) fn set_predecessor(&mut self, arrived: Timestamp, ending: ShutdownKind) {
        self.predecessor = Some(Predecessor { arrived, ending });
    }

    /// When the last call of a process that ended without saving everything has arrived; `None` if all is saved.
    pub(super) fn unsaved_calls(&self) -> Option<Timestamp> {
        let predecessor = self.predecessor?;
        (predecessor.ending == ShutdownKind::Sudden).then_some(predecessor.arrived)
    }

    /// A bucket of a hash for an object that is not known. It is full, unless calls of the previous process may count in
    /// it, even if that process did not save the hash.
    pub(super) fn new_bucket(&self, hash: HashId, now: Timestamp) -> Bucket {
        let spec = self.spec(hash);
        let Some(Predecessor { arrived, ending }) =
            self.predecessor.filter(|known| now < known.arrived + spec.window())
        else {
            return Bucket::from_spec(spec);
        };
        let mut bucket = Bucket::unobserved(spec);
        // Nobody knows whether it is used up, so the first call must wait until it cannot be.
        if let (ShutdownKind::Sudden, Some(wait)) = (ending, spec.time_until_free(MAX_BLIND_WAIT))
            && now < arrived + wait
        {
            bucket.close(arrived + wait);
        }
        bucket
    }

    /// All routes with a known hash.
    pub(super) fn hashed_routes(&self) -> impl Iterator<Item = (HashId, Credential, &RouteKey)> {
        self.routes.iter().flat_map(|(route, entries)| {
            entries.iter().filter_map(move |(credential, entries)| match entries {
                RouteLimit::Hash(hash) => Some((*hash, *credential, route)),
                RouteLimit::Unknown | RouteLimit::Free(_) => None,
            })
        })
    }

    pub(super) fn name(&self, hash: HashId) -> &str {
        &self.names[hash.0 as usize]
    }

    pub(super) fn shared_name(&self, hash: HashId) -> Arc<str> {
        Arc::clone(&self.names[hash.0 as usize])
    }

    pub(super) fn credential(&self, id: CredentialId) -> Credential {
        self.credentials[usize::from(id.0)].expect("invariant: a credential that is referred to is not forgotten")
    }

    pub(super) fn spec(&self, hash: HashId) -> BucketSpec {
        self.spec[hash.0 as usize]
    }

    pub(super) fn set_spec(&mut self, hash: HashId, spec: BucketSpec) {
        self.spec[hash.0 as usize] = spec;
    }

    pub(super) fn len(&self) -> usize {
        self.entry_count
    }
}
