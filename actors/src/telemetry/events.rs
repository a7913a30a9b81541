//! Logs and metrics of events.

use std::sync::LazyLock;
use std::time::Duration;

use guildhall_core::event::Event;
use guildhall_core::event::handler::{RuleOutput, trace as trace_of};
use guildhall_core::operation::OperationId;
use guildhall_core::time::{UnixMs, millis};
use guildhall_core::trace::TraceContext;
use metrics::{Counter, Histogram};
use tracing::{debug, info, warn};

use super::span::{self, Span, SpanKind};
use super::{FailureLog, counter, event, gauge, histogram, metrics};
use crate::guild::FallbackReason;

metrics! {
    Gateway {
        /// Time from reading events to their delivery to the guilds, once for each batch, measured from its first
        /// event.
        pub LATENCY = histogram "guildhall_gateway_event_latency_seconds" in Seconds;
        /// Gaps in the events of Discord: sequence numbers that never arrived.
        GAPS = counter "guildhall_gateway_gaps_total";
        /// Dispatches of a shard that were read and are not confirmed: what a restart would request again.
        LAG = gauge "guildhall_gateway_sequence_lag" [shard];
    }
    Events {
        /// Events that arrived at the router.
        RECEIVED = counter "guildhall_events_received_total";
        /// Time from reading events until all their handlers have finished and the results are stored; once for each
        /// batch read, each time that a part of it finishes.
        pub HANDLING = histogram "guildhall_event_handling_seconds" in Seconds;
        /// Duration of handlers for an event, by handler; rules once for all events that ran together, as the mean.
        pub HANDLER_SECONDS = histogram "guildhall_handler_seconds" [handler] in Seconds;
        /// Events that a handler has finished, by handler and outcome.
        HANDLED = counter "guildhall_events_handled_total" [handler, outcome];
        /// Events that wait in the inbox for a slow or failing handler, by handler.
        POSTPONED = counter "guildhall_events_put_off_total" [handler];
        /// Events that became dead for a handler, by handler.
        DEAD = counter "guildhall_events_dead_total" [handler];
        /// Guilds with recent events.
        GUILDS = gauge "guildhall_event_guilds_active";
        /// Events that wait in the inbox.
        INBOX = gauge "guildhall_inbox_events";
        /// Uses of reserved state keys that were refused, by handler and by source of the key: needs, set, answer.
        RESERVED_KEYS = counter "guildhall_reserved_state_keys_refused_total" [handler, source];
        /// Operations submitted by handlers.
        HANDLER_OPERATIONS = counter "guildhall_handler_operations_total";
        /// Interactions, by how they were first answered.
        INTERACTIONS = counter "guildhall_interactions_total" [how];
        /// Fallback texts that were queued for deferred interactions without a response, by reason: cooldown, failed,
        /// unavailable, unanswered.
        FALLBACKS = counter "guildhall_interaction_fallbacks_total" [reason];
        /// Edits of first responses that are only made while the response is deferred, by outcome: sent, answered (there
        /// was a response already).
        DEFERRED_CHECKS = counter "guildhall_interaction_fallback_edits_total" [outcome];
        /// Received interactions that were not recorded because too many wait for the store: callers cannot respond to
        /// them.
        NOT_RECORDED = counter "guildhall_interactions_not_recorded_total";
        /// Crashes of guilds while they handled events.
        pub CRASHES = counter "guildhall_event_guilds_broken_total";
    }
    Operations {
        /// Queued work: unfinished operations by state, and interactions and events that no handler has finished.
        pub QUEUE_DEPTH = gauge "guildhall_queue_depth" [queue];
    }
}

/// Metrics of all events. Registered once: there are too many events to look the metrics up for each.
pub(crate) struct FlowMeters {
    received: Counter,
    latency: Histogram,
    handling: Histogram,
}

impl FlowMeters {
    pub(crate) fn new() -> Self {
        Self { received: counter!(RECEIVED), latency: histogram!(LATENCY), handling: histogram!(HANDLING) }
    }
}

/// Metrics of a handler's events, also registered once.
pub(crate) struct HandlerMeters {
    handled: Counter,
    handled_later: Counter,
    cooldown: Counter,
    seconds: Histogram,
}

impl HandlerMeters {
    pub(crate) fn new(handler: &str) -> Self {
        let counter_of =
            |outcome: &'static str| counter!(HANDLED, "handler" => handler.to_owned(), "outcome" => outcome);
        Self {
            handled: counter_of("handled"),
            handled_later: counter_of("handled_later"),
            cooldown: counter_of("cooldown"),
            seconds: histogram!(HANDLER_SECONDS, "handler" => handler.to_owned()),
        }
    }
}

event! {
    /// Events arrived.
    pub(crate) struct EventsReceived<'a> { meters: &'a FlowMeters, count: usize }
    meters.received.increment(count as u64);
}

event! {
    /// A batch of events was delivered to the guilds.
    pub(crate) struct EventsDispatched<'a> {
        meters: &'a FlowMeters,
        /// Time since the first of them was read.
        elapsed: Duration,
    }
    meters.latency.record(elapsed);
}

event! {
    /// Guilds have finished events of a batch.
    pub(crate) struct EventsCompleted<'a> {
        meters: &'a FlowMeters,
        /// Time since they were read.
        elapsed: Duration,
    }
    meters.handling.record(elapsed);
}

/// How a handler finished an event.
#[derive(Clone, Copy, Debug)]
pub(crate) enum HandlingOutcome {
    /// Immediately.
    Handled,
    /// After the event waited in the inbox.
    HandledLater,
    /// Skipped: such an event was handled a short time ago.
    Cooldown,
}

event! {
    /// A handler finished an event.
    pub(crate) struct EventHandled<'a> { meters: &'a HandlerMeters, outcome: HandlingOutcome }
    let counter = match outcome {
        HandlingOutcome::Handled => &meters.handled,
        HandlingOutcome::HandledLater => &meters.handled_later,
        HandlingOutcome::Cooldown => &meters.cooldown,
    };
    counter.increment(1);
}

event! {
    /// A handler was called.
    pub(crate) struct HandlerRan<'a> { meters: &'a HandlerMeters, elapsed: Duration }
    meters.seconds.record(elapsed);
}

event! {
    /// Results of handlers were stored.
    pub(crate) struct EventsCommitted { items: usize, operations: usize }
    debug!(items, operations, "results of handlers stored");
    counter!(HANDLER_OPERATIONS).increment(operations as u64);
}

event! {
    /// A handler produced something to store.
    pub(crate) struct HandlerProduced<'a> {
        handler: &'a str,
        event: &'a Event,
        /// Trace context of the handler.
        trace: TraceContext,
        operations: usize,
        now: UnixMs,
    }
    debug!(
        handler, event = %event.name, guild_id = event.guild, operations, trace_id = %trace.id,
        "handler finished an event"
    );
    span::record(Some(trace), |trace| {
        let (parent, name) = (trace_of(&event.origin).span, format!("handler {handler}"));
        let span = Span::from_times(trace, Some(parent), name, event.received_at, now).guild(event.guild);
        span.text("guildhall.event", event.name.to_string())
    });
}

event! {
    /// An event was delivered to its handlers, or waits for them in the inbox.
    pub(crate) struct EventDelivered<'a> { event: &'a Event, now: UnixMs }
    span::record_if_listening(|| {
        let name = format!("event {}", event.name);
        let span = Span::from_times(trace_of(&event.origin), None, name, event.received_at, now).guild(event.guild);
        span.kind(SpanKind::Consumer)
    });
}

event! {
    /// A shadow handler ran: its results are logged, not applied.
    pub(crate) struct ShadowHandlerRan<'a> { handler: &'a str, event: &'a Event, output: &'a RuleOutput }
    let RuleOutput { operations, reply, set, cooldown } = output;
    let operations = serde_json::Value::Array(operations.clone());
    info!(
        handler, event = %event.name, guild_id = event.guild, trace_id = %trace_of(&event.origin).id, %operations,
        replies = reply.is_some(), sets = set.len(), cooldown = cooldown.is_some(),
        "shadow handler ran; results not applied"
    );
    counter!(HANDLED, "handler" => handler.to_owned(), "outcome" => "shadow").increment(1);
}

event! {
    /// An event waits for a handler in the inbox.
    pub(crate) struct EventPostponed<'a> { handler: &'a str, event: &'a Event, reason: &'a str }
    debug!(
        handler, event = %event.name, guild_id = event.guild, why = reason, trace_id = %trace_of(&event.origin).id,
        "event postponed to the inbox"
    );
    counter!(POSTPONED, "handler" => handler.to_owned()).increment(1);
}

event! {
    /// An event became dead.
    pub(crate) struct EventDeadLettered<'a> {
        handler: &'a str,
        event: &'a str,
        /// Trace context of the event.
        trace: TraceContext,
        reason: &'a str,
    }
    warn!(handler, event, why = reason, trace_id = %trace.id, "event became dead for a handler");
    counter!(DEAD, "handler" => handler.to_owned()).increment(1);
}

event! {
    /// A handler used a state key that is reserved for the daemon.
    pub(crate) struct ReservedKeyRefused<'a> {
        handler: &'a str,
        event: &'a Event,
        /// `needs`, `set` or `answer`.
        source: &'static str,
        prefix: &'static str,
    }
    warn!(
        handler, event = %event.name, guild_id = event.guild, source, prefix, trace_id = %trace_of(&event.origin).id,
        "reserved state key refused"
    );
    counter!(RESERVED_KEYS, "handler" => handler.to_owned(), "source" => source).increment(1);
}

event! {
    /// Events wait for a handler that does not exist.
    pub(crate) struct HandlerMissing<'a> { handler: &'a str }
    warn!(handler, "events wait in the inbox for a handler that is no longer in handlers.file");
}

event! {
    /// Discord never sent some events.
    pub(crate) struct EventGap<'a> { shard: u32, session: &'a str, first: u64, last: Option<u64> }
    warn!(shard, session, first, last, "events missing: Discord no longer has them");
    counter!(GAPS).increment(1);
}

event! {
    /// Number of active guilds, and of queued events.
    pub(crate) struct EventGuildsCounted {
        active: usize,
        /// Events in the inbox.
        inbox: usize,
        /// All queued events except interactions.
        events: usize,
        /// Queued interactions.
        interactions: usize,
    }
    gauge!(GUILDS).set(active as f64);
    gauge!(INBOX).set(inbox as f64);
    gauge!(QUEUE_DEPTH, "queue" => "events").set(events as f64);
    gauge!(QUEUE_DEPTH, "queue" => "interactions").set(interactions as f64);
}

event! {
    /// How far the confirmed sequence of a shard is behind.
    pub(crate) struct SessionLagMeasured { shard: u32, lag: u64 }
    gauge!(LAG, "shard" => shard.to_string()).set(lag as f64);
}

event! {
    /// The confirmed sequences of sessions were saved.
    pub(crate) struct SessionsSaved { sessions: usize }
    debug!(sessions, "confirmed sequences of sessions saved");
}

event! {
    /// A guild crashed while it handled an event.
    pub(crate) struct EventGuildCrashed<'a> { lane: i64, executing: Option<&'a str>, rests: Option<Duration> }
    warn!(lane, executing, pause_ms = rests.map(millis), "event guild crashed; restarting it without the event that it was handling");
    counter!(CRASHES).increment(1);
}

/// Batches of interactions that were not recorded.
static UNRECORDED: LazyLock<FailureLog> = LazyLock::new(|| FailureLog::new("records of interactions"));

event! {
    /// Interactions were not recorded, because too many wait for the store.
    pub(crate) struct InteractionsNotRecorded { count: usize }
    if let Some(summary) = UNRECORDED.on_isolated_failure() {
        let (failures, failing_for_s) = summary.repeated();
        warn!(count, failures, failing_for_s, "received interactions not recorded: too many wait for the store");
    }
    counter!(NOT_RECORDED).increment(count as u64);
}

event! {
    /// An interaction was answered, or that failed.
    pub(crate) struct InteractionAnswered { how: &'static str }
    counter!(INTERACTIONS, "how" => how).increment(1);
}

/// Failed responses to interactions. While Discord cannot be reached, each of them fails.
static INTERACTION_FAILURES: LazyLock<FailureLog> = LazyLock::new(|| FailureLog::new("responses to interactions"));

event! {
    /// A deferred interaction gets a fallback text, unless it has a response by then.
    pub(crate) struct InteractionFallbackQueued<'a> {
        handler: &'a str,
        event: &'a Event,
        reason: FallbackReason,
        /// Until it is sent.
        delay: Duration,
    }
    debug!(
        handler, event = %event.name, guild_id = event.guild, reason = reason.name(), delay_ms = millis(delay),
        trace_id = %trace_of(&event.origin).id, "fallback queued for a deferred interaction"
    );
    counter!(FALLBACKS, "reason" => reason.name()).increment(1);
}

event! {
    /// An edit that is only made while the first response is deferred was made, or not needed.
    pub struct DeferredResponseChecked {
        /// The operation.
        id: OperationId,
        /// Its guild, if any.
        guild: Option<u64>,
        /// `sent` or `answered`.
        outcome: &'static str,
    }
    match outcome {
        "sent" => info!(operation_id = %id, guild_id = guild, "interaction without a response got its fallback"),
        _ => debug!(operation_id = %id, guild_id = guild, "interaction had a response; fallback not sent"),
    }
    counter!(DEFERRED_CHECKS, "outcome" => outcome).increment(1);
}

event! {
    /// Discord could not be sent any response to an interaction.
    pub(crate) struct InteractionResponseFailed<'a> { reason: &'a str }
    if let Some(summary) = INTERACTION_FAILURES.on_isolated_failure() {
        let (failures, failing_for_s) = summary.repeated();
        warn!(why = reason, failures, failing_for_s, "interaction neither deferred nor answered");
    }
    counter!(INTERACTIONS, "how" => "failed").increment(1);
}
