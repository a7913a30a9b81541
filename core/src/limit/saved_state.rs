//! State of a limiter that must survive a restart, in serializable form.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::bucket::{BucketAlgorithm, BucketSpec};
use crate::response::Credential;
use crate::route::SublimitKind;
use crate::snapshot::MAX_DURATION;

/// Maximum number of saved routes; those whose bucket was learned longest ago are left out.
pub(super) const MAX_ROUTES: usize = 10_000;

/// Maximum number of saved closed buckets, and of saved sublimits. Those that stay closed longest are saved.
pub(super) const MAX_CLOSED: usize = 1_000;

/// Maximum number of saved credentials.
pub(super) const MAX_BLOCKS: usize = 64;

/// Maximum number of saved calls of a sublimit.
pub(super) const MAX_PAST: usize = 16;

/// Maximum number of slots of a bucket.
const MAX_SLOTS: u32 = 100_000;

/// Maximum length of a hash name or a route.
pub(super) const MAX_TEXT: usize = 512;

/// State of a limiter that must survive a restart: global blocks, closed buckets, sublimits, and what was learned about
/// routes.
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
    /// Number of saved routes.
    #[must_use]
    pub const fn routes(&self) -> usize {
        self.routes.len()
    }

    /// Number of closed global limits, buckets and sublimits.
    #[must_use]
    pub const fn closed(&self) -> usize {
        self.blocks.len() + self.closed.len() + self.doors.len()
    }
}

/// A global limit that is closed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SavedBlock {
    pub(super) credential: Credential,
    pub(super) lasting_ms: u64,
}

/// What the buckets of a hash have in common.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SavedHash {
    pub(super) name: String,
    limit: u32,
    kind: SavedAlgorithm,
    /// For a fixed window its length; for a leaky bucket the time that one slot takes to drain.
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
    pub(super) fn new(name: &str, spec: BucketSpec) -> Self {
        let (kind, time) = match spec.kind {
            BucketAlgorithm::Fixed { per } => (SavedAlgorithm::Fixed, per),
            BucketAlgorithm::Leaky { refill, confirmed: true } => (SavedAlgorithm::Leaky, refill),
            BucketAlgorithm::Leaky { refill, confirmed: false } => (SavedAlgorithm::Unconfirmed, refill),
        };
        let micros = u64::try_from(time.as_nanos().div_ceil(1_000)).unwrap_or(u64::MAX);
        Self { name: name.to_owned(), limit: spec.limit, kind, micros }
    }

    /// The specification, with its values limited to their valid ranges.
    pub(super) fn spec(&self) -> BucketSpec {
        let time = Duration::from_micros(self.micros).min(MAX_DURATION);
        let kind = match self.kind {
            SavedAlgorithm::Fixed => BucketAlgorithm::Fixed { per: time },
            SavedAlgorithm::Leaky => BucketAlgorithm::Leaky { refill: time, confirmed: true },
            SavedAlgorithm::Unconfirmed => BucketAlgorithm::Leaky { refill: time, confirmed: false },
        };
        BucketSpec { limit: self.limit.clamp(1, MAX_SLOTS), kind }
    }
}

/// A route whose bucket's hash is known.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SavedRoute {
    pub(super) credential: Credential,
    pub(super) route: String,
    /// Index in the list of hashes.
    pub(super) hash: usize,
}

/// A closed bucket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SavedBucket {
    pub(super) credential: Credential,
    /// Index in the list of hashes.
    pub(super) hash: usize,
    /// The top-level object: its id, and the fingerprint of its token.
    pub(super) major: (u64, u64),
    pub(super) lasting_ms: u64,
}

/// A sublimit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SavedSublimit {
    pub(super) credential: Credential,
    pub(super) route: String,
    pub(super) major: (u64, u64),
    pub(super) sub: Option<SublimitKind>,
    /// How long it stays closed.
    pub(super) lasting_ms: u64,
    /// How long each granted call still counts.
    pub(super) past_ms: Vec<u64>,
}
