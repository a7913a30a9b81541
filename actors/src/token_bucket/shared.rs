//! Limits that are shared with other processes: the port to what they share, and the actor's talk with it.

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

/// A call under way to what the processes share.
pub type SharedCallFuture = Pin<Box<dyn Future<Output = Option<ScriptReply>> + Send>>;

/// What the processes share: Redis, as a rule.
pub trait SharedWindow: Send + Sync + 'static {
    /// Does a call. `None` if there is no answer within the time that the rules give it; then it must not be done later
    /// either, beyond what [`ScriptCall::not_after`] sees to.
    fn call(&self, credential: Credential, call: ScriptCall) -> SharedCallFuture;
}

/// How a token bucket shares its limits.
#[derive(Clone)]
pub struct SharedLimits {
    /// What the processes share.
    pub window: Arc<dyn SharedWindow>,
    /// The rules, and this process's seat.
    pub sharing: SharingConfig,
    /// Whose limit is joined at once.
    pub credential: Credential,
}

impl std::fmt::Debug for SharedLimits {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SharedLimits").field("sharing", &self.sharing).finish_non_exhaustive()
    }
}

/// Another process was told by Discord to leave it alone.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct BlockedElsewhere {
    pub(crate) credential: Credential,
    pub(crate) lasts: Duration,
}

/// Members that are certainly dead.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct RemoveMembers(pub(crate) Vec<String>);

/// Says goodbye to the other processes.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct LeaveSharedLimits;

impl TokenBucket {
    /// Asks what is to be asked, and tells how things stand.
    pub(super) fn talk(&mut self, ctx: &mut Context<Self>) {
        let Some(window) = self.window.clone() else { return };
        let now = self.clock.now();
        while let Some((credential, call)) = self.limiter.next_shared_call(now) {
            let answer = window.call(credential, call).into_actor(self).map(move |reply, bucket, ctx| {
                emit(SharedCallEnded { answered: reply.is_some() });
                bucket.step(ctx, |bucket, _, now| bucket.limiter.on_shared_reply(credential, reply, now));
            });
            ctx.spawn(answer);
        }
        self.tell_modes();
    }

    fn tell_modes(&mut self) {
        let now = self.clock.now();
        let mut came_back = false;
        for (credential, mode, member) in self.limiter.modes(now) {
            let (members, share) = member.counted();
            let told = self.modes.insert(credential, (mode, members, share));
            if told.map(|(before, ..)| before) != Some(mode) {
                let since = told.map_or(SharingMode::Unreached, |(before, ..)| before);
                emit(SharedModeChanged { credential, from: since, to: mode, members, share });
                came_back |= mode == SharingMode::Shared;
            }
            if told.map(|(_, members, share)| (members, share)) != Some((members, share)) {
                emit(MembersCounted { credential, members, share });
            }
        }
        if came_back {
            // Callers were told to wait until its own share would open.
            self.released();
        }
    }
}

impl Handler<BlockedElsewhere> for TokenBucket {
    type Result = ();

    fn handle(&mut self, BlockedElsewhere { credential, lasts }: BlockedElsewhere, ctx: &mut Self::Context) {
        self.step(ctx, |bucket, _, now| bucket.limiter.heard_closed(credential, now + lasts, now));
    }
}

impl Handler<RemoveMembers> for TokenBucket {
    type Result = ();

    fn handle(&mut self, RemoveMembers(dead): RemoveMembers, ctx: &mut Self::Context) {
        self.step(ctx, |bucket, _, now| {
            bucket.limiter.bury(&dead);
            bucket.limiter.on_time(now);
        });
    }
}

impl Handler<LeaveSharedLimits> for TokenBucket {
    type Result = ResponseActFuture<Self, ()>;

    fn handle(&mut self, LeaveSharedLimits: LeaveSharedLimits, _: &mut Self::Context) -> Self::Result {
        let calls = self.limiter.leave(self.clock.now());
        let window = self.window.clone();
        let said = async move {
            for (credential, call) in calls {
                if let Some(window) = &window {
                    // If it is not heard, the others find out by the silence.
                    let _ = window.call(credential, call).await;
                }
            }
        };
        Box::pin(said.into_actor(self))
    }
}
