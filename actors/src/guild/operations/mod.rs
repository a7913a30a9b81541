//! Actor of one queue: executes its operations one at a time, in order.
//!
//! Only the supervisor has its address. Signals that must not be lost (an operation is new, cancelled or expedited) are
//! in [`GuildShared`] and need no room in the mailbox.

mod cached_operation;
mod dispatch;
mod disposition;
mod execution;
pub(crate) mod journal;
mod persist;
mod prepare;
mod queue_state;
mod run_loop;
mod shared;

use std::rc::Rc;
use std::sync::Arc;

use actix::{
    Actor, ActorContext as _, ActorFutureExt as _, Addr, ArbiterHandle, AsyncContext as _, Context, Handler, Message,
    ResponseFuture, WeakAddr, WrapFuture as _,
};
use guildhall_core::operation::{OperationId, Queue};
use guildhall_core::time::UnixMs;
use serde::Serialize;

use self::run_loop::Worker;
pub(crate) use self::shared::GuildShared;
use crate::ports::{Fence, OperationExecutor, OperationStore};
use crate::supervisor::exit_notifier::ExitNotifier;
use crate::supervisor::operations::throttle::Throttle;
use crate::supervisor::restart_policy::Poison;
use crate::supervisor::{OperationsConfig, Supervisor};
use crate::wall_clock::WallClock;

/// Everything that a guild needs to run. The receiver chooses the thread.
#[must_use]
pub struct GuildSpec {
    pub(crate) queue: Queue,
    pub(crate) fence: Fence,
    /// Distinguishes successive guilds of one queue.
    pub(crate) generation: u64,
    pub(crate) paused: bool,
    pub(crate) poison: Option<Poison<OperationId>>,
    pub(crate) store: Arc<dyn OperationStore>,
    pub(crate) executor: Arc<dyn OperationExecutor>,
    pub(crate) clock: WallClock,
    pub(crate) config: Arc<OperationsConfig>,
    pub(crate) throttle: Arc<Throttle>,
    pub(crate) shared: Arc<GuildShared>,
    pub(crate) supervisor: WeakAddr<Supervisor>,
}

impl std::fmt::Debug for GuildSpec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GuildSpec").field("queue", &self.queue).field("fence", &self.fence).finish_non_exhaustive()
    }
}

impl GuildSpec {
    /// Runs the guild on the current thread.
    #[expect(clippy::disallowed_methods, reason = "its supervisor restarts it")]
    pub fn run(self) -> Addr<Guild> {
        Guild::create(move |ctx| self.create(ctx))
    }

    /// Runs the guild on the thread of an arbiter.
    #[expect(clippy::disallowed_methods, reason = "its supervisor restarts it")]
    pub fn run_on(self, arbiter: &ArbiterHandle) -> Addr<Guild> {
        Guild::start_in_arbiter(arbiter, move |ctx| self.create(ctx))
    }

    fn create(self, ctx: &mut Context<Guild>) -> Guild {
        ctx.set_mailbox_capacity(self.config.mailbox_capacity);
        let exit_notifier = ExitNotifier::new(self.queue, self.generation, self.supervisor.clone());
        Guild { worker: Rc::new(Worker::new(self)), _exit_notifier: exit_notifier }
    }
}

/// Executes the operations of one queue.
#[derive(Debug)]
pub struct Guild {
    worker: Rc<Worker>,
    _exit_notifier: ExitNotifier<Supervisor, Queue>,
}

/// When a guild releases its queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StopMode {
    /// If it is idle.
    IfIdle,
    /// As soon as no operation runs.
    Now,
    /// As soon as no operation runs, and even if the store does not respond: the process is ending.
    Shutdown,
}

/// Result of a request to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StopResult {
    /// It continues.
    Busy,
    /// The queue is released.
    Released,
    /// It has stopped, but the store did not release the queue. That happens when this process ends, or when its lease
    /// expires.
    Unreleased,
}

/// Releases the queue.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "StopResult")]
pub(crate) struct Stop(pub(crate) StopMode);

/// Starts no more operations.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "()")]
pub(crate) struct Pause;

/// Continues.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "()")]
pub(crate) struct Resume;

/// Returns the state of the guild.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "GuildSnapshot")]
pub(crate) struct ObserveGuild;

/// State of a guild.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GuildSnapshot {
    /// Its queue.
    pub queue: Queue,
    /// Fence of its writes.
    pub fence: Fence,
    /// Whether it is paused.
    pub paused: bool,
    /// The operation that runs.
    pub running: Option<OperationId>,
    /// Unfinished operations in memory; the store may have more.
    pub known: usize,
    /// How many of them are parked.
    pub parked: usize,
    /// Since when it is idle.
    pub resting_since: Option<UnixMs>,
    /// When it continues without being woken.
    pub due: Option<UnixMs>,
}

impl Actor for Guild {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Context<Self>) {
        let worker = Rc::clone(&self.worker);
        let run = async move { worker.run().await };
        ctx.spawn(run.into_actor(self).map(|(), _, ctx| ctx.stop()));
    }
}

impl Handler<Stop> for Guild {
    type Result = ResponseFuture<StopResult>;

    fn handle(&mut self, Stop(mode): Stop, _: &mut Context<Self>) -> Self::Result {
        let result = self.worker.request_stop(mode);
        // A guild that cannot reply has ended.
        Box::pin(async move { result.await.unwrap_or(StopResult::Unreleased) })
    }
}

impl Handler<Pause> for Guild {
    type Result = ();

    fn handle(&mut self, _: Pause, _: &mut Context<Self>) {
        self.worker.pause(true);
    }
}

impl Handler<Resume> for Guild {
    type Result = ();

    fn handle(&mut self, _: Resume, _: &mut Context<Self>) {
        self.worker.pause(false);
    }
}

impl Handler<ObserveGuild> for Guild {
    type Result = actix::MessageResult<ObserveGuild>;

    fn handle(&mut self, _: ObserveGuild, _: &mut Context<Self>) -> Self::Result {
        let (spec, state) = (self.worker.spec(), self.worker.state().borrow());
        let order = state.order_view();
        actix::MessageResult(GuildSnapshot {
            queue: spec.queue,
            fence: spec.fence,
            paused: self.worker.is_paused(),
            running: order.running().and_then(|seq| state.id(seq)),
            known: order.len(),
            parked: order.parked(),
            resting_since: spec.shared.idle_since(),
            due: spec.shared.due(),
        })
    }
}
