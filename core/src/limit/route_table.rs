//! What has been learned of routes: which bucket hash each has, and what the buckets of a hash are like.

use std::collections::HashMap;
use std::sync::Arc;

use super::bucket::BucketSpec;
use super::config::LimitConfig;
use crate::response::Credential;
use crate::route::RouteKey;
use crate::time::Timestamp;

/// A bucket hash, by its place in the book.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct HashId(u32);

/// A credential, by its place in the book.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct CredentialId(u16);

/// What is known of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RouteLimit {
    /// Nothing: one call must go ahead of the others and find out.
    Unknown,
    /// Its bucket's hash.
    Hash(HashId),
    /// Its answers carry no bucket: no limit is known, until then.
    Free(Timestamp),
}

/// The book of routes and hashes.
#[derive(Debug)]
pub(super) struct RouteTable {
    credentials: Vec<Credential>,
    /// By route, what each credential knows of it: few, so that the route alone is enough to find it by.
    routes: HashMap<RouteKey, Vec<(Credential, RouteLimit)>>,
    /// How many of those there are in all.
    known: usize,
    hashes: HashMap<Arc<str>, HashId>,
    /// By their place.
    names: Vec<Arc<str>>,
    traits: Vec<BucketSpec>,
    /// How many hashes were recalled, and when the last call before that can have arrived.
    recalled: (usize, Timestamp),
    max_routes: usize,
    /// Routes forgotten for want of room.
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

    /// The place of a credential, new or known; `None` if there is no more room for new ones.
    pub(super) fn whose(&mut self, credential: Credential) -> Option<CredentialId> {
        // There are as many as there are bots.
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

    /// The hashes of other methods on the same path, which may turn out to be this route's own. Reads are left out:
    /// none is known to share with a write.
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

    /// Any will do: a route that is forgotten costs one careful call, not a mistake.
    fn forget_some(&mut self) {
        let some: Vec<RouteKey> = self.routes.keys().take(self.max_routes / 16).cloned().collect();
        for route in some {
            let gone = self.routes.remove(&route).map_or(0, |known| known.len());
            self.known -= gone;
            self.forgotten += gone as u64;
        }
    }

    /// The id of a hash, new or known; `None` if there is no more room for new ones.
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

    /// All hashes so far were recalled: calls of an earlier life that used their buckets arrived before then.
    pub(super) fn recalled(&mut self, arrived: Timestamp) {
        self.recalled = (self.traits.len(), arrived);
    }

    /// Whether calls of an earlier life may still count in the buckets of a hash.
    pub(super) fn is_haunted(&self, hash: HashId, now: Timestamp) -> bool {
        let (recalled, arrived) = self.recalled;
        (hash.0 as usize) < recalled && now < arrived + self.traits(hash).window()
    }

    /// Every route whose hash is known.
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
