//! A wait queue: where calls wait together, in lanes, for one thing.

use std::collections::VecDeque;

use super::bucket::Bucket;
use super::domain::DomainId;
use super::route_table::{CredentialId, HashId};
use super::sublimit::Sublimit;
use crate::lane::Lane;
use crate::route::{RouteKey, SublimitKind, TopLevelId};
use crate::time::Timestamp;

/// A wait queue, by its place.
pub(super) type WaitQueueId = u32;

/// A caller that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub(super) u64);

/// What a wait queue is for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum WaitQueueKey {
    /// A route of which nothing is known, with those that may share its bucket: the template, and whether it reads.
    Unknown(CredentialId, Box<str>, bool),
    /// A bucket.
    Bucket(CredentialId, HashId, TopLevelId),
    /// A route without a limit.
    Free(CredentialId, RouteKey),
    /// Behind a side door.
    Side(Box<SublimitKey>),
}

/// What a side door is for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct SublimitKey {
    pub(super) whose: CredentialId,
    pub(super) route: RouteKey,
    pub(super) major: TopLevelId,
    pub(super) sub: Option<SublimitKind>,
}

/// What those in a wait queue wait for.
#[derive(Debug)]
pub(super) enum QueueLimit {
    /// For the one call that is ahead to be answered.
    Probe { in_flight: bool },
    /// For a slot.
    Bucket(Bucket),
    /// For nothing of its own.
    Open,
    /// For the side door; beyond it they wait in their ordinary wait queue.
    Side(Sublimit),
}

/// A wait queue.
#[derive(Debug)]
pub(super) struct WaitQueue {
    pub(super) key: WaitQueueKey,
    pub(super) keeper: QueueLimit,
    /// Those who wait; nothing is allocated while nobody does.
    pub(super) queues: Option<Box<LaneQueues>>,
    /// When it has a timer set, so that it sets no second one.
    pub(super) timer: Option<Timestamp>,
}

// A bot in many guilds has hundreds of thousands of these, nearly all of them buckets: what is rare or large is boxed.
const _: () = assert!(size_of::<Option<WaitQueue>>() <= 136 && size_of::<WaitQueueKey>() <= 24);

/// Those who wait, by lane, first come first.
#[derive(Debug, Default)]
pub(super) struct LaneQueues {
    pub(super) lanes: [VecDeque<Ticket>; 3],
    /// The heads that are announced as ready to go, and where.
    pub(super) announced: [Option<(Ticket, DomainId)>; 3],
}

impl LaneQueues {
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

impl WaitQueue {
    pub(super) fn new(key: WaitQueueKey, keeper: QueueLimit) -> Self {
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
            QueueLimit::Bucket(_) => true,
            QueueLimit::Side(_) => !self.is_idle(now),
            // What waits to be known, or has no limit, is none.
            QueueLimit::Probe { .. } | QueueLimit::Open => false,
        }
    }

    /// Whether nothing is lost by forgetting it.
    pub(super) fn is_idle(&self, now: Timestamp) -> bool {
        self.queues.is_none()
            && match &self.keeper {
                QueueLimit::Probe { in_flight } => !in_flight,
                QueueLimit::Bucket(bucket) => bucket.is_idle(now),
                QueueLimit::Open => true,
                QueueLimit::Side(side) => side.is_idle(now),
            }
    }
}
