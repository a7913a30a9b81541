//! The actor of one queue: it does its operations, one at a time, in order.
//!
//! The supervisor alone has its address. What has to reach it in any case (that something is new, was taken back or made
//! due) stands in its [`Vitals`] and takes no room in its mailbox.

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

/// Everything that a guild needs, before it runs. Whoever is handed one decides where that is.
#[must_use]
pub struct GuildSpec {
    pub(crate) queue: Queue,
    pub(crate) fence: Fence,
    /// Tells one guild of a queue from the next.
    pub(crate) generation: u64,
    pub(crate) paused: bool,
    pub(crate) poison: Option<Poison<OperationId>>,
    pub(crate) store: Arc<dyn OperationStore>,
    pub(crate) perform: Arc<dyn OperationExecutor>,
    pub(crate) clock: WallClock,
    pub(crate) config: Arc<OperationsConfig>,
    pub(crate) throttle: Arc<Throttle>,
    pub(crate) vitals: Arc<GuildShared>,
    pub(crate) supervisor: WeakAddr<Supervisor>,
}

impl std::fmt::Debug for GuildSpec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GuildSpec").field("queue", &self.queue).field("fence", &self.fence).finish_non_exhaustive()
    }
}

impl GuildSpec {
    /// Runs the guild where the caller runs.
    #[expect(clippy::disallowed_methods, reason = "its supervisor restarts it")]
    pub fn run(self) -> Addr<Guild> {
        Guild::create(move |ctx| self.take(ctx))
    }

    /// Runs the guild there.
    #[expect(clippy::disallowed_methods, reason = "its supervisor restarts it")]
    pub fn run_on(self, arbiter: &ArbiterHandle) -> Addr<Guild> {
        Guild::start_in_arbiter(arbiter, move |ctx| self.take(ctx))
    }

    fn take(self, ctx: &mut Context<Guild>) -> Guild {
        ctx.set_mailbox_capacity(self.config.mailbox);
        let exit_notifier = ExitNotifier::new(self.queue, self.generation, self.supervisor.clone());
        Guild { worker: Rc::new(Worker::new(self)), _exit_notifier: exit_notifier }
    }
}

/// Looks after one queue.
#[derive(Debug)]
pub struct Guild {
    worker: Rc<Worker>,
    _exit_notifier: ExitNotifier<Supervisor, Queue>,
}

/// How it should leave its queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StopMode {
    /// If there is nothing to do.
    IfIdle,
    /// As soon as nothing is under way.
    Now,
    /// As soon as nothing is under way, and without the store's word if that does not come: the process is about to end.
    AtEnd,
}

/// What came of asking it to leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StopResult {
    /// It stays.
    Busy,
    /// The queue is anybody's.
    Released,
    /// It is gone, but the store did not take the queue back: that happens when this process ends, or its lease.
    Unreleased,
}

/// Leave the queue.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "StopResult")]
pub(crate) struct Stop(pub(crate) StopMode);

/// Start nothing more.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "()")]
pub(crate) struct Pause;

/// Go on.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "()")]
pub(crate) struct Resume;

/// Show how it stands.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "GuildSnapshot")]
pub(crate) struct Observe;

/// How a guild stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GuildSnapshot {
    /// Its queue.
    pub queue: Queue,
    /// The right by which it writes.
    pub fence: Fence,
    /// Whether it is paused.
    pub paused: bool,
    /// What it is doing.
    pub running: Option<OperationId>,
    /// How many operations that are not done it knows of; there may be more in the store.
    pub known: usize,
    /// How many of them others may pass.
    pub parked: usize,
    /// Since when it has had nothing to do.
    pub resting_since: Option<UnixMs>,
    /// When it goes on by itself.
    pub due: Option<UnixMs>,
}

impl Actor for Guild {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Context<Self>) {
        let worker = Rc::clone(&self.worker);
        let work = async move { worker.work().await };
        ctx.spawn(work.into_actor(self).map(|(), _, ctx| ctx.stop()));
    }
}

impl Handler<Stop> for Guild {
    type Result = ResponseFuture<StopResult>;

    fn handle(&mut self, Stop(how): Stop, _: &mut Context<Self>) -> Self::Result {
        let answered = self.worker.ask_to_leave(how);
        // Whoever cannot answer any more has gone.
        Box::pin(async move { answered.await.unwrap_or(StopResult::Unreleased) })
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

impl Handler<Observe> for Guild {
    type Result = actix::MessageResult<Observe>;

    fn handle(&mut self, _: Observe, _: &mut Context<Self>) -> Self::Result {
        let (seat, book) = (self.worker.seat(), self.worker.book().borrow());
        let line = book.shown();
        actix::MessageResult(GuildSnapshot {
            queue: seat.queue,
            fence: seat.fence,
            paused: self.worker.is_paused(),
            running: line.running().and_then(|seq| book.id(seq)),
            known: line.len(),
            parked: line.parked(),
            resting_since: seat.vitals.resting_since(),
            due: seat.vitals.due(),
        })
    }
}
