//! In-memory event store, fake brain and fake responder, for tests.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use crate::ports::{
    CommitResult, EventBroker, EventStore, HandlerCommit, IdentifyDecision, IdentifyRequest, InboxDisposition,
    InboxEntry, InboxKey, InitialResponse, InteractionResponder, RespondFuture, ResponseResult, StateWrite,
    StoredSession, WebhookBody, WebhookCall, WebhookCallError, WebhookCallFuture, WebhookClient, WebhookResponse,
};
use crate::shard::{FlowLimit, ShardClaim, ShardMessage, ShardSender};
use crate::supervisor::{EventPorts, EventsConfig, EventsHandle};
use guildhall_core::event::handler::EventHandlers;
use guildhall_core::event::{Event, Frame, Interaction, read, read_interaction};
use guildhall_core::interaction::ReceivedInteraction;
use guildhall_core::time::UnixMs;
use guildhall_core::trace::TraceContext;
use serde_json::Value;
use tokio::sync::{Notify, RwLock};

use crate::crash::{CrashStore, CrashedInput, Input};
use crate::ports::{NewOperation, PostponeResult, StoreError, StoreFuture, SubmitResult};
use crate::testing::operations::isolated_service;
use crate::wall_clock::WallClock;

#[derive(Default)]
struct EventTables {
    sessions: BTreeMap<u32, StoredSession>,
    handled: HashSet<(Arc<str>, u64, Arc<str>)>,
    inbox: BTreeMap<i64, InboxEntry>,
    operations: Vec<NewOperation>,
    state: HashMap<String, String>,
    received: Vec<ReceivedInteraction>,
    crashed: Vec<CrashedInput>,
    last_position: i64,
    calls: usize,
    /// The process ends at this call, before or after the call takes effect.
    killed_at: Option<(usize, bool)>,
}

/// In-memory store that survives processes.
#[derive(Clone, Default)]
pub(crate) struct MemoryEventStore {
    tables: Arc<Mutex<EventTables>>,
    killed: Arc<Notify>,
    /// While a test holds it, no interaction is recorded.
    pub(crate) recording: Arc<RwLock<()>>,
}

impl MemoryEventStore {
    fn tables(&self) -> MutexGuard<'_, EventTables> {
        self.tables.lock().unwrap()
    }

    pub(crate) fn kill_at(&self, call: usize, after: bool) {
        let mut tables = self.tables();
        (tables.calls, tables.killed_at) = (0, Some((call, after)));
    }

    pub(crate) async fn killed(&self) {
        self.killed.notified().await;
    }

    pub(crate) fn operations(&self) -> Vec<NewOperation> {
        self.tables().operations.clone()
    }

    /// The `content` of all submitted messages, in order.
    pub(crate) fn contents(&self) -> Vec<String> {
        let content = |operation: &NewOperation| {
            let payload: Value = serde_json::from_str(&operation.payload).unwrap();
            payload["content"].as_str().unwrap_or_default().to_owned()
        };
        self.operations().iter().map(content).collect()
    }

    pub(crate) fn confirmed(&self, shard: u32) -> Option<u64> {
        self.tables().sessions.get(&shard).map(|stored| stored.confirmed)
    }

    pub(crate) fn session(&self, shard: u32) -> Option<StoredSession> {
        self.tables().sessions.get(&shard).cloned()
    }

    /// Marks an event that is not confirmed as handled by a handler.
    pub(crate) fn mark_handled(&self, session: &str, seq: u64, handler: &str) {
        self.tables().handled.insert((Arc::from(session), seq, Arc::from(handler)));
    }

    pub(crate) fn inbox_entries(&self) -> Vec<InboxEntry> {
        self.tables().inbox.values().cloned().collect()
    }

    /// Records that an input ended processes.
    pub(crate) fn add_crash(&self, input: Input, crashes: u32) {
        let (part, cause) = ("event_router".to_owned(), "panicked at x.rs:1".to_owned());
        self.tables().crashed.push(CrashedInput { input, crashes, part, cause });
    }

    pub(crate) fn crashed(&self) -> Vec<CrashedInput> {
        self.tables().crashed.clone()
    }

    pub(crate) fn received(&self) -> Vec<ReceivedInteraction> {
        self.tables().received.clone()
    }

    pub(crate) fn put_state(&self, key: &str, value: &Value) {
        self.tables().state.insert(key.to_owned(), value.to_string());
    }

    pub(crate) fn state(&self, key: &str) -> Option<String> {
        self.tables().state.get(key).cloned()
    }

    fn call<'a, T: Send + 'a>(&'a self, work: impl FnOnce(&mut EventTables) -> T + Send + 'a) -> StoreFuture<'a, T> {
        Box::pin(async move {
            let kill_after = {
                let mut tables = self.tables();
                tables.calls += 1;
                tables.killed_at.filter(|(at, _)| *at == tables.calls).map(|(_, after)| after)
            };
            if kill_after == Some(false) {
                self.killed.notify_one();
                std::future::pending::<()>().await;
            }
            let done = work(&mut self.tables());
            if kill_after == Some(true) {
                self.killed.notify_one();
                std::future::pending::<()>().await;
            }
            tokio::task::yield_now().await;
            Ok::<_, StoreError>(done)
        })
    }
}

impl CrashStore for MemoryEventStore {
    fn inputs_to_set_aside(&self) -> StoreFuture<'_, Vec<CrashedInput>> {
        let crashed = self.tables().crashed.clone();
        Box::pin(std::future::ready(Ok(crashed)))
    }

    fn forget_crashes(&self, inputs: Vec<Input>) -> StoreFuture<'_, ()> {
        self.tables().crashed.retain(|crashed| !inputs.contains(&crashed.input));
        Box::pin(std::future::ready(Ok(())))
    }
}

impl EventStore for MemoryEventStore {
    fn sessions(&self) -> StoreFuture<'_, Vec<StoredSession>> {
        self.call(|tables| tables.sessions.values().cloned().collect())
    }

    fn save_sessions(&self, sessions: Vec<StoredSession>) -> StoreFuture<'_, ()> {
        self.call(move |tables| {
            for mut stored in sessions {
                if let Some(before) =
                    tables.sessions.get(&stored.shard).filter(|before| before.session == stored.session)
                {
                    stored.confirmed = stored.confirmed.max(before.confirmed);
                }
                tables.handled.retain(|(session, seq, _)| *session != stored.session || *seq > stored.confirmed);
                tables.sessions.insert(stored.shard, stored);
            }
        })
    }

    fn handled_after(&self, session: &str, seq: u64) -> StoreFuture<'_, Vec<(u64, Arc<str>)>> {
        let session = session.to_owned();
        self.call(move |tables| {
            let of = tables.handled.iter().filter(|(of, at, _)| **of == *session && *at > seq);
            of.map(|(_, seq, handler)| (*seq, Arc::clone(handler))).collect()
        })
    }

    fn commit(&self, done: Vec<HandlerCommit>) -> StoreFuture<'_, Vec<CommitResult>> {
        self.call(move |tables| {
            let mut results = Vec::new();
            for HandlerCommit { key, mut operations, fallback, set, inbox, from_inbox, .. } in done {
                let fresh = tables.handled.insert((Arc::clone(&key.session), key.seq, Arc::clone(&key.handler)));
                let waiting = tables.inbox.iter().find(|(_, entry)| entry.key == key).map(|(position, _)| *position);
                if (!from_inbox && !fresh) || (from_inbox && waiting.is_none()) {
                    results.push(CommitResult::Skipped);
                    continue;
                }
                if from_inbox && let Some(position) = waiting {
                    tables.inbox.remove(&position);
                }
                if let Some(mut entry) = inbox {
                    tables.last_position += 1;
                    entry.position = tables.last_position;
                    tables.inbox.insert(entry.position, entry);
                }
                for StateWrite { key, value, .. } in set {
                    match value {
                        Some(value) => tables.state.insert(key, value),
                        None => tables.state.remove(&key),
                    };
                }
                operations.extend(fallback.map(|fallback| *fallback));
                results.push(CommitResult::Done(operations.iter().map(accepted).collect()));
                tables.operations.extend(operations);
            }
            results
        })
    }

    fn inbox(&self, after: i64, limit: usize) -> StoreFuture<'_, Vec<InboxEntry>> {
        self.call(move |tables| {
            let live = tables.inbox.range(after + 1..).map(|(_, entry)| entry).filter(|entry| entry.dead.is_none());
            live.take(limit).cloned().collect()
        })
    }

    fn postpone(
        &self,
        key: InboxKey,
        disposition: InboxDisposition,
        fallback: Option<Box<NewOperation>>,
        _: UnixMs,
    ) -> StoreFuture<'_, PostponeResult> {
        self.call(move |tables| {
            let Some(entry) = tables.inbox.values_mut().find(|entry| entry.key == key) else {
                return PostponeResult { exists: false, fallback: None };
            };
            match disposition {
                InboxDisposition::Retry { at, attempts, .. } => (entry.eligible_at, entry.attempts) = (at, attempts),
                InboxDisposition::Dead { attempts, reason } => (entry.dead, entry.attempts) = (Some(reason), attempts),
            }
            let accepted = fallback.as_deref().map(accepted);
            tables.operations.extend(fallback.map(|fallback| *fallback));
            PostponeResult { exists: true, fallback: accepted }
        })
    }

    fn dead_events(&self, _: Option<i64>, _: usize) -> StoreFuture<'_, Vec<InboxEntry>> {
        self.call(|tables| tables.inbox.values().filter(|entry| entry.dead.is_some()).cloned().collect())
    }

    fn revive(&self, position: i64, _: crate::access::AuditRecord) -> StoreFuture<'_, bool> {
        self.call(move |tables| {
            let is_dead = tables.inbox.get(&position).is_some_and(|entry| entry.dead.is_some());
            let Some(mut entry) = tables.inbox.remove(&position).filter(|_| is_dead) else { return false };
            tables.last_position += 1;
            (entry.dead, entry.position) = (None, tables.last_position);
            tables.inbox.insert(entry.position, entry);
            true
        })
    }

    fn discard_event(&self, position: i64, _: crate::access::AuditRecord) -> StoreFuture<'_, bool> {
        self.call(move |tables| {
            let is_dead = tables.inbox.get(&position).is_some_and(|entry| entry.dead.is_some());
            is_dead && tables.inbox.remove(&position).is_some()
        })
    }

    fn record_interactions(&self, received: Vec<ReceivedInteraction>) -> StoreFuture<'_, ()> {
        Box::pin(async move {
            let _held = self.recording.read().await;
            self.call(move |tables| tables.received.extend(received)).await
        })
    }

    fn sweep_events(&self, _: UnixMs) -> StoreFuture<'_, u64> {
        self.call(|_| 0)
    }

    fn identify(&self, _: IdentifyRequest) -> StoreFuture<'_, IdentifyDecision> {
        self.call(|_| IdentifyDecision::Allowed)
    }

    fn values(&self, keys: Vec<String>, _: UnixMs) -> StoreFuture<'_, Vec<Option<String>>> {
        self.call(move |tables| keys.iter().map(|key| tables.state.get(key).cloned()).collect())
    }
}

/// Scripted reaction of a brain to a call.
#[derive(Clone, Debug)]
pub(crate) enum BrainScript {
    Responds(WebhookResponse),
    Fails(WebhookCallError),
    /// It responds when the test resumes it.
    Hangs,
}

/// A brain with a script for each event. Without one, it responds with a message that contains the sequence number.
#[derive(Clone, Default)]
pub(crate) struct FakeBrain {
    scripts: Arc<Mutex<HashMap<u64, VecDeque<BrainScript>>>>,
    calls: Arc<Mutex<Vec<(u64, String)>>>,
    resumed: Arc<Notify>,
}

impl FakeBrain {
    pub(crate) fn script(&self, seq: u64, scripts: impl IntoIterator<Item = BrainScript>) {
        self.scripts.lock().unwrap().insert(seq, scripts.into_iter().collect());
    }

    /// Sequence numbers of the events that it was called with, in order.
    pub(crate) fn calls(&self) -> Vec<u64> {
        self.calls.lock().unwrap().iter().map(|(seq, _)| *seq).collect()
    }

    pub(crate) fn ids(&self) -> Vec<String> {
        self.calls.lock().unwrap().iter().map(|(_, id)| id.clone()).collect()
    }

    pub(crate) fn resume(&self) {
        self.resumed.notify_waiters();
    }
}

/// A response that sends a message with this content.
pub(crate) fn message_response(content: &str) -> WebhookResponse {
    let payload = serde_json::json!({ "channel_id": "5", "content": content });
    WebhookResponse {
        operations: vec![serde_json::json!({ "kind": "send_message", "payload": payload })],
        ..WebhookResponse::default()
    }
}

impl WebhookClient for FakeBrain {
    fn call(&self, call: WebhookCall, body: WebhookBody) -> WebhookCallFuture<'_> {
        Box::pin(async move {
            let event: Value = serde_json::from_str(&body.json).unwrap();
            let seq = event["seq"].as_u64().unwrap();
            self.calls.lock().unwrap().push((seq, body.id.clone()));
            let script = self.scripts.lock().unwrap().get_mut(&seq).and_then(VecDeque::pop_front);
            let late = || WebhookCallError::Retryable { reason: "it took too long".to_owned(), retry_after: None };
            match script.unwrap_or_else(|| BrainScript::Responds(message_response(&seq.to_string()))) {
                BrainScript::Responds(response) => Ok(response),
                BrainScript::Fails(error) => Err(error),
                BrainScript::Hangs => match tokio::time::timeout(call.timeout, self.resumed.notified()).await {
                    Ok(()) => Ok(message_response(&seq.to_string())),
                    Err(_) => Err(late()),
                },
            }
        })
    }
}

/// Records first responses, and returns scripted results.
#[derive(Clone, Default)]
pub(crate) struct FakeResponder {
    pub(crate) sent: Arc<Mutex<Vec<(u64, InitialResponse)>>>,
    pub(crate) results: Arc<Mutex<VecDeque<ResponseResult>>>,
    pub(crate) panics: bool,
}

impl InteractionResponder for FakeResponder {
    fn respond(&self, interaction: Arc<Interaction>, response: InitialResponse, _: TraceContext) -> RespondFuture {
        assert!(
            !self.panics || matches!(response, InitialResponse::Deferred { .. }),
            "this interaction crashes its \
            guild"
        );
        self.sent.lock().unwrap().push((interaction.id, response));
        let result = self.results.lock().unwrap().pop_front().unwrap_or(ResponseResult::Sent);
        Box::pin(async move { result })
    }
}

/// The state that survives processes, and their configuration.
#[derive(Clone, Default)]
pub(crate) struct EventFixture {
    pub(crate) store: MemoryEventStore,
    pub(crate) brain: FakeBrain,
    pub(crate) broker: Option<Arc<dyn EventBroker>>,
    pub(crate) responder: FakeResponder,
    pub(crate) config: EventsConfig,
    pub(crate) handlers: EventHandlers,
}

/// The default session of tests.
pub(crate) const SESSION: &str = "s1";

impl EventFixture {
    pub(crate) fn new(handlers: &Value) -> Self {
        let handlers = EventHandlers::parse(&serde_json::json!({ "handlers": handlers })).unwrap();
        Self { handlers, ..Self::default() }
    }

    /// Starts a process. Returns its handle, and the senders of its shards.
    pub(crate) async fn start(&self) -> (EventsHandle, HashMap<u32, ShardSender>) {
        let clock = WallClock::anchored(UnixMs::new(1_700_000_000_000));
        let ports = EventPorts {
            handlers: self.handlers.clone(),
            store: Arc::new(self.store.clone()),
            crashes: Arc::new(self.store.clone()),
            brain: Arc::new(self.brain.clone()),
            broker: self.broker.clone(),
            responder: Arc::new(self.responder.clone()),
            operations: isolated_service(clock.clone()),
            observer: None,
        };
        let allowance = FlowLimit { events: 10_000, bytes: 1 << 24 };
        let prepared = EventsHandle::prepare(ports, clock, self.config.clone(), allowance);
        let events = EventsHandle::start(prepared);
        let claims = vec![ShardClaim { shards: self.config.shards, shard: 0, fence: 1 }];
        let attached = events.attach(claims).await;
        (events, attached.into_iter().map(|attached| (attached.claim.shard, attached.sender)).collect())
    }

    pub(crate) async fn until(&self, condition: &str, mut is_true: impl FnMut() -> bool) {
        for _ in 0..36_000 {
            if is_true() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        panic!("condition never became true: {condition}");
    }
}

pub(crate) fn start_session(sender: &ShardSender, session: &str) {
    start_session_of(0, sender, session);
}

/// Starts a session of this shard.
pub(crate) fn start_session_of(shard: u32, sender: &ShardSender, session: &str) {
    let session: Arc<str> = Arc::from(session);
    sender.send(ShardMessage::SessionStarted { shard, session: Arc::clone(&session), resume_url: None }).unwrap();
    sender.send(ShardMessage::Skipped { shard, session, seq: 1 }).unwrap();
}

/// A message in a guild.
pub(crate) fn message(session: &str, seq: u64, guild: u64) -> Event {
    let d = serde_json::json!({
        "id": seq.to_string(), "guild_id": guild.to_string(), "channel_id": "5", "content": seq.to_string(),
        "author": { "id": "77" },
    });
    frame(session, seq, "MESSAGE_CREATE", &d)
}

/// A command in a guild.
pub(crate) fn command(seq: u64, guild: u64, kind: u8) -> Event {
    frame(SESSION, seq, "INTERACTION_CREATE", &interaction(seq, guild, kind))
}

/// The same over HTTP.
pub(crate) fn http_command(seq: u64, guild: u64, kind: u8) -> Event {
    read_interaction(interaction(seq, guild, kind).to_string(), UnixMs::new(1_700_000_000_000)).unwrap()
}

/// Id of an interaction that is created at the time of the tests.
pub(crate) const fn live_id(seq: u64) -> u64 {
    ((1_700_000_000_000 - 1_420_070_400_000) << 22) + seq
}

/// A command whose token has not expired.
pub(crate) fn live_command(seq: u64, kind: u8) -> Event {
    let mut data = interaction(seq, 1, kind);
    data["id"] = live_id(seq).to_string().into();
    frame(SESSION, seq, "INTERACTION_CREATE", &data)
}

/// The same over HTTP.
pub(crate) fn live_http_command(seq: u64, kind: u8) -> Event {
    let mut data = interaction(seq, 1, kind);
    data["id"] = live_id(seq).to_string().into();
    read_interaction(data.to_string(), UnixMs::new(1_700_000_000_000)).unwrap()
}

fn interaction(seq: u64, guild: u64, kind: u8) -> Value {
    serde_json::json!({
        "id": (1_000 + seq).to_string(), "application_id": "9", "type": kind, "token": format!("token-{seq}"),
        "guild_id": guild.to_string(), "channel_id": "5", "member": { "user": { "id": "77" } },
        "data": { "name": "hello" },
    })
}

fn frame(session: &str, seq: u64, kind: &str, d: &Value) -> Event {
    let text = serde_json::json!({ "t": kind, "s": seq, "op": 0, "d": d }).to_string();
    match read(text, 0, &Arc::from(session), UnixMs::new(1_700_000_000_000)).unwrap() {
        Frame::Event(event) => event,
        other => panic!("{other:?}"),
    }
}

/// The store's result for an accepted operation.
fn accepted(operation: &NewOperation) -> SubmitResult {
    let queue = operation.queue.queue(&operation.tenant);
    SubmitResult::Accepted { seq: 1, queue, state: guildhall_core::operation::OperationState::Queued }
}
