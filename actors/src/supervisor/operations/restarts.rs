//! Restarts crashed guilds.

use std::sync::Arc;
use std::time::Duration;

use actix::{ActorFutureExt as _, AsyncContext as _, Context, WrapFuture as _};
use guildhall_core::operation::Queue;

use super::Supervisor;
use crate::ports::{ClaimFrom, StoreError};
use crate::telemetry::emit;
use crate::telemetry::operations::GuildCrashed;

impl Supervisor {
    /// A guild has crashed: the next one starts at once, or after a rest if that happens too often.
    pub(super) fn on_crashed(&mut self, queue: Queue, ctx: &mut Context<Self>) {
        let Some(child) = self.children.get_mut(&queue) else { return };
        let executing = child.shared.executing();
        let rests = child.on_crashed(executing, self.clock.now(), self.config.restart_policy());
        let (generation, fence) = (child.generation, child.fence);
        emit(GuildCrashed { queue, executing, rests });
        if self.draining {
            self.forget(queue);
            self.release_queue(queue, fence, ctx);
            return;
        }
        ctx.run_later(rests.unwrap_or(Duration::ZERO), move |actor, ctx| actor.restart(queue, generation, ctx));
    }

    /// Claims the queue again, so that pending writes of the crashed guild are fenced, and starts a guild for it.
    fn restart(&mut self, queue: Queue, generation: u64, ctx: &mut Context<Self>) {
        let fence = match self.children.get(&queue) {
            Some(child) if child.generation == generation && !self.draining => child.fence,
            Some(_) | None => return,
        };
        let (store, retry) = (Arc::clone(&self.store), self.config.store_retry());
        let call = async move {
            retry.attempt(store.release(queue, fence)).await?;
            retry.attempt(store.claim(ClaimFrom::Queues(vec![queue]))).await
        };
        self.releasing += 1;
        ctx.spawn(call.into_actor(self).map(move |claimed: Result<_, StoreError>, actor, ctx| {
            actor.releasing -= 1;
            match claimed {
                Err(error) => {
                    let wait = retry.delay(Some(queue), "restart", &error, 1);
                    ctx.run_later(wait, move |actor, ctx| actor.restart(queue, generation, ctx));
                }
                Ok(claims) => match claims.into_iter().next() {
                    Some(claim) if actor.draining => {
                        actor.forget(queue);
                        actor.release_queue(queue, claim.fence, ctx);
                    }
                    Some(claim) => actor.start_guild(claim, ctx),
                    // Another process was faster.
                    None => actor.forget(queue),
                },
            }
            actor.check_drained();
        }));
    }
}
