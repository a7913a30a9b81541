//! Supervises the guilds with recent events: starts them on their first event, restarts them after a crash, stops them
//! when they are idle.
//!
//! ```text
//!  router ─batches─▶ EventSupervisor ─▶ mailbox ─▶ guild ─▶ acks ─▶ EventSupervisor: sessions confirmed, credit back
//! ```
//!
//! It runs on the thread of its guilds, so handing events over needs no synchronization. It and the guilds take turns.

use std::collections::HashMap;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Poll, ready};
use std::time::Duration;

use actix::fut::ActorFuture;
use actix::{
    Actor, ActorContext as _, ActorFutureExt as _, Addr, AsyncContext as _, Context, Handler, WrapFuture as _,
};
use foldhash::fast::RandomState;
use tokio::sync::mpsc;

use super::acks::AckBuffer;
use crate::guild::GuildEventActor;
use crate::guild::events::actor::GuildEventSpec;
use crate::guild::events::context::EventContext;
use crate::guild::events::fallback::FallbackReason;
use crate::guild::events::inbox_entry::{commit_dead, inbox_key, lane_of};
use crate::guild::events::mailbox::GuildMailbox;
use crate::guild::events::routed_event::{QueuedEvent, RoutedBatch};
use crate::ports::InboxKey;
use crate::supervision::{Part, PartGuard};
use crate::supervisor::exit_notifier::ChildExited;
use crate::supervisor::restart_policy::RestartHistory;
use crate::telemetry::emit;
use crate::telemetry::events::{EventGuildCrashed, EventsDispatched};
use crate::{crash, failpoint};

/// How often to look for idle guilds.
const IDLE_CHECK_INTERVAL: Duration = Duration::from_secs(10);

/// Maximum number of batches that are dispatched before guilds run.
const BATCH_SIZE: usize = 16;

struct EventChild {
    mailbox: Rc<GuildMailbox>,
    /// `None` while its guild rests.
    guild: Option<Addr<GuildEventActor>>,
    generation: u64,
    restarts: RestartHistory<InboxKey>,
}

/// Supervisor of the guilds with recent events.
pub(crate) struct EventSupervisor {
    /// First field, so that its end is noticed before the ends of its dependents.
    _guard: PartGuard,
    context: Arc<EventContext>,
    batches: Option<mpsc::Receiver<RoutedBatch>>,
    children: HashMap<i64, EventChild, RandomState>,
    generations: u64,
    acks: Rc<AckBuffer>,
}

impl EventSupervisor {
    pub(crate) fn new(context: Arc<EventContext>, batches: mpsc::Receiver<RoutedBatch>) -> Self {
        let acks = Rc::new(AckBuffer::new());
        let _guard = PartGuard::new(Part::EventSupervisor);
        Self { _guard, context, batches: Some(batches), children: HashMap::default(), generations: 0, acks }
    }

    /// Dispatches events to their guilds. Starts missing guilds.
    fn dispatch(&mut self, batch: RoutedBatch, ctx: &Context<Self>) {
        failpoint::message(Part::EventSupervisor);
        let RoutedBatch { read_batch, routed } = batch;
        let read_batch = Rc::new(read_batch);
        let scope = crash::enter_events(&read_batch.session.id);
        for routed in routed {
            scope.set_event(routed.event.origin.seq);
            failpoint::input(Part::EventSupervisor, || routed.event.text.data());
            let lane = lane_of(&routed.event);
            let queued = QueuedEvent { routed, read_batch: Rc::clone(&read_batch) };
            match self.children.get(&lane) {
                Some(child) => child.mailbox.push(queued),
                None => {
                    let mailbox = GuildMailbox::new();
                    mailbox.push(queued);
                    self.start_guild(lane, mailbox, RestartHistory::default(), ctx);
                }
            }
        }
        emit(EventsDispatched { meters: &self.context.meters, elapsed: read_batch.read_at.elapsed() });
    }

    /// Starts a guild for a mailbox.
    fn start_guild(
        &mut self,
        lane: i64,
        mailbox: Rc<GuildMailbox>,
        restarts: RestartHistory<InboxKey>,
        ctx: &Context<Self>,
    ) {
        self.generations += 1;
        let generation = self.generations;
        let spec = GuildEventSpec {
            lane,
            generation,
            context: Arc::clone(&self.context),
            mailbox: Rc::clone(&mailbox),
            acks: Rc::clone(&self.acks),
            supervisor: ctx.address().downgrade(),
        };
        self.children.insert(lane, EventChild { mailbox, guild: Some(spec.run()), generation, restarts });
        self.context.load.set_guilds(self.children.len());
    }

    /// Stops guilds that have been idle for long. Guilds of interactions stop at once.
    fn stop_idle(&mut self) {
        let now = self.context.clock.now();
        let cutoff = now.before(self.context.config.idle_after);
        self.children.retain(|lane, child| {
            let since = if *lane < 0 { now } else { cutoff };
            !(child.guild.is_some() && child.mailbox.close_if_idle_since(since, now))
        });
        self.context.load.set_guilds(self.children.len());
    }
}

impl Actor for EventSupervisor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Context<Self>) {
        if let Some(batches) = self.batches.take() {
            ctx.spawn(DispatchLoop { batches }.map(|(), _, ctx: &mut Context<Self>| ctx.stop()));
        }
        ctx.run_interval(IDLE_CHECK_INTERVAL, |actor, _| actor.stop_idle());
    }
}

/// Dispatches batches and flushes completed events, in turn with the guilds, until the channel is closed.
struct DispatchLoop {
    batches: mpsc::Receiver<RoutedBatch>,
}

impl ActorFuture<EventSupervisor> for DispatchLoop {
    type Output = ();

    fn poll(
        mut self: Pin<&mut Self>,
        supervisor: &mut EventSupervisor,
        ctx: &mut Context<EventSupervisor>,
        task: &mut std::task::Context<'_>,
    ) -> Poll<()> {
        supervisor.acks.set_waker(task.waker());
        supervisor.acks.flush(&supervisor.context);
        for _ in 0..BATCH_SIZE {
            match ready!(self.batches.poll_recv(task)) {
                Some(batch) => supervisor.dispatch(batch, ctx),
                None => return Poll::Ready(()),
            }
        }
        // There may be more batches; guilds run first.
        task.waker().wake_by_ref();
        Poll::Pending
    }
}

impl Handler<ChildExited<i64>> for EventSupervisor {
    type Result = ();

    fn handle(&mut self, ChildExited { child: lane, generation }: ChildExited<i64>, ctx: &mut Context<Self>) {
        // A guild that was stopped because it was idle is not in the map any more.
        let Some(child) = self.children.get_mut(&lane).filter(|child| child.generation == generation) else { return };
        let EventContext { handlers, config, clock, .. } = &*self.context;
        child.guild = None;
        let poison = child.mailbox.take_poison();
        let executing = poison.as_ref().map(|(event, number)| inbox_key(event, handlers.handler(*number)));
        let rests = child.restarts.on_exit(executing, clock.now(), config.restart_policy());
        let name = poison.as_ref().map(|(event, _)| event.name.to_string());
        emit(EventGuildCrashed { lane, executing: name.as_deref(), rests });
        let context = Arc::clone(&self.context);
        let recover = async move {
            if let Some((event, number)) = poison {
                // The event itself may be the cause: it is stored as it came.
                let reason = "the guild panicked while it handled this event, which was set aside so that later events are \
                              handled; the log has the location";
                let handler = context.handlers.handler(number);
                let fallback = context.fallbacks.now(&event, handler, FallbackReason::Failed);
                let dead = commit_dead(&event, handler, reason.to_owned(), 1, fallback, context.clock.now());
                context.committer.commit(vec![dead]).await;
            }
            if let Some(rest) = rests {
                tokio::time::sleep(rest).await;
            }
        };
        ctx.spawn(recover.into_actor(self).map(move |(), actor, ctx| {
            if let Some(child) = actor.children.remove(&lane) {
                actor.start_guild(lane, child.mailbox, child.restarts, ctx);
            }
        }));
    }
}
