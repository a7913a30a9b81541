//! What becomes of interactions first; and those that came over HTTP, whose first answer goes back the way they came.
//!
//! ```text
//!  posted ─▶ some handler defers ─▶ inbox, kept ─▶ deferred (the inbox goes on with it)
//!        └─▶ none of them does ───▶ told at once ─▶ kept ─▶ its reply
//! ```

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use futures_util::future::{OptionFuture, join};
use guildhall_core::event::handler::{EventHandler, EventView, HandlerAction, body};
use guildhall_core::event::{Event, Interaction, InteractionKind};
use serde_json::{Value, json};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout_at};

use super::context::{EventContext, HandlerOutcome, lane_of};
use super::interaction_recorder::recorded_soon;
use super::state_keys::answered;
use crate::ports::{CommitResult, HandlerCommit, InboxKey, InitialResponse};
use crate::supervision::spawn_work;
use crate::telemetry::emit;
use crate::telemetry::events::{
    EventDelivered, EventHandled, HandlerRan, HandlingOutcome, InteractionAnswered, InteractionResponseFailed,
    ShadowHandlerRan,
};

/// Interactions over HTTP that may be under way at once.
const UNDER_WAY: usize = 512;

/// Interactions that were answered at once and are remembered, so that nobody hears of one twice.
const REMEMBERED: usize = 65_536;

/// What is answered to an interaction that came over HTTP.
#[derive(Clone, Debug, PartialEq)]
pub enum HttpInteractionResponse {
    /// This.
    Answer(InitialResponse),
    /// Nobody wants to hear of it, or nobody has an answer.
    Nobody,
    /// It cannot be taken now: the store does not answer in time, or too much waits already.
    Busy,
}

/// Interactions over HTTP that are under way, and those that were.
pub(crate) struct InteractionLimiter {
    room: Arc<Semaphore>,
    answered: Mutex<SeenInteractions>,
}

#[derive(Default)]
struct SeenInteractions {
    ids: HashSet<u64>,
    order: VecDeque<u64>,
}

impl Default for InteractionLimiter {
    fn default() -> Self {
        Self { room: Arc::new(Semaphore::new(UNDER_WAY)), answered: Mutex::default() }
    }
}

impl InteractionLimiter {
    /// Whether this is the first time, as far as this process remembers.
    fn is_first(&self, id: u64) -> bool {
        let mut answered = self.answered.lock().unwrap_or_else(PoisonError::into_inner);
        if !answered.ids.insert(id) {
            return false;
        }
        answered.order.push_back(id);
        if answered.order.len() > REMEMBERED
            && let Some(oldest) = answered.order.pop_front()
        {
            answered.ids.remove(&oldest);
        }
        true
    }
}

/// Whether Discord waits for the answer of this handler itself.
pub(crate) fn answers_at_once(hub: &EventContext, event: &Event, handler: &EventHandler) -> bool {
    event.interaction.as_ref().is_some_and(|interaction| match interaction.kind {
        InteractionKind::Autocomplete => true,
        InteractionKind::Command | InteractionKind::Component | InteractionKind::Modal => !hub.defers(handler),
    })
}

/// Whether an interaction is deferred that these handlers hear of.
pub(crate) fn deferral(
    hub: &EventContext,
    interaction: &Interaction,
    to: impl Iterator<Item = usize>,
) -> Option<InitialResponse> {
    if interaction.kind == InteractionKind::Autocomplete {
        return None;
    }
    let defer: Vec<_> = to.map(|number| hub.handler(number)).filter(|handler| hub.defers(handler)).collect();
    let ephemeral = defer.iter().any(|handler| hub.is_ephemeral(handler));
    defer.iter().any(|handler| !handler.shadow).then_some(InitialResponse::Deferred { ephemeral })
}

/// Takes an interaction that came over HTTP. What its handlers are told later is kept before this answers; nothing is lost
/// by a crash after Discord was told.
pub(crate) async fn take(hub: Arc<EventContext>, event: Event) -> HttpInteractionResponse {
    let deadline = Instant::now() + hub.config.answer_within;
    let Some(interaction) = event.interaction.clone() else { return HttpInteractionResponse::Nobody };
    let view = EventView::new(&event);
    let mut to = hub.matching(event.name.as_str());
    to.retain(|number| hub.handler(*number).wants(&view));
    drop(view);
    if to.is_empty() {
        return HttpInteractionResponse::Nobody;
    }
    let Ok(permit) = Arc::clone(&hub.door.room).try_acquire_owned() else { return busy("too many are under way") };
    emit(EventDelivered { event: &event, now: hub.clock.now() });
    let at_once = to.iter().all(|number| answers_at_once(&hub, &event, hub.handler(*number)));
    if at_once {
        if let Some(recording) = hub.record(std::iter::once(&event)) {
            recorded_soon(recording).await;
        }
        return tell(&hub, event, &interaction, &to, deadline, permit).await;
    }
    let first = deferral(&hub, &interaction, to.iter().copied());
    if hub.inbox_len() + to.len() > hub.config.inbox_most {
        return busy("too much waits in the inbox");
    }
    // It goes on although nobody waits for it: what was kept has to be counted.
    let putting = spawn_work(put(Arc::clone(&hub), event, to, permit));
    match timeout_at(deadline, putting).await {
        Ok(Ok(())) => {}
        Ok(Err(_)) => return busy("keeping it broke"),
        Err(_) => return busy("the store did not answer in time"),
    }
    match first {
        Some(first) => {
            emit(InteractionAnswered { how: "deferred" });
            HttpInteractionResponse::Answer(first)
        }
        None => HttpInteractionResponse::Nobody,
    }
}

fn busy(why: &str) -> HttpInteractionResponse {
    emit(InteractionResponseFailed { why });
    HttpInteractionResponse::Busy
}

/// Puts an event into the inbox, for each handler that is not done with it.
async fn put(hub: Arc<EventContext>, event: Event, to: Vec<usize>, permit: OwnedSemaphorePermit) {
    let written = body(&event, &BTreeMap::new());
    let entry = |number: &usize| hub.put(hub.entry(&event, hub.handler(*number), written.clone()));
    let entries: Vec<HandlerCommit> = to.iter().map(entry).collect();
    let keys: Vec<_> = entries.iter().map(|handled| handled.key.clone()).collect();
    // Another process looks after the events of its own guilds, and finds this one there.
    let (ours, lane) = (hub.own.has(&event), lane_of(&event));
    let expects = |(number, key): (&usize, &InboxKey)| ours && hub.expect(lane, *number, key, None);
    let expected: Vec<bool> = to.iter().zip(&keys).map(expects).collect();
    let recording = hub.recording(std::iter::once(&event));
    // The first of the two is written first, or with the other: a handler that takes the entry finds the interaction recorded.
    let (_, committed) = join(OptionFuture::from(recording), hub.commit(entries)).await;
    for (((number, key), is_new), committed) in to.iter().zip(&keys).zip(expected).zip(committed) {
        match committed {
            CommitResult::Done(_) => hub.on_put(),
            CommitResult::Before | CommitResult::Refused(_) if is_new => hub.on_taken(lane, *number, key),
            CommitResult::Before | CommitResult::Refused(_) => {}
        }
    }
    drop(permit);
}

/// Tells handlers one after the other; the first reply is the answer.
async fn tell(
    hub: &Arc<EventContext>,
    event: Event,
    interaction: &Interaction,
    to: &[usize],
    deadline: Instant,
    permit: OwnedSemaphorePermit,
) -> HttpInteractionResponse {
    if !hub.door.is_first(interaction.id) {
        emit(InteractionAnswered { how: "answered_before" });
        return HttpInteractionResponse::Answer(InitialResponse::Deferred { ephemeral: false });
    }
    let mut answer = None;
    let mut kept = Vec::new();
    for number in to {
        let handler = hub.handler(*number);
        let began = Instant::now();
        let ran = match timeout_at(deadline, run(hub, *number, &event, deadline)).await {
            Ok(ran) => ran,
            Err(_) => HandlerOutcome::Never { why: "it took longer than Discord waits for an answer".to_owned() },
        };
        emit(HandlerRan { meters: hub.meters(*number), took: began.elapsed() });
        let ran = match ran {
            HandlerOutcome::Gave(given) if handler.shadow => {
                emit(ShadowHandlerRan { handler: &handler.name, event: &event, given: &given });
                continue;
            }
            HandlerOutcome::Gave(mut given) => {
                let reply =
                    given.reply.take().map(|reply| InitialResponse::Whole(first_response(interaction.kind, reply)));
                answer = answer.or(reply);
                HandlerOutcome::Gave(given)
            }
            ran @ (HandlerOutcome::Passed | HandlerOutcome::Later { .. } | HandlerOutcome::Never { .. }) => ran,
        };
        kept.extend(hub.keeps(&event, *number, ran).map(|handled| (*number, handled)));
    }
    let keeping = spawn_work(keep(Arc::clone(hub), event, kept, permit));
    // Discord does not wait for the store.
    drop(timeout_at(deadline, keeping).await);
    match answer {
        Some(answer) => {
            emit(InteractionAnswered { how: "answered" });
            HttpInteractionResponse::Answer(answer)
        }
        None => HttpInteractionResponse::Nobody,
    }
}

async fn run(hub: &Arc<EventContext>, number: usize, event: &Event, deadline: Instant) -> HandlerOutcome {
    let (handler, view) = (hub.handler(number), EventView::new(event));
    let state = match hub.needs(handler, &view).await {
        Ok(Some(state)) => state,
        Ok(None) => {
            emit(EventHandled { meters: hub.meters(number), outcome: HandlingOutcome::Cooldown });
            return HandlerOutcome::Passed;
        }
        Err(why) => return HandlerOutcome::Never { why },
    };
    match &handler.does {
        HandlerAction::Rule(_) => hub.apply(handler, &view, &state),
        HandlerAction::Webhook(_) => {
            let within = deadline.saturating_duration_since(Instant::now());
            answered(handler, event, hub.ask(number, event, body(event, &state), within).await)
        }
    }
}

/// Keeps what handlers gave beside their replies.
async fn keep(hub: Arc<EventContext>, event: Event, kept: Vec<(usize, HandlerCommit)>, permit: OwnedSemaphorePermit) {
    let (numbers, items): (Vec<_>, Vec<_>) = kept.into_iter().unzip();
    let committed = hub.commit(items).await;
    let refused = numbers.into_iter().zip(committed).filter_map(|(number, committed)| match committed {
        // Whoever asked has been answered: to tell the handler again would be a surprise.
        CommitResult::Refused(error) => Some(hub.bury(&event, hub.handler(number), error.to_string(), 1)),
        CommitResult::Done(_) | CommitResult::Before => None,
    });
    let refused = refused.collect();
    hub.commit(refused).await;
    drop(permit);
}

/// A reply as Discord takes it: one that says its type is taken as it is.
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
