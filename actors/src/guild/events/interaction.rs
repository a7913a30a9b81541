//! First responses to interactions, and handling of interactions over HTTP, whose first response is the HTTP response.
//!
//! ```text
//!  request ─▶ a handler defers ─▶ stored in the inbox ─▶ deferred (the inbox continues)
//!         ├─▶ their cooldowns apply ─▶ text for the cooldown
//!         └─▶ no handler defers ─▶ handlers run ─▶ output stored ─▶ reply
//! ```

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::{OptionFuture, join};
use guildhall_core::event::handler::{EventHandler, EventView, body, trace};
use guildhall_core::event::{Event, Interaction, InteractionKind};
use serde_json::{Value, json};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout, timeout_at};

use super::context::EventContext;
use super::fallback::{FallbackReason, may_respond};
use super::handler_runner::{EventDisposition, HandlerOutcome, Retries};
use super::inbox::CONCURRENCY;
use super::inbox_entry::{commit_dead, commit_entry, inbox_entry, lane_of};
use super::interaction_recorder::wait_until_recorded;
use super::routed_event::{FirstResponse, FirstResponseFuture};
use crate::ports::{CommitResult, HandlerCommit, InboxKey, InitialResponse};
use crate::supervision::spawn_work;
use crate::supervisor::EventsConfig;
use crate::telemetry::emit;
use crate::telemetry::events::{
    EventDelivered, EventHandled, HandlingOutcome, InteractionAnswered, InteractionResponseFailed,
};

/// Maximum number of HTTP interactions in flight.
const MAX_IN_FLIGHT: usize = 512;

/// Maximum number of ids of answered interactions in memory. They prevent a second run of the handlers.
const MAX_REMEMBERED: usize = 65_536;

/// How long the store may take to read cooldowns before a deferral. Discord waits for it.
const COOLDOWN_TIMEOUT: Duration = Duration::from_millis(250);

/// Response to an interaction over HTTP.
#[derive(Clone, Debug, PartialEq)]
pub enum HttpInteractionResponse {
    /// This response.
    Respond(InitialResponse),
    /// No handler matches, or none has a response.
    NoResponse,
    /// It cannot be accepted now: the store does not respond in time, or too many interactions wait.
    Busy,
}

/// Bounds HTTP interactions in flight, and remembers those that were answered.
pub(crate) struct InteractionLimiter {
    permits: Arc<Semaphore>,
    seen: Mutex<SeenInteractions>,
}

#[derive(Default)]
struct SeenInteractions {
    ids: HashSet<u64>,
    order: VecDeque<u64>,
}

impl Default for InteractionLimiter {
    fn default() -> Self {
        Self { permits: Arc::new(Semaphore::new(MAX_IN_FLIGHT)), seen: Mutex::default() }
    }
}

impl InteractionLimiter {
    /// Whether this process sees the interaction for the first time, as far as it remembers.
    fn is_first(&self, id: u64) -> bool {
        let mut answered = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if !answered.ids.insert(id) {
            return false;
        }
        answered.order.push_back(id);
        if answered.order.len() > MAX_REMEMBERED
            && let Some(oldest) = answered.order.pop_front()
        {
            answered.ids.remove(&oldest);
        }
        true
    }
}

/// Whether Discord waits for this handler's response, because the interaction is not deferred.
pub(crate) fn responds_at_once(config: &EventsConfig, event: &Event, handler: &EventHandler) -> bool {
    event.interaction.as_ref().is_some_and(|interaction| match interaction.kind {
        InteractionKind::Autocomplete => true,
        InteractionKind::Command | InteractionKind::Component | InteractionKind::Modal => !config.defers(handler),
    })
}

/// The deferral of an interaction that is routed to these handlers, if one of them defers.
pub(crate) fn deferral(
    context: &EventContext,
    interaction: &Interaction,
    to: impl Iterator<Item = usize>,
) -> Option<InitialResponse> {
    if interaction.kind == InteractionKind::Autocomplete {
        return None;
    }
    let EventContext { handlers, config, .. } = context;
    let defer: Vec<_> = to.map(|number| handlers.handler(number)).filter(|handler| config.defers(handler)).collect();
    let ephemeral = defer.iter().any(|handler| config.is_ephemeral(handler));
    defer.iter().any(|handler| !handler.shadow).then_some(InitialResponse::Deferred { ephemeral })
}

/// Starts to send the first response to an interaction from the gateway, which is routed to these handlers, if one of them
/// defers.
pub(crate) fn start_first_response(
    context: &Arc<EventContext>,
    event: &Arc<Event>,
    to: &[usize],
) -> Option<FirstResponseFuture> {
    let interaction = event.interaction.as_ref()?;
    let deferral = deferral(context, interaction, to.iter().copied())?;
    let candidates = cooldown_candidates(context, interaction, to);
    let sent = if candidates.is_empty() {
        let sending = context.responder.respond(Arc::clone(interaction), deferral, trace(&event.origin));
        sending.map(|result| FirstResponse { result, cooling_down: Arc::default() }).boxed()
    } else {
        let (context, event, interaction) = (Arc::clone(context), Arc::clone(event), Arc::clone(interaction));
        async move {
            let (response, cooling_down) = match cooldown_text(&context, &event, &interaction, candidates).await {
                Some((text, cooling_down)) => (text, cooling_down),
                None => (deferral, Vec::new()),
            };
            let result = context.responder.respond(interaction, response, trace(&event.origin)).await;
            FirstResponse { result, cooling_down: cooling_down.into() }
        }
        .boxed()
    };
    Some(sent.shared())
}

/// Those of these handlers that may respond to an interaction, if each of them is deferred and has a cooldown: only then may
/// the text for a cooldown be the response.
fn cooldown_candidates(context: &EventContext, interaction: &Interaction, to: &[usize]) -> Vec<usize> {
    let EventContext { handlers, config, .. } = context;
    let may_respond = |number: &&usize| {
        let handler = handlers.handler(**number);
        !handler.shadow && may_respond(handler)
    };
    let candidates: Vec<usize> = to.iter().filter(may_respond).copied().collect();
    let have_cooldowns = candidates.iter().all(|number| {
        let handler = handlers.handler(*number);
        handler.has_cooldown() && config.defers(handler)
    });
    if interaction.kind == InteractionKind::Autocomplete || !have_cooldowns { Vec::new() } else { candidates }
}

/// The text for a cooldown as the first response, and the handlers that do not run, if the cooldowns of all candidates are
/// known in time to apply. Only the user sees it, which an edit of a public deferral could not achieve.
async fn cooldown_text(
    context: &EventContext,
    event: &Event,
    interaction: &Interaction,
    candidates: Vec<usize>,
) -> Option<(InitialResponse, Vec<usize>)> {
    if candidates.is_empty() {
        return None;
    }
    let text = context.fallbacks.immediate(interaction, FallbackReason::Cooldown)?;
    // Otherwise it is deferred, and the text edits the deferral.
    let apply = timeout(COOLDOWN_TIMEOUT, context.runner.are_cooling_down(&candidates, event)).await;
    apply.unwrap_or(false).then_some((InitialResponse::Immediate(text), candidates))
}

/// Reports that these handlers do not run, because their cooldowns apply.
pub(crate) fn skip_cooling_down(context: &EventContext, numbers: &[usize]) {
    for number in numbers {
        emit(EventHandled { meters: context.handlers.meters(*number), outcome: HandlingOutcome::Cooldown });
    }
    emit(InteractionAnswered { how: "fallback" });
}

/// Handles an interaction that came over HTTP. What handlers do later is stored before this returns, so a crash after the
/// response to Discord loses nothing.
pub(crate) async fn handle(context: Arc<EventContext>, event: Event) -> HttpInteractionResponse {
    let EventContext { handlers, config, .. } = &*context;
    let deadline = Instant::now() + config.response_timeout;
    let Some(interaction) = event.interaction.clone() else { return HttpInteractionResponse::NoResponse };
    let view = EventView::new(&event);
    let mut to = handlers.matching(event.name.as_str());
    to.retain(|number| handlers.handler(*number).accepts(&view));
    drop(view);
    if to.is_empty() {
        return HttpInteractionResponse::NoResponse;
    }
    let Ok(permit) = Arc::clone(&context.interactions.permits).try_acquire_owned() else {
        return busy("too many are in flight");
    };
    emit(EventDelivered { event: &event, now: context.clock.now() });
    if to.iter().all(|number| responds_at_once(config, &event, handlers.handler(*number))) {
        if let Some(recording) = context.recorder.start(std::iter::once(&event)) {
            wait_until_recorded(recording).await;
        }
        return respond(&context, event, &interaction, &to, deadline, permit).await;
    }
    let deferred = deferral(&context, &interaction, to.iter().copied());
    // A repeated interaction may have started the cooldown itself.
    let is_first = context.interactions.is_first(interaction.id);
    let candidates = if is_first { cooldown_candidates(&context, &interaction, &to) } else { Vec::new() };
    let text = cooldown_text(&context, &event, &interaction, candidates).await;
    if let Some((text, cooling_down)) = &text {
        to.retain(|number| !cooling_down.contains(number));
        if to.is_empty() {
            skip_cooling_down(&context, cooling_down);
            return HttpInteractionResponse::Respond(text.clone());
        }
    }
    if context.backlog.len() + to.len() > config.max_inbox {
        return busy("the inbox is full");
    }
    // It continues after a timeout: what was stored has to be counted.
    let storing = spawn_work(put_into_inbox(Arc::clone(&context), event, to, permit));
    match timeout_at(deadline, storing).await {
        Ok(Ok(())) => {}
        Ok(Err(_)) => return busy("storing it failed"),
        Err(_) => return busy("the store did not respond in time"),
    }
    match (text, deferred) {
        (Some((text, cooling_down)), _) => {
            skip_cooling_down(&context, &cooling_down);
            HttpInteractionResponse::Respond(text)
        }
        (None, Some(deferred)) => {
            emit(InteractionAnswered { how: "deferred" });
            HttpInteractionResponse::Respond(deferred)
        }
        (None, None) => HttpInteractionResponse::NoResponse,
    }
}

fn busy(reason: &str) -> HttpInteractionResponse {
    emit(InteractionResponseFailed { reason });
    HttpInteractionResponse::Busy
}

/// Puts an event into the inbox, for each of its handlers.
async fn put_into_inbox(context: Arc<EventContext>, event: Event, to: Vec<usize>, permit: OwnedSemaphorePermit) {
    let EventContext { handlers, backlog, .. } = &*context;
    let (written, now) = (body(&event, &BTreeMap::new()), context.clock.now());
    // The process that owns the event's guild finds it in the inbox.
    let (is_owned, lane) = (context.ownership.owns(&event), lane_of(&event));
    // Otherwise the inbox queues a fallback when it is needed.
    let may_wait = !is_owned || backlog.len() + to.len() > CONCURRENCY;
    let commit = |number: &usize| {
        let handler = handlers.handler(*number);
        let fallback = may_wait.then(|| context.fallbacks.unanswered(&event, handler)).flatten();
        commit_entry(inbox_entry(&event, handler, written.clone(), now), fallback)
    };
    let commits: Vec<HandlerCommit> = to.iter().map(commit).collect();
    let keys: Vec<_> = commits.iter().map(|commit| commit.key.clone()).collect();
    let add = |(number, key): (&usize, &InboxKey)| is_owned && backlog.add(lane, *number, key, None);
    let added: Vec<bool> = to.iter().zip(&keys).map(add).collect();
    let recording = context.recorder.prepare(std::iter::once(&event));
    // The recording is written first, or together with the entries: a handler that takes an entry finds it.
    let (_, committed) = join(OptionFuture::from(recording), context.committer.commit(commits)).await;
    for (((number, key), is_new), committed) in to.iter().zip(&keys).zip(added).zip(committed) {
        match committed {
            CommitResult::Done(_) => backlog.wake(),
            CommitResult::Skipped | CommitResult::Refused(_) if is_new => backlog.remove(lane, *number, key),
            CommitResult::Skipped | CommitResult::Refused(_) => {}
        }
    }
    drop(permit);
}

/// Runs the handlers one after the other. The first reply is the response.
async fn respond(
    context: &Arc<EventContext>,
    event: Event,
    interaction: &Interaction,
    to: &[usize],
    deadline: Instant,
    permit: OwnedSemaphorePermit,
) -> HttpInteractionResponse {
    if !context.interactions.is_first(interaction.id) {
        emit(InteractionAnswered { how: "answered_before" });
        return repeated_response(context, interaction);
    }
    let EventContext { handlers, runner, fallbacks, .. } = &**context;
    let (mut response, mut fallback) = (None, None);
    let mut commits = Vec::new();
    for number in to {
        let handler = handlers.handler(*number);
        let remaining = deadline.saturating_duration_since(Instant::now());
        let mut outcome = match timeout_at(deadline, runner.run(*number, &event, None, remaining)).await {
            Ok(outcome) => outcome,
            Err(_) => {
                HandlerOutcome::Permanent { reason: "it took longer than Discord waits for a response".to_owned() }
            }
        };
        if !handler.shadow {
            fallback = fallback.or_else(|| fallbacks.immediate(interaction, outcome.fallback_reason()?));
        }
        if let HandlerOutcome::Produced(output) = &mut outcome
            && !handler.shadow
        {
            let reply = output.reply.take();
            response =
                response.or(reply.map(|reply| InitialResponse::Immediate(first_response(interaction.kind, reply))));
        }
        let commit = match runner.decide(&event, *number, outcome, 1, Retries::Forbidden) {
            EventDisposition::Skipped(commit) => commit,
            EventDisposition::Finished(commit) => {
                emit(EventHandled { meters: handlers.meters(*number), outcome: HandlingOutcome::Handled });
                commit
            }
            EventDisposition::Retry { reason, fallback, .. } | EventDisposition::Dead { reason, fallback } => {
                Some(commit_dead(&event, handler, reason, 1, fallback, context.clock.now()))
            }
        };
        commits.extend(commit.map(|commit| (*number, commit)));
    }
    let storing = spawn_work(store_commits(Arc::clone(context), event, commits, permit));
    // Discord does not wait for the store.
    drop(timeout_at(deadline, storing).await);
    match (response, fallback) {
        (Some(response), _) => {
            emit(InteractionAnswered { how: "answered" });
            HttpInteractionResponse::Respond(response)
        }
        (None, Some(fallback)) => {
            emit(InteractionAnswered { how: "fallback" });
            HttpInteractionResponse::Respond(InitialResponse::Immediate(fallback))
        }
        (None, None) => HttpInteractionResponse::NoResponse,
    }
}

/// The response to an interaction that was answered before. It counts only if Discord did not receive the first one. It is
/// no deferral, because nothing would follow.
fn repeated_response(context: &EventContext, interaction: &Interaction) -> HttpInteractionResponse {
    let response = match interaction.kind {
        InteractionKind::Autocomplete => Some(first_response(interaction.kind, json!([]))),
        InteractionKind::Command | InteractionKind::Component | InteractionKind::Modal => {
            context.fallbacks.immediate(interaction, FallbackReason::Failed)
        }
    };
    response.map_or(HttpInteractionResponse::NoResponse, |response| {
        HttpInteractionResponse::Respond(InitialResponse::Immediate(response))
    })
}

/// Stores what handlers produced besides their replies.
async fn store_commits(
    context: Arc<EventContext>,
    event: Event,
    commits: Vec<(usize, HandlerCommit)>,
    permit: OwnedSemaphorePermit,
) {
    let (numbers, commits): (Vec<_>, Vec<_>) = commits.into_iter().unzip();
    let committed = context.committer.commit(commits).await;
    let refused = numbers.into_iter().zip(committed).filter_map(|(number, committed)| match committed {
        // The user has a response already: the handler does not run again.
        CommitResult::Refused(error) => {
            let handler = context.handlers.handler(number);
            Some(commit_dead(&event, handler, error.to_string(), 1, None, context.clock.now()))
        }
        CommitResult::Done(_) | CommitResult::Skipped => None,
    });
    let refused = refused.collect();
    context.committer.commit(refused).await;
    drop(permit);
}

/// A reply in Discord's format. A reply with a type is used unchanged.
pub(crate) fn first_response(kind: InteractionKind, reply: Value) -> Value {
    if reply.get("type").is_some_and(Value::is_number) && reply.get("data").is_some() {
        return reply;
    }
    match (kind, reply) {
        (InteractionKind::Autocomplete, Value::Array(choices)) => json!({ "type": 8, "data": { "choices": choices } }),
        (InteractionKind::Autocomplete, reply) => json!({ "type": 8, "data": reply }),
        (_, reply) if reply.get("custom_id").is_some() && reply.get("title").is_some() => {
            json!({ "type": 9, "data": reply })
        }
        (_, Value::String(content)) => json!({ "type": 4, "data": { "content": content } }),
        (_, reply) => json!({ "type": 4, "data": reply }),
    }
}
