//! The event side of a guild: passes its events to their handlers, one after the other.
//!
//! ```text
//!  mailbox ─▶ rules: applied at once, committed together ──────────────────────▶ acks
//!     └──▶ webhook or broker: called ─ in time ─▶ committed ────────────────────────▶ acks
//!                         └ slow, or failed ─▶ stored in the inbox ───────▶ acks (the inbox continues)
//! ```

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use actix::{
    Actor, ActorContext as _, ActorFutureExt as _, Addr, AsyncContext as _, Context, Handler, Message, MessageResult,
    WeakAddr, WrapFuture as _,
};
use guildhall_core::event::Event;
use guildhall_core::event::handler::{EventView, HandlerAction, body, trace};
use guildhall_core::time::UnixMs;
use serde::Serialize;
use tokio::task::consume_budget;
use tokio::time::{Instant, timeout};

use super::context::EventContext;
use super::handler_runner::{EventDisposition, HandlerOutcome, HandlerTask, Retries, StartedHandler, task_outcome};
use super::inbox_entry::{commit_dead, commit_entry, inbox_entry};
use super::interaction::{first_response, responds_at_once, skip_cooling_down};
use super::interaction_recorder::{RecordingFuture, wait_until_recorded};
use super::mailbox::GuildMailbox;
use super::routed_event::{FirstResponseFuture, QueuedEvent};
use crate::failpoint;
use crate::ports::{CommitResult, HandlerCommit, InitialResponse, NewOperation, ResponseResult, SubmitError};
use crate::supervision::Part;
use crate::supervisor::events::acks::AckBuffer;
use crate::supervisor::events::event_supervisor::EventSupervisor;
use crate::supervisor::exit_notifier::ExitNotifier;
use crate::telemetry::emit;
use crate::telemetry::events::{
    EventDelivered, EventHandled, EventPostponed, HandlerRan, HandlingOutcome, InteractionAnswered,
    InteractionResponseFailed,
};

/// The maximum number of events that are handled together.
const BATCH_SIZE: usize = 64;

/// What a guild needs to handle events.
pub(crate) struct GuildEventSpec {
    pub(crate) lane: i64,
    /// Distinguishes successive actors of one lane.
    pub(crate) generation: u64,
    pub(crate) context: Arc<EventContext>,
    pub(crate) mailbox: Rc<GuildMailbox>,
    pub(crate) acks: Rc<AckBuffer>,
    pub(crate) supervisor: WeakAddr<EventSupervisor>,
}

impl GuildEventSpec {
    /// Runs the guild on the current thread.
    #[expect(clippy::disallowed_methods, reason = "its supervisor restarts it")]
    pub(crate) fn run(self) -> Addr<GuildEventActor> {
        GuildEventActor::new(self).start()
    }
}

/// Handles the events of one lane: of a guild, an interaction, or a channel or user outside of guilds.
#[derive(Debug)]
pub struct GuildEventActor {
    worker: Rc<EventWorker>,
    _exit_notifier: ExitNotifier<EventSupervisor, i64>,
}

impl GuildEventActor {
    fn new(spec: GuildEventSpec) -> Self {
        let GuildEventSpec { lane, generation, context, mailbox, acks, supervisor } = spec;
        Self {
            worker: Rc::new(EventWorker { lane, context, mailbox, acks }),
            _exit_notifier: ExitNotifier::new(lane, generation, supervisor),
        }
    }
}

impl Actor for GuildEventActor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Context<Self>) {
        let worker = Rc::clone(&self.worker);
        let run = async move { worker.run().await };
        ctx.spawn(run.into_actor(self).map(|(), _, ctx| ctx.stop()));
    }
}

/// Returns the state of the guild.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "GuildEventsSnapshot")]
pub struct ObserveGuildEvents;

/// State of the event side of a guild.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct GuildEventsSnapshot {
    /// Its lane.
    pub lane: i64,
    /// Events in its mailbox.
    pub waiting: usize,
}

impl Handler<ObserveGuildEvents> for GuildEventActor {
    type Result = MessageResult<ObserveGuildEvents>;

    fn handle(&mut self, _: ObserveGuildEvents, _: &mut Context<Self>) -> Self::Result {
        MessageResult(GuildEventsSnapshot { lane: self.worker.lane, waiting: self.worker.mailbox.len() })
    }
}

struct EventWorker {
    lane: i64,
    context: Arc<EventContext>,
    mailbox: Rc<GuildMailbox>,
    acks: Rc<AckBuffer>,
}

impl std::fmt::Debug for EventWorker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EventWorker").field("lane", &self.lane).finish_non_exhaustive()
    }
}

/// Events whose rules were applied together, before the output is committed.
#[derive(Default)]
struct RuleBatch {
    /// How many events from the front of the mailbox.
    count: usize,
    commits: Vec<HandlerCommit>,
    /// For each commit, the position of its event in the mailbox and its handler.
    origins: Vec<(usize, usize)>,
}

impl EventWorker {
    async fn run(&self) {
        while self.mailbox.wait_for_event().await {
            failpoint::message(Part::EventGuild);
            let batch = self.apply_rules();
            if batch.count > 0 {
                self.finish_batch(batch).await;
            } else if let Some(queued) = self.first() {
                // Boxed, so that a guild that waits for events does not hold the memory that this needs.
                Box::pin(self.handle(&queued)).await;
                emit(EventDelivered { event: queued.event(), now: self.now() });
                self.acks.complete(&self.mailbox, 1);
            }
            // Lets other guilds of this thread run.
            consume_budget().await;
        }
    }

    fn now(&self) -> UnixMs {
        self.context.clock.now()
    }

    fn first(&self) -> Option<QueuedEvent> {
        self.mailbox.waiting().front().cloned()
    }

    /// Whether all its handlers are rules that need nothing but the event.
    fn is_simple(&self, queued: &QueuedEvent) -> bool {
        queued.event().interaction.is_none()
            && queued.routed.handlers.iter().all(|number| {
                let handler = self.context.handlers.handler(number);
                matches!(handler.action, HandlerAction::Rule(_))
                    && !handler.needs_state()
                    && !self.context.backlog.is_waiting(self.lane, number)
            })
    }

    /// Applies the rules of the first events, up to the first event that is not simple.
    fn apply_rules(&self) -> RuleBatch {
        let (mut batch, waiting) = (RuleBatch::default(), self.mailbox.waiting());
        let runner = &self.context.runner;
        let mut started = Instant::now();
        for (position, queued) in
            waiting.iter().take(BATCH_SIZE).take_while(|queued| self.is_simple(queued)).enumerate()
        {
            let view = EventView::new(queued.event());
            for number in queued.routed.handlers.iter() {
                let handler = self.context.handlers.handler(number);
                // If the guild panics now, this event and this handler are the cause.
                self.mailbox.set_executing(position, number);
                if handler.accepts(&view) {
                    let outcome = runner.apply_rule(handler, &view, &BTreeMap::new());
                    let disposition = runner.decide(queued.event(), number, outcome, 1, Retries::Allowed);
                    if let Some(commit) = self.commit_of(number, queued.event(), disposition) {
                        batch.commits.push(commit);
                        batch.origins.push((position, number));
                    }
                }
                let now = Instant::now();
                self.acks.elapsed(number, now.duration_since(started));
                started = now;
            }
            self.mailbox.clear_executing();
            batch.count += 1;
        }
        batch
    }

    /// What has to be stored for a disposition. A retry is not expected of a rule, and stored as a dead event.
    fn commit_of(&self, number: usize, event: &Event, disposition: EventDisposition) -> Option<HandlerCommit> {
        match disposition {
            EventDisposition::Skipped(commit) => commit,
            EventDisposition::Finished(commit) => {
                let meters = self.context.handlers.meters(number);
                emit(EventHandled { meters, outcome: HandlingOutcome::Handled });
                commit
            }
            EventDisposition::Retry { reason, fallback, .. } | EventDisposition::Dead { reason, fallback } => {
                Some(commit_dead(event, self.context.handlers.handler(number), reason, 1, fallback, self.now()))
            }
        }
    }

    /// Commits the output of a batch, and removes its events from the mailbox.
    async fn finish_batch(&self, batch: RuleBatch) {
        let RuleBatch { count, commits, origins } = batch;
        if !commits.is_empty() {
            Box::pin(self.commit_batch(commits, origins)).await;
        }
        self.acks.complete(&self.mailbox, count);
    }

    async fn commit_batch(&self, commits: Vec<HandlerCommit>, origins: Vec<(usize, usize)>) {
        let (committed, mut reported) = (self.context.committer.commit(commits).await, None);
        for ((position, number), committed) in origins.into_iter().zip(committed) {
            // The events stay in the mailbox until all of this is finished.
            let Some(event) = self.mailbox.event(position) else { continue };
            if reported.replace(position) != Some(position) {
                emit(EventDelivered { event: &event, now: self.now() });
            }
            if let CommitResult::Refused(error) = committed {
                self.on_refused(number, &event, &error).await;
            }
        }
    }

    /// Runs all handlers of one event, one after the other.
    async fn handle(&self, queued: &QueuedEvent) {
        let mut cooling_down = Arc::default();
        if let Some(first) = &queued.routed.first_response {
            let first = FirstResponseFuture::clone(first).await;
            match first.result {
                ResponseResult::Sent if !first.cooling_down.is_empty() => {
                    skip_cooling_down(&self.context, &first.cooling_down);
                    cooling_down = first.cooling_down;
                }
                // The other response may be a deferral of an earlier process: the handlers decide.
                ResponseResult::AlreadySent if !first.cooling_down.is_empty() => {
                    emit(InteractionAnswered { how: "answered_before" });
                }
                ResponseResult::Sent | ResponseResult::AlreadySent => emit(InteractionAnswered { how: "deferred" }),
                ResponseResult::Expired => {
                    // The interaction has expired: no response can reach the user any more.
                    emit(InteractionAnswered { how: "too_late" });
                    return;
                }
                // The response may succeed all the same.
                ResponseResult::Failed(reason) => emit(InteractionResponseFailed { reason: &reason }),
            }
        }
        match (&queued.routed.recording, &queued.routed.first_response) {
            (Some(recording), Some(_)) => RecordingFuture::clone(recording).await,
            (Some(recording), None) => wait_until_recorded(RecordingFuture::clone(recording)).await,
            (None, _) => {}
        }
        let is_only = queued.routed.handlers.iter().count() == 1;
        for number in queued.routed.handlers.iter().filter(|number| !cooling_down.contains(number)) {
            // It is the first event of the mailbox. If the guild panics now, this event and this handler are the cause.
            self.mailbox.set_executing(0, number);
            self.run_handler(queued.event(), number, is_only).await;
            self.mailbox.clear_executing();
        }
    }

    /// Runs a handler. `is_only`: no other handler may respond to the event.
    async fn run_handler(&self, event: &Event, number: usize, is_only: bool) {
        let EventContext { handlers, runner, config, .. } = &*self.context;
        let handler = handlers.handler(number);
        if !handler.accepts(&EventView::new(event)) {
            return;
        }
        let at_once = responds_at_once(config, event, handler);
        if !at_once && self.context.backlog.is_waiting(self.lane, number) {
            let entry = inbox_entry(event, handler, body(event, &BTreeMap::new()), self.now());
            return self.put_into_inbox(number, commit_entry(entry, self.pending_fallback(number, event)), None).await;
        }
        let timeout = if at_once { config.response_timeout } else { config.webhook_timeout };
        let outcome = match runner.start(number, event, None, timeout).await {
            StartedHandler::Finished(outcome) => outcome,
            StartedHandler::Calling { call, .. } if at_once => runner.finish_call(number, event, call).await,
            StartedHandler::Calling { call, body } => return self.wait_for_task(number, event, body, call).await,
        };
        if at_once {
            return self.respond(number, event, outcome, is_only).await;
        }
        let disposition = runner.decide(event, number, outcome, 1, Retries::Allowed);
        self.store_disposition(number, event, disposition, None).await;
    }

    /// Waits for a webhook or the broker, but not for long: a slow one continues in the inbox.
    async fn wait_for_task(&self, number: usize, event: &Event, body: String, mut call: HandlerTask) {
        let EventContext { handlers, runner, config, .. } = &*self.context;
        let handler = handlers.handler(number);
        let started = Instant::now();
        let response = timeout(config.event_timeout(event), &mut call).await;
        emit(HandlerRan { meters: handlers.meters(number), elapsed: started.elapsed() });
        let Ok(response) = response else {
            emit(EventPostponed { handler: &handler.name, event, reason: "slow" });
            let entry = inbox_entry(event, handler, body, self.now());
            let commit = commit_entry(entry, self.pending_fallback(number, event));
            return self.put_into_inbox(number, commit, Some(call)).await;
        };
        let outcome = task_outcome(handler, event, response);
        let disposition = runner.decide(event, number, outcome, 1, Retries::Allowed);
        self.store_disposition(number, event, disposition, Some(body)).await;
    }

    /// Stores what became of an event after the first run of a handler. `written` is its body, if there is one already.
    async fn store_disposition(
        &self,
        number: usize,
        event: &Event,
        disposition: EventDisposition,
        written: Option<String>,
    ) {
        if let EventDisposition::Retry { at, fallback, .. } = disposition {
            let handler = self.context.handlers.handler(number);
            let body = written.unwrap_or_else(|| body(event, &BTreeMap::new()));
            let mut entry = inbox_entry(event, handler, body, self.now());
            (entry.attempts, entry.eligible_at) = (1, at);
            return self.put_into_inbox(number, commit_entry(entry, fallback), None).await;
        }
        let commit = self.commit_of(number, event, disposition);
        let committed = self.context.committer.commit(commit.into_iter().collect()).await;
        if let Some(CommitResult::Refused(error)) = committed.first() {
            self.on_refused(number, event, error).await;
        }
    }

    /// The operations of a handler were not accepted.
    async fn on_refused(&self, number: usize, event: &Event, error: &SubmitError) {
        let disposition = self.context.runner.decide_refused(event, number, error, 1, Retries::Allowed);
        // Boxed, as a dead event is committed again. That has no operations, so it is not refused.
        Box::pin(self.store_disposition(number, event, disposition, None)).await;
    }

    /// The fallback of an interaction that waits for its handler in the inbox.
    fn pending_fallback(&self, number: usize, event: &Event) -> Option<Box<NewOperation>> {
        let EventContext { handlers, fallbacks, .. } = &*self.context;
        fallbacks.unanswered(event, handlers.handler(number))
    }

    /// Puts an event into the inbox, once there is room.
    async fn put_into_inbox(&self, number: usize, commit: HandlerCommit, call: Option<HandlerTask>) {
        let EventContext { backlog, committer, config, .. } = &*self.context;
        backlog.has_room(config.max_inbox).await;
        let key = commit.key.clone();
        let is_new = backlog.add(self.lane, number, &key, call);
        let committed = committer.commit(vec![commit]).await;
        match committed.first() {
            Some(CommitResult::Done(_)) => backlog.wake(),
            Some(CommitResult::Skipped | CommitResult::Refused(_)) | None if is_new => {
                backlog.remove(self.lane, number, &key);
            }
            Some(CommitResult::Skipped | CommitResult::Refused(_)) | None => {}
        }
    }

    /// Responds to an interaction at once, with its handler's reply, or with the fallback.
    async fn respond(&self, number: usize, event: &Event, mut outcome: HandlerOutcome, is_only: bool) {
        let EventContext { handlers, fallbacks, responder, .. } = &*self.context;
        let handler = handlers.handler(number);
        let Some(interaction) = event.interaction.clone() else { return };
        let (response, how) = match &mut outcome {
            _ if handler.shadow => (None, "answered"),
            HandlerOutcome::Produced(output) => {
                (output.reply.take().map(|reply| first_response(interaction.kind, reply)), "answered")
            }
            HandlerOutcome::Published { .. } => (None, "published"),
            failed if is_only => {
                let fallback = failed.fallback_reason().and_then(|reason| fallbacks.immediate(&interaction, reason));
                (fallback, "fallback")
            }
            HandlerOutcome::CoolingDown
            | HandlerOutcome::Unavailable { .. }
            | HandlerOutcome::Retryable { .. }
            | HandlerOutcome::Permanent { .. } => (None, "fallback"),
        };
        if let Some(response) = response {
            match responder.respond(interaction, InitialResponse::Immediate(response), trace(&event.origin)).await {
                ResponseResult::Sent => emit(InteractionAnswered { how }),
                ResponseResult::AlreadySent => emit(InteractionAnswered { how: "answered_before" }),
                ResponseResult::Expired => emit(InteractionAnswered { how: "too_late" }),
                ResponseResult::Failed(reason) => emit(InteractionResponseFailed { reason: &reason }),
            }
        }
        let disposition = self.context.runner.decide(event, number, outcome, 1, Retries::Forbidden);
        self.store_disposition(number, event, disposition, None).await;
    }
}
