//! A share of the global limit that may change while the actor runs, because other processes use the rest.

use actix::{ActorFutureExt, AsyncContext, Context, WrapFuture};
use guildhall_core::limit::division::{Allowance, DivisionView, ShareUsage};
use tokio::sync::watch;

use super::TokenBucket;
use crate::telemetry::emit;
use crate::telemetry::shared_limits::ShareApplied;

/// Source of the share of this process, and feedback about its use.
#[derive(Clone, Debug)]
pub struct DividedLimit {
    /// What the process may use.
    pub allowance: watch::Receiver<Allowance>,
    /// What the token bucket has applied, and whether its tokens in use fit.
    pub usage: watch::Sender<ShareUsage>,
}

/// State of the share in the actor.
#[derive(Debug)]
pub(super) struct ShareState {
    usage: watch::Sender<ShareUsage>,
    version: u64,
}

impl TokenBucket {
    /// Uses only a share of its global limits.
    #[must_use]
    pub fn with_divided_limit(mut self, limit: DividedLimit) -> Self {
        let empty = DivisionView { members: 0, share: 0 };
        self.limiter.set_share(empty, self.clock.now());
        self.share = Some(ShareState { usage: limit.usage, version: 0 });
        self.allowance = Some(limit.allowance);
        self
    }

    /// Follows the allowance until its sender is dropped.
    pub(super) fn follow_allowance(&mut self, ctx: &mut Context<Self>) {
        let Some(mut allowance) = self.allowance.take() else { return };
        self.apply(*allowance.borrow_and_update(), ctx);
        let next = async move { allowance.changed().await.is_ok().then_some(allowance) };
        ctx.spawn(next.into_actor(self).map(|allowance, bucket, ctx| {
            // Without a source the share no longer changes: the lease ends, and with it every send.
            bucket.allowance = allowance;
            bucket.follow_allowance(ctx);
        }));
    }

    fn apply(&mut self, allowance: Allowance, ctx: &mut Context<Self>) {
        let Some(state) = &mut self.share else { return };
        if state.version == allowance.version {
            return;
        }
        state.version = allowance.version;
        self.step(ctx, |bucket, _, now| bucket.limiter.set_share(allowance.into(), now));
        emit(ShareApplied { share: allowance.share });
    }

    /// Reports whether the tokens in use fit into the share, when that has changed.
    pub(super) fn report_usage(&mut self) {
        let Some(state) = &self.share else { return };
        let is_within = self.limiter.is_within_share(self.clock.now());
        let usage = ShareUsage { version: state.version, is_within };
        state.usage.send_if_modified(|last| std::mem::replace(last, usage) != usage);
    }
}
