//! Limits that are shared with other processes: the port, and the actor's calls to it.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use actix::{ActorFutureExt, AsyncContext, Context, Handler, Message, ResponseActFuture, WrapFuture};
use guildhall_core::limit::SharingConfig;
use guildhall_core::limit::shared::{ScriptCall, ScriptReply, SharingMode};
use guildhall_core::response::Credential;

use super::TokenBucket;
use crate::telemetry::emit;
use crate::telemetry::shared_limits::{MembersCounted, SharedCallEnded, SharedModeChanged};

/// Pending call to the shared window.
pub type SharedCallFuture = Pin<Box<dyn Future<Output = Option<ScriptReply>> + Send>>;

/// The window that processes share, usually in Redis.
pub trait SharedWindow: Send + Sync + 'static {
    /// Makes a call. `None` if there is no response within the configured timeout. Then the call must not be executed
    /// later either, except as [`ScriptCall::not_after`] allows.
    fn call(&self, credential: Credential, call: ScriptCall) -> SharedCallFuture;
}

/// How a token bucket shares its limits.
#[derive(Clone)]
pub struct SharedLimits {
    /// The window that processes share.
    pub window: Arc<dyn SharedWindow>,
    /// The rules, and the slot of this process.
    pub sharing: SharingConfig,
    /// Credential whose limit is joined at once.
    pub credential: Credential,
}

impl std::fmt::Debug for SharedLimits {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SharedLimits").field("sharing", &self.sharing).finish_non_exhaustive()
    }
}

/// Another process was blocked by Discord.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct BlockedElsewhere {
    pub(crate) credential: Credential,
    pub(crate) duration: Duration,
}

/// Members that are certainly dead.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct RemoveMembers(pub(crate) Vec<String>);

/// Leaves the shared limits.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct LeaveSharedLimits;

impl TokenBucket {
    /// Makes the pending calls, and reports changes of state.
    pub(super) fn send_shared_calls(&mut self, ctx: &mut Context<Self>) {
        let Some(window) = self.window.clone() else { return };
        let now = self.clock.now();
        while let Some((credential, call)) = self.limiter.next_shared_call(now) {
            let reply_task = window.call(credential, call).into_actor(self).map(move |reply, bucket, ctx| {
                emit(SharedCallEnded { answered: reply.is_some() });
                bucket.step(ctx, |bucket, _, now| bucket.limiter.on_shared_reply(credential, reply, now));
            });
            ctx.spawn(reply_task);
        }
        self.report_modes();
    }

    fn report_modes(&mut self) {
        let now = self.clock.now();
        let mut recovered = false;
        for (credential, mode, member) in self.limiter.modes(now) {
            let (members, share) = member.members_and_share();
            let last = self.modes.insert(credential, (mode, members, share));
            if last.map(|(before, ..)| before) != Some(mode) {
                let from = last.map_or(SharingMode::Unreached, |(before, ..)| before);
                emit(SharedModeChanged { credential, from, to: mode, members, share });
                recovered |= mode == SharingMode::Shared;
            }
            if last.map(|(_, members, share)| (members, share)) != Some((members, share)) {
                emit(MembersCounted { credential, members, share });
            }
        }
        if recovered {
            // The retry time of callers is when the share of this process has room.
            self.notify_release();
        }
    }
}

impl Handler<BlockedElsewhere> for TokenBucket {
    type Result = ();

    fn handle(&mut self, BlockedElsewhere { credential, duration }: BlockedElsewhere, ctx: &mut Self::Context) {
        self.step(ctx, |bucket, _, now| bucket.limiter.on_remote_block(credential, now + duration, now));
    }
}

impl Handler<RemoveMembers> for TokenBucket {
    type Result = ();

    fn handle(&mut self, RemoveMembers(dead): RemoveMembers, ctx: &mut Self::Context) {
        self.step(ctx, |bucket, _, now| {
            bucket.limiter.mark_dead(&dead);
            bucket.limiter.on_time(now);
        });
    }
}

impl Handler<LeaveSharedLimits> for TokenBucket {
    type Result = ResponseActFuture<Self, ()>;

    fn handle(&mut self, LeaveSharedLimits: LeaveSharedLimits, _: &mut Self::Context) -> Self::Result {
        let calls = self.limiter.leave(self.clock.now());
        let window = self.window.clone();
        let leave = async move {
            for (credential, call) in calls {
                if let Some(window) = &window {
                    // If the call fails, the other members notice the missing heartbeats.
                    let _ = window.call(credential, call).await;
                }
            }
        };
        Box::pin(leave.into_actor(self))
    }
}
