//! A queue of this process.

use std::sync::Arc;
use std::time::Duration;

use actix::Addr;
use guildhall_core::operation::{OperationId, Queue, QueueClass};
use guildhall_core::time::UnixMs;

use crate::guild::Guild;
use crate::guild::operations::GuildShared;
use crate::ports::Fence;
use crate::supervisor::restart_policy::{Poison, RestartHistory, RestartPolicy};

/// State of the guild of a queue.
#[derive(Debug)]
pub(super) enum ChildState {
    /// Its guild runs.
    Active(Addr<Guild>),
    /// Its guild was requested to stop.
    Stopping {
        addr: Addr<Guild>,
        /// Whether it was woken since then.
        woken: bool,
    },
    /// Its guild crashed; the next one starts soon, or after a rest.
    Crashed,
}

/// A queue of this process.
#[derive(Debug)]
pub(super) struct Child {
    pub(super) state: ChildState,
    pub(super) fence: Fence,
    /// Distinguishes successive guilds of the queue.
    pub(super) generation: u64,
    pub(super) shared: Arc<GuildShared>,
    pub(super) paused: bool,
    restarts: RestartHistory<OperationId>,
}

impl Child {
    pub(super) fn new(
        addr: Addr<Guild>,
        fence: Fence,
        generation: u64,
        shared: Arc<GuildShared>,
        paused: bool,
    ) -> Self {
        let (state, restarts) = (ChildState::Active(addr), RestartHistory::default());
        Self { state, fence, generation, shared, paused, restarts }
    }

    /// Its guild ended unexpectedly. Returns how long to wait before the next one starts, if that happens too often.
    pub(super) fn on_crashed(
        &mut self,
        executing: Option<OperationId>,
        now: UnixMs,
        policy: RestartPolicy,
    ) -> Option<Duration> {
        self.state = ChildState::Crashed;
        self.restarts.on_exit(executing, now, policy)
    }

    /// The operation that its last guild was executing when it ended unexpectedly.
    pub(super) fn poison(&self) -> Option<Poison<OperationId>> {
        self.restarts.poison().copied()
    }

    /// Replaces its guild. The history of restarts stays.
    pub(super) fn on_restarted(&mut self, next: Self) {
        *self = Self { restarts: std::mem::take(&mut self.restarts), ..next };
    }

    /// Since when its guild is idle, if it could stop.
    pub(super) fn idle_since(&self, now: UnixMs, long_wait: Duration) -> Option<UnixMs> {
        match self.state {
            ChildState::Stopping { .. } | ChildState::Crashed => None,
            ChildState::Active(_) => {
                let is_due_late = self.shared.due().is_none_or(|due| due.since(now) > long_wait);
                self.shared.idle_since().filter(|_| is_due_late)
            }
        }
    }
}

/// Whether a queue counts towards the limit for interactions.
pub(super) const fn is_interaction(queue: Queue) -> bool {
    match queue.class() {
        QueueClass::Interaction => true,
        QueueClass::Guild | QueueClass::User | QueueClass::Application => false,
    }
}
