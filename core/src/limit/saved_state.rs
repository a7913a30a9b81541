//! What a limiter must not forget, in a form that can be kept.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::bucket::{BucketAlgorithm, BucketSpec};
use crate::response::Credential;
use crate::route::SublimitKind;
use crate::snapshot::LONGEST;

/// How many routes are remembered; those whose bucket was learned longest ago are left out.
pub(super) const MOST_ROUTES: usize = 10_000;

/// How many closed buckets are remembered, and how many side doors: those that are closed longest.
pub(super) const MOST_CLOSED: usize = 1_000;

/// How many credentials are remembered.
pub(super) const MOST_BLOCKS: usize = 64;

/// How many calls of a side door are remembered.
pub(super) const MOST_PAST: usize = 16;

/// No bucket has more slots.
const MOST_SLOTS: u32 = 100_000;

/// No name of a hash and no route is longer.
pub(super) const MOST_TEXT: usize = 512;

/// What a limiter must not forget: global blocks, buckets and side doors that are closed, and what was learned of routes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SavedLimiter {
    pub(super) blocks: Vec<SavedBlock>,
    pub(super) hashes: Vec<SavedHash>,
    pub(super) routes: Vec<SavedRoute>,
    pub(super) closed: Vec<SavedBucket>,
    pub(super) doors: Vec<SavedSublimit>,
}

impl SavedLimiter {
    /// How many routes it knows.
    #[must_use]
    pub const fn routes(&self) -> usize {
        self.routes.len()
    }

    /// How many global limits, buckets and side doors it knows to be closed.
    #[must_use]
    pub const fn closed(&self) -> usize {
        self.blocks.len() + self.closed.len() + self.doors.len()
    }
}

/// A global limit under which nothing may go.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SavedBlock {
    pub(super) credential: Credential,
    pub(super) lasting_ms: u64,
}

/// What the buckets of a hash are like.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SavedHash {
    pub(super) name: String,
    limit: u32,
    kind: SavedAlgorithm,
    /// Of a fixed window its length, of a drain how long one slot takes.
    micros: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum SavedAlgorithm {
    Fixed,
    Leaky,
    Unconfirmed,
}

impl SavedHash {
    pub(super) fn new(name: &str, traits: BucketSpec) -> Self {
        let (kind, time) = match traits.kind {
            BucketAlgorithm::Fixed { per } => (SavedAlgorithm::Fixed, per),
            BucketAlgorithm::Leaky { refill, confirmed: true } => (SavedAlgorithm::Leaky, refill),
            BucketAlgorithm::Leaky { refill, confirmed: false } => (SavedAlgorithm::Unconfirmed, refill),
        };
        let micros = u64::try_from(time.as_nanos().div_ceil(1_000)).unwrap_or(u64::MAX);
        Self { name: name.to_owned(), limit: traits.limit, kind, micros }
    }

    /// What it says, as far as that is possible.
    pub(super) fn traits(&self) -> BucketSpec {
        let time = Duration::from_micros(self.micros).min(LONGEST);
        let kind = match self.kind {
            SavedAlgorithm::Fixed => BucketAlgorithm::Fixed { per: time },
            SavedAlgorithm::Leaky => BucketAlgorithm::Leaky { refill: time, confirmed: true },
            SavedAlgorithm::Unconfirmed => BucketAlgorithm::Leaky { refill: time, confirmed: false },
        };
        BucketSpec { limit: self.limit.clamp(1, MOST_SLOTS), kind }
    }
}

/// A route whose bucket's hash is known.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SavedRoute {
    pub(super) credential: Credential,
    pub(super) route: String,
    /// Its place in the list of hashes.
    pub(super) hash: usize,
}

/// A bucket from which nothing may be taken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SavedBucket {
    pub(super) credential: Credential,
    /// Its place in the list of hashes.
    pub(super) hash: usize,
    /// The top-level object: its id, and the fingerprint of its token.
    pub(super) major: (u64, u64),
    pub(super) lasting_ms: u64,
}

/// A side door.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SavedSublimit {
    pub(super) credential: Credential,
    pub(super) route: String,
    pub(super) major: (u64, u64),
    pub(super) sub: Option<SublimitKind>,
    /// How long it is closed.
    pub(super) lasting_ms: u64,
    /// How long each call that passed still counts.
    pub(super) past_ms: Vec<u64>,
}
