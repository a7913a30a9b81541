//! What is told of operations.

use std::time::Duration;

use guildhall_core::operation::{Failure, OperationId, OperationKind, OperationState, Queue};
use guildhall_core::time::UnixMs;
use guildhall_core::trace::{TraceContext, TraceId};
use metrics::{Unit, counter, gauge, histogram};
use tracing::field::DisplayValue;
use tracing::{debug, error, info, warn};

use super::span::{self, Span};
use super::{InternalEvent, Metric, trace_id};

/// Operations that were accepted, by kind.
pub const ENQUEUED: &str = "guildhall_operations_enqueued_total";
/// Operations that succeeded, by kind.
pub const COMPLETED: &str = "guildhall_operations_completed_total";
/// Operations that were given up or need a person, by kind and why.
pub const FAILED: &str = "guildhall_operations_failed_total";
/// Times that operations were held back, by kind and why.
pub const DELAYED: &str = "guildhall_operations_delayed_total";
/// Operations that a change of the gate made due before their time.
pub const RELEASED: &str = "guildhall_operations_released_total";
/// Times that operations are to be tried again, by kind and why.
pub const RETRIED: &str = "guildhall_operations_retried_total";
/// Times that operations were sent with nobody knowing what came of it, by kind.
pub const AMBIGUOUS: &str = "guildhall_operations_ambiguous_total";
/// Checks of unknown outcomes in Discord, by kind and result.
pub const CHECKED: &str = "guildhall_operations_checked_total";
/// From an operation's acceptance to its end, by kind.
pub const DURATION: &str = "guildhall_operation_duration_seconds";
/// Queues that are looked after.
pub const ACTIVE: &str = "guildhall_guilds_active";
/// Queues that wait until there is room to look after them.
pub const WAITING: &str = "guildhall_guilds_waiting";
/// Times that what looks after a queue broke and was started again.
pub const RESTARTS: &str = "guildhall_guild_restarts_total";
/// Calls to the store that are made again, by what they were for.
pub const STORE_RETRIES: &str = "guildhall_operation_store_retries_total";
/// Times that a queue turned out to belong to another process.
pub const FENCED: &str = "guildhall_guilds_fenced_total";

/// All of them.
pub(super) const METRICS: &[Metric] = &[
    Metric::counter(ENQUEUED, &["kind"], "Operations that were accepted."),
    Metric::counter(COMPLETED, &["kind"], "Operations that succeeded."),
    Metric::counter(FAILED, &["kind", "reason"], "Operations that were given up or need a person."),
    Metric::counter(DELAYED, &["kind", "reason"], "Times that operations were held back."),
    Metric::counter(RELEASED, &[], "Held-back operations that a change of the gate made due early."),
    Metric::counter(RETRIED, &["kind", "reason"], "Times that operations are to be tried again."),
    Metric::counter(AMBIGUOUS, &["kind"], "Times that nobody knew what came of an operation."),
    Metric::counter(
        CHECKED,
        &["kind", "result"],
        "Checks of unknown outcomes in Discord; `result` is `found`, `absent`, `unclear`, `failed` or `held`.",
    ),
    Metric::histogram(DURATION, &["kind"], "From an operation's acceptance to its end.").in_unit(Unit::Seconds),
    Metric::gauge(ACTIVE, &[], "Queues that are looked after."),
    Metric::gauge(WAITING, &[], "Queues that wait until there is room to look after them."),
    Metric::counter(RESTARTS, &[], "Times that what looks after a queue broke and was started again."),
    Metric::counter(STORE_RETRIES, &["what"], "Calls to the store that are made again."),
    Metric::counter(FENCED, &[], "Times that a queue turned out to belong to another process."),
];

/// An operation was accepted.
#[derive(Debug)]
pub struct OperationEnqueued {
    /// Which.
    pub id: OperationId,
    /// What it does.
    pub kind: OperationKind,
    /// Its guild.
    pub guild: Option<u64>,
    /// The part of a trace that asked for it.
    pub trace: Option<TraceContext>,
}

impl InternalEvent for OperationEnqueued {
    fn emit(self) {
        let (kind, trace_id) = (self.kind.name(), trace_id(self.trace));
        debug!(operation_id = %self.id, kind, guild_id = self.guild, trace_id, "operation accepted");
        counter!(ENQUEUED, "kind" => kind).increment(1);
    }
}

/// Which operation is meant, in every line about it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OperationRef {
    pub(crate) id: OperationId,
    pub(crate) kind: OperationKind,
    pub(crate) guild: Option<u64>,
    pub(crate) attempt: u32,
    /// The part of a trace that asked for it.
    pub(crate) asked_by: Option<TraceContext>,
}

impl OperationRef {
    /// The part of the trace that the operation is, from its acceptance to its end.
    pub(crate) fn trace(self) -> Option<TraceContext> {
        let (_, low) = self.id.uuid().as_u64_pair();
        self.asked_by.map(|trace| trace.child(low))
    }

    fn trace_id(self) -> Option<DisplayValue<TraceId>> {
        trace_id(self.asked_by)
    }

    fn describe(self, span: Span) -> Span {
        let span = span.text("guildhall.operation_id", self.id.to_string()).text("guildhall.kind", self.kind.name());
        span.guild(self.guild).number("guildhall.attempt", self.attempt)
    }
}

/// An operation came to its end.
pub(crate) struct OperationEnded<'a> {
    pub(crate) of: OperationRef,
    pub(crate) state: OperationState,
    pub(crate) error: Option<&'a Failure>,
    pub(crate) accepted: UnixMs,
    pub(crate) now: UnixMs,
}

impl InternalEvent for OperationEnded<'_> {
    fn emit(self) {
        let OperationRef { id, kind, guild, attempt, .. } = self.of;
        let (kind, result, trace_id) = (kind.name(), self.state.name(), self.of.trace_id());
        let after = self.now.since(self.accepted);
        let duration_ms = u64::try_from(after.as_millis()).unwrap_or(u64::MAX);
        match self.error {
            None => {
                debug!(operation_id = %id, kind, guild_id = guild, attempt, duration_ms, result, trace_id, "operation done");
                counter!(COMPLETED, "kind" => kind).increment(1);
            }
            Some(failure) => {
                let reason = failure.class.name();
                warn!(operation_id = %id, kind, guild_id = guild, attempt, duration_ms, result, reason, error = %failure, trace_id, "operation given up");
                counter!(FAILED, "kind" => kind, "reason" => reason).increment(1);
            }
        }
        histogram!(DURATION, "kind" => kind).record(after.as_secs_f64());
        span::record(self.of.trace(), |trace| {
            let asked_by = self.of.asked_by.map(|trace| trace.span);
            let span = Span::over(trace, asked_by, format!("operation {kind}"), self.accepted, self.now);
            self.of.describe(span).text("guildhall.result", result).failed(self.error.map(ToString::to_string))
        });
    }
}

/// What a try of an operation was for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AttemptPurpose {
    /// To do it.
    Perform,
    /// To find what an earlier one may have done.
    Reconcile,
    /// To check whether the effect is in place before it ends.
    Verify,
}

/// An operation was tried once, or looked for.
pub(crate) struct OperationAttempted<'a> {
    pub(crate) of: OperationRef,
    pub(crate) to: AttemptPurpose,
    /// The part of the trace that the try was.
    pub(crate) trace: Option<TraceContext>,
    pub(crate) began: UnixMs,
    pub(crate) ended: UnixMs,
    /// How it ended, out of a fixed set.
    pub(crate) result: &'static str,
    /// Why it did not end well, if it did not.
    pub(crate) why: Option<&'a str>,
}

impl InternalEvent for OperationAttempted<'_> {
    fn emit(self) {
        let Self { of, to, trace, began, ended, result, why } = self;
        let OperationRef { id, kind, guild, attempt, .. } = of;
        let (kind, trace_id) = (kind.name(), of.trace_id());
        let duration_ms = u64::try_from(ended.since(began).as_millis()).unwrap_or(u64::MAX);
        let name = match to {
            AttemptPurpose::Perform => "attempt",
            AttemptPurpose::Reconcile => "reconcile",
            AttemptPurpose::Verify => "verify",
        };
        debug!(operation_id = %id, kind, guild_id = guild, attempt, duration_ms, result, why, trace_id, "operation tried: {name}");
        match to {
            AttemptPurpose::Perform => {}
            AttemptPurpose::Reconcile | AttemptPurpose::Verify => {
                counter!(CHECKED, "kind" => kind, "result" => result).increment(1);
            }
        }
        span::record(trace, |trace| {
            let span = Span::over(trace, of.trace().map(|trace| trace.span), format!("{name} {kind}"), began, ended);
            of.describe(span).text("guildhall.result", result).failed(why.map(str::to_owned))
        });
    }
}

/// An operation was held back.
pub(crate) struct OperationDelayed<'a> {
    pub(crate) of: OperationRef,
    pub(crate) reason: &'static str,
    pub(crate) why: &'a str,
    pub(crate) wait: Duration,
    pub(crate) parked: bool,
}

impl InternalEvent for OperationDelayed<'_> {
    fn emit(self) {
        let OperationRef { id, kind, guild, attempt, .. } = self.of;
        let (kind, trace_id, Self { reason, why, wait, parked, .. }) = (kind.name(), self.of.trace_id(), self);
        info!(operation_id = %id, kind, guild_id = guild, attempt, reason, why, ?wait, parked, trace_id, "operation delayed");
        counter!(DELAYED, "kind" => kind, "reason" => reason).increment(1);
    }
}

/// The gate has changed: operations of a queue that it held back are due.
pub(crate) struct OperationsReleased {
    pub(crate) queue: Queue,
    pub(crate) count: usize,
}

impl InternalEvent for OperationsReleased {
    fn emit(self) {
        let Self { queue, count } = self;
        info!(?queue, count, "delayed operations released");
        counter!(RELEASED).increment(count as u64);
    }
}

/// An operation failed, and is tried again.
pub(crate) struct OperationRetried<'a> {
    pub(crate) of: OperationRef,
    pub(crate) error: &'a Failure,
    pub(crate) wait: Duration,
}

impl InternalEvent for OperationRetried<'_> {
    fn emit(self) {
        let OperationRef { id, kind, guild, attempt, .. } = self.of;
        let (kind, reason, trace_id) = (kind.name(), self.error.class.name(), self.of.trace_id());
        info!(operation_id = %id, kind, guild_id = guild, attempt, reason, error = %self.error, wait = ?self.wait, trace_id, "operation failed; it is tried again");
        counter!(RETRIED, "kind" => kind, "reason" => reason).increment(1);
    }
}

/// An operation was sent, and nobody knows what came of it.
pub(crate) struct OperationAmbiguous<'a> {
    pub(crate) of: OperationRef,
    pub(crate) why: &'a str,
    pub(crate) wait: Duration,
}

impl InternalEvent for OperationAmbiguous<'_> {
    fn emit(self) {
        let OperationRef { id, kind, guild, attempt, .. } = self.of;
        let (kind, trace_id) = (kind.name(), self.of.trace_id());
        warn!(operation_id = %id, kind, guild_id = guild, attempt, why = self.why, wait = ?self.wait, trace_id, "an operation may have happened; it is looked for");
        counter!(AMBIGUOUS, "kind" => kind).increment(1);
    }
}

/// How many queues are looked after, and how many wait for it, has changed.
pub(crate) struct GuildsCounted {
    pub(crate) active: usize,
    pub(crate) waiting: usize,
}

impl InternalEvent for GuildsCounted {
    fn emit(self) {
        gauge!(ACTIVE).set(self.active as f64);
        gauge!(WAITING).set(self.waiting as f64);
    }
}

/// What looks after a queue broke.
pub(crate) struct GuildCrashed {
    pub(crate) queue: Queue,
    pub(crate) executing: Option<OperationId>,
    /// How long the queue is left alone; nothing if it goes on at once.
    pub(crate) rests: Option<Duration>,
}

impl InternalEvent for GuildCrashed {
    fn emit(self) {
        let Self { queue, executing, rests } = self;
        match rests {
            None => {
                error!(?queue, ?executing, "a guild broke while it executed an operation; it is started again");
            }
            Some(rest) => {
                error!(?queue, ?executing, ?rest, "a guild breaks again and again; it is left alone for a while");
            }
        }
        counter!(RESTARTS).increment(1);
    }
}

/// The store did not answer, and is asked again.
pub(crate) struct StoreRetried<'a> {
    pub(crate) queue: Option<Queue>,
    pub(crate) what: &'static str,
    pub(crate) error: &'a dyn std::error::Error,
    /// How often it did not answer. Said aloud once: every guild has the same trouble.
    pub(crate) tried: u32,
    pub(crate) wait: Duration,
}

impl InternalEvent for StoreRetried<'_> {
    fn emit(self) {
        let Self { queue, what, error, tried, wait } = self;
        if tried == 1 {
            warn!(?queue, what, %error, tried, ?wait, "the store did not answer; it is asked again");
        } else {
            debug!(?queue, what, %error, tried, ?wait, "the store did not answer; it is asked again");
        }
        counter!(STORE_RETRIES, "what" => what).increment(1);
    }
}

/// A queue belongs to another process.
pub(crate) struct GuildFenced {
    pub(crate) queue: Queue,
}

impl InternalEvent for GuildFenced {
    fn emit(self) {
        warn!(queue = ?self.queue, "a queue belongs to another process now; this one stops");
        counter!(FENCED).increment(1);
    }
}
