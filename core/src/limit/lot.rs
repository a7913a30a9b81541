//! A lot: where calls wait together, in lanes, for one thing.

use std::collections::VecDeque;

use super::book::{HashId, Whose};
use super::bucket::Bucket;
use super::domain::DomainId;
use super::side::Side;
use crate::lane::Lane;
use crate::route::{Major, RouteKey, SubLimit};
use crate::time::Timestamp;

/// A lot, by its place.
pub(super) type LotId = u32;

/// A caller that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub(super) u64);

/// What a lot is for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum LotKey {
    /// A route of which nothing is known, with those that may share its bucket: the template, and whether it reads.
    Unknown(Whose, Box<str>, bool),
    /// A bucket.
    Bucket(Whose, HashId, Major),
    /// A route without a limit.
    Free(Whose, RouteKey),
    /// Behind a side door.
    Side(Box<SideKey>),
}

/// What a side door is for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct SideKey {
    pub(super) whose: Whose,
    pub(super) route: RouteKey,
    pub(super) major: Major,
    pub(super) sub: Option<SubLimit>,
}

/// What those in a lot wait for.
#[derive(Debug)]
pub(super) enum Gatekeeper {
    /// For the one call that is ahead to be answered.
    Probe { in_flight: bool },
    /// For a slot.
    Bucket(Bucket),
    /// For nothing of its own.
    Open,
    /// For the side door; beyond it they wait in their ordinary lot.
    Side(Side),
}

/// A lot.
#[derive(Debug)]
pub(super) struct Lot {
    pub(super) key: LotKey,
    pub(super) keeper: Gatekeeper,
    /// Those who wait; nothing is allocated while nobody does.
    pub(super) queues: Option<Box<Queues>>,
    /// When it has a timer set, so that it sets no second one.
    pub(super) timer: Option<Timestamp>,
}

// A bot in many guilds has hundreds of thousands of these, nearly all of them buckets: what is rare or large is boxed.
const _: () = assert!(size_of::<Option<Lot>>() <= 136 && size_of::<LotKey>() <= 24);

/// Those who wait, by lane, first come first.
#[derive(Debug, Default)]
pub(super) struct Queues {
    pub(super) lanes: [VecDeque<Ticket>; 3],
    /// The heads that are announced as ready to go, and where.
    pub(super) announced: [Option<(Ticket, DomainId)>; 3],
}

impl Queues {
    pub(super) fn is_empty(&self) -> bool {
        self.lanes.iter().all(VecDeque::is_empty)
    }

    /// How many wait that go before a newcomer of this lane.
    pub(super) fn ahead(&self, lane: Lane) -> usize {
        self.lanes[..=lane.index()].iter().map(VecDeque::len).sum()
    }

    /// The most urgent one.
    pub(super) fn first(&self) -> Option<Ticket> {
        self.lanes.iter().find_map(|queue| queue.front().copied())
    }

    pub(super) fn len(&self) -> usize {
        self.lanes.iter().map(VecDeque::len).sum()
    }
}

impl Lot {
    pub(super) fn new(key: LotKey, keeper: Gatekeeper) -> Self {
        Self { key, keeper, queues: None, timer: None }
    }

    pub(super) fn waiting(&self) -> usize {
        self.queues.as_ref().map_or(0, |queues| queues.len())
    }

    pub(super) fn ahead(&self, lane: Lane) -> usize {
        self.queues.as_ref().map_or(0, |queues| queues.ahead(lane))
    }

    /// Whether it is a limit that people should see: a bucket, or one within a bucket that holds something up.
    pub(super) fn is_listed(&self, now: Timestamp) -> bool {
        match &self.keeper {
            Gatekeeper::Bucket(_) => true,
            Gatekeeper::Side(_) => !self.is_idle(now),
            // What waits to be known, or has no limit, is none.
            Gatekeeper::Probe { .. } | Gatekeeper::Open => false,
        }
    }

    /// Whether nothing is lost by forgetting it.
    pub(super) fn is_idle(&self, now: Timestamp) -> bool {
        self.queues.is_none()
            && match &self.keeper {
                Gatekeeper::Probe { in_flight } => !in_flight,
                Gatekeeper::Bucket(bucket) => bucket.is_idle(now),
                Gatekeeper::Open => true,
                Gatekeeper::Side(side) => side.is_idle(now),
            }
    }
}
