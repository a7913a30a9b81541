//! A queue that is looked after here.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use actix::Addr;
use guildhall_core::operation::{OperationId, Queue, QueueClass};
use guildhall_core::time::UnixMs;

use crate::guild::Guild;
use crate::guild::operations::{GuildShared, PoisonedOperation};
use crate::ports::Fence;

/// Restarts within this time count.
const RESTART_WINDOW: Duration = Duration::from_secs(60);

/// How a queue is being looked after.
#[derive(Debug)]
pub(super) enum ChildState {
    /// A guild looks after it.
    Active(Addr<Guild>),
    /// Its guild has been asked to leave.
    Leaving {
        addr: Addr<Guild>,
        /// Something is new since then.
        again: bool,
    },
    /// Its guild broke; the next one starts soon, or after a rest.
    Broken,
}

/// A queue that is looked after here.
#[derive(Debug)]
pub(super) struct Child {
    pub(super) care: ChildState,
    pub(super) fence: Fence,
    /// Tells one guild of the queue from the next.
    pub(super) generation: u64,
    pub(super) vitals: Arc<GuildShared>,
    pub(super) paused: bool,
    pub(super) poison: Option<PoisonedOperation>,
    restarts: VecDeque<UnixMs>,
}

impl Child {
    pub(super) fn new(
        addr: Addr<Guild>,
        fence: Fence,
        generation: u64,
        vitals: Arc<GuildShared>,
        paused: bool,
    ) -> Self {
        let (care, restarts) = (ChildState::Active(addr), VecDeque::new());
        Self { care, fence, generation, vitals, paused, poison: None, restarts }
    }

    /// Its guild broke. Whether it has to rest now.
    pub(super) fn on_broken(&mut self, executing: Option<OperationId>, now: UnixMs, most: usize) -> bool {
        self.care = ChildState::Broken;
        self.poison = executing.map(|id| {
            let before = self.poison.filter(|poison| poison.id == id).map_or(0, |poison| poison.times);
            PoisonedOperation { id, times: before + 1 }
        });
        self.restarts.push_back(now);
        while self.restarts.front().is_some_and(|at| now.since(*at) >= RESTART_WINDOW) {
            self.restarts.pop_front();
        }
        if self.restarts.len() <= most {
            return false;
        }
        self.restarts.clear();
        true
    }

    /// It is looked after by another guild from now on.
    pub(super) fn on_restarted(&mut self, next: Self) {
        let (restarts, poison) = (std::mem::take(&mut self.restarts), self.poison);
        *self = Self { restarts, poison, ..next };
    }

    /// Since when its guild has had nothing to do, if it could leave.
    pub(super) fn idle_since(&self, now: UnixMs, long_wait: Duration) -> Option<UnixMs> {
        match self.care {
            ChildState::Leaving { .. } | ChildState::Broken => None,
            ChildState::Active(_) => {
                let far = self.vitals.due().is_none_or(|due| due.since(now) > long_wait);
                self.vitals.resting_since().filter(|_| far)
            }
        }
    }
}

/// Whether a queue counts against the bound for interactions.
pub(super) const fn is_interaction(queue: Queue) -> bool {
    match queue.class() {
        QueueClass::Interaction => true,
        QueueClass::Guild | QueueClass::User | QueueClass::Application => false,
    }
}
