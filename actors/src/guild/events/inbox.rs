//! The inbox: retries events whose handlers are slow or failed. Entries of one guild and handler are handled in order.
//! Their sessions are confirmed past them.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt as _};
use guildhall_core::event::Event;
use guildhall_core::event::handler::from_body;
use guildhall_core::time::UnixMs;
use tokio::time::timeout;

use super::context::EventContext;
use super::crashed_events::UNREAD;
use super::fallback::FallbackReason;
use super::handler_runner::{EventDisposition, Retries};
use crate::crash::{self, Input};
use crate::failpoint;
use crate::ports::{CommitResult, HandlerCommit, InboxDisposition, InboxEntry, NewOperation};
use crate::supervision::Part;
use crate::telemetry::crash::EventSetAside;
use crate::telemetry::emit;
use crate::telemetry::events::{EventDeadLettered, EventHandled, HandlerMissing, HandlingOutcome};

/// Number of entries in one read.
const PAGE_SIZE: usize = 256;

/// Maximum number of entries that are handled at the same time.
pub(super) const CONCURRENCY: usize = 256;

/// How often to read entries that other processes added or revived.
const POLL_INTERVAL: Duration = Duration::from_secs(5);

/// How long Discord accepts a response to an interaction.
const INTERACTION_LIFETIME: Duration = Duration::from_secs(15 * 60);

/// Entries of one lane for one handler, in order.
#[derive(Default)]
struct InboxQueue {
    waiting: VecDeque<InboxEntry>,
    running: bool,
}

/// Result of handling an entry.
enum EntryResult {
    /// It is no longer in the inbox, or is dead.
    Removed,
    /// It is retried.
    Retry { at: UnixMs, attempts: u32 },
}

type InboxQueues = HashMap<(i64, usize), InboxQueue>;

/// Adds the waiting entries of this process to the backlog. Called before new events are handled, because they must
/// wait behind these.
pub(crate) async fn fill_backlog(context: &EventContext) {
    let mut after = 0;
    loop {
        let page = context.store.until_ok("inbox", |store| store.inbox(after, PAGE_SIZE)).await;
        let Some(last) = page.last() else { return };
        after = last.position;
        for entry in &page {
            if set_aside(context, entry).await {
                continue;
            }
            if let Some((handler, _)) = find_owned(context, entry, &mut BTreeSet::new()) {
                context.backlog.add(entry.lane, handler, &entry.key, None);
            }
        }
    }
}

/// Handler and event of an entry, if this process owns it.
fn find_owned(context: &EventContext, entry: &InboxEntry, missing: &mut BTreeSet<Arc<str>>) -> Option<(usize, Event)> {
    let Some(handler) = context.backlog.handler_of(&entry.key) else {
        if missing.insert(Arc::clone(&entry.key.handler)) {
            emit(HandlerMissing { handler: &entry.key.handler });
        }
        return None;
    };
    let _entered = crash::enter(Some(Input::InboxEntry(entry.key.clone())));
    let event = from_body(&entry.event).ok()?;
    context.ownership.owns(&event).then_some((handler, event))
}

/// Marks an entry as dead without reading it, if it ended processes or no handler can be called with it.
async fn set_aside(context: &EventContext, entry: &InboxEntry) -> bool {
    let crashed = context.crashed.get(&entry.key);
    let reason = match &crashed {
        Some(crashed) => crashed.reason(),
        None if *entry.key.handler == *UNREAD => {
            "its frame was never read, so its handlers are unknown; it is stored for inspection only".to_owned()
        }
        None => return false,
    };
    // Reading it may be what ended the processes.
    let read = catch_unwind(AssertUnwindSafe(|| from_body(&entry.event).ok())).ok().flatten();
    let fallback = read.zip(context.backlog.handler_of(&entry.key)).and_then(|(event, number)| {
        context.fallbacks.now(&event, context.handlers.handler(number), FallbackReason::Failed)
    });
    postpone(context, entry, InboxDisposition::Dead { attempts: entry.attempts, reason }, fallback).await;
    if let Some(crashed) = crashed {
        emit(EventSetAside { crashed: &crashed });
        context.crashed.remove(&entry.key, &crashed).await;
    }
    true
}

/// Handles inbox entries until the process ends.
pub(crate) async fn run_loop(context: Arc<EventContext>) {
    let mut queues = InboxQueues::new();
    let (mut after, mut loaded) = (0, 0);
    let mut missing = BTreeSet::new();
    let mut running = FuturesUnordered::new();
    let mut changes = (context.ownership.changes(), context.handlers.generation());
    loop {
        let now = (context.ownership.changes(), context.handlers.generation());
        if std::mem::replace(&mut changes, now) != now {
            // Shards, and with them the entries of their guilds, or handlers were added or removed.
            missing.clear();
            (after, loaded) = (0, unload(&context, &mut queues, &mut missing));
        }
        load(&context, &mut queues, &mut after, &mut loaded, &mut missing).await;
        let now = context.clock.now();
        let mut next_due: Option<UnixMs> = None;
        let mut waits_for_broker = false;
        for (key, queue) in &mut queues {
            // The handler may be removed after its last call.
            while !queue.running
                && let Some(head) = queue.waiting.pop_front_if(|head| context.backlog.handler_of(&head.key).is_none())
            {
                loaded -= 1;
                context.backlog.abandon(head.lane, &head.key);
            }
            let Some(head) = queue.waiting.front().filter(|_| !queue.running) else { continue };
            if head.eligible_at > now {
                next_due = Some(next_due.map_or(head.eligible_at, |due| due.min(head.eligible_at)));
            } else if running.len() < CONCURRENCY
                && let Some(handler) = context.backlog.handler_of(&head.key)
            {
                // Entries for a broker that is down take no place of others.
                if !context.runner.can_run(handler) {
                    waits_for_broker = true;
                    continue;
                }
                queue.running = true;
                let input = Some(Input::InboxEntry(head.key.clone()));
                running.push(crash::with_input(
                    input,
                    Box::pin(run_entry(Arc::clone(&context), *key, handler, head.clone())),
                ));
            }
        }
        queues.retain(|_, queue| !queue.waiting.is_empty());
        let wait = next_due.map_or(POLL_INTERVAL, |due| context.clock.until(due).min(POLL_INTERVAL));
        let result = tokio::select! {
            Some(result) = running.next(), if !running.is_empty() => Some(result),
            () = context.runner.wait_for_broker(), if waits_for_broker => None,
            _ = timeout(wait, context.backlog.woken()) => None,
        };
        let Some((key, result)) = result else { continue };
        let Some(queue) = queues.get_mut(&key) else { continue };
        queue.running = false;
        match result {
            EntryResult::Removed => {
                let gone = queue.waiting.pop_front();
                loaded -= 1;
                if queue.waiting.is_empty() {
                    queues.remove(&key);
                }
                if let Some(gone) = gone {
                    context.backlog.remove(key.0, key.1, &gone.key);
                }
            }
            EntryResult::Retry { at, attempts } => {
                if let Some(head) = queue.waiting.front_mut() {
                    (head.eligible_at, head.attempts) = (at, attempts);
                }
            }
        }
    }
}

/// Forgets all entries that are not running. Those that this process still owns are read again. Returns the number of
/// entries left.
fn unload(context: &EventContext, queues: &mut InboxQueues, missing: &mut BTreeSet<Arc<str>>) -> usize {
    for ((lane, handler), queue) in &mut *queues {
        for entry in queue.waiting.drain(usize::from(queue.running)..) {
            if find_owned(context, &entry, missing).is_none() {
                context.backlog.remove(*lane, *handler, &entry.key);
            }
        }
    }
    queues.retain(|_, queue| !queue.waiting.is_empty());
    queues.len()
}

/// Reads new entries while there is room.
async fn load(
    context: &EventContext,
    queues: &mut InboxQueues,
    after: &mut i64,
    loaded: &mut usize,
    missing: &mut BTreeSet<Arc<str>>,
) {
    // Skips entries of other processes, but never moves the cursor past the last owned one: entries may become visible
    // out of order.
    let mut from = *after;
    while *loaded < context.config.max_inbox_loaded {
        let page = context.store.until_ok("inbox", |store| store.inbox(from, PAGE_SIZE)).await;
        let is_last = page.len() < PAGE_SIZE;
        for entry in page {
            from = entry.position;
            if set_aside(context, &entry).await {
                continue;
            }
            if let Some((handler, _)) = find_owned(context, &entry, missing) {
                *after = entry.position;
                let queue = context.handlers.queue(handler);
                // The running entry was not forgotten.
                let head = queues.get(&(entry.lane, queue)).and_then(|queue| queue.waiting.front());
                if head.is_some_and(|head| head.position == entry.position) {
                    continue;
                }
                *loaded += 1;
                // Another process may have added it, or the API has revived it.
                context.backlog.add(entry.lane, handler, &entry.key, None);
                queues.entry((entry.lane, queue)).or_default().waiting.push_back(entry);
            } else if context.backlog.handler_of(&entry.key).is_none() {
                context.backlog.abandon(entry.lane, &entry.key);
            }
        }
        if is_last {
            return;
        }
    }
}

/// Runs the handler of an entry.
async fn run_entry(
    context: Arc<EventContext>,
    key: (i64, usize),
    handler: usize,
    entry: InboxEntry,
) -> ((i64, usize), EntryResult) {
    failpoint::input(Part::EventRouter, || entry.event.as_str());
    let result = match from_body(&entry.event) {
        Ok(event) => run_handler(&context, handler, &entry, &event).await,
        Err(error) => {
            let disposition = InboxDisposition::Dead { attempts: entry.attempts, reason: error.to_string() };
            postpone(&context, &entry, disposition, None).await
        }
    };
    (key, result)
}

async fn run_handler(context: &EventContext, number: usize, entry: &InboxEntry, event: &Event) -> EntryResult {
    let EventContext { runner, config, clock, .. } = context;
    let attempts = entry.attempts + 1;
    if event.interaction.is_some() && clock.now().since(event.received_at) >= INTERACTION_LIFETIME {
        let reason = "the interaction expired: Discord accepts a response for 15 minutes".to_owned();
        return postpone(context, entry, InboxDisposition::Dead { attempts: entry.attempts, reason }, None).await;
    }
    let outcome = match context.backlog.take_call(&entry.key) {
        Some(call) => runner.finish_call(number, event, call).await,
        None => {
            let mut running = pin!(runner.run(number, event, Some(&entry.event), config.webhook_timeout));
            match timeout(config.event_timeout(event), &mut running).await {
                Ok(outcome) => outcome,
                Err(_) => {
                    queue_fallback(context, number, entry, event).await;
                    running.await
                }
            }
        }
    };
    let mut commit = match runner.decide(event, number, outcome, attempts, Retries::Allowed) {
        EventDisposition::Finished(Some(commit)) | EventDisposition::Skipped(Some(commit)) => commit,
        EventDisposition::Finished(None) | EventDisposition::Skipped(None) => removal_commit(entry, clock.now()),
        EventDisposition::Retry { at, reason, fallback } => {
            return postpone(context, entry, InboxDisposition::Retry { at, attempts, reason }, fallback).await;
        }
        EventDisposition::Dead { reason, fallback } => {
            return postpone(context, entry, InboxDisposition::Dead { attempts, reason }, fallback).await;
        }
    };
    commit.from_inbox = true;
    let Some(CommitResult::Refused(error)) = context.committer.commit(vec![commit]).await.pop() else {
        let meters = context.handlers.meters(number);
        emit(EventHandled { meters, outcome: HandlingOutcome::HandledLater });
        return EntryResult::Removed;
    };
    let (disposition, fallback) = match runner.decide_refused(event, number, &error, attempts, Retries::Allowed) {
        EventDisposition::Retry { at, reason, fallback } => {
            (InboxDisposition::Retry { at, attempts, reason }, fallback)
        }
        EventDisposition::Dead { reason, fallback } => (InboxDisposition::Dead { attempts, reason }, fallback),
        EventDisposition::Finished(_) | EventDisposition::Skipped(_) => {
            (InboxDisposition::Dead { attempts, reason: error.to_string() }, None)
        }
    };
    postpone(context, entry, disposition, fallback).await
}

/// Queues the fallback of an interaction whose handler is slow. Entries from the gateway have one already.
async fn queue_fallback(context: &EventContext, number: usize, entry: &InboxEntry, event: &Event) {
    let handler = context.handlers.handler(number);
    if let Some(fallback) = context.fallbacks.unanswered(event, handler) {
        let (at, attempts) = (entry.eligible_at, entry.attempts);
        let disposition = InboxDisposition::Retry { at, attempts, reason: "its handler is slow".to_owned() };
        postpone(context, entry, disposition, Some(fallback)).await;
    }
}

/// A commit that only removes an entry.
fn removal_commit(entry: &InboxEntry, now: UnixMs) -> HandlerCommit {
    HandlerCommit {
        key: entry.key.clone(),
        operations: Vec::new(),
        fallback: None,
        set: Vec::new(),
        inbox: None,
        from_inbox: true,
        at: now,
        claim: None,
    }
}

async fn postpone(
    context: &EventContext,
    entry: &InboxEntry,
    disposition: InboxDisposition,
    fallback: Option<Box<NewOperation>>,
) -> EntryResult {
    let result = match &disposition {
        InboxDisposition::Retry { at, attempts, .. } => EntryResult::Retry { at: *at, attempts: *attempts },
        InboxDisposition::Dead { reason, .. } => {
            let trace = entry.key.trace();
            emit(EventDeadLettered { handler: &entry.key.handler, event: &entry.name, trace, reason });
            EntryResult::Removed
        }
    };
    let now = context.clock.now();
    let exists = context.committer.postpone(&entry.key, &disposition, fallback, now).await;
    // Another process has finished the entry.
    if exists { result } else { EntryResult::Removed }
}
