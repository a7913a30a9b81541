//! Events that ended processes: kept as dead events, so that what follows them is handled.

use std::collections::{BTreeMap, HashMap};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use guildhall_core::event::handler::{body, trace};
use guildhall_core::event::{self, Event, EventClass, EventName, EventOrigin, EventText, Frame};
use guildhall_core::time::UnixMs;
use serde_json::Value;

use super::context::{EventContext, lane_of};
use crate::crash::{CrashedInput, Input};
use crate::ports::{HandlerCommit, InboxEntry, InboxKey};
use crate::telemetry::emit;
use crate::telemetry::events::EventDeadLettered;

/// The handler of a dead event whose frame could not be read, or that no handler wants. No handler can have this name.
pub(crate) const UNREAD: &str = "(unread)";

/// What an event is called that is not read.
const NAME: EventName = EventName::Known("gateway.unread");

/// An event whose frame is not read: it ended processes. Its text is the whole frame.
#[must_use]
pub fn unread_event(frame: String, origin: EventOrigin, received_at: UnixMs) -> Event {
    let whole = 0..frame.len();
    Event {
        origin,
        name: NAME,
        // Never shed.
        class: EventClass::Change,
        guild: None,
        channel: None,
        user: None,
        interaction: None,
        received_at,
        text: EventText::new(frame, whole),
    }
}

/// Entries of the inbox that are to be set aside.
#[derive(Debug, Default)]
pub(crate) struct CrashedEntries {
    entries: Mutex<HashMap<InboxKey, CrashedInput>>,
}

impl CrashedEntries {
    fn entries(&self) -> MutexGuard<'_, HashMap<InboxKey, CrashedInput>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// These inputs ended processes.
    pub(crate) fn learn(&self, crashed: &[CrashedInput]) {
        let mut entries = self.entries();
        for one in crashed {
            match &one.input {
                Input::InboxEntry(key) => drop(entries.insert(key.clone(), one.clone())),
                Input::Event { .. } | Input::Operation(_) => {}
            }
        }
    }

    /// How often an entry ended processes, if it is to be set aside.
    pub(crate) fn of(&self, key: &InboxKey) -> Option<CrashedInput> {
        self.entries().get(key).cloned()
    }

    /// It was set aside.
    pub(crate) fn forget(&self, key: &InboxKey) {
        self.entries().remove(key);
    }
}

impl EventContext {
    /// Forgets that an input ended processes.
    pub(crate) async fn forget_crash(&self, input: &Input) {
        self.until_kept("crashes", || self.crashes.forget_crashes(vec![input.clone()])).await;
    }

    /// What is stored of an event that is set aside: a dead event for each of its handlers but those that are done with it.
    pub(crate) fn dead_events(&self, unread: &Event, crashed: &CrashedInput, done: &[usize]) -> Vec<HandlerCommit> {
        if !crashed.resists() {
            // Reading it may be what ended the processes.
            let read = catch_unwind(AssertUnwindSafe(|| self.dead_for_handlers(unread, crashed, done)));
            if let Ok(Some(dead)) = read {
                return dead;
            }
        }
        vec![self.dead_unread(unread, crashed)]
    }

    /// `None` if it is no event, or no handler wants it.
    fn dead_for_handlers(&self, unread: &Event, crashed: &CrashedInput, done: &[usize]) -> Option<Vec<HandlerCommit>> {
        let EventOrigin { session, shard, .. } = &unread.origin;
        let frame = event::read(unread.text.data().to_owned(), *shard, session, unread.received_at);
        let Ok(Frame::Event(event)) = frame else { return None };
        let wanted = self.matching(event.name.as_str());
        if wanted.is_empty() {
            return None;
        }
        let left = wanted.into_iter().filter(|number| !done.contains(number));
        Some(
            left.map(|number| {
                let handler = self.handler(number);
                let entry = self.entry(&event, handler, body(&event, &BTreeMap::new()));
                self.bury_crashed(entry, &event.origin, crashed)
            })
            .collect(),
        )
    }

    /// The frame as it came, as a JSON string; without it if setting it aside ended processes, too.
    fn dead_unread(&self, unread: &Event, crashed: &CrashedInput) -> HandlerCommit {
        let data = if crashed.resists() { Value::Null } else { Value::from(unread.text.data()) };
        let data = data.to_string();
        let whole = 0..data.len();
        let shown = Event {
            text: EventText::new(data, whole),
            ..unread_event(String::new(), unread.origin.clone(), unread.received_at)
        };
        let now = self.clock.now();
        let EventOrigin { session, seq, .. } = &unread.origin;
        let entry = InboxEntry {
            key: InboxKey { session: Arc::clone(session), seq: *seq, handler: Arc::from(UNREAD) },
            place: 0,
            lane: lane_of(&shown),
            name: NAME.to_string(),
            event: body(&shown, &BTreeMap::new()),
            attempts: 0,
            eligible_at: now,
            dead: None,
            created_at: now,
        };
        self.bury_crashed(entry, &unread.origin, crashed)
    }

    fn bury_crashed(&self, mut entry: InboxEntry, origin: &EventOrigin, crashed: &CrashedInput) -> HandlerCommit {
        let why = crashed.reason();
        emit(EventDeadLettered { handler: &entry.key.handler, event: &entry.name, trace: trace(origin), why: &why });
        (entry.dead, entry.attempts) = (Some(why), crashed.crashes);
        self.put(entry)
    }
}
