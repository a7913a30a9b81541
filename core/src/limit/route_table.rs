//! What is known about routes: the bucket hash of each route, and the specification of each hash.

use std::collections::HashMap;
use std::sync::Arc;

use super::bucket::BucketSpec;
use super::config::LimitConfig;
use crate::response::Credential;
use crate::route::RouteKey;
use crate::time::Timestamp;

/// Index of a bucket hash in the route table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct HashId(u32);

/// Index of a credential in the route table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct CredentialId(u16);

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
    credentials: Vec<Credential>,
    /// What each credential knows about a route. Credentials are few, so the route alone is the key.
    routes: HashMap<RouteKey, Vec<(Credential, RouteLimit)>>,
    /// Total number of entries in `routes`.
    known: usize,
    hashes: HashMap<Arc<str>, HashId>,
    /// By hash id.
    names: Vec<Arc<str>>,
    traits: Vec<BucketSpec>,
    /// Number of hashes that were restored, and the time by which the last call before the restart has arrived.
    recalled: (usize, Timestamp),
    max_routes: usize,
    /// Routes evicted for lack of space.
    pub(super) forgotten: u64,
}

impl RouteTable {
    pub(super) fn new(config: &LimitConfig) -> Self {
        Self {
            credentials: Vec::new(),
            routes: HashMap::new(),
            known: 0,
            hashes: HashMap::new(),
            names: Vec::new(),
            traits: Vec::new(),
            recalled: (0, Timestamp::ZERO),
            max_routes: config.max_routes.max(16),
            forgotten: 0,
        }
    }

    /// Returns the id of a credential and adds it if needed; `None` if the table is full.
    pub(super) fn whose(&mut self, credential: Credential) -> Option<CredentialId> {
        // There are as many credentials as bots.
        let known = self.credentials.iter().position(|known| *known == credential);
        let place = u16::try_from(known.unwrap_or(self.credentials.len())).ok()?;
        if known.is_none() {
            self.credentials.push(credential);
        }
        Some(CredentialId(place))
    }

    pub(super) fn of(&self, credential: Credential, route: &RouteKey, now: Timestamp) -> RouteLimit {
        match self.find(credential, route) {
            Some(RouteLimit::Free(until)) if until <= now => RouteLimit::Unknown,
            Some(known) => known,
            None => RouteLimit::Unknown,
        }
    }

    fn find(&self, credential: Credential, route: &RouteKey) -> Option<RouteLimit> {
        let known = self.routes.get(route)?;
        known.iter().find(|(whose, _)| *whose == credential).map(|(_, known)| *known)
    }

    /// The hashes of other methods on the same path, which may turn out to be the hash of this route. Reads are left
    /// out: no read is known to share a bucket with a write.
    pub(super) fn kin(&self, credential: Credential, route: &RouteKey) -> impl Iterator<Item = HashId> + '_ {
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

    pub(super) fn learn(&mut self, credential: Credential, route: &RouteKey, known: RouteLimit) {
        if let Some(there) = self.routes.get_mut(route)
            && let Some((_, before)) = there.iter_mut().find(|(whose, _)| *whose == credential)
        {
            *before = known;
            return;
        }
        if self.known >= self.max_routes {
            self.forget_some();
        }
        self.routes.entry(route.clone()).or_default().push((credential, known));
        self.known += 1;
    }

    /// Evicts arbitrary routes: an evicted route costs one probe and causes no error.
    fn forget_some(&mut self) {
        let some: Vec<RouteKey> = self.routes.keys().take(self.max_routes / 16).cloned().collect();
        for route in some {
            let gone = self.routes.remove(&route).map_or(0, |known| known.len());
            self.known -= gone;
            self.forgotten += gone as u64;
        }
    }

    /// Returns the id of a hash and adds it if needed; `None` if the table is full.
    pub(super) fn hash(&mut self, name: &str, traits: BucketSpec) -> Option<HashId> {
        if let Some(id) = self.hashes.get(name) {
            return Some(*id);
        }
        if self.hashes.len() >= self.max_routes {
            return None;
        }
        let id = HashId(u32::try_from(self.traits.len()).ok()?);
        let name: Arc<str> = name.into();
        self.traits.push(traits);
        self.names.push(Arc::clone(&name));
        self.hashes.insert(name, id);
        Some(id)
    }

    /// Marks all current hashes as restored: calls of the previous process that used their buckets arrive before
    /// `arrived`.
    pub(super) fn recalled(&mut self, arrived: Timestamp) {
        self.recalled = (self.traits.len(), arrived);
    }

    /// Whether calls of the previous process may still count in the buckets of a hash.
    pub(super) fn is_haunted(&self, hash: HashId, now: Timestamp) -> bool {
        let (recalled, arrived) = self.recalled;
        (hash.0 as usize) < recalled && now < arrived + self.traits(hash).window()
    }

    /// All routes with a known hash.
    pub(super) fn hashed(&self) -> impl Iterator<Item = (HashId, Credential, &RouteKey)> {
        self.routes.iter().flat_map(|(route, known)| {
            known.iter().filter_map(move |(credential, known)| match known {
                RouteLimit::Hash(hash) => Some((*hash, *credential, route)),
                RouteLimit::Unknown | RouteLimit::Free(_) => None,
            })
        })
    }

    pub(super) fn name(&self, hash: HashId) -> &str {
        &self.names[hash.0 as usize]
    }

    pub(super) fn credential(&self, whose: CredentialId) -> Credential {
        self.credentials[usize::from(whose.0)]
    }

    pub(super) fn traits(&self, hash: HashId) -> BucketSpec {
        self.traits[hash.0 as usize]
    }

    pub(super) fn set_traits(&mut self, hash: HashId, traits: BucketSpec) {
        self.traits[hash.0 as usize] = traits;
    }

    pub(super) fn len(&self) -> usize {
        self.known
    }
}
