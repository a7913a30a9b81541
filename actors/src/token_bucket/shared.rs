//! Limits that are shared with other processes: the port to what they share, and the actor's talk with it.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use actix::{ActorFutureExt, AsyncContext, Context, Handler, Message, ResponseActFuture, WrapFuture};
use guildhall_core::answer::Credential;
use guildhall_core::limit::Sharing;
use guildhall_core::limit::shared::{Call, Mode, Reply};

use super::TokenBucket;
use crate::telemetry::emit;
use crate::telemetry::shared::{MemberCounted, ModeChanged, SharedCallEnded};

/// A call under way to what the processes share.
pub type SharedFuture = Pin<Box<dyn Future<Output = Option<Reply>> + Send>>;

/// What the processes share: Redis, as a rule.
pub trait SharedWindow: Send + Sync + 'static {
    /// Does a call. `None` if there is no answer within the time that the rules give it; then it must not be done later
    /// either, beyond what [`Call::not_after`] sees to.
    fn call(&self, credential: Credential, call: Call) -> SharedFuture;
}

/// How a token bucket shares its limits.
#[derive(Clone)]
pub struct SharedLimits {
    /// What the processes share.
    pub window: Arc<dyn SharedWindow>,
    /// The rules, and this process's seat.
    pub sharing: Sharing,
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
pub(crate) struct Blocked {
    pub(crate) credential: Credential,
    pub(crate) lasts: Duration,
}

/// Members that are certainly dead.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct Bury(pub(crate) Vec<String>);

/// Says goodbye to the other processes.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct Leave;

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
                let since = told.map_or(Mode::Unreached, |(before, ..)| before);
                emit(ModeChanged { credential, from: since, to: mode, members, share });
                came_back |= mode == Mode::Shared;
            }
            if told.map(|(_, members, share)| (members, share)) != Some((members, share)) {
                emit(MemberCounted { credential, members, share });
            }
        }
        if came_back {
            // Callers were told to wait until its own share would open.
            self.released();
        }
    }
}

impl Handler<Blocked> for TokenBucket {
    type Result = ();

    fn handle(&mut self, Blocked { credential, lasts }: Blocked, ctx: &mut Self::Context) {
        self.step(ctx, |bucket, _, now| bucket.limiter.heard_closed(credential, now + lasts, now));
    }
}

impl Handler<Bury> for TokenBucket {
    type Result = ();

    fn handle(&mut self, Bury(dead): Bury, ctx: &mut Self::Context) {
        self.step(ctx, |bucket, _, now| {
            bucket.limiter.bury(&dead);
            bucket.limiter.on_time(now);
        });
    }
}

impl Handler<Leave> for TokenBucket {
    type Result = ResponseActFuture<Self, ()>;

    fn handle(&mut self, Leave: Leave, _: &mut Self::Context) -> Self::Result {
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
