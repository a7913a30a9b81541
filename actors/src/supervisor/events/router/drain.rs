//! Waits until all received events are handled: before the process ends, or before another process takes a shard.

use std::sync::Arc;
use std::time::Duration;

use actix::{AsyncContext as _, Context, Handler, Message, ResponseFuture};
use tokio::time::Instant;

use super::{EventRouter, ObserveEvents};

/// How often to check whether the events are handled.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Waits until all received events are handled, then stores the confirmed positions.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "bool")]
pub(crate) struct DrainEvents {
    pub(crate) timeout: Duration,
}

impl Handler<DrainEvents> for EventRouter {
    type Result = ResponseFuture<bool>;

    fn handle(&mut self, DrainEvents { timeout }: DrainEvents, ctx: &mut Context<Self>) -> Self::Result {
        let router = ctx.address();
        Box::pin(async move {
            let deadline = Instant::now() + timeout;
            let mut drained = false;
            while !drained && Instant::now() < deadline {
                drained = router.send(ObserveEvents).await.is_ok_and(|snapshot| snapshot.undone == 0);
                if !drained {
                    tokio::time::sleep(POLL_INTERVAL).await;
                }
            }
            let saved = tokio::time::timeout_at(deadline + Duration::from_secs(1), router.send(SaveSessions)).await;
            drained && saved.is_ok()
        })
    }
}

/// Waits until all received events of a shard are handled, then stores the confirmed positions.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "bool")]
pub(crate) struct DrainShard {
    pub(crate) shard: u32,
    pub(crate) timeout: Duration,
}

impl Handler<DrainShard> for EventRouter {
    type Result = ResponseFuture<bool>;

    fn handle(&mut self, DrainShard { shard, timeout }: DrainShard, ctx: &mut Context<Self>) -> Self::Result {
        let router = ctx.address();
        Box::pin(async move {
            let deadline = Instant::now() + timeout;
            let is_done = async || router.send(CountPendingEvents { shard }).await.is_ok_and(|pending| pending == 0);
            let mut drained = is_done().await;
            while !drained && Instant::now() < deadline {
                tokio::time::sleep(POLL_INTERVAL).await;
                drained = is_done().await;
            }
            if timeout.is_zero() {
                return drained;
            }
            let saved = tokio::time::timeout_at(deadline + Duration::from_secs(1), router.send(SaveSessions)).await;
            drained && saved.is_ok()
        })
    }
}

/// Counts the events of a shard that are not handled.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "usize")]
struct CountPendingEvents {
    shard: u32,
}

impl Handler<CountPendingEvents> for EventRouter {
    type Result = usize;

    fn handle(&mut self, CountPendingEvents { shard }: CountPendingEvents, _: &mut Context<Self>) -> usize {
        self.sessions.pending_of(shard)
    }
}

/// Stores the confirmed positions of all sessions now.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "()")]
struct SaveSessions;

impl Handler<SaveSessions> for EventRouter {
    type Result = ResponseFuture<()>;

    fn handle(&mut self, _: SaveSessions, _: &mut Context<Self>) -> Self::Result {
        let (context, sessions) = (Arc::clone(&self.context), self.sessions.unsaved());
        Box::pin(async move {
            if !sessions.is_empty() {
                context.store.until_ok("sessions", |store| store.save_sessions(sessions.clone())).await;
            }
        })
    }
}
