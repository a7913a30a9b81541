//! What guilds and the inbox share: the handlers, whoever they talk to, and how what they give is kept.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use guildhall_core::event::Event;
use guildhall_core::event::handler::{
    DeferMode, EventHandler, EventHandlers, EventView, HandlerAction, RuleOutput, event_id, trace,
};
use guildhall_core::state_key::COOLDOWN;
use guildhall_core::time::UnixMs;
use guildhall_core::trace::TraceContext;
use serde_json::{Map, Value, json};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::crashed_events::CrashedEntries;
use super::interaction::InteractionLimiter;
use super::interaction_recorder::InteractionRecorder;
use super::registry::{HandlerRegistry, TooManyHandlers};
use super::state_keys::template_error;
use crate::crash::CrashStore;
use crate::ports::{
    CommitResult, EventObserver, EventStore, HandlerCommit, InboxEntry, InboxKey, InteractionResponder, StateWrite,
    StoreError, StoreFuture, SubmitResult, WebhookBody, WebhookCall, WebhookCallError, WebhookClient, WebhookResponse,
};
use crate::shard::ownership::ShardOwnership;
use crate::submission::OperationService;
use crate::supervision::spawn_work;
use crate::supervisor::{EventPorts, EventsConfig};
use crate::telemetry::emit;
use crate::telemetry::events::{EventStoreRetried, EventsCommitted, FlowMeters, HandlerMeters, HandlerProduced};
use crate::wall_clock::WallClock;

/// A call to a brain under way.
pub(crate) type WebhookTask = JoinHandle<Result<WebhookResponse, WebhookCallError>>;

/// What guilds and the inbox share.
pub(crate) struct EventContext {
    /// The handlers, and what their webhooks are reached by.
    registry: HandlerRegistry,
    /// What is counted of all events.
    pub(crate) flow: FlowMeters,
    pub(crate) store: Arc<dyn EventStore>,
    pub(crate) crashes: Arc<dyn CrashStore>,
    /// Entries of the inbox that ended processes.
    pub(crate) set_aside: CrashedEntries,
    pub(crate) answers: Arc<dyn InteractionResponder>,
    pub(crate) desk: Arc<OperationService>,
    pub(crate) watch: Option<Arc<dyn EventObserver>>,
    pub(crate) clock: WallClock,
    pub(crate) config: EventsConfig,
    pub(crate) own: ShardOwnership,
    backlog: Mutex<InboxBacklog>,
    /// How many are counted in it, for who looks for each event.
    waiting: AtomicUsize,
    /// Guilds that have had events lately.
    guilds: AtomicUsize,
    /// Interactions that are with their guilds.
    interactions: AtomicUsize,
    /// The inbox has something new, or room again.
    pub(crate) inbox_filled: Notify,
    pub(crate) inbox_room: Notify,
    /// The way in for interactions over HTTP.
    pub(crate) door: InteractionLimiter,
    /// Interactions that are being recorded.
    pub(crate) recorder: InteractionRecorder,
}

/// How much waits in the inbox, and for whom.
#[derive(Default)]
struct InboxBacklog {
    /// By lane and [line](Registry::line).
    waiting: HashMap<(i64, usize), usize>,
    /// Those that are counted there.
    counted: HashSet<InboxKey>,
    /// Calls that were begun before their events were put there, and the handlers that they were begun for.
    asking: HashMap<InboxKey, (usize, WebhookTask)>,
}

/// What running a handler came to.
#[derive(Debug, PartialEq)]
pub(crate) enum HandlerOutcome {
    /// This is to be done.
    Gave(RuleOutput),
    /// It does not want this event, or not yet again.
    Passed,
    /// It may go right next time.
    Later { why: String, retry_after: Option<Duration> },
    /// It would go wrong each time.
    Never { why: String },
}

impl EventContext {
    pub(crate) fn new(outside: EventPorts, clock: WallClock, config: EventsConfig) -> Arc<Self> {
        let EventPorts { handlers, store, crashes, brain, answers, desk, watch } = outside;
        Arc::new(Self {
            registry: HandlerRegistry::new(handlers, &brain),
            flow: FlowMeters::new(),
            store,
            crashes,
            set_aside: CrashedEntries::default(),
            answers,
            desk,
            watch,
            clock,
            own: ShardOwnership::none(config.shards),
            config,
            backlog: Mutex::default(),
            waiting: AtomicUsize::new(0),
            guilds: AtomicUsize::new(0),
            interactions: AtomicUsize::new(0),
            inbox_filled: Notify::new(),
            inbox_room: Notify::new(),
            door: InteractionLimiter::default(),
            recorder: InteractionRecorder::default(),
        })
    }

    /// The handler of this number.
    pub(crate) fn handler(&self, number: usize) -> &EventHandler {
        self.registry.slot(number).handler()
    }

    /// New events go to these handlers from now on; those that came before finish with the handlers that they were given to.
    pub(crate) fn replace_handlers(
        &self,
        handlers: EventHandlers,
        brain: &Arc<dyn WebhookClient>,
    ) -> Result<(), TooManyHandlers> {
        self.registry.replace(handlers, brain)?;
        // What waits there may be for handlers that are gone, or that were missing.
        self.on_put();
        Ok(())
    }

    /// Changes whenever the handlers do.
    pub(crate) fn handlers_generation(&self) -> u64 {
        self.registry.generation()
    }

    /// The handlers that want to hear of new events of this name, in order.
    pub(crate) fn matching(&self, name: &str) -> Vec<usize> {
        self.registry.matching(name)
    }

    /// What handlers of the same name have in common over reloads.
    pub(crate) fn line(&self, number: usize) -> usize {
        self.registry.line(number)
    }

    /// What is counted of the handler of this number.
    pub(crate) fn meters(&self, number: usize) -> &HandlerMeters {
        &self.registry.slot(number).meters
    }

    /// The number of the handler that has this name now.
    pub(crate) fn number(&self, name: &str) -> Option<usize> {
        self.registry.number(name)
    }

    /// The handler of an entry of the inbox: the one that was called for it already, or the one that has its name now.
    pub(crate) fn handler_of(&self, key: &InboxKey) -> Option<usize> {
        let called = self.backlog().asking.get(key).map(|(handler, _)| *handler);
        called.or_else(|| self.number(&key.handler))
    }

    /// Whether interactions are deferred for a handler.
    pub(crate) fn defers(&self, handler: &EventHandler) -> bool {
        handler.defer.unwrap_or(self.config.defer) == DeferMode::Auto
    }

    /// Whether only who asked sees what a handler answers.
    pub(crate) fn is_ephemeral(&self, handler: &EventHandler) -> bool {
        handler.ephemeral.unwrap_or(self.config.ephemeral)
    }

    /// So many guilds are there.
    pub(crate) fn seats(&self, guilds: usize) {
        self.guilds.store(guilds, Ordering::Relaxed);
    }

    /// How many guilds there are.
    pub(crate) fn guilds(&self) -> usize {
        self.guilds.load(Ordering::Relaxed)
    }

    /// An interaction goes to its guild.
    pub(crate) fn on_asked(&self) {
        self.interactions.fetch_add(1, Ordering::Relaxed);
    }

    /// So many interactions are done.
    pub(crate) fn on_answered(&self, interactions: usize) {
        if interactions > 0 {
            self.interactions.fetch_sub(interactions, Ordering::Relaxed);
        }
    }

    /// How many interactions are with somebody, in the inbox or not.
    pub(crate) fn interactions(&self) -> usize {
        self.interactions.load(Ordering::Relaxed) + self.inbox_interactions()
    }

    fn backlog(&self) -> MutexGuard<'_, InboxBacklog> {
        self.backlog.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a handler has events of a lane in the inbox: what comes after them has to wait behind them.
    pub(crate) fn is_behind(&self, lane: i64, handler: usize) -> bool {
        self.waiting.load(Ordering::Acquire) > 0 && self.backlog().waiting.contains_key(&(lane, self.line(handler)))
    }

    pub(crate) fn inbox_len(&self) -> usize {
        self.backlog().counted.len()
    }

    fn inbox_interactions(&self) -> usize {
        self.backlog().waiting.iter().filter(|((lane, _), _)| *lane < 0).map(|(_, count)| count).sum()
    }

    /// An event waits in the inbox, or is about to. Whoever puts it there says so first: it may be gone before the store has
    /// answered. `false` if that was said before.
    pub(crate) fn expect(&self, lane: i64, handler: usize, key: &InboxKey, asking: Option<WebhookTask>) -> bool {
        let mut backlog = self.backlog();
        backlog.asking.extend(asking.map(|asking| (key.clone(), (handler, asking))));
        let is_new = backlog.counted.insert(key.clone());
        if is_new {
            *backlog.waiting.entry((lane, self.line(handler))).or_default() += 1;
            self.waiting.store(backlog.counted.len(), Ordering::Release);
        }
        is_new
    }

    /// An event waits in the inbox.
    pub(crate) fn on_put(&self) {
        self.inbox_filled.notify_one();
    }

    /// The call that was begun for an event before it was put into the inbox.
    pub(crate) fn asking(&self, key: &InboxKey) -> Option<WebhookTask> {
        self.backlog().asking.remove(key).map(|(_, asking)| asking)
    }

    /// An event waits for a handler that there is not any more: nobody waits behind it.
    pub(crate) fn on_abandoned(&self, lane: i64, key: &InboxKey) {
        if let Some(line) = self.registry.line_of(&key.handler) {
            self.on_taken(lane, line, key);
        }
    }

    /// An event waits there no more, or never did.
    pub(crate) fn on_taken(&self, lane: i64, handler: usize, key: &InboxKey) {
        let line = self.line(handler);
        let mut backlog = self.backlog();
        backlog.asking.remove(key);
        if backlog.counted.remove(key)
            && let Some(count) = backlog.waiting.get_mut(&(lane, line))
        {
            *count -= 1;
            if *count == 0 {
                backlog.waiting.remove(&(lane, line));
            }
        }
        self.waiting.store(backlog.counted.len(), Ordering::Release);
        drop(backlog);
        self.inbox_room.notify_waiters();
    }

    /// Asks the store until it answers.
    pub(crate) async fn until_kept<'a, T>(&'a self, what: &'static str, ask: impl Fn() -> StoreFuture<'a, T>) -> T {
        let mut tried = 0;
        loop {
            let asked = timeout(self.config.store_timeout, ask()).await;
            let error = match asked {
                Ok(Ok(answer)) => return answer,
                Ok(Err(error)) => error,
                Err(_) => StoreError::Unavailable("it did not answer in time".to_owned()),
            };
            tried += 1;
            let wait = self.config.store_backoff.delay(tried, fastrand::f64());
            emit(EventStoreRetried { what, error: &error, tried, wait });
            sleep(wait).await;
        }
    }

    /// Keeps what handlers gave, however long that takes, and tells whoever carries it out.
    pub(crate) async fn commit(&self, mut items: Vec<HandlerCommit>) -> Vec<CommitResult> {
        if items.is_empty() {
            return Vec::new();
        }
        for item in items.iter_mut().filter(|item| !item.from_inbox) {
            item.under = self.own.claim_of(&item.key.session);
        }
        let committed = self.until_kept("commit", || self.store.commit(items.clone())).await;
        let mut queues = BTreeSet::new();
        for (item, committed) in items.iter().zip(&committed) {
            match committed {
                CommitResult::Done(submitted) => {
                    queues.extend(item.operations.iter().zip(submitted).filter_map(|(operation, submitted)| {
                        match submitted {
                            SubmitResult::Accepted { queue, .. } => Some(*queue),
                            SubmitResult::Existing { .. } => operation.queue.fixed(),
                        }
                    }));
                }
                // Which queues of a tenant these were only the store knows; it has notified them.
                CommitResult::Before => {
                    queues.extend(item.operations.iter().filter_map(|operation| operation.queue.fixed()));
                }
                CommitResult::Refused(_) => {}
            }
        }
        emit(EventsCommitted { items: items.len(), operations: items.iter().map(|item| item.operations.len()).sum() });
        self.desk.wake(queues);
        committed
    }

    pub(crate) fn key(&self, event: &Event, handler: &EventHandler) -> InboxKey {
        InboxKey {
            session: Arc::clone(&event.origin.session),
            seq: event.origin.seq,
            handler: Arc::clone(&handler.name),
        }
    }

    /// What a handler gave, as the store keeps it; or why it cannot be done.
    pub(crate) fn handled(
        &self,
        event: &Event,
        handler: &EventHandler,
        given: RuleOutput,
    ) -> Result<HandlerCommit, String> {
        let RuleOutput { mut operations, reply, set, cooldown } = given;
        if let Some(reply) = reply {
            operations.push(edit_original(event, reply)?);
        }
        let scope: Arc<str> = Arc::from(format!("handler:{}", handler.name));
        let trace = part_of(event, handler);
        let operations =
            self.desk.draft_given(event.guild, scope, trace, operations).map_err(|problem| problem.to_string())?;
        let now = self.clock.now();
        emit(HandlerProduced { handler: &handler.name, event, trace, operations: operations.len(), now });
        let mut kept: Vec<StateWrite> = set
            .into_iter()
            .map(|(key, value, lasts)| StateWrite {
                key,
                value: (!value.is_null()).then(|| value.to_string()),
                expires_at: lasts.map(|lasts| now + lasts),
            })
            .collect();
        let view = EventView::new(event);
        let cooldown = match cooldown {
            Some(cooldown) => Some(cooldown),
            None => handler.cooldown(&view).map_err(|problem| problem.to_string())?,
        };
        kept.extend(cooldown.map(|(key, lasts)| StateWrite {
            key: cooldown_key(handler, &key),
            value: Some("true".to_owned()),
            expires_at: Some(now + lasts),
        }));
        let key = self.key(event, handler);
        Ok(HandlerCommit { key, operations, set: kept, inbox: None, from_inbox: false, at: now, under: None })
    }

    /// An event as it waits in the inbox.
    pub(crate) fn entry(&self, event: &Event, handler: &EventHandler, body: String) -> InboxEntry {
        let now = self.clock.now();
        InboxEntry {
            key: self.key(event, handler),
            place: 0,
            lane: lane_of(event),
            name: event.name.to_string(),
            event: body,
            attempts: 0,
            eligible_at: now,
            dead: None,
            created_at: now,
        }
    }

    pub(crate) fn put(&self, entry: InboxEntry) -> HandlerCommit {
        let (key, at) = (entry.key.clone(), entry.created_at);
        HandlerCommit {
            key,
            operations: Vec::new(),
            set: Vec::new(),
            inbox: Some(entry),
            from_inbox: false,
            at,
            under: None,
        }
    }

    /// What a handler needs to know, and whether it is to hear of the event at all.
    pub(crate) async fn needs(
        &self,
        handler: &EventHandler,
        view: &EventView<'_>,
    ) -> Result<Option<BTreeMap<String, Value>>, String> {
        let mut keys = handler.needed(view).map_err(|error| template_error(handler, view.event(), "needs", &error))?;
        let cooldown = handler.cooldown(view).map_err(|problem| problem.to_string())?;
        let known = keys.len();
        keys.extend(cooldown.map(|(key, _)| cooldown_key(handler, &key)));
        if keys.is_empty() {
            return Ok(Some(BTreeMap::new()));
        }
        let now = self.clock.now();
        let values = self.until_kept("values", || self.store.values(keys.clone(), now)).await;
        if values.len() > known && values[known].is_some() {
            return Ok(None);
        }
        let parse = |text: String| serde_json::from_str(&text).unwrap_or(Value::String(text));
        Ok(Some(
            keys.into_iter()
                .zip(values)
                .take(known)
                .map(|(key, value)| (key, value.map_or(Value::Null, parse)))
                .collect(),
        ))
    }

    /// Begins to call the webhook of a handler.
    pub(crate) fn ask(&self, number: usize, event: &Event, body: String, within: Duration) -> WebhookTask {
        let (handler, brain) = (self.handler(number), Arc::clone(&self.registry.slot(number).brain));
        let within = match &handler.does {
            HandlerAction::Webhook(webhook) => webhook.timeout.map_or(within, |own| own.min(within)),
            HandlerAction::Rule(_) => within,
        };
        let asks = WebhookCall { handler: Arc::clone(&handler.name), within, trace: part_of(event, handler) };
        let id = format!("{}-{}", event_id(&event.origin), handler.name);
        let body = WebhookBody { id, json: Arc::from(body) };
        spawn_work(async move { brain.ask(asks, body).await })
    }

    /// Runs a rule.
    pub(crate) fn apply(
        &self,
        handler: &EventHandler,
        view: &EventView<'_>,
        state: &BTreeMap<String, Value>,
    ) -> HandlerOutcome {
        match &handler.does {
            HandlerAction::Rule(rule) => match rule.apply(view, state) {
                Ok(given) => HandlerOutcome::Gave(given),
                Err(error) => HandlerOutcome::Never { why: template_error(handler, view.event(), "set", &error) },
            },
            HandlerAction::Webhook(_) => HandlerOutcome::Never { why: "it is no rule".to_owned() },
        }
    }
}

/// The part of an event's trace that a handler is.
fn part_of(event: &Event, handler: &EventHandler) -> TraceContext {
    trace(&event.origin).within(&handler.name)
}

/// What came of a call.
pub(crate) fn heard(said: Result<Result<WebhookResponse, WebhookCallError>, tokio::task::JoinError>) -> HandlerOutcome {
    match said {
        Ok(Ok(WebhookResponse { operations, reply, set, cooldown })) => {
            HandlerOutcome::Gave(RuleOutput { operations, reply, set, cooldown })
        }
        Ok(Err(WebhookCallError::Later { why, retry_after })) => HandlerOutcome::Later { why, retry_after },
        Ok(Err(WebhookCallError::Never { why })) => HandlerOutcome::Never { why },
        Err(error) => HandlerOutcome::Later { why: format!("the call broke: {error}"), retry_after: None },
    }
}

/// Which events wait for which: those of one lane are handled in order.
pub(crate) fn lane_of(event: &Event) -> i64 {
    let signed = |id: u64| i64::try_from(id).unwrap_or(i64::MAX);
    match (&event.interaction, event.guild) {
        // Whoever asks something waits for nobody else.
        (Some(interaction), _) => -signed(interaction.id),
        (None, Some(guild)) => signed(guild),
        (None, None) => event.channel.or(event.user).map_or(0, signed),
    }
}

fn cooldown_key(handler: &EventHandler, key: &str) -> String {
    format!("{COOLDOWN}{}:{key}", handler.name)
}

/// The operation that answers an interaction which was deferred.
fn edit_original(event: &Event, reply: Value) -> Result<Value, String> {
    let Some(interaction) = &event.interaction else {
        return Err(format!("there is nobody to reply to: `{}` is no interaction; take `reply` out", event.name));
    };
    let mut payload: Map<String, Value> = match reply {
        Value::Object(fields) => fields,
        Value::String(content) => Map::from_iter([("content".to_owned(), Value::String(content))]),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) => {
            return Err("`reply` is a message (an object), or its text".to_owned());
        }
    };
    payload.insert("interaction_id".to_owned(), interaction.id.to_string().into());
    payload.insert("interaction_token".to_owned(), interaction.token.clone().into());
    Ok(json!({ "kind": "edit_original", "payload": payload }))
}

/// When something is tried again.
pub(crate) fn again_at(hub: &EventContext, attempts: u32, retry_after: Option<Duration>) -> UnixMs {
    let wait = hub.config.backoff.delay(attempts, fastrand::f64());
    hub.clock.now() + retry_after.map_or(wait, |asked| wait.max(asked))
}
