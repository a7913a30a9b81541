//! Logs and metrics of events.

use std::time::Duration;

use guildhall_core::event::Event;
use guildhall_core::event::handler::{RuleOutput, trace};
use guildhall_core::time::UnixMs;
use guildhall_core::trace::TraceContext;
use metrics::{Counter, Histogram, Unit, counter, gauge, histogram};
use tracing::{debug, info, warn};

use super::span::{self, Span, SpanKind};
use super::{InternalEvent, Metric};

/// Events that arrived at the router.
pub const RECEIVED: &str = "guildhall_events_received_total";
/// Time from reading an event to its delivery to the guild.
pub const LATENCY: &str = "guildhall_gateway_event_latency_seconds";
/// Time from reading an event until all its handlers have finished.
pub const HANDLING: &str = "guildhall_event_handling_seconds";
/// Duration of handlers.
pub const HANDLER_SECONDS: &str = "guildhall_handler_seconds";
/// Events finished by a handler, by outcome.
pub const HANDLED: &str = "guildhall_events_handled_total";
/// Events postponed, by handler.
pub const POSTPONED: &str = "guildhall_events_put_off_total";
/// Dead events, by handler.
pub const DEAD: &str = "guildhall_events_dead_total";
/// Missing sequence numbers.
pub const GAPS: &str = "guildhall_gateway_gaps_total";
/// Guilds with recent events.
pub const GUILDS: &str = "guildhall_event_guilds_active";
/// Events in the inbox.
pub const INBOX: &str = "guildhall_inbox_events";
/// Uses of reserved state keys by handlers, by handler and source.
pub const RESERVED_KEYS: &str = "guildhall_reserved_state_keys_refused_total";
/// Operations submitted by handlers.
pub const HANDLER_OPERATIONS: &str = "guildhall_handler_operations_total";
/// Received interactions that were not recorded because too many wait for the store.
pub const NOT_RECORDED: &str = "guildhall_interactions_not_recorded_total";
/// Interactions, by how they were first answered.
pub const INTERACTIONS: &str = "guildhall_interactions_total";
/// Queued work: operations by state, and the events of this process.
pub const QUEUE_DEPTH: &str = "guildhall_queue_depth";
/// How far the confirmed sequence of a shard is behind the received one.
pub const LAG: &str = "guildhall_gateway_sequence_lag";
/// Crashes of guilds while they handled events.
pub const CRASHES: &str = "guildhall_event_guilds_broken_total";

/// All metrics of this module.
pub(super) const METRICS: &[Metric] = &[
    Metric::counter(RECEIVED, &[], "Events that arrived at the router."),
    Metric::histogram(
        LATENCY,
        &[],
        "Time from reading events to their delivery to the guilds, once for each batch, measured from its first \
         event.",
    )
    .in_unit(Unit::Seconds),
    Metric::histogram(
        HANDLING,
        &[],
        "Time from reading events until all their handlers have finished and the results are stored; once for each \
         batch read, each time that a part of it finishes.",
    )
    .in_unit(Unit::Seconds),
    Metric::histogram(
        HANDLER_SECONDS,
        &["handler"],
        "Duration of handlers for an event, by handler; rules once for all events that ran together, as the mean.",
    )
    .in_unit(Unit::Seconds),
    Metric::counter(HANDLED, &["handler", "outcome"], "Events that a handler has finished, by handler and outcome."),
    Metric::counter(
        POSTPONED,
        &["handler"],
        "Events that wait in the inbox for a slow or failing handler, by handler.",
    ),
    Metric::counter(DEAD, &["handler"], "Events that became dead for a handler, by handler."),
    Metric::counter(GAPS, &[], "Gaps in the events of Discord: sequence numbers that never arrived."),
    Metric::gauge(GUILDS, &[], "Guilds with recent events."),
    Metric::gauge(INBOX, &[], "Events that wait in the inbox."),
    Metric::counter(
        RESERVED_KEYS,
        &["handler", "source"],
        "Uses of reserved state keys that were refused, by handler and by source of the key: needs, set, answer.",
    ),
    Metric::counter(HANDLER_OPERATIONS, &[], "Operations submitted by handlers."),
    Metric::counter(INTERACTIONS, &["how"], "Interactions, by how they were first answered."),
    Metric::counter(
        NOT_RECORDED,
        &[],
        "Received interactions that were not recorded because too many wait for the store: callers cannot respond to them.",
    ),
    Metric::gauge(
        QUEUE_DEPTH,
        &["queue"],
        "Queued work: unfinished operations by state, and interactions and events that no handler has finished.",
    ),
    Metric::gauge(
        LAG,
        &["shard"],
        "Dispatches of a shard that were read and are not confirmed: what a restart would request again.",
    ),
    Metric::counter(CRASHES, &[], "Crashes of guilds while they handled events."),
];

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

/// Events arrived.
pub(crate) struct EventsReceived<'a> {
    pub(crate) meters: &'a FlowMeters,
    pub(crate) count: usize,
}

impl InternalEvent for EventsReceived<'_> {
    fn emit(self) {
        self.meters.received.increment(self.count as u64);
    }
}

/// A batch of events was delivered to the guilds.
pub(crate) struct EventsDispatched<'a> {
    pub(crate) meters: &'a FlowMeters,
    /// Time since the first of them was read.
    pub(crate) elapsed: Duration,
}

impl InternalEvent for EventsDispatched<'_> {
    fn emit(self) {
        self.meters.latency.record(self.elapsed);
    }
}

/// Guilds have finished events of a batch.
pub(crate) struct EventsCompleted<'a> {
    pub(crate) meters: &'a FlowMeters,
    /// Time since they were read.
    pub(crate) elapsed: Duration,
}

impl InternalEvent for EventsCompleted<'_> {
    fn emit(self) {
        self.meters.handling.record(self.elapsed);
    }
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

/// A handler finished an event.
pub(crate) struct EventHandled<'a> {
    pub(crate) meters: &'a HandlerMeters,
    pub(crate) outcome: HandlingOutcome,
}

impl InternalEvent for EventHandled<'_> {
    fn emit(self) {
        let counter = match self.outcome {
            HandlingOutcome::Handled => &self.meters.handled,
            HandlingOutcome::HandledLater => &self.meters.handled_later,
            HandlingOutcome::Cooldown => &self.meters.cooldown,
        };
        counter.increment(1);
    }
}

/// A handler was called.
pub(crate) struct HandlerRan<'a> {
    pub(crate) meters: &'a HandlerMeters,
    pub(crate) elapsed: Duration,
}

impl InternalEvent for HandlerRan<'_> {
    fn emit(self) {
        self.meters.seconds.record(self.elapsed);
    }
}

/// Results of handlers were stored.
pub(crate) struct EventsCommitted {
    pub(crate) items: usize,
    pub(crate) operations: usize,
}

impl InternalEvent for EventsCommitted {
    fn emit(self) {
        debug!(items = self.items, operations = self.operations, "results of handlers stored");
        counter!(HANDLER_OPERATIONS).increment(self.operations as u64);
    }
}

/// A handler produced something to store.
pub(crate) struct HandlerProduced<'a> {
    pub(crate) handler: &'a str,
    pub(crate) event: &'a Event,
    /// Trace context of the handler.
    pub(crate) trace: TraceContext,
    pub(crate) operations: usize,
    pub(crate) now: UnixMs,
}

impl InternalEvent for HandlerProduced<'_> {
    fn emit(self) {
        let Self { handler, event, trace: own, operations, now } = self;
        debug!(handler, event = %event.name, guild_id = event.guild, operations, trace_id = %own.id, "handler finished \
            an event");
        span::record(Some(own), |own| {
            let (parent, name) = (trace(&event.origin).span, format!("handler {handler}"));
            let span = Span::from_times(own, Some(parent), name, event.received_at, now).guild(event.guild);
            span.text("guildhall.event", event.name.to_string())
        });
    }
}

/// An event was delivered to its handlers, or waits for them in the inbox.
pub(crate) struct EventDelivered<'a> {
    pub(crate) event: &'a Event,
    pub(crate) now: UnixMs,
}

impl InternalEvent for EventDelivered<'_> {
    fn emit(self) {
        let Self { event, now } = self;
        span::record_if_listening(|| {
            let name = format!("event {}", event.name);
            let span = Span::from_times(trace(&event.origin), None, name, event.received_at, now).guild(event.guild);
            span.kind(SpanKind::Consumer)
        });
    }
}

/// A shadow handler ran: its results are logged, not applied.
pub(crate) struct ShadowHandlerRan<'a> {
    pub(crate) handler: &'a str,
    pub(crate) event: &'a Event,
    pub(crate) output: &'a RuleOutput,
}

impl InternalEvent for ShadowHandlerRan<'_> {
    fn emit(self) {
        let RuleOutput { operations, reply, set, cooldown } = self.output;
        let operations = serde_json::Value::Array(operations.clone());
        info!(
            handler = self.handler, event = %self.event.name, guild_id = self.event.guild,
            trace_id = %trace(&self.event.origin).id, %operations,
            replies = reply.is_some(), sets = set.len(), cooldown = cooldown.is_some(),
            "shadow handler ran; results not applied"
        );
        counter!(HANDLED, "handler" => self.handler.to_owned(), "outcome" => "shadow").increment(1);
    }
}

/// An event waits for a handler in the inbox.
pub(crate) struct EventPostponed<'a> {
    pub(crate) handler: &'a str,
    pub(crate) event: &'a Event,
    pub(crate) reason: &'a str,
}

impl InternalEvent for EventPostponed<'_> {
    fn emit(self) {
        let Self { handler, event, reason: why } = self;
        let name = &event.name;
        debug!(handler, event = %name, guild_id = event.guild, why, trace_id = %trace(&event.origin).id, "event \
            postponed to the inbox");
        counter!(POSTPONED, "handler" => handler.to_owned()).increment(1);
    }
}

/// An event became dead.
pub(crate) struct EventDeadLettered<'a> {
    pub(crate) handler: &'a str,
    pub(crate) event: &'a str,
    /// Trace context of the event.
    pub(crate) trace: TraceContext,
    pub(crate) reason: &'a str,
}

impl InternalEvent for EventDeadLettered<'_> {
    fn emit(self) {
        let Self { handler, event, trace, reason: why } = self;
        warn!(handler, event, why, trace_id = %trace.id, "event became dead for a handler");
        counter!(DEAD, "handler" => self.handler.to_owned()).increment(1);
    }
}

/// A handler used a state key that is reserved for the daemon.
pub(crate) struct ReservedKeyRefused<'a> {
    pub(crate) handler: &'a str,
    pub(crate) event: &'a Event,
    /// `needs`, `set` or `answer`.
    pub(crate) source: &'static str,
    pub(crate) prefix: &'static str,
}

impl InternalEvent for ReservedKeyRefused<'_> {
    fn emit(self) {
        let Self { handler, event, source, prefix } = self;
        warn!(
            handler, event = %event.name, guild_id = event.guild, source, prefix,
            trace_id = %trace(&event.origin).id, "reserved state key refused"
        );
        counter!(RESERVED_KEYS, "handler" => handler.to_owned(), "source" => source).increment(1);
    }
}

/// Events wait for a handler that does not exist.
pub(crate) struct HandlerMissing<'a> {
    pub(crate) handler: &'a str,
}

impl InternalEvent for HandlerMissing<'_> {
    fn emit(self) {
        warn!(handler = self.handler, "events wait in the inbox for a handler that is no longer in handlers.file");
    }
}

/// Discord never sent some events.
pub(crate) struct EventGap<'a> {
    pub(crate) shard: u32,
    pub(crate) session: &'a str,
    pub(crate) first: u64,
    pub(crate) last: Option<u64>,
}

impl InternalEvent for EventGap<'_> {
    fn emit(self) {
        let Self { shard, session, first, last } = self;
        warn!(shard, session, first, last, "events missing: Discord no longer has them");
        counter!(GAPS).increment(1);
    }
}

/// Number of active guilds, and of queued events.
pub(crate) struct EventGuildsCounted {
    pub(crate) active: usize,
    /// Events in the inbox.
    pub(crate) inbox: usize,
    /// All queued events except interactions.
    pub(crate) events: usize,
    /// Queued interactions.
    pub(crate) interactions: usize,
}

impl InternalEvent for EventGuildsCounted {
    fn emit(self) {
        gauge!(GUILDS).set(self.active as f64);
        gauge!(INBOX).set(self.inbox as f64);
        gauge!(QUEUE_DEPTH, "queue" => "events").set(self.events as f64);
        gauge!(QUEUE_DEPTH, "queue" => "interactions").set(self.interactions as f64);
    }
}

/// How far the confirmed sequence of a shard is behind.
pub(crate) struct SessionLagMeasured {
    pub(crate) shard: u32,
    pub(crate) lag: u64,
}

impl InternalEvent for SessionLagMeasured {
    fn emit(self) {
        gauge!(LAG, "shard" => self.shard.to_string()).set(self.lag as f64);
    }
}

/// The confirmed sequences of sessions were saved.
pub(crate) struct SessionsSaved {
    pub(crate) sessions: usize,
}

impl InternalEvent for SessionsSaved {
    fn emit(self) {
        debug!(sessions = self.sessions, "confirmed sequences of sessions saved");
    }
}

/// A guild crashed while it handled an event.
pub(crate) struct EventGuildCrashed<'a> {
    pub(crate) lane: i64,
    pub(crate) executing: Option<&'a str>,
    pub(crate) rests: Option<Duration>,
}

impl InternalEvent for EventGuildCrashed<'_> {
    fn emit(self) {
        let Self { lane, executing, rests } = self;
        warn!(lane, executing, ?rests, "event guild crashed; restarting it without the event that it was handling");
        counter!(CRASHES).increment(1);
    }
}

/// Interactions were not recorded, because too many wait for the store.
pub(crate) struct InteractionsNotRecorded {
    pub(crate) count: usize,
}

impl InternalEvent for InteractionsNotRecorded {
    fn emit(self) {
        warn!(count = self.count, "received interactions not recorded: too many wait for the store");
        counter!(NOT_RECORDED).increment(self.count as u64);
    }
}

/// An interaction was answered, or that failed.
pub(crate) struct InteractionAnswered {
    pub(crate) how: &'static str,
}

impl InternalEvent for InteractionAnswered {
    fn emit(self) {
        counter!(INTERACTIONS, "how" => self.how).increment(1);
    }
}

/// Discord could not be sent any response to an interaction.
pub(crate) struct InteractionResponseFailed<'a> {
    pub(crate) reason: &'a str,
}

impl InternalEvent for InteractionResponseFailed<'_> {
    fn emit(self) {
        warn!(why = self.reason, "interaction neither deferred nor answered");
        counter!(INTERACTIONS, "how" => "failed").increment(1);
    }
}
