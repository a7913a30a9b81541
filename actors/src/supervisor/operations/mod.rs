//! Supervisor of guilds: claims due queues, starts a guild for each, and stops idle guilds.
//!
//! ```text
//!  wake-ups (submit, cancel, retry) ─▶ claim ─▶ guild ◀── wake-ups
//!  store (due queues without owner) ─▶ ▲          └── ended: stopped, fenced or crashed ─▶ claim again
//! ```

mod child;
mod claims;
pub(crate) mod config;
pub(crate) mod handle;
mod release_held;
mod restarts;
mod shutdown;
#[cfg(test)]
mod tests;
pub(crate) mod throttle;
pub(crate) mod wakeups;

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use actix::{
    Actor, ActorFutureExt as _, Addr, AsyncContext as _, Context, Handler, Message, ResponseFuture, SpawnHandle,
    WrapFuture as _,
};
use guildhall_core::operation::Queue;
use serde::Serialize;
use tokio::sync::oneshot;

use self::child::{Child, ChildState, is_interaction};
use self::release_held::HeldRelease;
use crate::failpoint;
use crate::guild::operations::{GuildShared, ObserveGuild, Pause, Resume, Stop, StopMode};
use crate::guild::{Guild, GuildSnapshot, GuildSpec};
use crate::ports::{Claim, OperationExecutor, OperationStore};
use crate::supervision::{Part, PartGuard};
use crate::supervisor::OperationsConfig;
use crate::supervisor::exit_notifier::ChildExited;
use crate::supervisor::operations::throttle::Throttle;
use crate::supervisor::operations::wakeups::{ReleasedConditions, WakeupSet, Wakeups};
use crate::telemetry::emit;
use crate::telemetry::operations::GuildsCounted;
use crate::wall_clock::WallClock;

/// Starts a guild on the thread for guilds.
pub type SpawnGuild = Box<dyn Fn(GuildSpec) -> Addr<Guild> + Send>;

/// Pauses are checked once in this many polls, because they may be set through another process.
const POLLS_PER_PAUSE_CHECK: u32 = 5;

/// Supervises guilds.
pub struct Supervisor {
    /// First field, so that its end is noticed before the ends of its dependents.
    _guard: PartGuard,
    store: Arc<dyn OperationStore>,
    executor: Arc<dyn OperationExecutor>,
    clock: WallClock,
    config: Arc<OperationsConfig>,
    throttle: Arc<Throttle>,
    wakeups: Arc<WakeupSet>,
    spawn: SpawnGuild,
    children: HashMap<Queue, Child>,
    /// How many of them are of interactions.
    interactions: usize,
    generations: u64,
    /// Woken queues without a guild here, in order.
    pending_queues: VecDeque<Queue>,
    pending_set: HashSet<Queue>,
    claiming: bool,
    /// Number of queues that this actor is releasing itself.
    releasing: usize,
    next_poll: Option<SpawnHandle>,
    /// A poll was requested during another call to the store.
    poll_again: bool,
    polls: u32,
    all_paused: bool,
    /// Number of individually paused queues at the last check.
    paused_queues: usize,
    pause_check: PauseCheck,
    draining: bool,
    drain_waiters: Vec<oneshot::Sender<()>>,
    held_release: HeldRelease,
}

/// Whether the paused queues are being read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PauseCheck {
    Idle,
    Running {
        /// They may have changed since the read started.
        repeat: bool,
    },
}

impl std::fmt::Debug for Supervisor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Supervisor").field("children", &self.children.len()).finish_non_exhaustive()
    }
}

impl Supervisor {
    pub(crate) fn new(
        store: Arc<dyn OperationStore>,
        executor: Arc<dyn OperationExecutor>,
        clock: WallClock,
        config: OperationsConfig,
        wakeups: Arc<WakeupSet>,
        spawn: SpawnGuild,
    ) -> Self {
        let throttle = Arc::new(Throttle::new(config.max_running, config.per_second));
        Self {
            _guard: PartGuard::new(Part::OperationSupervisor),
            store,
            executor,
            clock,
            config: Arc::new(config),
            throttle,
            wakeups,
            spawn,
            children: HashMap::new(),
            interactions: 0,
            generations: 0,
            pending_queues: VecDeque::new(),
            pending_set: HashSet::new(),
            claiming: false,
            releasing: 0,
            next_poll: None,
            poll_again: false,
            polls: 0,
            all_paused: false,
            paused_queues: 0,
            pause_check: PauseCheck::Idle,
            draining: false,
            drain_waiters: Vec::new(),
            held_release: HeldRelease::default(),
        }
    }

    #[expect(clippy::disallowed_methods, reason = "its guard is a field of the actor")]
    pub(crate) fn run(self) -> Addr<Self> {
        Self::create(|ctx| {
            ctx.set_mailbox_capacity(self.config.mailbox_capacity);
            self
        })
    }

    /// Receives wake-ups, and repeats.
    fn listen(&self, ctx: &mut Context<Self>) {
        let wakeups = Arc::clone(&self.wakeups);
        let receive = async move { wakeups.next().await };
        ctx.spawn(receive.into_actor(self).map(|received, actor, ctx| {
            actor.on_wakeups(received, ctx);
            actor.listen(ctx);
        }));
    }

    fn on_wakeups(&mut self, Wakeups { queues, all, released }: Wakeups, ctx: &mut Context<Self>) {
        failpoint::message(Part::OperationSupervisor);
        if released != ReleasedConditions::Nothing {
            for child in self.children.values_mut() {
                child.shared.release(&released);
                if let ChildState::Stopping { woken, .. } = &mut child.state {
                    // It may release its queue without having received this.
                    *woken = true;
                }
            }
            self.release_held(ctx);
        }
        if all {
            self.children.values().for_each(|child| child.shared.wake([]));
            self.poll_soon(ctx);
        }
        for (queue, signals) in queues {
            match self.children.get_mut(&queue) {
                None => self.add_pending(queue),
                Some(child) => {
                    child.shared.wake(signals);
                    match &mut child.state {
                        ChildState::Stopping { woken, .. } => *woken = true,
                        ChildState::Active(_) | ChildState::Crashed => {}
                    }
                }
            }
        }
        self.claim_pending(ctx);
    }

    /// Starts a guild for a claimed queue.
    fn start_guild(&mut self, Claim { queue, fence, paused }: Claim, ctx: &Context<Self>) {
        self.generations += 1;
        let generation = self.generations;
        let shared = Arc::new(GuildShared::new());
        let poison = self.children.get(&queue).and_then(Child::poison);
        let paused = paused || self.all_paused;
        let spec = GuildSpec {
            queue,
            fence,
            generation,
            paused,
            poison,
            store: Arc::clone(&self.store),
            executor: Arc::clone(&self.executor),
            clock: self.clock.clone(),
            config: Arc::clone(&self.config),
            throttle: Arc::clone(&self.throttle),
            shared: Arc::clone(&shared),
            supervisor: ctx.address().downgrade(),
        };
        let next = Child::new((self.spawn)(spec), fence, generation, shared, paused);
        match self.children.get_mut(&queue) {
            Some(child) => {
                // There should be no other guild. If there is one, its fence is stale.
                if let ChildState::Active(addr) | ChildState::Stopping { addr, .. } = &child.state {
                    let _ = addr.try_send(Stop(StopMode::Now));
                }
                child.on_restarted(next);
            }
            None => {
                self.interactions += usize::from(is_interaction(queue));
                self.children.insert(queue, next);
            }
        }
        self.report_counts();
    }

    /// Removes a queue from this process.
    fn forget(&mut self, queue: Queue) {
        if self.children.remove(&queue).is_some() {
            self.interactions -= usize::from(is_interaction(queue));
        }
        self.report_counts();
    }

    fn report_counts(&self) {
        emit(GuildsCounted { active: self.children.len(), waiting: self.pending_queues.len() });
    }

    /// Reads which queues are paused. One read at a time; it is repeated if the pauses may have changed meanwhile.
    fn check_pauses(&mut self, ctx: &mut Context<Self>) {
        if let PauseCheck::Running { repeat } = &mut self.pause_check {
            *repeat = true;
            return;
        }
        self.pause_check = PauseCheck::Running { repeat: false };
        let store = Arc::clone(&self.store);
        let retry = self.config.store_retry();
        let call = async move { retry.attempt(store.paused()).await };
        ctx.spawn(call.into_actor(self).map(|paused, actor, ctx| {
            // On an error, the next check reads again.
            if let Ok((all, queues)) = paused {
                actor.apply_pauses(all, &queues.into_iter().collect(), ctx);
            }
            if matches!(
                std::mem::replace(&mut actor.pause_check, PauseCheck::Idle),
                PauseCheck::Running { repeat: true }
            ) {
                actor.check_pauses(ctx);
            }
        }));
    }

    fn apply_pauses(&mut self, all: bool, queues: &HashSet<Queue>, ctx: &mut Context<Self>) {
        let mut changed = self.all_paused != all;
        self.all_paused = all;
        for (queue, child) in &mut self.children {
            let paused = all || queues.contains(queue);
            if child.paused == paused {
                continue;
            }
            let sent = match &child.state {
                ChildState::Crashed => Ok(()),
                ChildState::Active(addr) | ChildState::Stopping { addr, .. } if paused => {
                    addr.try_send(Pause).map_err(drop)
                }
                ChildState::Active(addr) | ChildState::Stopping { addr, .. } => addr.try_send(Resume).map_err(drop),
            };
            // A guild with a full mailbox is notified at the next check.
            if sent.is_ok() {
                child.paused = paused;
                changed = true;
            }
        }
        // Resumed queues without an owner are among the due ones.
        if changed || self.paused_queues != queues.len() {
            self.release_held(ctx);
            self.paused_queues = queues.len();
            self.poll_soon(ctx);
        }
    }
}

impl Actor for Supervisor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Context<Self>) {
        self.listen(ctx);
        self.check_pauses(ctx);
        // Operations that the gate delayed when the previous process ended.
        self.release_held(ctx);
        self.poll(ctx);
    }
}

impl Handler<ChildExited<Queue>> for Supervisor {
    type Result = ();

    fn handle(&mut self, exit: ChildExited<Queue>, ctx: &mut Context<Self>) {
        let ChildExited { child: queue, generation } = exit;
        let Some(child) = self.children.get(&queue).filter(|child| child.generation == generation) else { return };
        if child.shared.has_finished() { self.on_stopped(queue, ctx) } else { self.on_crashed(queue, ctx) }
    }
}

/// The paused queues may have changed.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "()")]
pub(crate) struct PausesChanged;

impl Handler<PausesChanged> for Supervisor {
    type Result = ();

    fn handle(&mut self, _: PausesChanged, ctx: &mut Context<Self>) {
        self.check_pauses(ctx);
    }
}

/// Processes joined or left: some queues may belong to other processes now, or to this one.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "()")]
pub(crate) struct MembersChanged;

impl Handler<MembersChanged> for Supervisor {
    type Result = ();

    fn handle(&mut self, _: MembersChanged, ctx: &mut Context<Self>) {
        self.hand_over(ctx);
        // A process that left may have received a release without saving it.
        self.release_held(ctx);
        self.poll_soon(ctx);
    }
}

/// This process lost its lease: other processes own all its queues.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "()")]
pub(crate) struct LeaseLost;

impl Handler<LeaseLost> for Supervisor {
    type Result = ();

    fn handle(&mut self, _: LeaseLost, ctx: &mut Context<Self>) {
        self.stop_all(ctx);
        self.poll_soon(ctx);
    }
}

/// Starts no more operations, waits for those that run, and releases every queue. Replies when that is done.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "()")]
pub(crate) struct Drain;

impl Handler<Drain> for Supervisor {
    type Result = ResponseFuture<()>;

    fn handle(&mut self, _: Drain, ctx: &mut Context<Self>) -> Self::Result {
        let drained = self.drain(ctx);
        Box::pin(async move {
            let _ = drained.await;
        })
    }
}

/// Returns the state of the supervisor.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "OperationsSnapshot")]
pub(crate) struct ObserveSupervisor;

/// State of the guilds of this process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct OperationsSnapshot {
    /// Active queues.
    pub active: usize,
    /// How many of them are of interactions.
    pub interactions: usize,
    /// How many of them are busy.
    pub busy: usize,
    /// How many of them have a crashed guild that has not restarted.
    pub broken: usize,
    /// Queues that wait for room.
    pub waiting: usize,
    /// Whether all queues are paused.
    pub all_paused: bool,
    /// Whether this process is ending.
    pub draining: bool,
}

impl Handler<ObserveSupervisor> for Supervisor {
    type Result = actix::MessageResult<ObserveSupervisor>;

    fn handle(&mut self, _: ObserveSupervisor, _: &mut Context<Self>) -> Self::Result {
        let is_crashed = |child: &&Child| matches!(child.state, ChildState::Crashed);
        actix::MessageResult(OperationsSnapshot {
            active: self.children.len(),
            interactions: self.interactions,
            busy: self
                .children
                .values()
                .filter(|child| child.shared.idle_since().is_none() && !is_crashed(child))
                .count(),
            broken: self.children.values().filter(is_crashed).count(),
            waiting: self.pending_queues.len(),
            all_paused: self.all_paused,
            draining: self.draining,
        })
    }
}

/// Returns the state of one guild. `None` if it is not in this process.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "Option<GuildSnapshot>")]
pub(crate) struct ObserveQueue(pub(crate) Queue);

impl Handler<ObserveQueue> for Supervisor {
    type Result = ResponseFuture<Option<GuildSnapshot>>;

    fn handle(&mut self, ObserveQueue(queue): ObserveQueue, _: &mut Context<Self>) -> Self::Result {
        let call = self.children.get(&queue).and_then(|child| match &child.state {
            ChildState::Active(addr) | ChildState::Stopping { addr, .. } => Some(addr.send(ObserveGuild)),
            ChildState::Crashed => None,
        });
        Box::pin(async move { call?.await.ok() })
    }
}
