//! The event side of a guild: its events go to their handlers one after the other.
//!
//! ```text
//!  mailbox ─▶ rules: applied at once, kept together ─────────────────────▶ done
//!     └──▶ webhook: asked ─ in time ─▶ kept ──────────────────────────▶ done
//!                         └ slow, or it failed ─▶ inbox, kept ────────▶ done (the inbox goes on with it)
//! ```

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use actix::{
    Actor, ActorFutureExt as _, Addr, AsyncContext as _, Context, Handler as Takes, Message, MessageResult, WeakAddr,
    WrapFuture as _,
};
use guildhall_core::event::Event;
use guildhall_core::event::handler::{EventHandler, EventView, HandlerAction, body, trace};
use serde::Serialize;
use tokio::task::consume_budget;
use tokio::time::{Instant, timeout};

use super::context::{EventContext, HandlerOutcome, WebhookTask, again_at};
use super::interaction::{answers_at_once, first_response};
use super::interaction_recorder::{RecordingFuture, recorded_soon};
use super::mailbox::GuildMailbox;
use super::routed_event::{DeferralFuture, QueuedEvent};
use super::state_keys::answered;
use crate::failpoint;
use crate::ports::{CommitResult, HandlerCommit, InitialResponse, ResponseResult, SubmitError};
use crate::supervision::Part;
use crate::supervisor::events::acks::AckBuffer;
use crate::supervisor::events::event_supervisor::{EventGuildExited, EventSupervisor};
use crate::telemetry::emit;
use crate::telemetry::events::{
    EventDelivered, EventHandled, EventPostponed, HandlerRan, HandlingOutcome, InteractionAnswered,
    InteractionResponseFailed, ShadowHandlerRan,
};

/// Events that are handled together at most.
const BATCH: usize = 64;

/// What a guild of events needs to begin.
pub(crate) struct GuildEventSpec {
    pub(crate) lane: i64,
    pub(crate) generation: u64,
    pub(crate) hub: Arc<EventContext>,
    pub(crate) tray: Rc<GuildMailbox>,
    pub(crate) outbox: Rc<AckBuffer>,
    pub(crate) seats: WeakAddr<EventSupervisor>,
}

impl GuildEventSpec {
    /// Runs the guild where the caller runs.
    #[expect(clippy::disallowed_methods, reason = "its supervisor restarts it")]
    pub(crate) fn run(self) -> Addr<GuildEventActor> {
        GuildEventActor::new(self).start()
    }
}

/// Handles the events of one guild, or of whatever else keeps them in order.
#[derive(Debug)]
pub struct GuildEventActor {
    worker: Rc<EventWorker>,
    _farewell: ExitNotifier,
}

/// Tells the event supervisor that a guild has ended, whatever the cause.
#[derive(Debug)]
struct ExitNotifier {
    lane: i64,
    generation: u64,
    seats: WeakAddr<EventSupervisor>,
}

impl Drop for ExitNotifier {
    fn drop(&mut self) {
        if let Some(seats) = self.seats.upgrade() {
            // Past the mailbox's bound if need be: there is one of these a guild, and it must not get lost.
            seats.do_send(EventGuildExited { lane: self.lane, generation: self.generation });
        }
    }
}

impl GuildEventActor {
    fn new(seat: GuildEventSpec) -> Self {
        let GuildEventSpec { lane, generation, hub, tray, outbox, seats } = seat;
        Self {
            worker: Rc::new(EventWorker { lane, hub, tray, outbox }),
            _farewell: ExitNotifier { lane, generation, seats },
        }
    }
}

impl Actor for GuildEventActor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Context<Self>) {
        let worker = Rc::clone(&self.worker);
        let work = async move { worker.work().await };
        ctx.spawn(work.into_actor(self).map(|(), _, ctx| actix::ActorContext::stop(ctx)));
    }
}

/// Show how it stands.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "GuildEventsSnapshot")]
pub struct ObserveGuildEvents;

/// How a guild of events stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct GuildEventsSnapshot {
    /// Which.
    pub lane: i64,
    /// Events that wait for it.
    pub waiting: usize,
}

impl Takes<ObserveGuildEvents> for GuildEventActor {
    type Result = MessageResult<ObserveGuildEvents>;

    fn handle(&mut self, _: ObserveGuildEvents, _: &mut Context<Self>) -> Self::Result {
        MessageResult(GuildEventsSnapshot { lane: self.worker.lane, waiting: self.worker.tray.len() })
    }
}

struct EventWorker {
    lane: i64,
    hub: Arc<EventContext>,
    tray: Rc<GuildMailbox>,
    outbox: Rc<AckBuffer>,
}

impl std::fmt::Debug for EventWorker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EventWorker").field("lane", &self.lane).finish_non_exhaustive()
    }
}

/// Events that were handled together, before what they gave is kept.
#[derive(Default)]
struct RuleBatch {
    /// How many, of those that wait.
    count: usize,
    /// What is to be kept, and of which of them.
    items: Vec<HandlerCommit>,
    whose: Vec<(usize, usize)>,
}

impl EventWorker {
    async fn work(&self) {
        while self.tray.filled().await {
            failpoint::message(Part::EventGuild);
            let round = self.apply_rules();
            if round.count > 0 {
                self.settle(round).await;
            } else if let Some(parcel) = self.first() {
                // Apart, so that a guild that waits for events does not hold the room that this needs.
                Box::pin(self.handle(&parcel)).await;
                emit(EventDelivered { event: parcel.event(), now: self.hub.clock.now() });
                self.outbox.put(&self.tray, 1);
            }
            // Others have their turn, too.
            consume_budget().await;
        }
    }

    fn first(&self) -> Option<QueuedEvent> {
        self.tray.waiting().front().cloned()
    }

    fn handler(&self, handler: usize) -> &EventHandler {
        self.hub.handler(handler)
    }

    /// Whether all its handlers are rules that need nothing but the event.
    fn is_simple(&self, parcel: &QueuedEvent) -> bool {
        parcel.event().interaction.is_none()
            && parcel.routed.to.iter().all(|handler| {
                let simple = self.handler(handler);
                matches!(simple.does, HandlerAction::Rule(_))
                    && !simple.needs_state()
                    && !self.hub.is_behind(self.lane, handler)
            })
    }

    /// What the rules of the first events have to keep, up to the first that needs more than its rules.
    fn apply_rules(&self) -> RuleBatch {
        let (mut round, waiting) = (RuleBatch::default(), self.tray.waiting());
        let mut began = Instant::now();
        for (place, parcel) in waiting.iter().take(BATCH).take_while(|parcel| self.is_simple(parcel)).enumerate() {
            let view = EventView::new(parcel.event());
            for number in parcel.routed.to.iter() {
                let handler = self.handler(number);
                // If this breaks the guild, it was this event and this handler.
                self.tray.executes(place, number);
                if handler.wants(&view) {
                    let ran = self.hub.apply(handler, &view, &BTreeMap::new());
                    if let Some(handled) = self.hub.keeps(parcel.event(), number, ran) {
                        round.items.push(handled);
                        round.whose.push((place, number));
                    }
                }
                let now = Instant::now();
                self.outbox.took(number, now.duration_since(began));
                began = now;
            }
            self.tray.rests();
            round.count += 1;
        }
        round
    }

    /// Keeps what several events have given, and lets go of them.
    async fn settle(&self, round: RuleBatch) {
        let RuleBatch { count, items, whose } = round;
        if !items.is_empty() {
            Box::pin(self.keep(items, whose)).await;
        }
        self.outbox.put(&self.tray, count);
    }

    async fn keep(&self, items: Vec<HandlerCommit>, whose: Vec<(usize, usize)>) {
        let (committed, mut told) = (self.hub.commit(items).await, None);
        for ((place, handler), committed) in whose.into_iter().zip(committed) {
            // They wait until all of this is over.
            let Some(event) = self.tray.event(place) else { continue };
            if told.replace(place) != Some(place) {
                emit(EventDelivered { event: &event, now: self.hub.clock.now() });
            }
            if let CommitResult::Refused(error) = committed {
                self.refused(handler, &event, &error).await;
            }
        }
    }

    /// Tells all handlers of one event, one after the other.
    async fn handle(&self, parcel: &QueuedEvent) {
        if let Some(deferring) = &parcel.routed.deferring {
            match DeferralFuture::clone(deferring).await {
                ResponseResult::Now | ResponseResult::Before => emit(InteractionAnswered { how: "deferred" }),
                ResponseResult::TooLate => {
                    // Nobody waits for it any more, and nobody can be answered.
                    emit(InteractionAnswered { how: "too_late" });
                    return;
                }
                // The answer may get through all the same.
                ResponseResult::Failed(why) => emit(InteractionResponseFailed { why: &why }),
            }
        }
        match (&parcel.routed.recording, &parcel.routed.deferring) {
            (Some(recording), Some(_)) => RecordingFuture::clone(recording).await,
            (Some(recording), None) => recorded_soon(RecordingFuture::clone(recording)).await,
            (None, _) => {}
        }
        for handler in parcel.routed.to.iter() {
            self.tell(parcel.event(), handler).await;
        }
    }

    /// Tells one handler.
    async fn tell(&self, event: &Event, number: usize) {
        // It is the first that waits. If this breaks the guild, it was this event and this handler.
        self.tray.executes(0, number);
        self.tell_one(event, number).await;
        self.tray.rests();
    }

    async fn tell_one(&self, event: &Event, number: usize) {
        let (handler, view) = (self.handler(number), EventView::new(event));
        if !handler.wants(&view) {
            return;
        }
        let is_synchronous = answers_at_once(&self.hub, event, handler);
        if !is_synchronous && self.hub.is_behind(self.lane, number) {
            let entry = self.hub.entry(event, handler, body(event, &BTreeMap::new()));
            return self.put_off(number, self.hub.put(entry), None).await;
        }
        let state = match self.hub.needs(handler, &view).await {
            Ok(Some(state)) => state,
            Ok(None) => {
                return emit(EventHandled { meters: self.hub.meters(number), outcome: HandlingOutcome::Cooldown });
            }
            Err(why) => return self.keep_one(number, event, Some(self.hub.bury(event, handler, why, 1))).await,
        };
        match &handler.does {
            HandlerAction::Rule(_) => {
                let began = Instant::now();
                let ran = self.hub.apply(handler, &view, &state);
                emit(HandlerRan { meters: self.hub.meters(number), took: began.elapsed() });
                if is_synchronous {
                    return self.answer(number, event, ran).await;
                }
                let kept = self.hub.keeps(event, number, ran);
                self.keep_one(number, event, kept).await;
            }
            HandlerAction::Webhook(_) => {
                let written = body(event, &state);
                let within = if is_synchronous { self.hub.config.answer_within } else { self.hub.config.within };
                let asking = self.hub.ask(number, event, written.clone(), within);
                if is_synchronous {
                    let began = Instant::now();
                    let ran = answered(handler, event, asking.await);
                    emit(HandlerRan { meters: self.hub.meters(number), took: began.elapsed() });
                    return self.answer(number, event, ran).await;
                }
                self.hear(number, event, written, asking).await;
            }
        }
    }

    /// Waits for a brain, but not for long.
    async fn hear(&self, number: usize, event: &Event, written: String, mut asking: WebhookTask) {
        let handler = self.handler(number);
        let began = Instant::now();
        let said = timeout(self.hub.config.slow, &mut asking).await;
        emit(HandlerRan { meters: self.hub.meters(number), took: began.elapsed() });
        let retry_after = match said {
            Err(_) => {
                let entry = self.hub.entry(event, handler, written);
                emit(EventPostponed { handler: &handler.name, event, why: "slow" });
                return self.put_off(number, self.hub.put(entry), Some(asking)).await;
            }
            Ok(said) => match answered(handler, event, said) {
                HandlerOutcome::Later { why, retry_after } => {
                    emit(EventPostponed { handler: &handler.name, event, why: &why });
                    retry_after
                }
                ran @ (HandlerOutcome::Gave(_) | HandlerOutcome::Passed | HandlerOutcome::Never { .. }) => {
                    let kept = self.hub.keeps(event, number, ran);
                    // A webhook has been told: that has to be known, though it gave nothing.
                    return self.keep_one(number, event, kept).await;
                }
            },
        };
        let mut entry = self.hub.entry(event, handler, written);
        entry.attempts = 1;
        entry.eligible_at = again_at(&self.hub, 1, retry_after);
        self.put_off(number, self.hub.put(entry), None).await;
    }

    /// Puts an event into the inbox, once there is room.
    async fn put_off(&self, handler: usize, handled: HandlerCommit, asking: Option<WebhookTask>) {
        loop {
            let room = self.hub.inbox_room.notified();
            if self.hub.inbox_len() < self.hub.config.inbox_most {
                break;
            }
            room.await;
        }
        let key = handled.key.clone();
        let is_new = self.hub.expect(self.lane, handler, &key, asking);
        let committed = self.hub.commit(vec![handled]).await;
        match committed.first() {
            Some(CommitResult::Done(_)) => self.hub.on_put(),
            Some(CommitResult::Before | CommitResult::Refused(_)) | None if is_new => {
                self.hub.on_taken(self.lane, handler, &key);
            }
            Some(CommitResult::Before | CommitResult::Refused(_)) | None => {}
        }
    }

    /// Keeps what one handler gave.
    async fn keep_one(&self, handler: usize, event: &Event, handled: Option<HandlerCommit>) {
        let committed = self.hub.commit(handled.into_iter().collect()).await;
        if let Some(CommitResult::Refused(error)) = committed.first() {
            self.refused(handler, event, error).await;
        }
    }

    /// The operations of a handler were not accepted: it is tried again later if that can help, else given up.
    async fn refused(&self, number: usize, event: &Event, error: &SubmitError) {
        let handler = self.handler(number);
        match error {
            SubmitError::Full { .. } | SubmitError::OverBound(_) | SubmitError::Store(_) => {
                emit(EventPostponed { handler: &handler.name, event, why: "refused" });
                let mut entry = self.hub.entry(event, handler, body(event, &BTreeMap::new()));
                (entry.attempts, entry.eligible_at) = (1, again_at(&self.hub, 1, None));
                self.put_off(number, self.hub.put(entry), None).await;
            }
            SubmitError::KeyReused { .. } | SubmitError::NoSuchOperation { .. } | SubmitError::NotYours { .. } => {
                let buried = self.hub.bury(event, handler, error.to_string(), 1);
                self.hub.commit(vec![buried]).await;
            }
        }
    }

    /// Answers an interaction at once, with what its handler replied.
    async fn answer(&self, number: usize, event: &Event, ran: HandlerOutcome) {
        let handler = self.handler(number);
        let Some(interaction) = event.interaction.clone() else { return };
        let mut given = match ran {
            HandlerOutcome::Gave(given) => given,
            HandlerOutcome::Passed => return,
            HandlerOutcome::Later { why, .. } | HandlerOutcome::Never { why } => {
                let buried = self.hub.bury(event, handler, why, 1);
                self.hub.commit(vec![buried]).await;
                return;
            }
        };
        if handler.shadow {
            emit(ShadowHandlerRan { handler: &handler.name, event, given: &given });
            return;
        }
        if let Some(reply) = given.reply.take() {
            let whole = InitialResponse::Whole(first_response(interaction.kind, reply));
            match self.hub.answers.tell(interaction, whole, trace(&event.origin)).await {
                ResponseResult::Now => emit(InteractionAnswered { how: "answered" }),
                ResponseResult::Before => emit(InteractionAnswered { how: "answered_before" }),
                ResponseResult::TooLate => emit(InteractionAnswered { how: "too_late" }),
                ResponseResult::Failed(why) => emit(InteractionResponseFailed { why: &why }),
            }
        }
        let kept = self.hub.keeps(event, number, HandlerOutcome::Gave(given));
        self.keep_one(number, event, kept).await;
    }
}
