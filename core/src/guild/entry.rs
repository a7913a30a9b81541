//! What a line knows of one operation.

use super::position::Position;
use crate::operation::{OperationId, OperationState};
use crate::time::UnixMs;

/// Why an operation is not done yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitPhase {
    /// It waits for its turn.
    Queued,
    /// A limit or a breaker held it back.
    Delayed {
        /// Whether others may pass it.
        parked: bool,
    },
    /// It failed, and is tried again later.
    Retrying,
    /// It was sent, and what came of it is looked for later.
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

    /// Whether its deadline may end it: nothing of it is under way.
    #[must_use]
    pub const fn may_expire(self) -> bool {
        match self {
            Self::Queued | Self::Delayed { .. } | Self::Retrying => true,
            Self::Reconciling => false,
        }
    }
}

/// Who else would be held back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DelayScope {
    /// This operation, and those that share something with it.
    Alone,
    /// Its caller: those of others that share nothing with it need not wait for it.
    ByCaller,
    /// Everybody: passing would not help.
    WithAll,
}

/// An operation in a line.
#[derive(Clone, Debug)]
pub struct QueueEntry<O> {
    /// What it is called.
    pub id: OperationId,
    /// Its place.
    pub seq: u64,
    /// Why it is not done yet.
    pub phase: WaitPhase,
    /// Not before.
    pub eligible_at: UnixMs,
    /// Not after.
    pub deadline: Option<UnixMs>,
    /// The deployment that it belongs to.
    pub deployment: Option<OperationId>,
    /// What it reads and writes.
    pub objects: O,
}

/// An operation in a line, and since when it has been held back.
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
