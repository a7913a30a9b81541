//! Claims queues while there is room.

use std::sync::Arc;
use std::time::Duration;

use actix::{ActorFutureExt as _, AsyncContext as _, Context, WrapFuture as _};
use guildhall_core::operation::Queue;
use guildhall_core::time::UnixMs;

use super::child::is_interaction;
use super::{POLLS_BETWEEN_PAUSES, Supervisor};
use crate::ports::{Claim, ClaimFrom, StoreError};
use crate::telemetry::emit;
use crate::telemetry::operations::StoreRetried;

/// Result of a poll of the store.
#[derive(Debug)]
enum PollResult {
    /// Queues with due operations: as many as requested, or all that there are.
    Claims(Vec<Claim>),
    /// Nothing was claimed; when the next operation is due.
    Nothing(Option<UnixMs>),
}

impl Supervisor {
    /// How many more queues may be claimed that are not of interactions.
    fn room(&self) -> usize {
        self.config.most_active.saturating_sub(self.kept.len() - self.interactions)
    }

    fn interaction_room(&self) -> usize {
        self.config.most_interactions.saturating_sub(self.interactions)
    }

    /// Adds a queue to those to claim.
    pub(super) fn want(&mut self, queue: Queue) {
        // When the set is full, a poll of the store finds the queue.
        if self.in_wanted.len() < self.config.most_told && self.in_wanted.insert(queue) {
            // A user waits for the response to an interaction.
            if is_interaction(queue) { self.wanted.push_front(queue) } else { self.wanted.push_back(queue) }
        }
    }

    /// Claims pending queues while there is room, and makes room for the rest.
    pub(super) fn claim_wanted(&mut self, ctx: &mut Context<Self>) {
        if self.claiming || self.draining || self.wanted.is_empty() {
            return;
        }
        let (mut room, mut interaction_room) = (self.room(), self.interaction_room());
        let (mut batch, mut kept_waiting) = (Vec::new(), Vec::new());
        while batch.len() < self.config.claim_batch
            && let Some(queue) = self.wanted.pop_front()
        {
            let left = if is_interaction(queue) { &mut interaction_room } else { &mut room };
            if *left == 0 {
                kept_waiting.push(queue);
                if kept_waiting.len() >= self.config.claim_batch {
                    break;
                }
                continue;
            }
            *left -= 1;
            self.in_wanted.remove(&queue);
            batch.push(queue);
        }
        for queue in kept_waiting.iter().rev() {
            self.wanted.push_front(*queue);
        }
        self.make_room_for(&kept_waiting, ctx);
        if batch.is_empty() {
            return;
        }
        self.claiming = true;
        let (store, retry) = (Arc::clone(&self.store), self.config.store_retry());
        let asked = {
            let batch = batch.clone();
            async move { retry.attempt(store.claim(ClaimFrom::Queues(batch))).await }
        };
        ctx.spawn(asked.into_actor(self).map(move |claimed, actor, ctx| {
            actor.claiming = false;
            let failed = match claimed {
                Ok(claims) => {
                    actor.take(claims, ctx);
                    false
                }
                Err(error) => {
                    batch.into_iter().for_each(|queue| actor.want(queue));
                    actor.claim_later(&error, ctx);
                    true
                }
            };
            if std::mem::take(&mut actor.poll_again) {
                // The poll then claims the pending queues.
                actor.poll(ctx);
            } else if !failed {
                actor.claim_wanted(ctx);
            }
        }));
    }

    fn claim_later(&self, error: &StoreError, ctx: &mut Context<Self>) {
        let wait = self.config.store_retry().delay(None, "claim", error, 1);
        ctx.run_later(wait, Self::claim_wanted);
    }

    /// Starts guilds for claimed queues.
    fn take(&mut self, claims: Vec<Claim>, ctx: &mut Context<Self>) {
        for claim in claims {
            if self.in_wanted.remove(&claim.queue) {
                self.wanted.retain(|queue| *queue != claim.queue);
            }
            if self.draining {
                self.give_back(claim.queue, claim.fence, ctx);
            } else {
                self.seat(claim, ctx);
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
        if self.polls.is_multiple_of(POLLS_BETWEEN_PAUSES) {
            self.look_at_pauses(ctx);
        }
        self.let_idle_go(ctx);
        if self.claiming {
            // Polls again when the claim is finished: there may be due queues without a wake-up.
            self.poll_again = true;
            return;
        }
        self.claiming = true;
        let (store, retry, now) = (Arc::clone(&self.store), self.config.store_retry(), self.clock.now());
        let most = self.room().min(self.config.claim_batch);
        let asked = async move {
            if most > 0 {
                let claims = retry.attempt(store.claim(ClaimFrom::Due { now, limit: most })).await?;
                if !claims.is_empty() {
                    return Ok(PollResult::Claims(claims));
                }
            }
            Ok(PollResult::Nothing(retry.attempt(store.next_due()).await?))
        };
        ctx.spawn(asked.into_actor(self).map(move |found: Result<PollResult, StoreError>, actor, ctx| {
            actor.claiming = false;
            actor.on_polled(found, most, ctx);
            if std::mem::take(&mut actor.poll_again) {
                actor.poll_soon(ctx);
            }
            actor.check_drained();
            actor.claim_wanted(ctx);
        }));
    }

    fn on_polled(&mut self, found: Result<PollResult, StoreError>, most: usize, ctx: &mut Context<Self>) {
        let every = self.config.poll;
        let wait = match found {
            Ok(PollResult::Claims(claims)) => {
                let all = claims.len() < most;
                self.take(claims, ctx);
                if all { every } else { Duration::ZERO }
            }
            Ok(PollResult::Nothing(due)) => {
                let due = due.map(|due| self.clock.until(due));
                match due {
                    // It is due, but there is no room for it, or another process was faster.
                    Some(Duration::ZERO) => {
                        if most == 0 {
                            self.make_room_for_guilds(self.config.claim_batch, ctx);
                        }
                        every
                    }
                    Some(due) => due.min(every),
                    None => every,
                }
            }
            Err(error) => {
                emit(StoreRetried { queue: None, what: "claim", error: &error, tried: 1, wait: every });
                every
            }
        };
        self.poll_after(wait, ctx);
    }
}
