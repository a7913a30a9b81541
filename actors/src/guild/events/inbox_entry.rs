//! Events as they are stored in the inbox.

use std::collections::BTreeMap;
use std::sync::Arc;

use guildhall_core::event::Event;
use guildhall_core::event::handler::{EventHandler, body, trace};
use guildhall_core::time::UnixMs;

use crate::ports::{HandlerCommit, InboxEntry, InboxKey, NewOperation};
use crate::telemetry::emit;
use crate::telemetry::events::EventDeadLettered;

/// Identifies an event for one handler.
pub(crate) fn inbox_key(event: &Event, handler: &EventHandler) -> InboxKey {
    InboxKey { session: Arc::clone(&event.origin.session), seq: event.origin.seq, handler: Arc::clone(&handler.name) }
}

/// An inbox entry that is due now.
pub(crate) fn inbox_entry(event: &Event, handler: &EventHandler, body: String, now: UnixMs) -> InboxEntry {
    InboxEntry {
        key: inbox_key(event, handler),
        position: 0,
        lane: lane_of(event),
        name: event.name.to_string(),
        event: body,
        attempts: 0,
        eligible_at: now,
        dead: None,
        created_at: now,
    }
}

/// A commit that stores an inbox entry, and the fallback of its interaction.
pub(crate) fn commit_entry(entry: InboxEntry, fallback: Option<Box<NewOperation>>) -> HandlerCommit {
    let (key, at) = (entry.key.clone(), entry.created_at);
    HandlerCommit {
        key,
        operations: Vec::new(),
        fallback,
        set: Vec::new(),
        inbox: Some(entry),
        from_inbox: false,
        at,
        claim: None,
    }
}

/// A commit that stores an event as a dead event of this handler, and the fallback of its interaction.
pub(crate) fn commit_dead(
    event: &Event,
    handler: &EventHandler,
    reason: String,
    attempts: u32,
    fallback: Option<Box<NewOperation>>,
    now: UnixMs,
) -> HandlerCommit {
    let trace = trace(&event.origin);
    emit(EventDeadLettered { handler: &handler.name, event: event.name.as_str(), trace, reason: &reason });
    let mut entry = inbox_entry(event, handler, body(event, &BTreeMap::new()), now);
    (entry.dead, entry.attempts) = (Some(reason), attempts);
    commit_entry(entry, fallback)
}

/// The lane of an event. The events of one lane are handled in order.
pub(crate) fn lane_of(event: &Event) -> i64 {
    let signed = |id: u64| i64::try_from(id).unwrap_or(i64::MAX);
    match (&event.interaction, event.guild) {
        // An interaction waits for no other event.
        (Some(interaction), _) => -signed(interaction.id),
        (None, Some(guild)) => signed(guild),
        (None, None) => event.channel.or(event.user).map_or(0, signed),
    }
}
