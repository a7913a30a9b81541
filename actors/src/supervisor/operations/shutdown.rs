//! Stops guilds: idle ones, those that make room for others, and all at shutdown.

use std::sync::Arc;

use actix::{ActorFutureExt as _, AsyncContext as _, Context, WrapFuture as _};
use guildhall_core::operation::Queue;
use guildhall_core::time::UnixMs;
use tokio::sync::oneshot;

use super::Supervisor;
use super::child::{Child, ChildState, is_interaction};
use crate::guild::operations::{Stop, StopMode, StopResult};
use crate::ports::Fence;

/// Maximum number of guilds that are requested to stop at the same time.
const AT_ONCE: usize = 256;

impl Supervisor {
    /// Requests guilds to stop that have been idle for long.
    pub(super) fn let_idle_go(&mut self, ctx: &mut Context<Self>) {
        let (now, config) = (self.clock.now(), Arc::clone(&self.config));
        let idle: Vec<Queue> = self
            .kept
            .iter()
            .filter(|(queue, kept)| {
                let after = if is_interaction(**queue) { config.interaction_idle_after } else { config.idle_after };
                kept.idle_since(now, config.long_wait).is_some_and(|since| now.since(since) >= after)
            })
            .map(|(queue, _)| *queue)
            .take(AT_ONCE)
            .collect();
        idle.into_iter().for_each(|queue| self.ask_to_leave(queue, StopMode::IfIdle, ctx));
    }

    /// Requests as many guilds to stop as queues wait: of the same kind, the longest idle first.
    pub(super) fn make_room_for(&mut self, waiting: &[Queue], ctx: &mut Context<Self>) {
        let interactions = waiting.iter().filter(|queue| is_interaction(**queue)).count();
        self.make_room(interactions, is_interaction, ctx);
        self.make_room(waiting.len() - interactions, |queue| !is_interaction(queue), ctx);
    }

    /// Requests this many guilds to stop that are not of interactions.
    pub(super) fn make_room_for_guilds(&mut self, wanted: usize, ctx: &mut Context<Self>) {
        self.make_room(wanted, |queue| !is_interaction(queue), ctx);
    }

    fn make_room(&mut self, wanted: usize, of: impl Fn(Queue) -> bool, ctx: &mut Context<Self>) {
        if wanted == 0 {
            return;
        }
        let (now, long_wait) = (self.clock.now(), self.config.long_wait);
        let kept = || self.kept.iter().filter(|(queue, _)| of(**queue));
        let leaving = kept().filter(|(_, kept)| matches!(kept.care, ChildState::Leaving { .. })).count();
        let mut idle: Vec<(UnixMs, Queue)> =
            kept().filter_map(|(queue, kept)| kept.idle_since(now, long_wait).map(|since| (since, *queue))).collect();
        idle.sort_unstable();
        for (_, queue) in idle.into_iter().take(wanted.min(AT_ONCE).saturating_sub(leaving)) {
            self.ask_to_leave(queue, StopMode::IfIdle, ctx);
        }
    }

    fn ask_to_leave(&mut self, queue: Queue, how: StopMode, ctx: &mut Context<Self>) {
        let Some(kept) = self.kept.get_mut(&queue) else { return };
        let addr = match &kept.care {
            ChildState::Active(addr) | ChildState::Leaving { addr, .. } => addr.clone(),
            ChildState::Broken => return,
        };
        let (generation, asked) = (kept.generation, addr.send(Stop(how)));
        kept.care = ChildState::Leaving { addr, again: false };
        ctx.spawn(asked.into_actor(self).map(move |departure, actor, _| match departure {
            Ok(StopResult::Busy) => actor.stays(queue, generation),
            // Its exit notification follows.
            Ok(StopResult::Released | StopResult::Unreleased) | Err(_) => {}
        }));
    }

    fn stays(&mut self, queue: Queue, generation: u64) {
        if let Some(kept) = self.kept.get_mut(&queue)
            && kept.generation == generation
            && let ChildState::Leaving { addr, .. } = &kept.care
            && !self.draining
        {
            kept.care = ChildState::Active(addr.clone());
        }
    }

    /// A guild has stopped, or its queue belongs to another process.
    pub(super) fn on_left(&mut self, queue: Queue, ctx: &mut Context<Self>) {
        let again = self.kept.get(&queue).is_some_and(|kept| match kept.care {
            ChildState::Leaving { again, .. } => again,
            // It was fenced: the new owner finds new operations.
            ChildState::Active(_) | ChildState::Broken => false,
        });
        self.forget(queue);
        if again && !self.draining {
            self.want(queue);
        }
        self.check_drained();
        self.claim_wanted(ctx);
    }

    /// Hands over queues that belong to another process. Running operations finish first.
    pub(super) fn move_elsewhere(&mut self, ctx: &mut Context<Self>) {
        if self.draining {
            return;
        }
        let settled = |kept: &Child| matches!(kept.care, ChildState::Active(_));
        let kept: Vec<Queue> = self.kept.iter().filter(|(_, kept)| settled(kept)).map(|(queue, _)| *queue).collect();
        for queue in self.store.elsewhere(&kept) {
            self.ask_to_leave(queue, StopMode::Now, ctx);
        }
    }

    /// Stops all guilds after the lease was lost.
    pub(super) fn give_all_up(&mut self, ctx: &mut Context<Self>) {
        let all: Vec<(Queue, bool)> =
            self.kept.iter().map(|(queue, kept)| (*queue, matches!(kept.care, ChildState::Broken))).collect();
        for (queue, broken) in all {
            if broken {
                self.forget(queue);
            } else {
                self.ask_to_leave(queue, StopMode::Now, ctx);
            }
        }
    }

    /// Releases a queue without a guild.
    pub(super) fn give_back(&mut self, queue: Queue, fence: Fence, ctx: &mut Context<Self>) {
        self.releasing += 1;
        let (store, retry) = (Arc::clone(&self.store), self.config.store_retry());
        let released = async move { retry.attempt(store.release(queue, fence)).await };
        // If this fails, the queue is released when the lease of this process expires.
        ctx.spawn(released.into_actor(self).map(|_, actor, _| {
            actor.releasing -= 1;
            actor.check_drained();
        }));
    }

    /// Stops all guilds. The receiver resolves when they have stopped.
    pub(super) fn drain(&mut self, ctx: &mut Context<Self>) -> oneshot::Receiver<()> {
        let (done, drained) = oneshot::channel();
        self.drained.push(done);
        self.draining = true;
        self.wanted.clear();
        self.in_wanted.clear();
        let queues: Vec<(Queue, Fence, bool)> = self
            .kept
            .iter()
            .map(|(queue, kept)| (*queue, kept.fence, matches!(kept.care, ChildState::Broken)))
            .collect();
        for (queue, fence, broken) in queues {
            if broken {
                self.forget(queue);
                self.give_back(queue, fence, ctx);
            } else {
                self.ask_to_leave(queue, StopMode::AtEnd, ctx);
            }
        }
        self.check_drained();
        drained
    }

    pub(super) fn check_drained(&mut self) {
        if self.draining && self.kept.is_empty() && self.releasing == 0 && !self.claiming {
            for waiting in self.drained.drain(..) {
                let _ = waiting.send(());
            }
        }
    }
}
