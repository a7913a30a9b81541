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
const LOOK_FOR_IDLE: Duration = Duration::from_secs(10);

/// Maximum number of batches that are dispatched before guilds run.
const AT_ONCE: usize = 16;

struct EventChild {
    tray: Rc<GuildMailbox>,
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
    lots: Option<mpsc::Receiver<RoutedBatch>>,
    kept: HashMap<i64, EventChild, RandomState>,
    generations: u64,
    outbox: Rc<AckBuffer>,
}

impl EventSupervisor {
    pub(crate) fn new(context: Arc<EventContext>, lots: mpsc::Receiver<RoutedBatch>) -> Self {
        let outbox = Rc::new(AckBuffer::new());
        let _guard = PartGuard::new(Part::EventSupervisor);
        Self { _guard, context, lots: Some(lots), kept: HashMap::default(), generations: 0, outbox }
    }

    /// Dispatches events to their guilds. Starts missing guilds.
    fn hand_out(&mut self, lot: RoutedBatch, ctx: &Context<Self>) {
        failpoint::message(Part::EventSupervisor);
        let RoutedBatch { reading, routed } = lot;
        let reading = Rc::new(reading);
        let scope = crash::enter_events(&reading.session.id);
        for routed in routed {
            scope.at(routed.event.origin.seq);
            failpoint::input(Part::EventSupervisor, || routed.event.text.data());
            let lane = lane_of(&routed.event);
            let parcel = QueuedEvent { routed, reading: Rc::clone(&reading) };
            match self.kept.get(&lane) {
                Some(kept) => kept.tray.push(parcel),
                None => {
                    let tray = GuildMailbox::new();
                    tray.push(parcel);
                    self.seat(lane, tray, RestartHistory::default(), ctx);
                }
            }
        }
        emit(EventsDispatched { meters: &self.context.meters, took: reading.read_at.elapsed() });
    }

    /// Starts a guild for a mailbox.
    fn seat(&mut self, lane: i64, tray: Rc<GuildMailbox>, restarts: RestartHistory<InboxKey>, ctx: &Context<Self>) {
        self.generations += 1;
        let generation = self.generations;
        let seat = GuildEventSpec {
            lane,
            generation,
            context: Arc::clone(&self.context),
            mailbox: Rc::clone(&tray),
            acks: Rc::clone(&self.outbox),
            supervisor: ctx.address().downgrade(),
        };
        self.kept.insert(lane, EventChild { tray, guild: Some(seat.run()), generation, restarts });
        self.context.load.set_guilds(self.kept.len());
    }

    /// Stops guilds that have been idle for long. Guilds of interactions stop at once.
    fn let_idle_go(&mut self) {
        let now = self.context.clock.now();
        let then = now.before(self.context.config.idle_after);
        self.kept.retain(|lane, kept| {
            let since = if *lane < 0 { now } else { then };
            !(kept.guild.is_some() && kept.tray.close_if_idle_since(since, now))
        });
        self.context.load.set_guilds(self.kept.len());
    }
}

impl Actor for EventSupervisor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Context<Self>) {
        if let Some(lots) = self.lots.take() {
            ctx.spawn(DispatchLoop { lots }.map(|(), _, ctx: &mut Context<Self>| ctx.stop()));
        }
        ctx.run_interval(LOOK_FOR_IDLE, |actor, _| actor.let_idle_go());
    }
}

/// Dispatches batches and flushes completed events, in turn with the guilds, until the channel is closed.
struct DispatchLoop {
    lots: mpsc::Receiver<RoutedBatch>,
}

impl ActorFuture<EventSupervisor> for DispatchLoop {
    type Output = ();

    fn poll(
        mut self: Pin<&mut Self>,
        seats: &mut EventSupervisor,
        ctx: &mut Context<EventSupervisor>,
        task: &mut std::task::Context<'_>,
    ) -> Poll<()> {
        seats.outbox.wakes(task.waker());
        seats.outbox.tell(&seats.context);
        for _ in 0..AT_ONCE {
            match ready!(self.lots.poll_recv(task)) {
                Some(lot) => seats.hand_out(lot, ctx),
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
        let Some(kept) = self.kept.get_mut(&lane).filter(|kept| kept.generation == generation) else { return };
        let EventContext { handlers, config, clock, .. } = &*self.context;
        kept.guild = None;
        let poison = kept.tray.take_poison();
        let executing = poison.as_ref().map(|(event, number)| inbox_key(event, handlers.handler(*number)));
        let rests = kept.restarts.on_exit(executing, clock.now(), config.restart_policy());
        let name = poison.as_ref().map(|(event, _)| event.name.to_string());
        emit(EventGuildCrashed { lane, executing: name.as_deref(), rests });
        let context = Arc::clone(&self.context);
        let recover = async move {
            if let Some((event, number)) = poison {
                // The event itself may be the cause: it is stored as it came.
                let reason = "the guild panicked while it handled this event, which was set aside so that later events are \
                              handled; the log has the location";
                let handler = context.handlers.handler(number);
                let dead = commit_dead(&event, handler, reason.to_owned(), 1, context.clock.now());
                context.committer.commit(vec![dead]).await;
            }
            if let Some(rest) = rests {
                tokio::time::sleep(rest).await;
            }
        };
        ctx.spawn(recover.into_actor(self).map(move |(), actor, ctx| {
            if let Some(kept) = actor.kept.remove(&lane) {
                actor.seat(lane, kept.tray, kept.restarts, ctx);
            }
        }));
    }
}
