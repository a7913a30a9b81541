//! What the order stores about one operation.

use super::position::Position;
use crate::operation::{OperationId, OperationState};
use crate::time::UnixMs;

/// Why an operation has not finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitPhase {
    /// It waits for its turn.
    Queued,
    /// A limit or a breaker delayed it.
    Delayed {
        /// Whether others may pass it.
        parked: bool,
    },
    /// It failed, and is retried later.
    Retrying,
    /// It was sent, and its outcome is checked later.
    Reconciling,
}

impl WaitPhase {
    /// The state of an operation in this phase.
    #[must_use]
    pub const fn state(self) -> OperationState {
        match self {
            Self::Queued => OperationState::Queued,
            Self::Delayed { .. } => OperationState::Delayed,
            Self::Retrying => OperationState::Retrying,
            Self::Reconciling => OperationState::Reconciling,
        }
    }

    /// Whether its deadline may end it: nothing of it is in flight.
    #[must_use]
    pub const fn may_expire(self) -> bool {
        match self {
            Self::Queued | Self::Delayed { .. } | Self::Retrying => true,
            Self::Reconciling => false,
        }
    }
}

/// Which other operations the cause of a delay affects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DelayScope {
    /// This operation, and those that share something with it.
    Alone,
    /// Operations of the same caller: those of others that share nothing with it need not wait for it.
    ByCaller,
    /// All operations: passing would not help.
    WithAll,
}

/// An operation in the order.
#[derive(Clone, Debug)]
pub struct QueueEntry<O> {
    /// Operation id.
    pub id: OperationId,
    /// Sequence number.
    pub seq: u64,
    /// Why it has not finished.
    pub phase: WaitPhase,
    /// Earliest time to run.
    pub eligible_at: UnixMs,
    /// Deadline.
    pub deadline: Option<UnixMs>,
    /// The deployment that it belongs to.
    pub deployment: Option<OperationId>,
    /// What it reads and writes.
    pub objects: O,
}

/// An operation in the order, and since when it has been delayed.
#[derive(Clone, Debug)]
pub(super) struct OrderedOperation<O> {
    pub(super) entry: QueueEntry<O>,
    pub(super) held_since: Option<UnixMs>,
    /// When others may pass it, if it still waits then.
    pub(super) park_at: Option<UnixMs>,
    pub(super) position: Position,
}

impl<O> OrderedOperation<O> {
    pub(super) const fn new(entry: QueueEntry<O>) -> Self {
        Self { entry, held_since: None, park_at: None, position: Position::Unexamined }
    }

    pub(super) const fn is_parked(&self) -> bool {
        matches!(self.entry.phase, WaitPhase::Delayed { parked: true })
    }

    pub(super) const fn deadline(&self) -> Option<UnixMs> {
        if self.entry.phase.may_expire() { self.entry.deadline } else { None }
    }
}
