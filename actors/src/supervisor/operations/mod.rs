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
use crate::guild::operations::{GuildShared, Observe as ObserveGuild, Pause, Resume, Stop, StopMode};
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

/// Pauses are checked once in so many polls, because they may be set through another process.
const POLLS_BETWEEN_PAUSES: u32 = 5;

/// Supervises guilds.
pub struct Supervisor {
    /// First field, so that its end is noticed before the ends of its dependents.
    _guard: PartGuard,
    store: Arc<dyn OperationStore>,
    perform: Arc<dyn OperationExecutor>,
    clock: WallClock,
    config: Arc<OperationsConfig>,
    throttle: Arc<Throttle>,
    bell: Arc<WakeupSet>,
    spawn: SpawnGuild,
    kept: HashMap<Queue, Child>,
    /// How many of them are of interactions.
    interactions: usize,
    generations: u64,
    /// Woken queues without a guild here, in order.
    wanted: VecDeque<Queue>,
    in_wanted: HashSet<Queue>,
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
    looking: PauseCheck,
    draining: bool,
    drained: Vec<oneshot::Sender<()>>,
    releasing_held: HeldRelease,
}

/// Whether the paused queues are being read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PauseCheck {
    No,
    Yes {
        /// They may have changed since the read started.
        again: bool,
    },
}

impl std::fmt::Debug for Supervisor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Supervisor").field("children", &self.kept.len()).finish_non_exhaustive()
    }
}

impl Supervisor {
    pub(crate) fn new(
        store: Arc<dyn OperationStore>,
        perform: Arc<dyn OperationExecutor>,
        clock: WallClock,
        config: OperationsConfig,
        bell: Arc<WakeupSet>,
        spawn: SpawnGuild,
    ) -> Self {
        let throttle = Arc::new(Throttle::new(config.max_running, config.per_second));
        Self {
            _guard: PartGuard::new(Part::OperationSupervisor),
            store,
            perform,
            clock,
            config: Arc::new(config),
            throttle,
            bell,
            spawn,
            kept: HashMap::new(),
            interactions: 0,
            generations: 0,
            wanted: VecDeque::new(),
            in_wanted: HashSet::new(),
            claiming: false,
            releasing: 0,
            next_poll: None,
            poll_again: false,
            polls: 0,
            all_paused: false,
            paused_queues: 0,
            looking: PauseCheck::No,
            draining: false,
            drained: Vec::new(),
            releasing_held: HeldRelease::default(),
        }
    }

    #[expect(clippy::disallowed_methods, reason = "its guard is a field of the actor")]
    pub(crate) fn run(self) -> Addr<Self> {
        Self::create(|ctx| {
            ctx.set_mailbox_capacity(self.config.mailbox);
            self
        })
    }

    /// Receives wake-ups, and repeats.
    fn listen(&self, ctx: &mut Context<Self>) {
        let bell = Arc::clone(&self.bell);
        let heard = async move { bell.heard().await };
        ctx.spawn(heard.into_actor(self).map(|rung, actor, ctx| {
            actor.on_rung(rung, ctx);
            actor.listen(ctx);
        }));
    }

    fn on_rung(&mut self, Wakeups { queues, all, released }: Wakeups, ctx: &mut Context<Self>) {
        failpoint::message(Part::OperationSupervisor);
        if released != ReleasedConditions::Nothing {
            for kept in self.kept.values_mut() {
                kept.vitals.release(&released);
                if let ChildState::Leaving { again, .. } = &mut kept.care {
                    // It may release its queue without having received this.
                    *again = true;
                }
            }
            self.release_held(ctx);
        }
        if all {
            self.kept.values().for_each(|kept| kept.vitals.wake([]));
            self.poll_soon(ctx);
        }
        for (queue, words) in queues {
            match self.kept.get_mut(&queue) {
                None => self.want(queue),
                Some(kept) => {
                    kept.vitals.wake(words);
                    match &mut kept.care {
                        ChildState::Leaving { again, .. } => *again = true,
                        ChildState::Active(_) | ChildState::Broken => {}
                    }
                }
            }
        }
        self.claim_wanted(ctx);
    }

    /// Starts a guild for a claimed queue.
    fn seat(&mut self, Claim { queue, fence, paused }: Claim, ctx: &Context<Self>) {
        self.generations += 1;
        let generation = self.generations;
        let vitals = Arc::new(GuildShared::new());
        let poison = self.kept.get(&queue).and_then(Child::poison);
        let paused = paused || self.all_paused;
        let seat = GuildSpec {
            queue,
            fence,
            generation,
            paused,
            poison,
            store: Arc::clone(&self.store),
            perform: Arc::clone(&self.perform),
            clock: self.clock.clone(),
            config: Arc::clone(&self.config),
            throttle: Arc::clone(&self.throttle),
            vitals: Arc::clone(&vitals),
            supervisor: ctx.address().downgrade(),
        };
        let next = Child::new((self.spawn)(seat), fence, generation, vitals, paused);
        match self.kept.get_mut(&queue) {
            Some(kept) => {
                // There should be no other guild. If there is one, its fence is stale.
                if let ChildState::Active(addr) | ChildState::Leaving { addr, .. } = &kept.care {
                    let _ = addr.try_send(Stop(StopMode::Now));
                }
                kept.on_restarted(next);
            }
            None => {
                self.interactions += usize::from(is_interaction(queue));
                self.kept.insert(queue, next);
            }
        }
        self.count();
    }

    /// Removes a queue from this process.
    fn forget(&mut self, queue: Queue) {
        if self.kept.remove(&queue).is_some() {
            self.interactions -= usize::from(is_interaction(queue));
        }
        self.count();
    }

    fn count(&self) {
        emit(GuildsCounted { active: self.kept.len(), waiting: self.wanted.len() });
    }

    /// Reads which queues are paused. One read at a time; it is repeated if the pauses may have changed meanwhile.
    fn look_at_pauses(&mut self, ctx: &mut Context<Self>) {
        if let PauseCheck::Yes { again } = &mut self.looking {
            *again = true;
            return;
        }
        self.looking = PauseCheck::Yes { again: false };
        let store = Arc::clone(&self.store);
        let retry = self.config.store_retry();
        let asked = async move { retry.attempt(store.paused()).await };
        ctx.spawn(asked.into_actor(self).map(|paused, actor, ctx| {
            // On an error, the next check reads again.
            if let Ok((all, queues)) = paused {
                actor.apply_pauses(all, &queues.into_iter().collect(), ctx);
            }
            if matches!(std::mem::replace(&mut actor.looking, PauseCheck::No), PauseCheck::Yes { again: true }) {
                actor.look_at_pauses(ctx);
            }
        }));
    }

    fn apply_pauses(&mut self, all: bool, queues: &HashSet<Queue>, ctx: &mut Context<Self>) {
        let mut changed = self.all_paused != all;
        self.all_paused = all;
        for (queue, kept) in &mut self.kept {
            let paused = all || queues.contains(queue);
            if kept.paused == paused {
                continue;
            }
            let told = match &kept.care {
                ChildState::Broken => Ok(()),
                ChildState::Active(addr) | ChildState::Leaving { addr, .. } if paused => {
                    addr.try_send(Pause).map_err(drop)
                }
                ChildState::Active(addr) | ChildState::Leaving { addr, .. } => addr.try_send(Resume).map_err(drop),
            };
            // A guild with a full mailbox is notified at the next check.
            if told.is_ok() {
                kept.paused = paused;
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
        self.look_at_pauses(ctx);
        // Operations that the gate delayed when the previous process ended.
        self.release_held(ctx);
        self.poll(ctx);
    }
}

impl Handler<ChildExited<Queue>> for Supervisor {
    type Result = ();

    fn handle(&mut self, exit: ChildExited<Queue>, ctx: &mut Context<Self>) {
        let ChildExited { child: queue, generation } = exit;
        let Some(kept) = self.kept.get(&queue).filter(|kept| kept.generation == generation) else { return };
        if kept.vitals.has_ended() { self.on_left(queue, ctx) } else { self.on_broken(queue, ctx) }
    }
}

/// The paused queues may have changed.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "()")]
pub(crate) struct PausesChanged;

impl Handler<PausesChanged> for Supervisor {
    type Result = ();

    fn handle(&mut self, _: PausesChanged, ctx: &mut Context<Self>) {
        self.look_at_pauses(ctx);
    }
}

/// Processes joined or left: some queues may belong to other processes now, or to this one.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "()")]
pub(crate) struct MembersChanged;

impl Handler<MembersChanged> for Supervisor {
    type Result = ();

    fn handle(&mut self, _: MembersChanged, ctx: &mut Context<Self>) {
        self.move_elsewhere(ctx);
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
        self.give_all_up(ctx);
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
pub(crate) struct Observe;

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

impl Handler<Observe> for Supervisor {
    type Result = actix::MessageResult<Observe>;

    fn handle(&mut self, _: Observe, _: &mut Context<Self>) -> Self::Result {
        let broken = |kept: &&Child| matches!(kept.care, ChildState::Broken);
        actix::MessageResult(OperationsSnapshot {
            active: self.kept.len(),
            interactions: self.interactions,
            busy: self.kept.values().filter(|kept| kept.vitals.resting_since().is_none() && !broken(kept)).count(),
            broken: self.kept.values().filter(broken).count(),
            waiting: self.wanted.len(),
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
        let asked = self.kept.get(&queue).and_then(|kept| match &kept.care {
            ChildState::Active(addr) | ChildState::Leaving { addr, .. } => Some(addr.send(ObserveGuild)),
            ChildState::Broken => None,
        });
        Box::pin(async move { asked?.await.ok() })
    }
}
