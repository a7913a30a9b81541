//! In-memory event store, fake brain and fake responder, for tests.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use crate::ports::{
    CommitResult, EventStore, HandlerCommit, IdentifyDecision, IdentifyRequest, InboxDisposition, InboxEntry, InboxKey,
    InitialResponse, InteractionResponder, RespondFuture, ResponseResult, StateWrite, StoredSession, WebhookBody,
    WebhookCall, WebhookCallError, WebhookCallFuture, WebhookClient, WebhookResponse,
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
use crate::ports::{NewOperation, StoreError, StoreFuture, SubmitResult};
use crate::testing::operations::lone_desk;
use crate::wall_clock::WallClock;

#[derive(Default)]
struct Tables {
    sessions: BTreeMap<u32, StoredSession>,
    handled: HashSet<(Arc<str>, u64, Arc<str>)>,
    inbox: BTreeMap<i64, InboxEntry>,
    operations: Vec<NewOperation>,
    state: HashMap<String, String>,
    received: Vec<ReceivedInteraction>,
    crashed: Vec<CrashedInput>,
    places: i64,
    calls: usize,
    /// The process ends at this call, before or after the call takes effect.
    killed_at: Option<(usize, bool)>,
}

/// In-memory store that survives processes.
#[derive(Clone, Default)]
pub(crate) struct Memory {
    tables: Arc<Mutex<Tables>>,
    killed: Arc<Notify>,
    /// While a test holds it, no interaction is recorded.
    pub(crate) recording: Arc<RwLock<()>>,
}

impl Memory {
    fn tables(&self) -> MutexGuard<'_, Tables> {
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
    pub(crate) fn said(&self) -> Vec<String> {
        let content = |operation: &NewOperation| {
            let payload: Value = serde_json::from_str(&operation.payload).unwrap();
            payload["content"].as_str().unwrap_or_default().to_owned()
        };
        self.operations().iter().map(content).collect()
    }

    pub(crate) fn confirmed(&self, shard: u32) -> Option<u64> {
        self.tables().sessions.get(&shard).map(|kept| kept.confirmed)
    }

    pub(crate) fn session(&self, shard: u32) -> Option<StoredSession> {
        self.tables().sessions.get(&shard).cloned()
    }

    /// Marks an event that is not confirmed as handled by a handler.
    pub(crate) fn was_handled(&self, session: &str, seq: u64, handler: &str) {
        self.tables().handled.insert((Arc::from(session), seq, Arc::from(handler)));
    }

    pub(crate) fn inbox_now(&self) -> Vec<InboxEntry> {
        self.tables().inbox.values().cloned().collect()
    }

    /// Records that an input ended processes.
    pub(crate) fn crash(&self, input: Input, crashes: u32) {
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

    fn answer<'a, T: Send + 'a>(&'a self, work: impl FnOnce(&mut Tables) -> T + Send + 'a) -> StoreFuture<'a, T> {
        Box::pin(async move {
            let dies = {
                let mut tables = self.tables();
                tables.calls += 1;
                tables.killed_at.filter(|(at, _)| *at == tables.calls).map(|(_, after)| after)
            };
            if dies == Some(false) {
                self.killed.notify_one();
                std::future::pending::<()>().await;
            }
            let done = work(&mut self.tables());
            if dies == Some(true) {
                self.killed.notify_one();
                std::future::pending::<()>().await;
            }
            tokio::task::yield_now().await;
            Ok::<_, StoreError>(done)
        })
    }
}

impl CrashStore for Memory {
    fn inputs_to_set_aside(&self) -> StoreFuture<'_, Vec<CrashedInput>> {
        let crashed = self.tables().crashed.clone();
        Box::pin(std::future::ready(Ok(crashed)))
    }

    fn forget_crashes(&self, inputs: Vec<Input>) -> StoreFuture<'_, ()> {
        self.tables().crashed.retain(|crashed| !inputs.contains(&crashed.input));
        Box::pin(std::future::ready(Ok(())))
    }
}

impl EventStore for Memory {
    fn sessions(&self) -> StoreFuture<'_, Vec<StoredSession>> {
        self.answer(|tables| tables.sessions.values().cloned().collect())
    }

    fn keep_sessions(&self, sessions: Vec<StoredSession>) -> StoreFuture<'_, ()> {
        self.answer(move |tables| {
            for mut kept in sessions {
                if let Some(before) = tables.sessions.get(&kept.shard).filter(|before| before.session == kept.session) {
                    kept.confirmed = kept.confirmed.max(before.confirmed);
                }
                tables.handled.retain(|(session, seq, _)| *session != kept.session || *seq > kept.confirmed);
                tables.sessions.insert(kept.shard, kept);
            }
        })
    }

    fn handled_after(&self, session: &str, seq: u64) -> StoreFuture<'_, Vec<(u64, Arc<str>)>> {
        let session = session.to_owned();
        self.answer(move |tables| {
            let of = tables.handled.iter().filter(|(of, at, _)| **of == *session && *at > seq);
            of.map(|(_, seq, handler)| (*seq, Arc::clone(handler))).collect()
        })
    }

    fn commit(&self, done: Vec<HandlerCommit>) -> StoreFuture<'_, Vec<CommitResult>> {
        self.answer(move |tables| {
            let mut answers = Vec::new();
            for HandlerCommit { key, operations, set, inbox, from_inbox, .. } in done {
                let fresh = tables.handled.insert((Arc::clone(&key.session), key.seq, Arc::clone(&key.handler)));
                let waits = tables.inbox.iter().find(|(_, entry)| entry.key == key).map(|(place, _)| *place);
                if (!from_inbox && !fresh) || (from_inbox && waits.is_none()) {
                    answers.push(CommitResult::Before);
                    continue;
                }
                if from_inbox && let Some(place) = waits {
                    tables.inbox.remove(&place);
                }
                if let Some(mut entry) = inbox {
                    tables.places += 1;
                    entry.place = tables.places;
                    tables.inbox.insert(entry.place, entry);
                }
                for StateWrite { key, value, .. } in set {
                    match value {
                        Some(value) => tables.state.insert(key, value),
                        None => tables.state.remove(&key),
                    };
                }
                answers.push(CommitResult::Done(operations.iter().map(accepted).collect()));
                tables.operations.extend(operations);
            }
            answers
        })
    }

    fn inbox(&self, after: i64, limit: usize) -> StoreFuture<'_, Vec<InboxEntry>> {
        self.answer(move |tables| {
            let live = tables.inbox.range(after + 1..).map(|(_, entry)| entry).filter(|entry| entry.dead.is_none());
            live.take(limit).cloned().collect()
        })
    }

    fn put_off(&self, key: InboxKey, later: InboxDisposition, _: UnixMs) -> StoreFuture<'_, bool> {
        self.answer(move |tables| {
            let Some(entry) = tables.inbox.values_mut().find(|entry| entry.key == key) else { return false };
            match later {
                InboxDisposition::Again { at, attempts, .. } => (entry.eligible_at, entry.attempts) = (at, attempts),
                InboxDisposition::Dead { attempts, why } => (entry.dead, entry.attempts) = (Some(why), attempts),
            }
            true
        })
    }

    fn dead_events(&self, _: Option<i64>, _: usize) -> StoreFuture<'_, Vec<InboxEntry>> {
        self.answer(|tables| tables.inbox.values().filter(|entry| entry.dead.is_some()).cloned().collect())
    }

    fn revive(&self, place: i64, _: crate::access::AuditRecord) -> StoreFuture<'_, bool> {
        self.answer(move |tables| {
            let is_dead = tables.inbox.get(&place).is_some_and(|entry| entry.dead.is_some());
            let Some(mut entry) = tables.inbox.remove(&place).filter(|_| is_dead) else { return false };
            tables.places += 1;
            (entry.dead, entry.place) = (None, tables.places);
            tables.inbox.insert(entry.place, entry);
            true
        })
    }

    fn record_interactions(&self, received: Vec<ReceivedInteraction>) -> StoreFuture<'_, ()> {
        Box::pin(async move {
            let _held = self.recording.read().await;
            self.answer(move |tables| tables.received.extend(received)).await
        })
    }

    fn sweep_events(&self, _: UnixMs) -> StoreFuture<'_, u64> {
        self.answer(|_| 0)
    }

    fn identify(&self, _: IdentifyRequest) -> StoreFuture<'_, IdentifyDecision> {
        self.answer(|_| IdentifyDecision::Now)
    }

    fn values(&self, keys: Vec<String>, _: UnixMs) -> StoreFuture<'_, Vec<Option<String>>> {
        self.answer(move |tables| keys.iter().map(|key| tables.state.get(key).cloned()).collect())
    }
}

/// Scripted reaction of a brain to a call.
#[derive(Clone, Debug)]
pub(crate) enum Mood {
    Says(WebhookResponse),
    Fails(WebhookCallError),
    /// It responds when the test resumes it.
    Hangs,
}

/// A brain with a script for each event. Without one, it responds with a message that contains the sequence number.
#[derive(Clone, Default)]
pub(crate) struct Fake {
    moods: Arc<Mutex<HashMap<u64, VecDeque<Mood>>>>,
    asked: Arc<Mutex<Vec<(u64, String)>>>,
    goes_on: Arc<Notify>,
}

impl Fake {
    pub(crate) fn mood(&self, seq: u64, moods: impl IntoIterator<Item = Mood>) {
        self.moods.lock().unwrap().insert(seq, moods.into_iter().collect());
    }

    /// Sequence numbers of the events that it was called with, in order.
    pub(crate) fn asked(&self) -> Vec<u64> {
        self.asked.lock().unwrap().iter().map(|(seq, _)| *seq).collect()
    }

    pub(crate) fn ids(&self) -> Vec<String> {
        self.asked.lock().unwrap().iter().map(|(_, id)| id.clone()).collect()
    }

    pub(crate) fn go_on(&self) {
        self.goes_on.notify_waiters();
    }
}

/// A response that sends a message with this content.
pub(crate) fn says(content: &str) -> WebhookResponse {
    let payload = serde_json::json!({ "channel_id": "5", "content": content });
    WebhookResponse {
        operations: vec![serde_json::json!({ "kind": "send_message", "payload": payload })],
        ..WebhookResponse::default()
    }
}

impl WebhookClient for Fake {
    fn ask(&self, asks: WebhookCall, body: WebhookBody) -> WebhookCallFuture<'_> {
        Box::pin(async move {
            let event: Value = serde_json::from_str(&body.json).unwrap();
            let seq = event["seq"].as_u64().unwrap();
            self.asked.lock().unwrap().push((seq, body.id.clone()));
            let mood = self.moods.lock().unwrap().get_mut(&seq).and_then(VecDeque::pop_front);
            let late = || WebhookCallError::Later { why: "it took too long".to_owned(), retry_after: None };
            match mood.unwrap_or_else(|| Mood::Says(says(&seq.to_string()))) {
                Mood::Says(said) => Ok(said),
                Mood::Fails(error) => Err(error),
                Mood::Hangs => match tokio::time::timeout(asks.within, self.goes_on.notified()).await {
                    Ok(()) => Ok(says(&seq.to_string())),
                    Err(_) => Err(late()),
                },
            }
        })
    }
}

/// Records first responses, and returns scripted results.
#[derive(Clone, Default)]
pub(crate) struct Phone {
    pub(crate) told: Arc<Mutex<Vec<(u64, InitialResponse)>>>,
    pub(crate) answers: Arc<Mutex<VecDeque<ResponseResult>>>,
    pub(crate) panics: bool,
}

impl InteractionResponder for Phone {
    fn tell(&self, interaction: Arc<Interaction>, first: InitialResponse, _: TraceContext) -> RespondFuture {
        assert!(
            !self.panics || matches!(first, InitialResponse::Deferred { .. }),
            "this interaction crashes its \
            guild"
        );
        self.told.lock().unwrap().push((interaction.id, first));
        let answer = self.answers.lock().unwrap().pop_front().unwrap_or(ResponseResult::Now);
        Box::pin(async move { answer })
    }
}

/// The state that survives processes, and their configuration.
#[derive(Clone, Default)]
pub(crate) struct World {
    pub(crate) store: Memory,
    pub(crate) brain: Fake,
    pub(crate) phone: Phone,
    pub(crate) config: EventsConfig,
    pub(crate) handlers: EventHandlers,
}

/// The default session of tests.
pub(crate) const SESSION: &str = "s1";

impl World {
    pub(crate) fn new(handlers: &Value) -> Self {
        let handlers = EventHandlers::parse(&serde_json::json!({ "handlers": handlers })).unwrap();
        Self { handlers, ..Self::default() }
    }

    /// Starts a process. Returns its handle, and the senders of its shards.
    pub(crate) async fn start(&self) -> (EventsHandle, HashMap<u32, ShardSender>) {
        let clock = WallClock::anchored(UnixMs::new(1_700_000_000_000));
        let outside = EventPorts {
            handlers: self.handlers.clone(),
            store: Arc::new(self.store.clone()),
            crashes: Arc::new(self.store.clone()),
            brain: Arc::new(self.brain.clone()),
            answers: Arc::new(self.phone.clone()),
            desk: lone_desk(clock.clone()),
            watch: None,
        };
        let allowance = FlowLimit { events: 10_000, bytes: 1 << 24 };
        let prepared = EventsHandle::prepare(outside, clock, self.config.clone(), allowance);
        let events = EventsHandle::start(prepared);
        let claims = vec![ShardClaim { shards: self.config.shards, shard: 0, fence: 1 }];
        let taken = events.take(claims).await;
        (events, taken.into_iter().map(|taken| (taken.claim.shard, taken.feed)).collect())
    }

    pub(crate) async fn until(&self, what: &str, mut is_so: impl FnMut() -> bool) {
        for _ in 0..36_000 {
            if is_so() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        panic!("condition never became true: {what}");
    }
}

pub(crate) fn begin(feed: &ShardSender, session: &str) {
    begin_of(0, feed, session);
}

/// Starts a session of this shard.
pub(crate) fn begin_of(shard: u32, feed: &ShardSender, session: &str) {
    let session: Arc<str> = Arc::from(session);
    feed.tell(ShardMessage::Began { shard, session: Arc::clone(&session), resume_url: None }).unwrap();
    feed.tell(ShardMessage::Passed { shard, session, seq: 1 }).unwrap();
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
pub(crate) fn posted(seq: u64, guild: u64, kind: u8) -> Event {
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
pub(crate) fn live_posted(seq: u64, kind: u8) -> Event {
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
