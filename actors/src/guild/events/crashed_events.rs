//! Events that ended processes: stored as dead events, so that later events are handled.

use std::collections::{BTreeMap, HashMap};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use guildhall_core::event::handler::{body, trace};
use guildhall_core::event::{self, Event, EventClass, EventName, EventOrigin, EventText, Frame};
use guildhall_core::time::UnixMs;
use serde_json::Value;

use super::durable_store::DurableEventStore;
use super::fallback::{FallbackReason, InteractionFallbacks};
use super::inbox_entry::{commit_entry, inbox_entry, lane_of};
use super::registry::HandlerRegistry;
use crate::crash::{CrashedInput, Input};
use crate::ports::{HandlerCommit, InboxEntry, InboxKey, NewOperation};
use crate::telemetry::emit;
use crate::telemetry::events::EventDeadLettered;
use crate::wall_clock::WallClock;

/// Handler of a dead event whose frame could not be read, or that matches no handler. No handler can have this name.
pub(crate) const UNREAD: &str = "(unread)";

/// Name of an event that is not read.
const UNREAD_EVENT: EventName = EventName::Known("gateway.unread");

/// Creates an event from a frame that is not read, because it ended processes. Its text is the whole frame.
#[must_use]
pub fn unread_event(frame: String, origin: EventOrigin, received_at: UnixMs) -> Event {
    let whole = 0..frame.len();
    Event {
        origin,
        name: UNREAD_EVENT,
        // Never dropped under load.
        class: EventClass::Change,
        guild: None,
        channel: None,
        user: None,
        interaction: None,
        received_at,
        text: EventText::new(frame, whole),
    }
}

/// Events and inbox entries that ended processes, and how to set them aside.
pub(crate) struct CrashedEvents {
    store: DurableEventStore,
    handlers: Arc<HandlerRegistry>,
    fallbacks: Arc<InteractionFallbacks>,
    clock: WallClock,
    entries: Mutex<HashMap<InboxKey, CrashedInput>>,
}

impl CrashedEvents {
    pub(crate) fn new(
        store: DurableEventStore,
        handlers: Arc<HandlerRegistry>,
        fallbacks: Arc<InteractionFallbacks>,
        clock: WallClock,
    ) -> Self {
        Self { store, handlers, fallbacks, clock, entries: Mutex::default() }
    }

    fn entries(&self) -> MutexGuard<'_, HashMap<InboxKey, CrashedInput>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds the inbox entries among these inputs.
    pub(crate) fn add(&self, crashed: &[CrashedInput]) {
        let mut entries = self.entries();
        for one in crashed {
            match &one.input {
                Input::InboxEntry(key) => drop(entries.insert(key.clone(), one.clone())),
                Input::Event { .. } | Input::Operation(_) => {}
            }
        }
    }

    /// How often an inbox entry ended processes, if it must be set aside.
    pub(crate) fn get(&self, key: &InboxKey) -> Option<CrashedInput> {
        self.entries().get(key).cloned()
    }

    /// Removes an inbox entry that was set aside.
    pub(crate) async fn remove(&self, key: &InboxKey, crashed: &CrashedInput) {
        self.store.forget_crash(&crashed.input).await;
        self.entries().remove(key);
    }

    /// Forgets that an event ended processes.
    pub(crate) async fn forget(&self, input: &Input) {
        self.store.forget_crash(input).await;
    }

    /// Commits for an event that is set aside: a dead event for each of its handlers that has not finished with it.
    pub(crate) fn dead_events(&self, unread: &Event, crashed: &CrashedInput, done: &[usize]) -> Vec<HandlerCommit> {
        if !crashed.crashed_while_set_aside() {
            // Reading it may be what ended the processes.
            let read = catch_unwind(AssertUnwindSafe(|| self.dead_for_handlers(unread, crashed, done)));
            if let Ok(Some(dead)) = read {
                return dead;
            }
        }
        vec![self.dead_unread(unread, crashed)]
    }

    /// `None` if the frame is not an event, or matches no handler.
    fn dead_for_handlers(&self, unread: &Event, crashed: &CrashedInput, done: &[usize]) -> Option<Vec<HandlerCommit>> {
        let EventOrigin { session, shard, .. } = &unread.origin;
        let frame = event::read(unread.text.data().to_owned(), *shard, session, unread.received_at);
        let Ok(Frame::Event(event)) = frame else { return None };
        let matching = self.handlers.matching(event.name.as_str());
        if matching.is_empty() {
            return None;
        }
        let remaining = matching.into_iter().filter(|number| !done.contains(number));
        Some(
            remaining
                .map(|number| {
                    let handler = self.handlers.handler(number);
                    let entry = inbox_entry(&event, handler, body(&event, &BTreeMap::new()), self.clock.now());
                    // An earlier process has deferred it.
                    let fallback = self.fallbacks.now(&event, handler, FallbackReason::Failed);
                    commit_crashed(entry, &event.origin, crashed, fallback)
                })
                .collect(),
        )
    }

    /// A dead event with the frame as a JSON string, or with null if setting it aside ended processes too.
    fn dead_unread(&self, unread: &Event, crashed: &CrashedInput) -> HandlerCommit {
        let data = if crashed.crashed_while_set_aside() { Value::Null } else { Value::from(unread.text.data()) };
        let data = data.to_string();
        let whole = 0..data.len();
        let stored = Event {
            text: EventText::new(data, whole),
            ..unread_event(String::new(), unread.origin.clone(), unread.received_at)
        };
        let now = self.clock.now();
        let EventOrigin { session, seq, .. } = &unread.origin;
        let entry = InboxEntry {
            key: InboxKey { session: Arc::clone(session), seq: *seq, handler: Arc::from(UNREAD) },
            position: 0,
            lane: lane_of(&stored),
            name: UNREAD_EVENT.to_string(),
            event: body(&stored, &BTreeMap::new()),
            attempts: 0,
            eligible_at: now,
            dead: None,
            created_at: now,
        };
        commit_crashed(entry, &unread.origin, crashed, None)
    }
}

fn commit_crashed(
    mut entry: InboxEntry,
    origin: &EventOrigin,
    crashed: &CrashedInput,
    fallback: Option<Box<NewOperation>>,
) -> HandlerCommit {
    let reason = crashed.reason();
    emit(EventDeadLettered { handler: &entry.key.handler, event: &entry.name, trace: trace(origin), reason: &reason });
    (entry.dead, entry.attempts) = (Some(reason), crashed.crashes);
    commit_entry(entry, fallback)
}
