//! Claims queues while there is room.

use std::sync::Arc;
use std::time::Duration;

use actix::{ActorFutureExt as _, AsyncContext as _, Context, WrapFuture as _};
use guildhall_core::operation::Queue;
use guildhall_core::time::UnixMs;

use super::child::is_interaction;
use super::{POLLS_PER_PAUSE_CHECK, Supervisor};
use crate::ports::{Claim, ClaimFrom, StoreError};
use crate::telemetry::emit;
use crate::telemetry::operations::StoreRetried;

/// Result of a poll of the store.
#[derive(Debug)]
enum PollResult {
    /// Queues with due operations: as many as requested, or all that there are.
    Claims(Vec<Claim>),
    /// Nothing was claimed; when the next operation is due.
    Idle(Option<UnixMs>),
}

impl Supervisor {
    /// How many more queues may be claimed that are not of interactions.
    fn room(&self) -> usize {
        self.config.max_active.saturating_sub(self.children.len() - self.interactions)
    }

    fn interaction_room(&self) -> usize {
        self.config.max_interactions.saturating_sub(self.interactions)
    }

    /// Adds a queue to those to claim.
    pub(super) fn add_pending(&mut self, queue: Queue) {
        // When the set is full, a poll of the store finds the queue.
        if self.pending_set.len() < self.config.max_wakeups && self.pending_set.insert(queue) {
            // A user waits for the response to an interaction.
            if is_interaction(queue) {
                self.pending_queues.push_front(queue);
            } else {
                self.pending_queues.push_back(queue);
            }
        }
    }

    /// Claims pending queues while there is room, and makes room for the rest.
    pub(super) fn claim_pending(&mut self, ctx: &mut Context<Self>) {
        if self.claiming || self.draining || self.pending_queues.is_empty() {
            return;
        }
        let (mut room, mut interaction_room) = (self.room(), self.interaction_room());
        let (mut batch, mut waiting) = (Vec::new(), Vec::new());
        while batch.len() < self.config.claim_batch
            && let Some(queue) = self.pending_queues.pop_front()
        {
            let remaining = if is_interaction(queue) { &mut interaction_room } else { &mut room };
            if *remaining == 0 {
                waiting.push(queue);
                if waiting.len() >= self.config.claim_batch {
                    break;
                }
                continue;
            }
            *remaining -= 1;
            self.pending_set.remove(&queue);
            batch.push(queue);
        }
        for queue in waiting.iter().rev() {
            self.pending_queues.push_front(*queue);
        }
        self.make_room_for(&waiting, ctx);
        if batch.is_empty() {
            return;
        }
        self.claiming = true;
        let (store, retry) = (Arc::clone(&self.store), self.config.store_retry());
        let call = {
            let batch = batch.clone();
            async move { retry.attempt(store.claim(ClaimFrom::Queues(batch))).await }
        };
        ctx.spawn(call.into_actor(self).map(move |claimed, actor, ctx| {
            actor.claiming = false;
            let failed = match claimed {
                Ok(claims) => {
                    actor.start_claimed(claims, ctx);
                    false
                }
                Err(error) => {
                    batch.into_iter().for_each(|queue| actor.add_pending(queue));
                    actor.claim_later(&error, ctx);
                    true
                }
            };
            if std::mem::take(&mut actor.poll_again) {
                // The poll then claims the pending queues.
                actor.poll(ctx);
            } else if !failed {
                actor.claim_pending(ctx);
            }
        }));
    }

    fn claim_later(&self, error: &StoreError, ctx: &mut Context<Self>) {
        let wait = self.config.store_retry().delay(None, "claim", error, 1);
        ctx.run_later(wait, Self::claim_pending);
    }

    /// Starts guilds for claimed queues.
    fn start_claimed(&mut self, claims: Vec<Claim>, ctx: &mut Context<Self>) {
        for claim in claims {
            if self.pending_set.remove(&claim.queue) {
                self.pending_queues.retain(|queue| *queue != claim.queue);
            }
            if self.draining {
                self.release_queue(claim.queue, claim.fence, ctx);
            } else {
                self.start_guild(claim, ctx);
            }
        }
        self.check_drained();
    }

    /// Polls now, and then at the usual interval.
    pub(super) fn poll_soon(&mut self, ctx: &mut Context<Self>) {
        self.poll_after(Duration::ZERO, ctx);
    }

    fn poll_after(&mut self, wait: Duration, ctx: &mut Context<Self>) {
        if let Some(next) = self.next_poll.take() {
            ctx.cancel_future(next);
        }
        self.next_poll = Some(ctx.run_later(wait, |actor, ctx| {
            actor.next_poll = None;
            actor.poll(ctx);
        }));
    }

    /// Looks for due queues without an owner, and for idle guilds.
    pub(super) fn poll(&mut self, ctx: &mut Context<Self>) {
        if self.draining {
            return;
        }
        self.polls = self.polls.wrapping_add(1);
        if self.polls.is_multiple_of(POLLS_PER_PAUSE_CHECK) {
            self.check_pauses(ctx);
        }
        self.stop_idle(ctx);
        if self.claiming {
            // Polls again when the claim is finished: there may be due queues without a wake-up.
            self.poll_again = true;
            return;
        }
        self.claiming = true;
        let (store, retry, now) = (Arc::clone(&self.store), self.config.store_retry(), self.clock.now());
        let limit = self.room().min(self.config.claim_batch);
        let call = async move {
            if limit > 0 {
                let claims = retry.attempt(store.claim(ClaimFrom::Due { now, limit })).await?;
                if !claims.is_empty() {
                    return Ok(PollResult::Claims(claims));
                }
            }
            Ok(PollResult::Idle(retry.attempt(store.next_due()).await?))
        };
        ctx.spawn(call.into_actor(self).map(move |result: Result<PollResult, StoreError>, actor, ctx| {
            actor.claiming = false;
            actor.on_polled(result, limit, ctx);
            if std::mem::take(&mut actor.poll_again) {
                actor.poll_soon(ctx);
            }
            actor.check_drained();
            actor.claim_pending(ctx);
        }));
    }

    fn on_polled(&mut self, result: Result<PollResult, StoreError>, limit: usize, ctx: &mut Context<Self>) {
        let interval = self.config.poll_interval;
        let wait = match result {
            Ok(PollResult::Claims(claims)) => {
                let is_last = claims.len() < limit;
                self.start_claimed(claims, ctx);
                if is_last { interval } else { Duration::ZERO }
            }
            Ok(PollResult::Idle(due)) => {
                let due = due.map(|due| self.clock.until(due));
                match due {
                    // It is due, but there is no room for it, or another process was faster.
                    Some(Duration::ZERO) => {
                        if limit == 0 {
                            self.make_room_for_guilds(self.config.claim_batch, ctx);
                        }
                        interval
                    }
                    Some(due) => due.min(interval),
                    None => interval,
                }
            }
            Err(error) => {
                emit(StoreRetried { queue: None, what: "claim", error: &error, tried: 1, wait: interval });
                interval
            }
        };
        self.poll_after(wait, ctx);
    }
}
