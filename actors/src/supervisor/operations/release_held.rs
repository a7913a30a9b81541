//! Releases operations that the gate delayed in queues without an owner.

use std::sync::Arc;
use std::time::Duration;

use actix::{ActorFutureExt as _, AsyncContext as _, Context, WrapFuture as _};

use super::Supervisor;

/// Maximum number of queues in one call.
const BATCH_SIZE: usize = 1_000;

/// Minimum interval between writes, so that a flapping breaker does not cause more.
const MIN_INTERVAL: Duration = Duration::from_millis(500);

/// Whether a release is being written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum HeldRelease {
    #[default]
    Idle,
    Running {
        /// The gate has changed again since it started.
        repeat: bool,
    },
}

impl Supervisor {
    /// Makes queues without an owner due if the gate delayed their operations. The process that claims them checks
    /// the gate again.
    pub(super) fn release_held(&mut self, ctx: &mut Context<Self>) {
        if self.draining {
            return;
        }
        if let HeldRelease::Running { repeat } = &mut self.held_release {
            *repeat = true;
            return;
        }
        self.held_release = HeldRelease::Running { repeat: false };
        let (store, retry, now) = (Arc::clone(&self.store), self.config.store_retry(), self.clock.now());
        let call = async move { retry.attempt(store.release_held(now, BATCH_SIZE)).await };
        ctx.spawn(call.into_actor(self).map(|released, actor, ctx| {
            let (wait, has_more) = match released {
                Ok(0) => (MIN_INTERVAL, false),
                Ok(count) => {
                    actor.poll_soon(ctx);
                    (MIN_INTERVAL, count >= BATCH_SIZE)
                }
                Err(error) => (actor.config.store_retry().delay(None, "release_held", &error, 1), true),
            };
            if has_more && let HeldRelease::Running { repeat } = &mut actor.held_release {
                *repeat = true;
            }
            ctx.run_later(wait, |actor, ctx| {
                if std::mem::take(&mut actor.held_release) == (HeldRelease::Running { repeat: true }) {
                    actor.release_held(ctx);
                }
            });
        }));
    }
}
