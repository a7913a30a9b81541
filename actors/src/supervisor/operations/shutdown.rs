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
const MAX_STOPPING: usize = 256;

impl Supervisor {
    /// Requests guilds to stop that have been idle for long.
    pub(super) fn stop_idle(&mut self, ctx: &mut Context<Self>) {
        let (now, config) = (self.clock.now(), Arc::clone(&self.config));
        let idle: Vec<Queue> = self
            .children
            .iter()
            .filter(|(queue, child)| {
                let after = if is_interaction(**queue) { config.interaction_idle_after } else { config.idle_after };
                child.idle_since(now, config.long_wait).is_some_and(|since| now.since(since) >= after)
            })
            .map(|(queue, _)| *queue)
            .take(MAX_STOPPING)
            .collect();
        idle.into_iter().for_each(|queue| self.request_stop(queue, StopMode::IfIdle, ctx));
    }

    /// Requests as many guilds to stop as queues wait: of the same kind, the longest idle first.
    pub(super) fn make_room_for(&mut self, waiting: &[Queue], ctx: &mut Context<Self>) {
        let interactions = waiting.iter().filter(|queue| is_interaction(**queue)).count();
        self.make_room(interactions, is_interaction, ctx);
        self.make_room(waiting.len() - interactions, |queue| !is_interaction(queue), ctx);
    }

    /// Requests this many guilds to stop that are not of interactions.
    pub(super) fn make_room_for_guilds(&mut self, needed: usize, ctx: &mut Context<Self>) {
        self.make_room(needed, |queue| !is_interaction(queue), ctx);
    }

    fn make_room(&mut self, needed: usize, matches: impl Fn(Queue) -> bool, ctx: &mut Context<Self>) {
        if needed == 0 {
            return;
        }
        let (now, long_wait) = (self.clock.now(), self.config.long_wait);
        let owned = || self.children.iter().filter(|(queue, _)| matches(**queue));
        let leaving = owned().filter(|(_, owned)| matches!(owned.state, ChildState::Stopping { .. })).count();
        let mut idle: Vec<(UnixMs, Queue)> = owned()
            .filter_map(|(queue, owned)| owned.idle_since(now, long_wait).map(|since| (since, *queue)))
            .collect();
        idle.sort_unstable();
        for (_, queue) in idle.into_iter().take(needed.min(MAX_STOPPING).saturating_sub(leaving)) {
            self.request_stop(queue, StopMode::IfIdle, ctx);
        }
    }

    fn request_stop(&mut self, queue: Queue, mode: StopMode, ctx: &mut Context<Self>) {
        let Some(child) = self.children.get_mut(&queue) else { return };
        let addr = match &child.state {
            ChildState::Active(addr) | ChildState::Stopping { addr, .. } => addr.clone(),
            ChildState::Crashed => return,
        };
        let (generation, stopping) = (child.generation, addr.send(Stop(mode)));
        child.state = ChildState::Stopping { addr, woken: false };
        ctx.spawn(stopping.into_actor(self).map(move |result, actor, _| match result {
            Ok(StopResult::Busy) => actor.on_stop_refused(queue, generation),
            // Its exit notification follows.
            Ok(StopResult::Released | StopResult::Unreleased) | Err(_) => {}
        }));
    }

    fn on_stop_refused(&mut self, queue: Queue, generation: u64) {
        if let Some(child) = self.children.get_mut(&queue)
            && child.generation == generation
            && let ChildState::Stopping { addr, .. } = &child.state
            && !self.draining
        {
            child.state = ChildState::Active(addr.clone());
        }
    }

    /// A guild has stopped, or its queue belongs to another process.
    pub(super) fn on_stopped(&mut self, queue: Queue, ctx: &mut Context<Self>) {
        let woken = self.children.get(&queue).is_some_and(|child| match child.state {
            ChildState::Stopping { woken, .. } => woken,
            // It was fenced: the new owner finds new operations.
            ChildState::Active(_) | ChildState::Crashed => false,
        });
        self.forget(queue);
        if woken && !self.draining {
            self.add_pending(queue);
        }
        self.check_drained();
        self.claim_pending(ctx);
    }

    /// Hands over queues that belong to another process. Running operations finish first.
    pub(super) fn hand_over(&mut self, ctx: &mut Context<Self>) {
        if self.draining {
            return;
        }
        let is_active = |owned: &Child| matches!(owned.state, ChildState::Active(_));
        let owned: Vec<Queue> =
            self.children.iter().filter(|(_, owned)| is_active(owned)).map(|(queue, _)| *queue).collect();
        for queue in self.store.assigned_elsewhere(&owned) {
            self.request_stop(queue, StopMode::Now, ctx);
        }
    }

    /// Stops all guilds after the lease was lost.
    pub(super) fn stop_all(&mut self, ctx: &mut Context<Self>) {
        let all: Vec<(Queue, bool)> =
            self.children.iter().map(|(queue, child)| (*queue, matches!(child.state, ChildState::Crashed))).collect();
        for (queue, is_crashed) in all {
            if is_crashed {
                self.forget(queue);
            } else {
                self.request_stop(queue, StopMode::Now, ctx);
            }
        }
    }

    /// Releases a queue without a guild.
    pub(super) fn release_queue(&mut self, queue: Queue, fence: Fence, ctx: &mut Context<Self>) {
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
        self.drain_waiters.push(done);
        self.draining = true;
        self.pending_queues.clear();
        self.pending_set.clear();
        let queues: Vec<(Queue, Fence, bool)> = self
            .children
            .iter()
            .map(|(queue, child)| (*queue, child.fence, matches!(child.state, ChildState::Crashed)))
            .collect();
        for (queue, fence, is_crashed) in queues {
            if is_crashed {
                self.forget(queue);
                self.release_queue(queue, fence, ctx);
            } else {
                self.request_stop(queue, StopMode::Shutdown, ctx);
            }
        }
        self.check_drained();
        drained
    }

    pub(super) fn check_drained(&mut self) {
        if self.draining && self.children.is_empty() && self.releasing == 0 && !self.claiming {
            for waiting in self.drain_waiters.drain(..) {
                let _ = waiting.send(());
            }
        }
    }
}
