//! One shard: owns a gateway connection, and forwards its events to the supervisor.
//!
//! ```text
//!  GatewayConnection ──text──▶ ShardTask ──batches, while there is credit──▶ event router
//!                                  ▲ close, restart                            │ credit
//!  ShardHandle ──messages──▶ Shard ┘ ◀──────────────────────────────────────────┘
//! ```
//!
//! A [`Shard`] runs on a thread of its own kind, which only does this: handlers cannot delay heartbeats. It is a part of the
//! process: if it panics, the process ends, and the next one resumes the session.

pub(crate) mod backlog;
pub(crate) mod channel;
pub(crate) mod connection_state;
pub(crate) mod event_batch;
pub(crate) mod guild_recorder;
pub(crate) mod hello;
pub(crate) mod observer;
pub(crate) mod ownership;
pub(crate) mod status;
pub(crate) mod task;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::sync::Arc;

use actix::dev::ContextFut;
use actix::dev::channel::channel;
use actix::{
    Actor, ActorContext as _, ActorFutureExt as _, Addr, AsyncContext as _, Context, Handler, Message, MessageResult,
    Recipient, WrapFuture as _,
};
use tokio::sync::watch;

use self::status::ShardStatus;
use self::task::ShardTask;
use crate::lease_guard::LeaseGuard;
use crate::ports::{GatewayConnection, ShardView};
use crate::supervision::{Part, PartGuard};
use crate::wall_clock::WallClock;

pub use self::channel::{Credit, FlowLimit, ShardMessage, ShardSender};
pub use self::event_batch::EventBatch;
pub use self::guild_recorder::GuildRecorder;
pub use self::observer::{SessionKind, ShardEvent, ShardObserver};
pub use self::ownership::{ClaimedShards, DesiredShards, ShardClaim, ShardStore};
pub use self::task::ShardConfig;

/// Capacity of a shard's mailbox.
const MAILBOX: usize = 16;

/// How a shard ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShardEnd {
    /// Closed as requested; the session can be resumed.
    Closed,
    /// Closed because another process may soon own the shard; the session can be resumed.
    Lost,
    /// Discord closed it permanently.
    Refused {
        /// The close code.
        code: u16,
    },
    /// Panicked, which is a bug.
    Panicked,
}

/// What a shard needs to run.
pub struct ShardSpec<C> {
    /// Its number.
    pub number: u32,
    /// Its connection, with a session to resume if there is one.
    pub connection: C,
    /// Sequence numbers of that session whose frames are forwarded without being parsed, because they crashed processes.
    pub unread: BTreeSet<u64>,
    /// Forwards events to the supervisor.
    pub sender: ShardSender,
    /// Receives status events.
    pub observer: ShardObserver,
    /// Clock for the time at which events are received.
    pub clock: WallClock,
    /// Limits and timeouts.
    pub config: ShardConfig,
    /// Ends before another process can own the shard.
    pub lease: LeaseGuard,
    /// Called when the shard has ended, for whatever reason.
    pub on_exit: Box<dyn FnOnce(ShardEnd) + Send>,
}

impl<C> std::fmt::Debug for ShardSpec<C> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ShardSpec").field("number", &self.number).finish_non_exhaustive()
    }
}

/// Owns one gateway connection.
pub struct Shard<C> {
    exit: ExitReport,
    number: u32,
    status: Arc<ShardStatus>,
    stop: watch::Sender<bool>,
    restart: watch::Sender<()>,
    task: Option<ShardTask<C>>,
}

impl<C> std::fmt::Debug for Shard<C> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shard").field("number", &self.number).finish_non_exhaustive()
    }
}

/// Starts a shard on the thread that calls it, within a `LocalSet`.
pub type StartShard = Box<dyn FnOnce() + Send>;

impl<C: GatewayConnection> Shard<C> {
    /// Creates a shard. The second value starts it, on the thread that it should run on.
    #[must_use]
    #[expect(clippy::disallowed_methods, reason = "the guard is a field of the actor")]
    pub fn prepare(spec: ShardSpec<C>) -> (ShardHandle, StartShard) {
        let ShardSpec { number, connection, unread, sender, observer, clock, config, lease, on_exit } = spec;
        let status = ShardStatus::new();
        // Created now, so that a thread that has ended before it could start the shard is noticed.
        let exit =
            ExitReport { guard: Some(PartGuard::new(Part::Shard)), end: ShardEnd::Panicked, on_exit: Some(on_exit) };
        let task =
            ShardTask::new(number, connection, unread, sender, observer, clock, config, lease, Arc::clone(&status));
        let actor = Self {
            exit,
            number,
            status: Arc::clone(&status),
            stop: watch::Sender::new(false),
            restart: watch::Sender::new(()),
            task: Some(task),
        };
        let (tx, rx) = channel(MAILBOX);
        let addr = Addr::new(tx);
        let handle = ShardHandle {
            close: addr.clone().recipient(),
            abort: addr.clone().recipient(),
            restart: addr.recipient(),
            number,
            status,
        };
        let start = move || {
            let context: ContextFut<Self, Context<Self>> = Context::with_receiver(rx).into_future(actor);
            actix::spawn(context);
        };
        (handle, Box::new(start))
    }
}

/// Reports the end of a shard when it is dropped.
struct ExitReport {
    /// Dropped first, so that a panic is noticed before its consequences.
    guard: Option<PartGuard>,
    end: ShardEnd,
    on_exit: Option<Box<dyn FnOnce(ShardEnd) + Send>>,
}

impl Drop for ExitReport {
    fn drop(&mut self) {
        match (self.end, self.guard.take()) {
            (ShardEnd::Panicked, guard) => drop(guard),
            // Closed as requested, lost to another process, or rejected by Discord, which the daemon handles.
            (ShardEnd::Closed | ShardEnd::Lost | ShardEnd::Refused { .. }, guard) => {
                guard.into_iter().for_each(PartGuard::finish);
            }
        }
        if let Some(on_exit) = self.on_exit.take() {
            on_exit(self.end);
        }
    }
}

impl<C: GatewayConnection> Actor for Shard<C> {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Context<Self>) {
        let Some(task) = self.task.take() else { return };
        let run = Box::pin(task.run(self.stop.subscribe(), self.restart.subscribe()));
        ctx.spawn(run.into_actor(self).map(|end, actor, ctx| {
            actor.exit.end = end;
            ctx.stop();
        }));
    }
}

/// Closes the connection with code 4000, so that its session can be resumed, then ends the shard.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "()")]
pub struct CloseShard;

impl<C: GatewayConnection> Handler<CloseShard> for Shard<C> {
    type Result = ();

    fn handle(&mut self, _: CloseShard, _: &mut Context<Self>) {
        self.stop.send_replace(true);
    }
}

/// Drops the connection and ends the shard at once.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "()")]
pub struct AbortShard;

impl<C: GatewayConnection> Handler<AbortShard> for Shard<C> {
    type Result = ();

    fn handle(&mut self, _: AbortShard, ctx: &mut Context<Self>) {
        self.exit.end = ShardEnd::Closed;
        ctx.terminate();
    }
}

/// Closes the connection with code 4000 and makes another one, which resumes the session.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "()")]
pub struct RestartShard;

impl<C: GatewayConnection> Handler<RestartShard> for Shard<C> {
    type Result = ();

    fn handle(&mut self, _: RestartShard, _: &mut Context<Self>) {
        self.restart.send_replace(());
    }
}

/// Returns the status of the shard.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "ShardView")]
pub struct ObserveShard;

impl<C: GatewayConnection> Handler<ObserveShard> for Shard<C> {
    type Result = MessageResult<ObserveShard>;

    fn handle(&mut self, _: ObserveShard, _: &mut Context<Self>) -> Self::Result {
        MessageResult(self.status.view(self.number))
    }
}

/// Controls a running shard.
#[derive(Clone)]
pub struct ShardHandle {
    number: u32,
    close: Recipient<CloseShard>,
    abort: Recipient<AbortShard>,
    restart: Recipient<RestartShard>,
    status: Arc<ShardStatus>,
}

impl std::fmt::Debug for ShardHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ShardHandle").field("number", &self.number).finish_non_exhaustive()
    }
}

impl ShardHandle {
    /// Closes the shard with code 4000. Does not wait for it.
    pub fn close(&self) {
        self.close.do_send(CloseShard);
    }

    /// Ends the shard without closing its connection. Does not wait for it.
    pub fn abort(&self) {
        self.abort.do_send(AbortShard);
    }

    /// Makes the shard reconnect and resume. Does not wait for it.
    pub fn restart(&self) {
        self.restart.do_send(RestartShard);
    }

    /// Status of the shard, without waiting for it. The confirmed sequence number is not known here.
    #[must_use]
    pub fn view(&self) -> ShardView {
        self.status.view(self.number)
    }
}
