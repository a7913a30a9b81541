//! Runs handlers, and decides by their outcome what becomes of the event.
//!
//! ```text
//!  event ─▶ state, cooldown ─▶ rule, webhook or broker ─▶ HandlerOutcome ─▶ EventDisposition
//! ```
//!
//! A guild, the inbox and interactions over HTTP run handlers through this, and differ only in where they store the
//! disposition.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use guildhall_core::backoff::Backoff;
use guildhall_core::event::Event;
use guildhall_core::event::handler::{EventHandler, EventView, HandlerAction, RuleOutput, body, event_id, trace};
use guildhall_core::state_key::COOLDOWN;
use guildhall_core::time::UnixMs;
use guildhall_core::trace::TraceContext;
use serde_json::{Map, Value, json};
use tokio::task::{JoinError, JoinHandle};
use tokio::time::Instant;

use super::durable_store::DurableEventStore;
use super::fallback::{FallbackReason, InteractionFallbacks};
use super::inbox_entry::inbox_key;
use super::publisher::{PublishResult, Publisher};
use super::registry::HandlerRegistry;
use super::state_keys::{template_error, webhook_outcome};
use crate::ports::{
    HandlerCommit, NewOperation, PublishError, StateWrite, SubmitError, WebhookBody, WebhookCall, WebhookCallError,
    WebhookResponse,
};
use crate::submission::OperationService;
use crate::supervision::spawn_work;
use crate::supervisor::EventsConfig;
use crate::telemetry::emit;
use crate::telemetry::events::{
    EventHandled, EventPostponed, HandlerProduced, HandlerRan, HandlingOutcome, ShadowHandlerRan,
};
use crate::wall_clock::WallClock;

/// A webhook call or a publish in flight.
pub(crate) type HandlerTask = JoinHandle<HandlerTaskResult>;

/// Result of what ran in a task.
#[derive(Debug)]
pub(crate) enum HandlerTaskResult {
    Webhook(Result<WebhookResponse, WebhookCallError>),
    Publish(PublishResult),
}

/// The outcome of a task, which may have panicked.
pub(crate) fn task_outcome(
    handler: &EventHandler,
    event: &Event,
    result: Result<HandlerTaskResult, JoinError>,
) -> HandlerOutcome {
    match result {
        Ok(HandlerTaskResult::Webhook(response)) => webhook_outcome(handler, event, response),
        Ok(HandlerTaskResult::Publish(Ok(position))) => HandlerOutcome::Published { position },
        Ok(HandlerTaskResult::Publish(Err(PublishError { reason, retry_after }))) => {
            HandlerOutcome::Unavailable { reason, retry_after }
        }
        Err(error) => HandlerOutcome::Retryable { reason: format!("the call failed: {error}"), retry_after: None },
    }
}

/// Delays between attempts to publish an event that the broker did not accept.
const BROKER_BACKOFF: Backoff = Backoff { base: Duration::from_millis(250), cap: Duration::from_secs(5), jitter: 0.3 };

/// Result of running a handler.
#[derive(Debug, PartialEq)]
pub(crate) enum HandlerOutcome {
    /// It produced this.
    Produced(RuleOutput),
    /// The broker has confirmed the event. Its position in its stream, to be stored with that.
    Published { position: Option<StateWrite> },
    /// Its cooldown has not ended.
    CoolingDown,
    /// The broker cannot accept the event now. It is tried again until it can: no attempt is used up.
    Unavailable { reason: String, retry_after: Duration },
    /// It failed, and may succeed later.
    Retryable { reason: String, retry_after: Option<Duration> },
    /// It would fail again.
    Permanent { reason: String },
}

impl HandlerOutcome {
    /// Why the user gets a fallback instead of a response.
    pub(crate) const fn fallback_reason(&self) -> Option<FallbackReason> {
        match self {
            Self::Produced(_) | Self::Published { .. } => None,
            Self::CoolingDown => Some(FallbackReason::Cooldown),
            Self::Retryable { .. } | Self::Unavailable { .. } => Some(FallbackReason::Unavailable),
            Self::Permanent { .. } => Some(FallbackReason::Failed),
        }
    }
}

/// A handler that was started.
pub(crate) enum StartedHandler {
    Finished(HandlerOutcome),
    /// Its webhook is being called, or the event is being published, with this body.
    Calling {
        call: HandlerTask,
        body: String,
    },
}

/// Whether a handler may run again for the same event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Retries {
    Allowed,
    /// Never: Discord waits for the response now.
    Forbidden,
}

/// What becomes of an event for one handler.
#[derive(Debug)]
pub(crate) enum EventDisposition {
    /// The handler has finished with it. This must be stored.
    Finished(Option<HandlerCommit>),
    /// The handler did nothing. What must be stored all the same, if anything.
    Skipped(Option<HandlerCommit>),
    /// The handler runs again at this time.
    Retry { at: UnixMs, reason: String, fallback: Option<Box<NewOperation>> },
    /// The event becomes a dead event of this handler.
    Dead { reason: String, fallback: Option<Box<NewOperation>> },
}

/// Runs handlers and decides what becomes of their events.
pub(crate) struct HandlerRunner {
    handlers: Arc<HandlerRegistry>,
    publisher: Publisher,
    store: DurableEventStore,
    operations: Arc<OperationService>,
    fallbacks: Arc<InteractionFallbacks>,
    clock: WallClock,
    config: EventsConfig,
}

impl HandlerRunner {
    pub(crate) fn new(
        handlers: Arc<HandlerRegistry>,
        publisher: Publisher,
        store: DurableEventStore,
        operations: Arc<OperationService>,
        fallbacks: Arc<InteractionFallbacks>,
        clock: WallClock,
        config: EventsConfig,
    ) -> Self {
        Self { handlers, publisher, store, operations, fallbacks, clock, config }
    }

    /// Runs a handler to its end. `stored` is the body of the event as it was put into the inbox.
    pub(crate) async fn run(
        &self,
        number: usize,
        event: &Event,
        stored: Option<&str>,
        timeout: Duration,
    ) -> HandlerOutcome {
        match self.start(number, event, stored, timeout).await {
            StartedHandler::Finished(outcome) => outcome,
            StartedHandler::Calling { call, .. } => self.finish_call(number, event, call).await,
        }
    }

    /// Whether a handler can run now: a handler for the broker waits while it is unavailable.
    pub(crate) fn can_run(&self, number: usize) -> bool {
        !publishes(self.handlers.handler(number)) || self.publisher.is_available()
    }

    /// Waits until handlers for the broker can run.
    pub(crate) async fn wait_for_broker(&self) {
        self.publisher.wait_until_available().await;
    }

    /// Runs a rule to its end, or starts to call a webhook or to publish.
    pub(crate) async fn start(
        &self,
        number: usize,
        event: &Event,
        stored: Option<&str>,
        timeout: Duration,
    ) -> StartedHandler {
        let (handler, view) = (self.handlers.handler(number), EventView::new(event));
        let state = match self.load_state(handler, &view).await {
            Ok(Some(state)) => state,
            Ok(None) => {
                emit(EventHandled { meters: self.handlers.meters(number), outcome: HandlingOutcome::Cooldown });
                return StartedHandler::Finished(HandlerOutcome::CoolingDown);
            }
            Err(reason) => return StartedHandler::Finished(HandlerOutcome::Permanent { reason }),
        };
        match &handler.action {
            HandlerAction::Rule(_) => {
                let started = Instant::now();
                let outcome = self.apply_rule(handler, &view, &state);
                emit(HandlerRan { meters: self.handlers.meters(number), elapsed: started.elapsed() });
                StartedHandler::Finished(outcome)
            }
            // What is in shadow is not published.
            HandlerAction::Broker if handler.shadow => {
                StartedHandler::Finished(HandlerOutcome::Produced(RuleOutput::default()))
            }
            HandlerAction::Webhook(_) | HandlerAction::Broker => {
                if !self.can_run(number) {
                    let PublishError { reason, retry_after } = Publisher::unavailable();
                    return StartedHandler::Finished(HandlerOutcome::Unavailable { reason, retry_after });
                }
                // It may have been put into the inbox before its state was read.
                let stored = stored.filter(|_| state.is_empty()).map(ToOwned::to_owned);
                let body = stored.unwrap_or_else(|| body(event, &state));
                let call = match &handler.action {
                    HandlerAction::Broker => self.publisher.start(event, handler, &body),
                    HandlerAction::Webhook(_) | HandlerAction::Rule(_) => {
                        self.call_webhook(number, event, body.clone(), timeout)
                    }
                };
                StartedHandler::Calling { call, body }
            }
        }
    }

    /// Waits for a webhook call or a publish.
    pub(crate) async fn finish_call(&self, number: usize, event: &Event, call: HandlerTask) -> HandlerOutcome {
        let started = Instant::now();
        let outcome = task_outcome(self.handlers.handler(number), event, call.await);
        emit(HandlerRan { meters: self.handlers.meters(number), elapsed: started.elapsed() });
        outcome
    }

    /// Applies a rule.
    pub(crate) fn apply_rule(
        &self,
        handler: &EventHandler,
        view: &EventView<'_>,
        state: &BTreeMap<String, Value>,
    ) -> HandlerOutcome {
        match &handler.action {
            HandlerAction::Rule(rule) => match rule.apply(view, state) {
                Ok(output) => HandlerOutcome::Produced(output),
                Err(error) => {
                    HandlerOutcome::Permanent { reason: template_error(handler, view.event(), "set", &error) }
                }
            },
            HandlerAction::Webhook(_) | HandlerAction::Broker => {
                HandlerOutcome::Permanent { reason: "it is not a rule".to_owned() }
            }
        }
    }

    /// The stored values that a handler needs; nothing if its cooldown has not ended.
    async fn load_state(
        &self,
        handler: &EventHandler,
        view: &EventView<'_>,
    ) -> Result<Option<BTreeMap<String, Value>>, String> {
        let mut keys =
            handler.needed_keys(view).map_err(|error| template_error(handler, view.event(), "needs", &error))?;
        let cooldown = handler.cooldown_key(view).map_err(|error| error.to_string())?;
        let needed = keys.len();
        keys.extend(cooldown.map(|key| cooldown_key(handler, &key)));
        if keys.is_empty() {
            return Ok(Some(BTreeMap::new()));
        }
        let now = self.clock.now();
        let values = self.read_values(keys.clone(), now).await;
        if values.len() > needed && values[needed].is_some() {
            return Ok(None);
        }
        let parse = |text: String| serde_json::from_str(&text).unwrap_or(Value::String(text));
        Ok(Some(
            keys.into_iter()
                .zip(values)
                .take(needed)
                .map(|(key, value)| (key, value.map_or(Value::Null, parse)))
                .collect(),
        ))
    }

    /// Whether the cooldowns of all these handlers apply to an event.
    pub(crate) async fn are_cooling_down(&self, numbers: &[usize], event: &Event) -> bool {
        let keys = {
            let view = EventView::new(event);
            let key = |number: &usize| {
                let handler = self.handlers.handler(*number);
                Some(cooldown_key(handler, &handler.cooldown_key(&view).ok()??))
            };
            numbers.iter().map(key).collect::<Option<Vec<_>>>()
        };
        // A handler whose key has no value fails when it runs.
        let Some(keys) = keys else { return false };
        let now = self.clock.now();
        let values = self.store.until_ok("values", |store| store.values(keys.clone(), now)).await;
        values.len() == keys.len() && values.iter().all(Option::is_some)
    }

    /// Reads stored values in a task of its own: the inbox does not poll its handlers while it reads entries, and a read that
    /// is not polled would keep a connection that this needs.
    async fn read_values(&self, keys: Vec<String>, now: UnixMs) -> Vec<Option<String>> {
        let store = self.store.clone();
        let read = spawn_work(async move { store.until_ok("values", |store| store.values(keys.clone(), now)).await });
        match read.await {
            Ok(values) => values,
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            // The runtime is shutting down.
            Err(_) => std::future::pending().await,
        }
    }

    fn call_webhook(&self, number: usize, event: &Event, body: String, timeout: Duration) -> HandlerTask {
        let slot = self.handlers.slot(number);
        let (handler, brain) = (slot.handler(), Arc::clone(&slot.brain));
        let timeout = match &handler.action {
            HandlerAction::Webhook(webhook) => webhook.timeout.map_or(timeout, |own| own.min(timeout)),
            HandlerAction::Rule(_) | HandlerAction::Broker => timeout,
        };
        let call = WebhookCall { handler: Arc::clone(&handler.name), timeout, trace: span_of(event, handler) };
        let id = format!("{}-{}", event_id(&event.origin), handler.name);
        let body = WebhookBody { id, json: Arc::from(body) };
        spawn_work(async move { HandlerTaskResult::Webhook(brain.call(call, body).await) })
    }

    /// What becomes of an event after its `attempts`-th run with this outcome.
    pub(crate) fn decide(
        &self,
        event: &Event,
        number: usize,
        outcome: HandlerOutcome,
        attempts: u32,
        retries: Retries,
    ) -> EventDisposition {
        let handler = self.handlers.handler(number);
        match outcome {
            HandlerOutcome::CoolingDown => match self.fallbacks.now(event, handler, FallbackReason::Cooldown) {
                Some(fallback) => EventDisposition::Skipped(Some(HandlerCommit {
                    fallback: Some(fallback),
                    ..finished(event, handler, self.clock.now())
                })),
                None => EventDisposition::Skipped(None),
            },
            HandlerOutcome::Produced(output) if handler.shadow => {
                emit(ShadowHandlerRan { handler: &handler.name, event, output: &output });
                EventDisposition::Skipped(None)
            }
            HandlerOutcome::Produced(output) => {
                // A rule without output can run again: nothing has to be stored.
                let has_output = output != RuleOutput::default() || matches!(handler.action, HandlerAction::Webhook(_));
                match self.commit_of(event, handler, output) {
                    Ok(commit) => EventDisposition::Finished(
                        Some(commit).filter(|commit| has_output || commit.fallback.is_some()),
                    ),
                    Err(reason) => self.dead(event, handler, reason, FallbackReason::Failed),
                }
            }
            HandlerOutcome::Published { position } => match self.commit_of(event, handler, RuleOutput::default()) {
                Ok(mut commit) => {
                    commit.set.extend(position);
                    EventDisposition::Finished(Some(commit))
                }
                Err(reason) => self.dead(event, handler, reason, FallbackReason::Failed),
            },
            HandlerOutcome::Unavailable { reason, retry_after } if retries == Retries::Allowed => {
                emit(EventPostponed { handler: &handler.name, event, reason: &reason });
                let fallback = (attempts == 1).then(|| self.fallbacks.unavailable(event, handler));
                let wait = BROKER_BACKOFF.delay(attempts, fastrand::f64()).max(retry_after);
                EventDisposition::Retry { at: self.clock.now() + wait, reason, fallback: fallback.flatten() }
            }
            HandlerOutcome::Unavailable { reason, .. } => {
                self.dead(event, handler, reason, FallbackReason::Unavailable)
            }
            HandlerOutcome::Retryable { reason, retry_after }
                if retries == Retries::Allowed && attempts < self.config.max_attempts =>
            {
                emit(EventPostponed { handler: &handler.name, event, reason: &reason });
                let fallback = (attempts == 1).then(|| self.fallbacks.unavailable(event, handler));
                EventDisposition::Retry {
                    at: self.retry_at(attempts, retry_after),
                    reason,
                    fallback: fallback.flatten(),
                }
            }
            HandlerOutcome::Retryable { reason, .. } => self.dead(event, handler, reason, FallbackReason::Unavailable),
            HandlerOutcome::Permanent { reason } => self.dead(event, handler, reason, FallbackReason::Failed),
        }
    }

    fn dead(&self, event: &Event, handler: &EventHandler, reason: String, why: FallbackReason) -> EventDisposition {
        EventDisposition::Dead { reason, fallback: self.fallbacks.now(event, handler, why) }
    }

    /// What becomes of an event whose operations were not accepted.
    pub(crate) fn decide_refused(
        &self,
        event: &Event,
        number: usize,
        error: &SubmitError,
        attempts: u32,
        retries: Retries,
    ) -> EventDisposition {
        let reason = error.to_string();
        match error {
            SubmitError::Full { .. } | SubmitError::OverBound(_) | SubmitError::Store(_)
                if retries == Retries::Allowed =>
            {
                let handler = self.handlers.handler(number);
                emit(EventPostponed { handler: &handler.name, event, reason: "refused" });
                let fallback = self.fallbacks.unanswered(event, handler);
                EventDisposition::Retry { at: self.retry_at(attempts, None), reason, fallback }
            }
            SubmitError::Full { .. }
            | SubmitError::OverBound(_)
            | SubmitError::Store(_)
            | SubmitError::KeyReused { .. }
            | SubmitError::UnknownOperation { .. }
            | SubmitError::ForeignGuild { .. } => {
                self.dead(event, self.handlers.handler(number), reason, FallbackReason::Failed)
            }
        }
    }

    fn retry_at(&self, attempts: u32, retry_after: Option<Duration>) -> UnixMs {
        let wait = self.config.backoff.delay(attempts, fastrand::f64());
        self.clock.now() + retry_after.map_or(wait, |requested| wait.max(requested))
    }

    /// What a handler produced, as it is stored; or why it cannot be.
    fn commit_of(&self, event: &Event, handler: &EventHandler, output: RuleOutput) -> Result<HandlerCommit, String> {
        let RuleOutput { mut operations, reply, set, cooldown } = output;
        self.fallbacks.complete_edits(event, handler, &mut operations);
        let is_answered = reply.is_some() || self.fallbacks.is_answered_by(event, handler, &operations);
        if let Some(reply) = reply {
            operations.push(edit_original(event, reply, self.fallbacks.if_rejected())?);
        }
        let scope: Arc<str> = Arc::from(format!("handler:{}", handler.name));
        let trace = span_of(event, handler);
        let operations = self
            .operations
            .validate_handler_operations(event.guild, scope, trace, operations)
            .map_err(|error| error.to_string())?;
        let now = self.clock.now();
        emit(HandlerProduced { handler: &handler.name, event, trace, operations: operations.len(), now });
        let mut set: Vec<StateWrite> = set
            .into_iter()
            .map(|(key, value, ttl)| StateWrite {
                key,
                value: (!value.is_null()).then(|| value.to_string()),
                expires_at: ttl.map(|ttl| now + ttl),
            })
            .collect();
        let cooldown = match cooldown {
            Some(cooldown) => Some(cooldown),
            None => handler.cooldown_after(&EventView::new(event)).map_err(|error| error.to_string())?,
        };
        set.extend(cooldown.map(|(key, ttl)| StateWrite {
            key: cooldown_key(handler, &key),
            value: Some("true".to_owned()),
            expires_at: Some(now + ttl),
        }));
        let fallback = if is_answered { None } else { self.fallbacks.unanswered(event, handler) };
        Ok(HandlerCommit { operations, fallback, set, ..finished(event, handler, now) })
    }
}

/// Whether a handler publishes its events.
fn publishes(handler: &EventHandler) -> bool {
    !handler.shadow && matches!(handler.action, HandlerAction::Broker)
}

/// A commit of a handler that has finished with an event, without output.
fn finished(event: &Event, handler: &EventHandler, now: UnixMs) -> HandlerCommit {
    HandlerCommit {
        key: inbox_key(event, handler),
        operations: Vec::new(),
        fallback: None,
        set: Vec::new(),
        inbox: None,
        from_inbox: false,
        at: now,
        claim: None,
    }
}

/// The span of a handler within the trace of its event.
pub(super) fn span_of(event: &Event, handler: &EventHandler) -> TraceContext {
    trace(&event.origin).child_named(&handler.name)
}

fn cooldown_key(handler: &EventHandler, key: &str) -> String {
    format!("{COOLDOWN}{}:{key}", handler.name)
}

/// The operation that responds to a deferred interaction, with the text that it gets if Discord rejects the reply.
fn edit_original(event: &Event, reply: Value, if_rejected: Option<&str>) -> Result<Value, String> {
    let Some(interaction) = &event.interaction else {
        return Err(format!("`{}` is not an interaction, so it cannot have a reply; remove `reply`", event.name));
    };
    let mut payload: Map<String, Value> = match reply {
        Value::Object(fields) => fields,
        Value::String(content) => Map::from_iter([("content".to_owned(), Value::String(content))]),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) => {
            return Err("`reply` must be a message (an object) or its text".to_owned());
        }
    };
    if let Some(text) = if_rejected {
        payload.entry("if_rejected").or_insert_with(|| text.into());
    }
    payload.insert("interaction_id".to_owned(), interaction.id.to_string().into());
    payload.insert("interaction_token".to_owned(), interaction.token.clone().into());
    Ok(json!({ "kind": "edit_original", "payload": payload }))
}
