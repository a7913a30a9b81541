//! Releases operations that the gate delayed in queues without an owner.

use std::sync::Arc;
use std::time::Duration;

use actix::{ActorFutureExt as _, AsyncContext as _, Context, WrapFuture as _};

use super::Supervisor;

/// Maximum number of queues in one call.
const AT_ONCE: usize = 1_000;

/// Minimum interval between writes, so that a flapping breaker does not cause more.
const APART: Duration = Duration::from_millis(500);

/// Whether a release is being written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum HeldRelease {
    #[default]
    No,
    Yes {
        /// The gate has changed again since it started.
        again: bool,
    },
}

impl Supervisor {
    /// Makes queues without an owner due if the gate delayed their operations. The process that claims them asks the
    /// gate again.
    pub(super) fn release_held(&mut self, ctx: &mut Context<Self>) {
        if self.draining {
            return;
        }
        if let HeldRelease::Yes { again } = &mut self.releasing_held {
            *again = true;
            return;
        }
        self.releasing_held = HeldRelease::Yes { again: false };
        let (store, retry, now) = (Arc::clone(&self.store), self.config.store_retry(), self.clock.now());
        let asked = async move { retry.attempt(store.release_held(now, AT_ONCE)).await };
        ctx.spawn(asked.into_actor(self).map(|released, actor, ctx| {
            let (wait, more) = match released {
                Ok(0) => (APART, false),
                Ok(count) => {
                    actor.poll_soon(ctx);
                    (APART, count >= AT_ONCE)
                }
                Err(error) => (actor.config.store_retry().delay(None, "release_held", &error, 1), true),
            };
            if more && let HeldRelease::Yes { again } = &mut actor.releasing_held {
                *again = true;
            }
            ctx.run_later(wait, |actor, ctx| {
                if std::mem::take(&mut actor.releasing_held) == (HeldRelease::Yes { again: true }) {
                    actor.release_held(ctx);
                }
            });
        }));
    }
}
