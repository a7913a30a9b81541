//! The inbox: events that waited too long for their handlers, or whose handlers failed, go on from here, those of one guild and
//! handler in order. Their sessions are confirmed past them.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt as _};
use guildhall_core::event::Event;
use guildhall_core::event::handler::{EventView, HandlerAction, body, from_body};
use guildhall_core::time::UnixMs;
use tokio::time::{Instant, timeout};

use super::context::{EventContext, HandlerOutcome, again_at};
use super::crashed_events::UNREAD;
use super::state_keys::answered;
use crate::crash::{self, Input};
use crate::failpoint;
use crate::ports::SubmitError;
use crate::ports::{CommitResult, InboxDisposition, InboxEntry};
use crate::supervision::Part;
use crate::telemetry::crash::EventSetAside;
use crate::telemetry::emit;
use crate::telemetry::events::{
    EventDeadLettered, EventHandled, EventPostponed, HandlerMissing, HandlerRan, HandlingOutcome, ShadowHandlerRan,
};

/// Entries that are read at once.
const PAGE: usize = 256;

/// Entries that are worked on at once.
const AT_ONCE: usize = 256;

/// How often it is looked for entries that somebody else has put there or revived.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// How long an interaction can be answered.
const TOKEN_LASTS: Duration = Duration::from_secs(15 * 60);

/// Entries of one lane for one handler, in order.
#[derive(Default)]
struct InboxQueue {
    waiting: VecDeque<InboxEntry>,
    running: bool,
}

/// What became of an entry.
enum EntryResult {
    /// It is not in the inbox any more, or is a dead letter.
    Gone,
    /// It is tried again.
    Again { at: UnixMs, attempts: u32 },
}

type InboxQueues = HashMap<(i64, usize), InboxQueue>;

/// Counts what waits there for this process, before anything new is handled: it has to wait behind that.
pub(crate) async fn count(hub: &EventContext) {
    let mut after = 0;
    loop {
        let page = hub.until_kept("inbox", || hub.store.inbox(after, PAGE)).await;
        let Some(last) = page.last() else { return };
        after = last.place;
        for entry in &page {
            if set_aside(hub, entry).await {
                continue;
            }
            if let Some((handler, _)) = ours(hub, entry, &mut BTreeSet::new()) {
                hub.expect(entry.lane, handler, &entry.key, None);
            }
        }
    }
}

/// The handler and the event of an entry, if this process looks after it.
fn ours(hub: &EventContext, entry: &InboxEntry, missing: &mut BTreeSet<Arc<str>>) -> Option<(usize, Event)> {
    let Some(handler) = hub.handler_of(&entry.key) else {
        if missing.insert(Arc::clone(&entry.key.handler)) {
            emit(HandlerMissing { handler: &entry.key.handler });
        }
        return None;
    };
    let _entered = crash::enter(Some(Input::InboxEntry(entry.key.clone())));
    let event = from_body(&entry.event).ok()?;
    hub.own.has(&event).then_some((handler, event))
}

/// Makes an entry a dead letter that ended processes, or that no handler can be called with, without reading it.
async fn set_aside(hub: &EventContext, entry: &InboxEntry) -> bool {
    let crashed = hub.set_aside.of(&entry.key);
    let why = match &crashed {
        Some(crashed) => crashed.reason(),
        None if *entry.key.handler == *UNREAD => {
            "its frame was never read, so it is not known which handlers want it; it is stored for inspection only"
                .to_owned()
        }
        None => return false,
    };
    put_off(hub, entry, InboxDisposition::Dead { attempts: entry.attempts, why }).await;
    if let Some(crashed) = crashed {
        emit(EventSetAside { crashed: &crashed });
        hub.forget_crash(&crashed.input).await;
        hub.set_aside.forget(&entry.key);
    }
    true
}

/// Works on the inbox for as long as there is a process.
pub(crate) async fn work(hub: Arc<EventContext>) {
    let mut lines = InboxQueues::new();
    let (mut after, mut loaded) = (0, 0);
    let mut missing = BTreeSet::new();
    let mut running = FuturesUnordered::new();
    let mut changes = (hub.own.changes(), hub.handlers_generation());
    loop {
        let now = (hub.own.changes(), hub.handlers_generation());
        if std::mem::replace(&mut changes, now) != now {
            // Shards have come or gone, and with them what waits in their guilds; or handlers have.
            missing.clear();
            (after, loaded) = (0, let_go(&hub, &mut lines, &mut missing));
        }
        load(&hub, &mut lines, &mut after, &mut loaded, &mut missing).await;
        let now = hub.clock.now();
        let mut next_due: Option<UnixMs> = None;
        for (whose, line) in &mut lines {
            // Its handler may be gone: it was called for the last time.
            while !line.running
                && let Some(head) = line.waiting.pop_front_if(|head| hub.handler_of(&head.key).is_none())
            {
                loaded -= 1;
                hub.on_abandoned(head.lane, &head.key);
            }
            let Some(head) = line.waiting.front().filter(|_| !line.running) else { continue };
            if head.eligible_at > now {
                next_due = Some(next_due.map_or(head.eligible_at, |due| due.min(head.eligible_at)));
            } else if running.len() < AT_ONCE
                && let Some(handler) = hub.handler_of(&head.key)
            {
                line.running = true;
                let input = Some(Input::InboxEntry(head.key.clone()));
                running.push(crash::within(input, Box::pin(run(Arc::clone(&hub), *whose, handler, head.clone()))));
            }
        }
        lines.retain(|_, line| !line.waiting.is_empty());
        let wait = next_due.map_or(LOOK_EVERY, |due| hub.clock.until(due).min(LOOK_EVERY));
        let ended = tokio::select! {
            Some(ended) = running.next(), if !running.is_empty() => Some(ended),
            _ = timeout(wait, hub.inbox_filled.notified()) => None,
        };
        let Some((whose, ended)) = ended else { continue };
        let Some(line) = lines.get_mut(&whose) else { continue };
        line.running = false;
        match ended {
            EntryResult::Gone => {
                let gone = line.waiting.pop_front();
                loaded -= 1;
                if line.waiting.is_empty() {
                    lines.remove(&whose);
                }
                if let Some(gone) = gone {
                    hub.on_taken(whose.0, whose.1, &gone.key);
                }
            }
            EntryResult::Again { at, attempts } => {
                if let Some(head) = line.waiting.front_mut() {
                    (head.eligible_at, head.attempts) = (at, attempts);
                }
            }
        }
    }
}

/// Forgets all that nobody works on just now: what is still this process's to look after is read again. How many are left.
fn let_go(hub: &EventContext, lines: &mut InboxQueues, missing: &mut BTreeSet<Arc<str>>) -> usize {
    for ((lane, handler), line) in &mut *lines {
        for entry in line.waiting.drain(usize::from(line.running)..) {
            if ours(hub, &entry, missing).is_none() {
                hub.on_taken(*lane, *handler, &entry.key);
            }
        }
    }
    lines.retain(|_, line| !line.waiting.is_empty());
    lines.len()
}

/// Reads what is new, as far as there is room.
async fn load(
    hub: &EventContext,
    lines: &mut InboxQueues,
    after: &mut i64,
    loaded: &mut usize,
    missing: &mut BTreeSet<Arc<str>>,
) {
    // Past those of other processes, but never past one of its own: theirs may become visible out of order.
    let mut from = *after;
    while *loaded < hub.config.inbox_loaded {
        let page = hub.until_kept("inbox", || hub.store.inbox(from, PAGE)).await;
        let is_last = page.len() < PAGE;
        for entry in page {
            from = entry.place;
            if set_aside(hub, &entry).await {
                continue;
            }
            if let Some((handler, _)) = ours(hub, &entry, missing) {
                *after = entry.place;
                let line = hub.line(handler);
                // The one that is worked on was not forgotten.
                let head = lines.get(&(entry.lane, line)).and_then(|line| line.waiting.front());
                if head.is_some_and(|head| head.place == entry.place) {
                    continue;
                }
                *loaded += 1;
                // Another process may have put it there, or a person has revived it.
                hub.expect(entry.lane, handler, &entry.key, None);
                lines.entry((entry.lane, line)).or_default().waiting.push_back(entry);
            } else if hub.handler_of(&entry.key).is_none() {
                hub.on_abandoned(entry.lane, &entry.key);
            }
        }
        if is_last {
            return;
        }
    }
}

/// Lets a handler hear of an entry.
async fn run(
    hub: Arc<EventContext>,
    whose: (i64, usize),
    handler: usize,
    entry: InboxEntry,
) -> ((i64, usize), EntryResult) {
    failpoint::input(Part::EventRouter, || entry.event.as_str());
    let ended = match from_body(&entry.event) {
        Ok(event) => one(&hub, handler, &entry, &event).await,
        Err(error) => {
            put_off(&hub, &entry, InboxDisposition::Dead { attempts: entry.attempts, why: error.to_string() }).await
        }
    };
    (whose, ended)
}

async fn one(hub: &Arc<EventContext>, number: usize, entry: &InboxEntry, event: &Event) -> EntryResult {
    let handler = hub.handler(number);
    let attempts = entry.attempts + 1;
    if event.interaction.is_some() && hub.clock.now().since(event.received_at) >= TOKEN_LASTS {
        let why = "Discord waits 15 minutes for the answer to an interaction, and they are over".to_owned();
        return put_off(hub, entry, InboxDisposition::Dead { attempts: entry.attempts, why }).await;
    }
    let began = Instant::now();
    let ran = match hub.asking(&entry.key) {
        Some(asking) => answered(handler, event, asking.await),
        None => {
            let view = EventView::new(event);
            match (hub.needs(handler, &view).await, &handler.does) {
                (Err(why), _) => HandlerOutcome::Never { why },
                (Ok(None), _) => HandlerOutcome::Passed,
                (Ok(Some(state)), HandlerAction::Rule(_)) => hub.apply(handler, &view, &state),
                (Ok(Some(state)), HandlerAction::Webhook(_)) => {
                    // It may have been put there before anybody looked for what its handler needs.
                    let written = if state.is_empty() { entry.event.clone() } else { body(event, &state) };
                    answered(handler, event, hub.ask(number, event, written, hub.config.within).await)
                }
            }
        }
    };
    emit(HandlerRan { meters: hub.meters(number), took: began.elapsed() });
    let given = match ran {
        HandlerOutcome::Gave(given) if handler.shadow => {
            emit(ShadowHandlerRan { handler: &handler.name, event, given: &given });
            None
        }
        HandlerOutcome::Gave(given) => Some(given),
        HandlerOutcome::Passed => None,
        HandlerOutcome::Later { why, retry_after } if attempts < hub.config.attempts => {
            let at = again_at(hub, attempts, retry_after);
            emit(EventPostponed { handler: &handler.name, event, why: &why });
            return put_off(hub, entry, InboxDisposition::Again { at, attempts, why }).await;
        }
        HandlerOutcome::Later { why, .. } | HandlerOutcome::Never { why } => {
            return put_off(hub, entry, InboxDisposition::Dead { attempts, why }).await;
        }
    };
    let did_something = given.is_some();
    let mut handled = match hub.handled(event, handler, given.unwrap_or_default()) {
        Ok(handled) => handled,
        Err(why) => return put_off(hub, entry, InboxDisposition::Dead { attempts, why }).await,
    };
    handled.from_inbox = true;
    if !did_something {
        // Who does nothing need not rest from it.
        handled.set.clear();
    }
    match hub.commit(vec![handled]).await.pop() {
        Some(CommitResult::Refused(error)) => {
            let why = error.to_string();
            let later = match error {
                SubmitError::Full { .. } | SubmitError::OverBound(_) | SubmitError::Store(_) => {
                    InboxDisposition::Again { at: again_at(hub, attempts, None), attempts, why }
                }
                SubmitError::KeyReused { .. } | SubmitError::NoSuchOperation { .. } | SubmitError::NotYours { .. } => {
                    InboxDisposition::Dead { attempts, why }
                }
            };
            put_off(hub, entry, later).await
        }
        Some(CommitResult::Done(_) | CommitResult::Before) | None => {
            emit(EventHandled { meters: hub.meters(number), outcome: HandlingOutcome::HandledLater });
            EntryResult::Gone
        }
    }
}

async fn put_off(hub: &EventContext, entry: &InboxEntry, later: InboxDisposition) -> EntryResult {
    let ended = match &later {
        InboxDisposition::Again { at, attempts, .. } => EntryResult::Again { at: *at, attempts: *attempts },
        InboxDisposition::Dead { why, .. } => {
            let trace = entry.key.trace();
            emit(EventDeadLettered { handler: &entry.key.handler, event: &entry.name, trace, why });
            EntryResult::Gone
        }
    };
    let now = hub.clock.now();
    let known = hub.until_kept("put_off", || hub.store.put_off(entry.key.clone(), later.clone(), now)).await;
    // Somebody else has been done with it.
    if known { ended } else { EntryResult::Gone }
}
