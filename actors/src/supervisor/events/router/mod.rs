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
use guildhall_core::event::handler::EventView;
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
use crate::guild::events::routed_event::{FirstResponseFuture, GatewaySession, RoutedBatch, RoutedEvent};
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
const MAX_CACHED_NAMES: usize = 10_000;

/// How often to report backlog and lag.
const REPORT_INTERVAL: Duration = Duration::from_secs(5);

/// Routes events.
pub struct EventRouter {
    /// First field, so that its end is noticed before the ends of its dependents.
    _guard: PartGuard,
    context: Arc<EventContext>,
    messages: Option<mpsc::Receiver<ShardMessage>>,
    sessions: SessionTable,
    matching: HashMap<EventName, HandlerSet, RandomState>,
    /// Generation of the handlers in `matching`.
    generation: u64,
    /// Batches to send to the guilds next, and the channel for them.
    batches: Vec<RoutedBatch>,
    supervisor: mpsc::Sender<RoutedBatch>,
    /// Whether confirmed positions are being stored.
    saving: bool,
}

impl std::fmt::Debug for EventRouter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EventRouter").field("guilds", &self.context.load.guilds()).finish_non_exhaustive()
    }
}

impl EventRouter {
    pub(crate) fn new(
        context: Arc<EventContext>,
        messages: mpsc::Receiver<ShardMessage>,
        supervisor: mpsc::Sender<RoutedBatch>,
    ) -> Self {
        let sessions = SessionTable::new(Arc::clone(&context));
        let generation = context.handlers.generation();
        Self {
            _guard: PartGuard::new(Part::EventRouter),
            context,
            messages: Some(messages),
            sessions,
            matching: HashMap::default(),
            generation,
            batches: Vec::new(),
            supervisor,
            saving: false,
        }
    }

    /// Sends pending batches, then receives messages of shards, and repeats.
    fn listen(&mut self, mut receiver: mpsc::Receiver<ShardMessage>, ctx: &mut Context<Self>) {
        const BATCH_SIZE: usize = 16;
        let (batches, supervisor) = (std::mem::take(&mut self.batches), self.supervisor.clone());
        let receive = async move {
            for batch in batches {
                // The thread of the guilds is gone: the process is ending.
                let _ = supervisor.send(batch).await;
            }
            let mut messages = Vec::with_capacity(BATCH_SIZE);
            receiver.recv_many(&mut messages, BATCH_SIZE).await;
            (receiver, messages)
        };
        ctx.spawn(receive.into_actor(self).map(|(receiver, messages), actor, ctx| {
            if messages.is_empty() {
                return;
            }
            for message in messages {
                actor.on_message(message, ctx);
            }
            actor.listen(receiver, ctx);
        }));
    }

    fn on_message(&mut self, message: ShardMessage, ctx: &mut Context<Self>) {
        failpoint::message(Part::EventRouter);
        match message {
            ShardMessage::SessionStarted { shard, session, resume_url } => {
                self.start_session(shard, session, resume_url);
            }
            ShardMessage::Skipped { shard, session, seq } => {
                let Some(session) = self.sessions.current(shard, &session) else { return };
                let received = session.ledger().on_received(seq);
                self.check_gap(&session, received);
                session.ledger().on_done(seq);
                // A new session is stored at once: until then, a restart would have to start another session.
                if self.sessions.is_unsaved(shard) {
                    self.save_sessions(ctx);
                }
            }
            ShardMessage::Events(batch) => self.on_events(batch),
            // The waiter may have given up.
            ShardMessage::Ended { ack: reply } => drop(reply.send(())),
        }
    }

    /// A shard has started a new session.
    fn start_session(&mut self, shard: u32, id: Arc<str>, resume_url: Option<String>) {
        let Some(old) = self.sessions.start(shard, id, resume_url) else { return };
        // Events that Discord sent after the last received one are lost. Their number is unknown.
        let first = old.ledger().received() + 1;
        old.ledger().on_received(first);
        let mut routing = RoutingResult::new(&old, Instant::now(), 1);
        self.route_gap(first, None, &mut routing);
        self.finish_routing(routing);
    }

    /// Reports a gap before the received event, if there is one.
    fn check_gap(&mut self, session: &Arc<GatewaySession>, received: Receipt) {
        if let Receipt::AfterGap { first, last } = received {
            let mut routing = RoutingResult::new(session, Instant::now(), 1);
            self.route_gap(first, Some(last), &mut routing);
            self.finish_routing(routing);
        }
    }

    fn route_gap(&mut self, first: u64, last: Option<u64>, routing: &mut RoutingResult) {
        let session = Arc::clone(&routing.batch.read_batch.session);
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

    fn on_events(&mut self, batch: EventBatch) {
        let EventBatch { events, read_at } = batch;
        let Some(first) = events.first() else { return };
        let Some(session) = self.sessions.current(first.origin.shard, &first.origin.session) else {
            // The session is unknown, so none of its events can be confirmed.
            let bytes = events.iter().map(|event| event.text.bytes()).sum();
            if let Some(credit) = self.sessions.credit(first.origin.shard) {
                credit.release(events.len(), bytes);
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
            scope.set_event(event.origin.seq);
            match received {
                Receipt::Next => {}
                Receipt::Duplicate => {
                    routing.credit.add(&event);
                    continue;
                }
                Receipt::AfterGap { first, last } => self.route_gap(first, Some(last), &mut routing),
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
        self.finish_routing(routing);
    }

    fn matching(&mut self, name: &EventName) -> HandlerSet {
        let generation = self.context.handlers.generation();
        if std::mem::replace(&mut self.generation, generation) != generation {
            self.matching.clear();
        }
        if let Some(found) = self.matching.get(name) {
            return found.clone();
        }
        if self.matching.len() >= MAX_CACHED_NAMES {
            self.matching.clear();
        }
        let found = HandlerSet::from(self.context.handlers.matching(name.as_str()));
        self.matching.insert(name.clone(), found.clone());
        found
    }

    /// Finds the handlers of an event.
    fn route(&mut self, event: Arc<Event>, uses_credit: bool, routing: &mut RoutingResult) {
        let mut handlers = self.matching(&event.name);
        for handler in self.sessions.handled_before(&event.origin.session, event.origin.seq) {
            handlers.remove(handler);
        }
        let recording = routing.recording.as_ref().filter(|_| event.interaction.is_some());
        if handlers.is_empty() && recording.is_some() {
            routing.unhandled.push(event.origin.seq);
            if uses_credit {
                routing.unhandled_credit.add(&event);
            }
            return;
        }
        if handlers.is_empty() {
            routing.unmatched.push(event.origin.seq);
            if uses_credit {
                routing.credit.add(&event);
            }
            return;
        }
        let recording = recording.cloned().map(Box::new);
        let first_response = self.respond_first(&event, &handlers);
        routing.batch.routed.push(RoutedEvent { event, handlers, uses_credit, first_response, recording });
    }

    /// Queues the events with handlers for their guilds, and confirms the others.
    fn finish_routing(&mut self, mut routing: RoutingResult) {
        routing.confirm_recorded();
        let RoutingResult { batch, unmatched, credit, .. } = routing;
        batch.read_batch.session.complete(unmatched.into_iter(), credit);
        if !batch.routed.is_empty() {
            self.batches.push(batch);
        }
    }

    /// Defers an interaction at once, before anything else; or says that its cooldown applies.
    fn respond_first(&self, event: &Arc<Event>, handlers: &HandlerSet) -> Option<Box<FirstResponseFuture>> {
        event.interaction.as_ref()?;
        self.context.load.on_interaction_started();
        // A handler that rejects it by its conditions would never respond.
        let view = EventView::new(event);
        let accepts = |number: &usize| self.context.handlers.handler(*number).accepts(&view);
        let accepting: Vec<usize> = handlers.iter().filter(accepts).collect();
        let first = interaction::start_first_response(&self.context, event, &accepting)?;
        // It runs although nothing waits for it yet.
        spawn_work(first.clone().map(drop));
        Some(Box::new(first))
    }

    /// Stores confirmed positions that have changed.
    fn save_sessions(&mut self, ctx: &mut Context<Self>) {
        if self.saving {
            return;
        }
        let sessions = self.sessions.unsaved();
        if sessions.is_empty() {
            return;
        }
        self.saving = true;
        let context = Arc::clone(&self.context);
        let save = async move {
            context.store.until_ok("sessions", |store| store.save_sessions(sessions.clone())).await;
            sessions
        };
        ctx.spawn(save.into_actor(self).map(|sessions, actor, ctx| {
            actor.saving = false;
            actor.sessions.on_saved(&sessions);
            // Sessions that started meanwhile do not wait for the next interval.
            if actor.sessions.has_unsaved() {
                actor.save_sessions(ctx);
            }
        }));
    }

    /// Reports backlog and session lag.
    fn report_counts(&mut self) {
        let inbox = self.context.backlog.len();
        let interactions = self.context.pending_interactions();
        let events = (self.sessions.held() + self.sessions.pending() + inbox).saturating_sub(interactions);
        emit(EventGuildsCounted { active: self.context.load.guilds(), inbox, events, interactions });
        self.sessions.report_lags();
    }
}

impl Actor for EventRouter {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Context<Self>) {
        if let Some(messages) = self.messages.take() {
            self.listen(messages, ctx);
        }
        ctx.run_interval(self.context.config.save_interval, Self::save_sessions);
        self.report_counts();
        ctx.run_interval(REPORT_INTERVAL, |actor, _| actor.report_counts());
        let context = Arc::clone(&self.context);
        ctx.spawn(async move { inbox::run_loop(context).await }.into_actor(self));
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

    fn handle(&mut self, attach: AttachShard, _: &mut Context<Self>) {
        self.sessions.attach(attach);
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
        self.sessions.detach(shard);
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
            undone: self.sessions.pending(),
            inbox,
        })
    }
}
