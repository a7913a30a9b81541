//! What is told of events.

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
/// How long it took from reading an event until its guild had it.
pub const LATENCY: &str = "guildhall_gateway_event_latency_seconds";
/// How long it took from reading an event until all its handlers were done with it.
pub const HANDLING: &str = "guildhall_event_handling_seconds";
/// How long handlers took.
pub const HANDLER_SECONDS: &str = "guildhall_handler_seconds";
/// Events and handlers that are done with each other, by outcome.
pub const HANDLED: &str = "guildhall_events_handled_total";
/// Events that were put off, by handler.
pub const PUT_OFF: &str = "guildhall_events_put_off_total";
/// Events that were given up, by handler.
pub const BURIED: &str = "guildhall_events_dead_total";
/// Sequences that are missing.
pub const GAPS: &str = "guildhall_gateway_gaps_total";
/// Guilds that have had events lately.
pub const GUILDS: &str = "guildhall_event_guilds_active";
/// Events in the inbox.
pub const INBOX: &str = "guildhall_inbox_events";
/// Reserved state keys that handlers named, by handler and source.
pub const RESERVED_KEYS: &str = "guildhall_reserved_state_keys_refused_total";
/// Operations that handlers gave.
pub const GIVEN: &str = "guildhall_handler_operations_total";
/// Received interactions that were not recorded, since too many wait for the store.
pub const NOT_RECORDED: &str = "guildhall_interactions_not_recorded_total";
/// Interactions, by how they were answered at first.
pub const INTERACTIONS: &str = "guildhall_interactions_total";
/// What waits: operations by their state, and the events of this process.
pub const QUEUE_DEPTH: &str = "guildhall_queue_depth";
/// How far what is confirmed of a shard's session is behind what was received.
pub const LAG: &str = "guildhall_gateway_sequence_lag";
/// Guilds that broke while they handled events.
pub const BROKEN: &str = "guildhall_event_guilds_broken_total";

/// All of them.
pub(super) const METRICS: &[Metric] = &[
    Metric::counter(RECEIVED, &[], "Events that arrived at the router."),
    Metric::histogram(
        LATENCY,
        &[],
        "From reading events until their guilds had them, once for each batch, by the first of it.",
    )
    .in_unit(Unit::Seconds),
    Metric::histogram(
        HANDLING,
        &[],
        "From reading events until all their handlers were done with them and that was kept, once for each batch that was read, each time that some of it was done.",
    )
    .in_unit(Unit::Seconds),
    Metric::histogram(
        HANDLER_SECONDS,
        &["handler"],
        "How long handlers took with an event, by handler; rules once for all events that were done together, by the mean.",
    )
    .in_unit(Unit::Seconds),
    Metric::counter(HANDLED, &["handler", "outcome"], "Handlers that are done with an event, by handler and outcome."),
    Metric::counter(PUT_OFF, &["handler"], "Events that wait in the inbox for a slow or failing handler, by handler."),
    Metric::counter(BURIED, &["handler"], "Events that were given up for a handler, by handler."),
    Metric::counter(GAPS, &[], "Gaps in what Discord told: sequences that never came."),
    Metric::gauge(GUILDS, &[], "Guilds that have had events lately."),
    Metric::gauge(INBOX, &[], "Events that wait in the inbox."),
    Metric::counter(
        RESERVED_KEYS,
        &["handler", "source"],
        "Uses of reserved state keys that were refused, by handler and by where the key came from: needs, set, answer.",
    ),
    Metric::counter(GIVEN, &[], "Operations that handlers gave."),
    Metric::counter(INTERACTIONS, &["how"], "Interactions, by how they were first answered."),
    Metric::counter(
        NOT_RECORDED,
        &[],
        "Received interactions that were not recorded because too many wait for the store: callers cannot respond to them.",
    ),
    Metric::gauge(
        QUEUE_DEPTH,
        &["queue"],
        "What waits: operations that are not done, by their state, and interactions and events that no handler is done with.",
    ),
    Metric::gauge(
        LAG,
        &["shard"],
        "Dispatches of a shard that were read and are not confirmed: what a restart would ask for again.",
    ),
    Metric::counter(BROKEN, &[], "Guilds that broke while they handled events."),
];

/// What is counted of all events. It is registered once: there are too many events to look it up for each.
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

/// What is counted of a handler's events, registered once, too.
pub(crate) struct HandlerMeters {
    handled: Counter,
    handled_later: Counter,
    cooldown: Counter,
    seconds: Histogram,
}

impl HandlerMeters {
    pub(crate) fn new(handler: &str) -> Self {
        let by = |outcome: &'static str| counter!(HANDLED, "handler" => handler.to_owned(), "outcome" => outcome);
        Self {
            handled: by("handled"),
            handled_later: by("handled_later"),
            cooldown: by("cooldown"),
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

/// Events that were read together are with their guilds.
pub(crate) struct EventsDispatched<'a> {
    pub(crate) meters: &'a FlowMeters,
    /// Since the first of them was read.
    pub(crate) took: Duration,
}

impl InternalEvent for EventsDispatched<'_> {
    fn emit(self) {
        self.meters.latency.record(self.took);
    }
}

/// Guilds are done with events that were read together.
pub(crate) struct EventsCompleted<'a> {
    pub(crate) meters: &'a FlowMeters,
    /// Since they were read.
    pub(crate) took: Duration,
}

impl InternalEvent for EventsCompleted<'_> {
    fn emit(self) {
        self.meters.handling.record(self.took);
    }
}

/// How a handler came to be done with an event.
#[derive(Clone, Copy, Debug)]
pub(crate) enum HandlingOutcome {
    /// At once.
    Handled,
    /// After the event had waited in the inbox.
    HandledLater,
    /// It has heard of such an event just now.
    Cooldown,
}

/// A handler is done with events.
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
    pub(crate) took: Duration,
}

impl InternalEvent for HandlerRan<'_> {
    fn emit(self) {
        self.meters.seconds.record(self.took);
    }
}

/// What handlers gave was kept.
pub(crate) struct EventsCommitted {
    pub(crate) items: usize,
    pub(crate) operations: usize,
}

impl InternalEvent for EventsCommitted {
    fn emit(self) {
        debug!(items = self.items, operations = self.operations, "what handlers gave is kept");
        counter!(GIVEN).increment(self.operations as u64);
    }
}

/// A handler gave something that is to be kept.
pub(crate) struct HandlerProduced<'a> {
    pub(crate) handler: &'a str,
    pub(crate) event: &'a Event,
    /// The part of the event's trace that the handler is.
    pub(crate) trace: TraceContext,
    pub(crate) operations: usize,
    pub(crate) now: UnixMs,
}

impl InternalEvent for HandlerProduced<'_> {
    fn emit(self) {
        let Self { handler, event, trace: own, operations, now } = self;
        debug!(handler, event = %event.name, guild_id = event.guild, operations, trace_id = %own.id, "a handler is done with an event");
        span::record(Some(own), |own| {
            let (parent, name) = (trace(&event.origin).span, format!("handler {handler}"));
            let span = Span::over(own, Some(parent), name, event.received_at, now).guild(event.guild);
            span.text("guildhall.event", event.name.to_string())
        });
    }
}

/// The handlers of an event have heard of it, or will out of the inbox.
pub(crate) struct EventDelivered<'a> {
    pub(crate) event: &'a Event,
    pub(crate) now: UnixMs,
}

impl InternalEvent for EventDelivered<'_> {
    fn emit(self) {
        let Self { event, now } = self;
        span::record_if_heard(|| {
            let name = format!("event {}", event.name);
            let span = Span::over(trace(&event.origin), None, name, event.received_at, now).guild(event.guild);
            span.kind(SpanKind::Consumer)
        });
    }
}

/// A handler runs in the shadow: what it would do is told, and not done.
pub(crate) struct ShadowHandlerRan<'a> {
    pub(crate) handler: &'a str,
    pub(crate) event: &'a Event,
    pub(crate) given: &'a RuleOutput,
}

impl InternalEvent for ShadowHandlerRan<'_> {
    fn emit(self) {
        let RuleOutput { operations, reply, set, cooldown } = self.given;
        let operations = serde_json::Value::Array(operations.clone());
        info!(
            handler = self.handler, event = %self.event.name, guild_id = self.event.guild,
            trace_id = %trace(&self.event.origin).id, %operations,
            replies = reply.is_some(), sets = set.len(), cooldown = cooldown.is_some(),
            "a handler in the shadow would do this"
        );
        counter!(HANDLED, "handler" => self.handler.to_owned(), "outcome" => "shadow").increment(1);
    }
}

/// An event waits for a handler in the inbox.
pub(crate) struct EventPostponed<'a> {
    pub(crate) handler: &'a str,
    pub(crate) event: &'a Event,
    pub(crate) why: &'a str,
}

impl InternalEvent for EventPostponed<'_> {
    fn emit(self) {
        let Self { handler, event, why } = self;
        let name = &event.name;
        debug!(handler, event = %name, guild_id = event.guild, why, trace_id = %trace(&event.origin).id, "an event waits in the inbox");
        counter!(PUT_OFF, "handler" => handler.to_owned()).increment(1);
    }
}

/// An event was given up.
pub(crate) struct EventDeadLettered<'a> {
    pub(crate) handler: &'a str,
    pub(crate) event: &'a str,
    /// The part of a trace that the event is.
    pub(crate) trace: TraceContext,
    pub(crate) why: &'a str,
}

impl InternalEvent for EventDeadLettered<'_> {
    fn emit(self) {
        let Self { handler, event, trace, why } = self;
        warn!(handler, event, why, trace_id = %trace.id, "an event was given up for a handler");
        counter!(BURIED, "handler" => self.handler.to_owned()).increment(1);
    }
}

/// A handler named a state key that belongs to the daemon.
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

/// Events wait for a handler that there is not.
pub(crate) struct HandlerMissing<'a> {
    pub(crate) handler: &'a str,
}

impl InternalEvent for HandlerMissing<'_> {
    fn emit(self) {
        warn!(handler = self.handler, "events wait in the inbox for a handler that is not in handlers.file any more");
    }
}

/// Discord never told some of what happened.
pub(crate) struct EventGap<'a> {
    pub(crate) shard: u32,
    pub(crate) session: &'a str,
    pub(crate) first: u64,
    pub(crate) last: Option<u64>,
}

impl InternalEvent for EventGap<'_> {
    fn emit(self) {
        let Self { shard, session, first, last } = self;
        warn!(shard, session, first, last, "events are missing: Discord has forgotten them");
        counter!(GAPS).increment(1);
    }
}

/// How many guilds there are, and how much waits.
pub(crate) struct EventGuildsCounted {
    pub(crate) active: usize,
    /// What waits in the inbox.
    pub(crate) inbox: usize,
    /// All that waits, interactions aside.
    pub(crate) events: usize,
    /// The interactions that wait.
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

/// How far what is confirmed of a shard's session is behind.
pub(crate) struct SessionLagMeasured {
    pub(crate) shard: u32,
    pub(crate) lag: u64,
}

impl InternalEvent for SessionLagMeasured {
    fn emit(self) {
        gauge!(LAG, "shard" => self.shard.to_string()).set(self.lag as f64);
    }
}

/// It was kept how far sessions are confirmed.
pub(crate) struct SessionsSaved {
    pub(crate) sessions: usize,
}

impl InternalEvent for SessionsSaved {
    fn emit(self) {
        debug!(sessions = self.sessions, "how far sessions are confirmed is kept");
    }
}

/// A guild broke while it handled an event.
pub(crate) struct EventGuildCrashed<'a> {
    pub(crate) lane: i64,
    pub(crate) executing: Option<&'a str>,
    pub(crate) rests: Option<Duration>,
}

impl InternalEvent for EventGuildCrashed<'_> {
    fn emit(self) {
        let Self { lane, executing, rests } = self;
        warn!(lane, executing, ?rests, "what handles a guild's events broke; it starts again without what broke it");
        counter!(BROKEN).increment(1);
    }
}

/// Interactions were not recorded, since too many wait for the store.
pub(crate) struct InteractionsNotRecorded {
    pub(crate) count: usize,
}

impl InternalEvent for InteractionsNotRecorded {
    fn emit(self) {
        warn!(count = self.count, "received interactions not recorded: too many wait for the store");
        counter!(NOT_RECORDED).increment(self.count as u64);
    }
}

/// An interaction was answered, or could not be.
pub(crate) struct InteractionAnswered {
    pub(crate) how: &'static str,
}

impl InternalEvent for InteractionAnswered {
    fn emit(self) {
        counter!(INTERACTIONS, "how" => self.how).increment(1);
    }
}

/// Discord could not be told anything of an interaction.
pub(crate) struct InteractionResponseFailed<'a> {
    pub(crate) why: &'a str,
}

impl InternalEvent for InteractionResponseFailed<'_> {
    fn emit(self) {
        warn!(why = self.why, "an interaction was neither deferred nor answered");
        counter!(INTERACTIONS, "how" => "failed").increment(1);
    }
}
