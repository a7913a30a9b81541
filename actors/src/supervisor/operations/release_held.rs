//! Releasing what the gate held back in queues that no process looks after.

use std::sync::Arc;
use std::time::Duration;

use actix::{ActorFutureExt as _, AsyncContext as _, Context, WrapFuture as _};

use super::Supervisor;

/// Queues that are made due at once.
const AT_ONCE: usize = 1_000;

/// A breaker that opens and closes again and again costs no more than one write in this time.
const APART: Duration = Duration::from_millis(500);

/// Whether the store is being asked to make such queues due.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum HeldRelease {
    #[default]
    No,
    Yes {
        /// The gate has changed again since it was asked.
        again: bool,
    },
}

impl Supervisor {
    /// Makes queues due whose operations the gate held back and that have no owner: the process that claims them asks the
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
