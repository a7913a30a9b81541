//! The guilds that have had events lately: begun when one comes, begun anew when one breaks, let go when nothing does.
//!
//! ```text
//!  router ─batches─▶ EventSupervisor ─▶ mailbox ─▶ guild ─▶ acks ─▶ EventSupervisor: sessions confirmed, credit back
//! ```
//!
//! It runs where its guilds run: to hand them their events costs no thread anything. Guilds and it take turns.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Poll, ready};
use std::time::Duration;

use actix::fut::ActorFuture;
use actix::{
    Actor, ActorContext as _, ActorFutureExt as _, Addr, AsyncContext as _, Context, Handler as Takes, Message,
    WrapFuture as _,
};
use foldhash::fast::RandomState;
use guildhall_core::event::handler::{body, trace};
use guildhall_core::time::UnixMs;
use tokio::sync::mpsc;

use super::acks::AckBuffer;
use crate::guild::GuildEventActor;
use crate::guild::events::actor::GuildEventSpec;
use crate::guild::events::context::{EventContext, lane_of};
use crate::guild::events::mailbox::GuildMailbox;
use crate::guild::events::routed_event::{QueuedEvent, RoutedBatch};
use crate::supervision::{Part, PartGuard};
use crate::telemetry::emit;
use crate::telemetry::events::{EventDeadLettered, EventGuildCrashed, EventsDispatched};
use crate::{crash, failpoint};

/// Restarts within this time count.
const RESTART_WINDOW: Duration = Duration::from_secs(60);

/// How often it is looked for guilds that have nothing to do.
const LOOK_FOR_IDLE: Duration = Duration::from_secs(10);

/// Lots that are handed out before guilds have their turn.
const AT_ONCE: usize = 16;

struct EventChild {
    tray: Rc<GuildMailbox>,
    /// Nothing while its guild rests.
    guild: Option<Addr<GuildEventActor>>,
    generation: u64,
    restarts: VecDeque<UnixMs>,
}

/// The guilds that have had events lately.
pub(crate) struct EventSupervisor {
    /// First, so that its end is noticed before that of what waits for it.
    _guard: PartGuard,
    hub: Arc<EventContext>,
    lots: Option<mpsc::Receiver<RoutedBatch>>,
    kept: HashMap<i64, EventChild, RandomState>,
    generations: u64,
    outbox: Rc<AckBuffer>,
}

impl EventSupervisor {
    pub(crate) fn new(hub: Arc<EventContext>, lots: mpsc::Receiver<RoutedBatch>) -> Self {
        let outbox = Rc::new(AckBuffer::new());
        let _guard = PartGuard::new(Part::EventSupervisor);
        Self { _guard, hub, lots: Some(lots), kept: HashMap::default(), generations: 0, outbox }
    }

    /// Hands events to their guilds, which begin if they are not there.
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
                    self.seat(lane, tray, VecDeque::new(), ctx);
                }
            }
        }
        emit(EventsDispatched { meters: &self.hub.flow, took: reading.read_at.elapsed() });
    }

    /// Starts a guild for a mailbox.
    fn seat(&mut self, lane: i64, tray: Rc<GuildMailbox>, restarts: VecDeque<UnixMs>, ctx: &Context<Self>) {
        self.generations += 1;
        let generation = self.generations;
        let seat = GuildEventSpec {
            lane,
            generation,
            hub: Arc::clone(&self.hub),
            tray: Rc::clone(&tray),
            outbox: Rc::clone(&self.outbox),
            seats: ctx.address().downgrade(),
        };
        self.kept.insert(lane, EventChild { tray, guild: Some(seat.run()), generation, restarts });
        self.hub.seats(self.kept.len());
    }

    /// Lets guilds go that have had nothing to do for long; those of interactions at once.
    fn let_idle_go(&mut self) {
        let now = self.hub.clock.now();
        let then = now.before(self.hub.config.idle_after);
        self.kept.retain(|lane, kept| {
            let since = if *lane < 0 { now } else { then };
            !(kept.guild.is_some() && kept.tray.close_if_idle_since(since, now))
        });
        self.hub.seats(self.kept.len());
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

/// Hands out what comes, and tells what is done, in turn with the guilds, until nothing more can come.
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
        seats.outbox.tell(&seats.hub);
        for _ in 0..AT_ONCE {
            match ready!(self.lots.poll_recv(task)) {
                Some(lot) => seats.hand_out(lot, ctx),
                None => return Poll::Ready(()),
            }
        }
        // There may be more: after the guilds' turn.
        task.waker().wake_by_ref();
        Poll::Pending
    }
}

/// A guild is gone.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "()")]
pub(crate) struct EventGuildExited {
    pub(crate) lane: i64,
    pub(crate) generation: u64,
}

impl Takes<EventGuildExited> for EventSupervisor {
    type Result = ();

    fn handle(&mut self, EventGuildExited { lane, generation }: EventGuildExited, ctx: &mut Context<Self>) {
        // One that was let go is not kept any more.
        let Some(kept) = self.kept.get_mut(&lane).filter(|kept| kept.generation == generation) else { return };
        let now = self.hub.clock.now();
        kept.guild = None;
        kept.restarts.push_back(now);
        while kept.restarts.front().is_some_and(|at| now.since(*at) >= RESTART_WINDOW) {
            kept.restarts.pop_front();
        }
        let rests = kept.restarts.len() > self.hub.config.most_restarts;
        let poison = kept.tray.take_poison();
        let wait = if rests { self.hub.config.rest } else { Duration::ZERO };
        let what = poison.as_ref().map(|(event, _)| event.name.to_string());
        emit(EventGuildCrashed { lane, executing: what.as_deref(), rests: rests.then_some(wait) });
        let hub = Arc::clone(&self.hub);
        let buried = async move {
            if let Some((event, handler)) = poison {
                let handler = hub.handler(handler);
                let why =
                    "it broke what handles events, and was taken out so that the others go on; the log tells where";
                let trace = trace(&event.origin);
                emit(EventDeadLettered { handler: &handler.name, event: event.name.as_str(), trace, why });
                // What broke it may be the event itself: it is kept as it came.
                let body = body(&event, &BTreeMap::new());
                let mut entry = hub.entry(&event, handler, body);
                (entry.dead, entry.attempts) = (Some(why.to_owned()), 1);
                hub.commit(vec![hub.put(entry)]).await;
            }
            tokio::time::sleep(wait).await;
        };
        ctx.spawn(buried.into_actor(self).map(move |(), actor, ctx| {
            if let Some(kept) = actor.kept.remove(&lane) {
                actor.seat(lane, kept.tray, kept.restarts, ctx);
            }
        }));
    }
}
