//! A wait queue: calls that wait, by lane, for the same limit.

use super::bucket::Bucket;
use super::caller::CallerId;
use super::domain::DomainId;
use super::lane_queue::LaneQueue;
use super::route_table::{CredentialId, HashId};
use super::sublimit::Sublimit;
use crate::lane::Lane;
use crate::route::{RouteKey, SublimitKind, TopLevelId};
use crate::time::Timestamp;

/// Index of a wait queue.
pub(super) type WaitQueueId = u32;

/// Id of a waiting caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub(super) u64);

/// What a wait queue is for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum WaitQueueKey {
    /// An unknown route, together with those that may share its bucket: the template, and whether it reads.
    Unknown(CredentialId, Box<str>, bool),
    /// A bucket.
    Bucket(CredentialId, HashId, TopLevelId),
    /// A route without a limit.
    Free(CredentialId, RouteKey),
    /// A sublimit.
    Sublimit(Box<SublimitKey>),
}

impl WaitQueueKey {
    pub(super) fn credential_id(&self) -> CredentialId {
        match self {
            Self::Unknown(id, ..) | Self::Bucket(id, ..) | Self::Free(id, _) => *id,
            Self::Sublimit(key) => key.credential_id,
        }
    }
}

/// What a sublimit applies to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct SublimitKey {
    pub(super) credential_id: CredentialId,
    pub(super) route: RouteKey,
    pub(super) major: TopLevelId,
    pub(super) sub: Option<SublimitKind>,
}

/// The limit that the calls of a wait queue wait for.
#[derive(Debug)]
pub(super) enum QueueLimit {
    /// The response of the probe.
    Probe { in_flight: bool },
    /// A slot of the bucket.
    Bucket(Bucket),
    /// Nothing: the route has no limit.
    Open,
    /// The sublimit; after it, the calls wait in the wait queue of their route.
    Sublimit(Sublimit),
}

/// A wait queue.
#[derive(Debug)]
pub(super) struct WaitQueue {
    pub(super) key: WaitQueueKey,
    pub(super) limit: QueueLimit,
    /// The waiting calls; not allocated while the queue is empty.
    pub(super) queues: Option<Box<LaneQueues>>,
    /// The time of its pending timer, so that it sets no second one.
    pub(super) timer: Option<Timestamp>,
}

// A bot in many guilds has hundreds of thousands of these, nearly all of them buckets. Rare or large fields are boxed.
const _: () = assert!(size_of::<Option<WaitQueue>>() <= 136 && size_of::<WaitQueueKey>() <= 24);

/// Waiting calls by lane.
#[derive(Debug, Default)]
pub(super) struct LaneQueues {
    pub(super) lanes: [LaneQueue; 3],
    /// The heads that are announced as ready, with their callers and domains.
    pub(super) announced: [Option<(Ticket, CallerId, DomainId)>; 3],
}

impl LaneQueues {
    pub(super) fn is_empty(&self) -> bool {
        self.lanes.iter().all(LaneQueue::is_empty)
    }

    /// Number of waiting calls that are granted before a new call of this lane and caller.
    pub(super) fn ahead(&self, lane: Lane, caller: CallerId) -> usize {
        let urgent: usize = self.lanes[..lane.index()].iter().map(LaneQueue::len).sum();
        urgent + self.lanes[lane.index()].ahead(caller)
    }

    /// The most urgent waiting call.
    pub(super) fn first(&self) -> Option<Ticket> {
        self.lanes.iter().find_map(LaneQueue::front)
    }

    pub(super) fn len(&self) -> usize {
        self.lanes.iter().map(LaneQueue::len).sum()
    }
}

impl WaitQueue {
    pub(super) fn new(key: WaitQueueKey, limit: QueueLimit) -> Self {
        Self { key, limit, queues: None, timer: None }
    }

    pub(super) fn waiting(&self) -> usize {
        self.queues.as_ref().map_or(0, |queues| queues.len())
    }

    pub(super) fn ahead(&self, lane: Lane, caller: CallerId) -> usize {
        self.queues.as_ref().map_or(0, |queues| queues.ahead(lane, caller))
    }

    /// Whether the API lists this limit: a bucket, or a sublimit that delays calls.
    pub(super) fn is_listed(&self, now: Timestamp) -> bool {
        match &self.limit {
            QueueLimit::Bucket(_) => true,
            QueueLimit::Sublimit(_) => !self.is_idle(now),
            // An unknown route, or one without a limit, is not listed.
            QueueLimit::Probe { .. } | QueueLimit::Open => false,
        }
    }

    /// Whether it can be evicted without loss.
    pub(super) fn is_idle(&self, now: Timestamp) -> bool {
        self.queues.is_none()
            && match &self.limit {
                QueueLimit::Probe { in_flight } => !in_flight,
                QueueLimit::Bucket(bucket) => bucket.is_idle(now),
                QueueLimit::Open => true,
                QueueLimit::Sublimit(sublimit) => sublimit.is_idle(now),
            }
    }
}
