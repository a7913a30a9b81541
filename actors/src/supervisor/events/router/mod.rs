//! The event router: receives messages from shards, finds the handlers of each event, and sends the events to their
//! guilds.
//!
//! ```text
//!  shards ─▶ ledger (received, gaps) ─▶ no handler: confirmed
//!                                    └▶ batch ─▶ supervisor ─▶ guild ─▶ acks ─▶ credit back, session confirmed
//! ```

mod crashed_events;
mod drain;
mod routing;
pub(crate) mod sessions;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use actix::{
    Actor, ActorFutureExt as _, AsyncContext as _, Context, Handler, Message, ResponseFuture, WrapFuture as _,
};
use foldhash::fast::RandomState;
use futures_util::FutureExt as _;
use guildhall_core::event::handler::trace;
use guildhall_core::event::{Event, EventClass, EventName, EventOrigin, EventText};
use guildhall_core::session::Receipt;
use serde::Serialize;
use serde_json::json;
use tokio::sync::mpsc;
use tokio::time::Instant;

pub(crate) use self::drain::{DrainEvents, DrainShard};
use self::routing::RoutingResult;
pub(crate) use self::sessions::ObserveSessions;
use self::sessions::SessionTable;
use crate::crash::{self, CrashedInput};
use crate::failpoint;
use crate::guild::HttpInteractionResponse;
use crate::guild::events::context::EventContext;
use crate::guild::events::handler_set::HandlerSet;
use crate::guild::events::inbox;
use crate::guild::events::interaction;
use crate::guild::events::interaction::deferral;
use crate::guild::events::routed_event::{DeferralFuture, GatewaySession, RoutedBatch, RoutedEvent};
use crate::ports::StoredSession;
use crate::shard::EventBatch;
use crate::shard::{Credit, ShardMessage};
use crate::supervision::{Part, PartGuard, spawn_work};
use crate::telemetry::emit;
use crate::telemetry::events::{EventGap, EventGuildsCounted, EventsReceived};

/// A session that continues.
#[derive(Debug)]
pub(crate) struct ResumedSession {
    pub(crate) session: StoredSession,
    /// Handlers that have finished with events that are not confirmed.
    pub(crate) handled: Vec<(u64, Arc<str>)>,
    /// Its events that must be set aside.
    pub(crate) crashed: Vec<CrashedInput>,
}

/// Maximum number of event names with cached handlers. Some names are chosen by users.
const NAMES: usize = 10_000;

/// How often to report backlog and lag.
const COUNT_EVERY: Duration = Duration::from_secs(5);

/// Routes events.
pub struct EventRouter {
    /// First field, so that its end is noticed before the ends of its dependents.
    _guard: PartGuard,
    context: Arc<EventContext>,
    told: Option<mpsc::Receiver<ShardMessage>>,
    sessions: SessionTable,
    matching: HashMap<EventName, HandlerSet, RandomState>,
    /// Generation of the handlers in `matching`.
    generation: u64,
    /// Batches to send to the guilds next, and the channel for them.
    lots: Vec<RoutedBatch>,
    seats: mpsc::Sender<RoutedBatch>,
    /// Whether confirmed positions are being stored.
    keeping: bool,
}

impl std::fmt::Debug for EventRouter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EventRouter").field("guilds", &self.context.load.guilds()).finish_non_exhaustive()
    }
}

impl EventRouter {
    pub(crate) fn new(
        context: Arc<EventContext>,
        told: mpsc::Receiver<ShardMessage>,
        seats: mpsc::Sender<RoutedBatch>,
    ) -> Self {
        let sessions = SessionTable::new(Arc::clone(&context));
        let generation = context.handlers.generation();
        Self {
            _guard: PartGuard::new(Part::EventRouter),
            context,
            told: Some(told),
            sessions,
            matching: HashMap::default(),
            generation,
            lots: Vec::new(),
            seats,
            keeping: false,
        }
    }

    /// Sends pending batches, then receives messages of shards, and repeats.
    fn listen(&mut self, mut told: mpsc::Receiver<ShardMessage>, ctx: &mut Context<Self>) {
        const AT_ONCE: usize = 16;
        let (lots, seats) = (std::mem::take(&mut self.lots), self.seats.clone());
        let heard = async move {
            for lot in lots {
                // The thread of the guilds is gone: the process is ending.
                let _ = seats.send(lot).await;
            }
            let mut news = Vec::with_capacity(AT_ONCE);
            told.recv_many(&mut news, AT_ONCE).await;
            (told, news)
        };
        ctx.spawn(heard.into_actor(self).map(|(told, news), actor, ctx| {
            if news.is_empty() {
                return;
            }
            for one in news {
                actor.hear(one, ctx);
            }
            actor.listen(told, ctx);
        }));
    }

    fn hear(&mut self, told: ShardMessage, ctx: &mut Context<Self>) {
        failpoint::message(Part::EventRouter);
        match told {
            ShardMessage::Began { shard, session, resume_url } => self.begin(shard, session, resume_url),
            ShardMessage::Passed { shard, session, seq } => {
                let Some(session) = self.sessions.current(shard, &session) else { return };
                let received = session.ledger().on_received(seq);
                self.after(&session, received);
                session.ledger().on_done(seq);
                // A new session is stored at once: until then, a restart would have to start another session.
                if self.sessions.is_new(shard) {
                    self.keep(ctx);
                }
            }
            ShardMessage::Events(batch) => self.take(batch),
            // The waiter may have given up.
            ShardMessage::Ended { heard } => drop(heard.send(())),
        }
    }

    /// A shard has started a new session.
    fn begin(&mut self, shard: u32, id: Arc<str>, resume_url: Option<String>) {
        let Some(old) = self.sessions.begin(shard, id, resume_url) else { return };
        // Events that Discord sent after the last received one are lost. Their number is unknown.
        let first = old.ledger().received() + 1;
        old.ledger().on_received(first);
        let mut routing = RoutingResult::new(&old, Instant::now(), 1);
        self.tell_of_gap(first, None, &mut routing);
        self.routed(routing);
    }

    /// Reports a gap before the received event, if there is one.
    fn after(&mut self, session: &Arc<GatewaySession>, received: Receipt) {
        if let Receipt::AfterGap { first, last } = received {
            let mut routing = RoutingResult::new(session, Instant::now(), 1);
            self.tell_of_gap(first, Some(last), &mut routing);
            self.routed(routing);
        }
    }

    fn tell_of_gap(&mut self, first: u64, last: Option<u64>, routing: &mut RoutingResult) {
        let session = Arc::clone(&routing.lot.reading.session);
        emit(EventGap { shard: session.shard, session: &session.id, first, last });
        let data = json!({ "shard": session.shard, "session": &*session.id, "first": first, "last": last }).to_string();
        let whole = 0..data.len();
        let event = Event {
            origin: EventOrigin { session: Arc::clone(&session.id), shard: session.shard, seq: last.unwrap_or(first) },
            name: EventName::Known("gateway.gap"),
            class: EventClass::Gateway,
            guild: None,
            channel: None,
            user: None,
            interaction: None,
            received_at: self.context.clock.now(),
            text: EventText::new(data, whole),
        };
        self.route(Arc::new(event), false, routing);
    }

    fn take(&mut self, batch: EventBatch) {
        let EventBatch { events, read_at } = batch;
        let Some(first) = events.first() else { return };
        let Some(session) = self.sessions.current(first.origin.shard, &first.origin.session) else {
            // The session is unknown, so none of its events can be confirmed.
            let bytes = events.iter().map(|event| event.text.bytes()).sum();
            if let Some(credit) = self.sessions.credit(first.origin.shard) {
                credit.give_back(events.len(), bytes);
            }
            return;
        };
        emit(EventsReceived { meters: &self.context.meters, count: events.len() });
        let mut received = Vec::with_capacity(events.len());
        {
            let mut ledger = session.ledger();
            received.extend(events.iter().map(|event| ledger.on_received(event.origin.seq)));
        }
        let mut routing = RoutingResult::new(&session, read_at, events.len());
        routing.recording = self.context.recorder.start(events.iter().map(|event| &**event));
        let scope = crash::enter_events(&session.id);
        for (event, received) in events.into_iter().zip(received) {
            scope.at(event.origin.seq);
            match received {
                Receipt::Next => {}
                Receipt::Before => {
                    routing.arrived.add(&event);
                    continue;
                }
                Receipt::AfterGap { first, last } => self.tell_of_gap(first, Some(last), &mut routing),
            }
            match self.sessions.crashed(&event.origin) {
                Some(crashed) => self.set_aside(&event, crashed, &session),
                None => {
                    failpoint::input(Part::EventRouter, || event.text.data());
                    self.route(event, true, &mut routing);
                }
            }
        }
        drop(scope);
        self.routed(routing);
    }

    fn matching(&mut self, name: &EventName) -> HandlerSet {
        let generation = self.context.handlers.generation();
        if std::mem::replace(&mut self.generation, generation) != generation {
            self.matching.clear();
        }
        if let Some(found) = self.matching.get(name) {
            return found.clone();
        }
        if self.matching.len() >= NAMES {
            self.matching.clear();
        }
        let found = HandlerSet::from(self.context.handlers.matching(name.as_str()));
        self.matching.insert(name.clone(), found.clone());
        found
    }

    /// Finds the handlers of an event.
    fn route(&mut self, event: Arc<Event>, counts: bool, routing: &mut RoutingResult) {
        let mut to = self.matching(&event.name);
        for handler in self.sessions.done_before(&event.origin.session, event.origin.seq) {
            to.remove(handler);
        }
        let recording = routing.recording.as_ref().filter(|_| event.interaction.is_some());
        if to.is_nobody() && recording.is_some() {
            routing.unhandled.push(event.origin.seq);
            if counts {
                routing.unhandled_arrived.add(&event);
            }
            return;
        }
        if to.is_nobody() {
            routing.unwanted.push(event.origin.seq);
            if counts {
                routing.arrived.add(&event);
            }
            return;
        }
        let recording = recording.cloned().map(Box::new);
        let deferring = self.defer(&event, &to);
        routing.lot.routed.push(RoutedEvent { event, to, counts, deferring, recording });
    }

    /// Queues the events with handlers for their guilds, and confirms the others.
    fn routed(&mut self, mut routing: RoutingResult) {
        routing.confirm_recorded();
        let RoutingResult { lot, unwanted, arrived, .. } = routing;
        lot.reading.session.done(unwanted.into_iter(), arrived);
        if !lot.routed.is_empty() {
            self.lots.push(lot);
        }
    }

    /// Defers an interaction at once, before anything else.
    fn defer(&self, event: &Event, to: &HandlerSet) -> Option<Box<DeferralFuture>> {
        let interaction = event.interaction.as_ref()?;
        self.context.load.on_interaction_started();
        let first = deferral(&self.context, interaction, to.iter())?;
        let told = self.context.responder.tell(Arc::clone(interaction), first, trace(&event.origin)).shared();
        // It runs although nothing waits for it yet.
        spawn_work(told.clone().map(drop));
        Some(Box::new(told))
    }

    /// Stores confirmed positions that have changed.
    fn keep(&mut self, ctx: &mut Context<Self>) {
        if self.keeping {
            return;
        }
        let sessions = self.sessions.unkept();
        if sessions.is_empty() {
            return;
        }
        self.keeping = true;
        let context = Arc::clone(&self.context);
        let kept = async move {
            context.store.until_ok("sessions", |store| store.keep_sessions(sessions.clone())).await;
            sessions
        };
        ctx.spawn(kept.into_actor(self).map(|sessions, actor, ctx| {
            actor.keeping = false;
            actor.sessions.on_kept(&sessions);
            // Sessions that started meanwhile do not wait for the next interval.
            if actor.sessions.have_new() {
                actor.keep(ctx);
            }
        }));
    }

    /// Reports backlog and session lag.
    fn count(&mut self) {
        let inbox = self.context.backlog.len();
        let interactions = self.context.pending_interactions();
        let events = (self.sessions.held() + self.sessions.undone() + inbox).saturating_sub(interactions);
        emit(EventGuildsCounted { active: self.context.load.guilds(), inbox, events, interactions });
        self.sessions.tell_lags();
    }
}

impl Actor for EventRouter {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Context<Self>) {
        if let Some(told) = self.told.take() {
            self.listen(told, ctx);
        }
        ctx.run_interval(self.context.config.keep_every, Self::keep);
        self.count();
        ctx.run_interval(COUNT_EVERY, |actor, _| actor.count());
        let context = Arc::clone(&self.context);
        ctx.spawn(async move { inbox::work(context).await }.into_actor(self));
    }
}

/// Adds a shard to this process.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub(crate) struct AttachShard {
    pub(crate) shard: u32,
    pub(crate) credit: Arc<Credit>,
    /// Its session, if there is one to resume.
    pub(crate) resumed: Option<ResumedSession>,
}

impl Handler<AttachShard> for EventRouter {
    type Result = ();

    fn handle(&mut self, take: AttachShard, _: &mut Context<Self>) {
        self.sessions.take(take);
    }
}

/// Removes a shard from this process.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "()")]
pub(crate) struct DetachShard {
    pub(crate) shard: u32,
}

impl Handler<DetachShard> for EventRouter {
    type Result = ();

    fn handle(&mut self, DetachShard { shard }: DetachShard, _: &mut Context<Self>) {
        self.sessions.let_go(shard);
    }
}

/// Handles an interaction that was received over HTTP.
#[derive(Clone, Debug, Message)]
#[rtype(result = "HttpInteractionResponse")]
pub(crate) struct HandleInteraction {
    pub(crate) event: Event,
}

impl Handler<HandleInteraction> for EventRouter {
    type Result = ResponseFuture<HttpInteractionResponse>;

    fn handle(&mut self, HandleInteraction { event }: HandleInteraction, _: &mut Context<Self>) -> Self::Result {
        Box::pin(interaction::handle(Arc::clone(&self.context), event))
    }
}

/// Reads the inbox now: it has new entries.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "()")]
pub(crate) struct WakeInbox;

impl Handler<WakeInbox> for EventRouter {
    type Result = ();

    fn handle(&mut self, _: WakeInbox, _: &mut Context<Self>) {
        self.context.backlog.wake();
    }
}

/// Returns the state of the event side.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "EventsSnapshot")]
pub(crate) struct ObserveEvents;

/// State of the event side of this process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct EventsSnapshot {
    /// Guilds with recent events.
    pub guilds: usize,
    /// Events that were received and are not handled.
    pub undone: usize,
    /// Events in the inbox.
    pub inbox: usize,
}

impl Handler<ObserveEvents> for EventRouter {
    type Result = actix::MessageResult<ObserveEvents>;

    fn handle(&mut self, _: ObserveEvents, _: &mut Context<Self>) -> Self::Result {
        let inbox = self.context.backlog.len();
        actix::MessageResult(EventsSnapshot {
            guilds: self.context.load.guilds(),
            undone: self.sessions.undone(),
            inbox,
        })
    }
}
