//! Logs and metrics of operations.

use std::time::Duration;

use guildhall_core::operation::{Failure, OperationId, OperationKind, OperationState, Queue};
use guildhall_core::time::UnixMs;
use guildhall_core::trace::{TraceContext, TraceId};
use metrics::{Unit, counter, gauge, histogram};
use tracing::field::DisplayValue;
use tracing::{debug, error, info, warn};

use super::span::{self, Span};
use super::{InternalEvent, Metric, trace_id};

/// Operations accepted, by kind.
pub const ENQUEUED: &str = "guildhall_operations_enqueued_total";
/// Operations that succeeded, by kind.
pub const COMPLETED: &str = "guildhall_operations_completed_total";
/// Operations that failed or need review, by kind and reason.
pub const FAILED: &str = "guildhall_operations_failed_total";
/// Delays of operations, by kind and reason.
pub const DELAYED: &str = "guildhall_operations_delayed_total";
/// Operations that became due early because the gate changed.
pub const RELEASED: &str = "guildhall_operations_released_total";
/// Retries of operations, by kind and reason.
pub const RETRIED: &str = "guildhall_operations_retried_total";
/// Operations sent with an unknown outcome, by kind.
pub const AMBIGUOUS: &str = "guildhall_operations_ambiguous_total";
/// Checks of unknown outcomes in Discord, by kind and result.
pub const CHECKED: &str = "guildhall_operations_checked_total";
/// Time from the acceptance of an operation to its final state, by kind.
pub const DURATION: &str = "guildhall_operation_duration_seconds";
/// Active queues.
pub const ACTIVE: &str = "guildhall_guilds_active";
/// Queues that wait for a free slot to become active.
pub const WAITING: &str = "guildhall_guilds_waiting";
/// Restarts of queues after a crash.
pub const RESTARTS: &str = "guildhall_guild_restarts_total";
/// Retried calls to the store, by purpose.
pub const STORE_RETRIES: &str = "guildhall_operation_store_retries_total";
/// Queues lost to another process.
pub const FENCED: &str = "guildhall_guilds_fenced_total";

/// All metrics of this module.
pub(super) const METRICS: &[Metric] = &[
    Metric::counter(ENQUEUED, &["kind"], "Operations accepted."),
    Metric::counter(COMPLETED, &["kind"], "Operations that succeeded."),
    Metric::counter(FAILED, &["kind", "reason"], "Operations that failed or need review."),
    Metric::counter(DELAYED, &["kind", "reason"], "Delays of operations."),
    Metric::counter(RELEASED, &[], "Delayed operations that became due early because the gate changed."),
    Metric::counter(RETRIED, &["kind", "reason"], "Retries of operations."),
    Metric::counter(AMBIGUOUS, &["kind"], "Operations sent with an unknown outcome."),
    Metric::counter(
        CHECKED,
        &["kind", "result"],
        "Checks of unknown outcomes in Discord; `result` is `found`, `absent`, `unclear`, `failed` or `held`.",
    ),
    Metric::histogram(DURATION, &["kind"], "Time from the acceptance of an operation to its final state.")
        .in_unit(Unit::Seconds),
    Metric::gauge(ACTIVE, &[], "Active queues."),
    Metric::gauge(WAITING, &[], "Queues that wait for a free slot to become active."),
    Metric::counter(RESTARTS, &[], "Restarts of queues after a crash."),
    Metric::counter(STORE_RETRIES, &["what"], "Retried calls to the store."),
    Metric::counter(FENCED, &[], "Queues lost to another process."),
];

/// An operation was accepted.
#[derive(Debug)]
pub struct OperationEnqueued {
    /// Id of the operation.
    pub id: OperationId,
    /// Kind of the operation.
    pub kind: OperationKind,
    /// Its guild.
    pub guild: Option<u64>,
    /// Trace context of the caller.
    pub trace: Option<TraceContext>,
}

impl InternalEvent for OperationEnqueued {
    fn emit(self) {
        let (kind, trace_id) = (self.kind.name(), trace_id(self.trace));
        debug!(operation_id = %self.id, kind, guild_id = self.guild, trace_id, "operation accepted");
        counter!(ENQUEUED, "kind" => kind).increment(1);
    }
}

/// Identifies an operation in every log line about it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OperationRef {
    pub(crate) id: OperationId,
    pub(crate) kind: OperationKind,
    pub(crate) guild: Option<u64>,
    pub(crate) attempt: u32,
    /// Trace context of the caller.
    pub(crate) parent: Option<TraceContext>,
}

impl OperationRef {
    /// Trace context of the operation, from its acceptance to its final state.
    pub(crate) fn trace(self) -> Option<TraceContext> {
        let (_, low) = self.id.uuid().as_u64_pair();
        self.parent.map(|trace| trace.child(low))
    }

    fn trace_id(self) -> Option<DisplayValue<TraceId>> {
        trace_id(self.parent)
    }

    fn describe(self, span: Span) -> Span {
        let span = span.text("guildhall.operation_id", self.id.to_string()).text("guildhall.kind", self.kind.name());
        span.guild(self.guild).number("guildhall.attempt", self.attempt)
    }
}

/// An operation reached a final state.
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
                debug!(operation_id = %id, kind, guild_id = guild, attempt, duration_ms, result, trace_id, "operation \
                    succeeded");
                counter!(COMPLETED, "kind" => kind).increment(1);
            }
            Some(failure) => {
                let reason = failure.class.name();
                warn!(operation_id = %id, kind, guild_id = guild, attempt, duration_ms, result, reason, error = %failure, trace_id,
                    "operation failed");
                counter!(FAILED, "kind" => kind, "reason" => reason).increment(1);
            }
        }
        histogram!(DURATION, "kind" => kind).record(after.as_secs_f64());
        span::record(self.of.trace(), |trace| {
            let parent = self.of.parent.map(|trace| trace.span);
            let span = Span::from_times(trace, parent, format!("operation {kind}"), self.accepted, self.now);
            self.of.describe(span).text("guildhall.result", result).failed(self.error.map(ToString::to_string))
        });
    }
}

/// Purpose of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AttemptPurpose {
    /// To execute the operation.
    Perform,
    /// To find the effect of an earlier attempt.
    Reconcile,
    /// To check whether the effect is in place before the operation is final.
    Verify,
}

/// An attempt of an operation finished.
pub(crate) struct OperationAttempted<'a> {
    pub(crate) of: OperationRef,
    pub(crate) purpose: AttemptPurpose,
    /// Trace context of the attempt.
    pub(crate) trace: Option<TraceContext>,
    pub(crate) started_at: UnixMs,
    pub(crate) ended_at: UnixMs,
    /// Result, out of a fixed set.
    pub(crate) result: &'static str,
    /// Description of the failure, if any.
    pub(crate) message: Option<&'a str>,
}

impl InternalEvent for OperationAttempted<'_> {
    fn emit(self) {
        let Self { of, purpose, trace, started_at: began, ended_at: ended, result, message: why } = self;
        let OperationRef { id, kind, guild, attempt, .. } = of;
        let (kind, trace_id) = (kind.name(), of.trace_id());
        let duration_ms = u64::try_from(ended.since(began).as_millis()).unwrap_or(u64::MAX);
        let name = match purpose {
            AttemptPurpose::Perform => "attempt",
            AttemptPurpose::Reconcile => "reconcile",
            AttemptPurpose::Verify => "verify",
        };
        debug!(operation_id = %id, kind, guild_id = guild, attempt, duration_ms, result, why, trace_id, "operation \
            attempt finished: {name}");
        match purpose {
            AttemptPurpose::Perform => {}
            AttemptPurpose::Reconcile | AttemptPurpose::Verify => {
                counter!(CHECKED, "kind" => kind, "result" => result).increment(1);
            }
        }
        span::record(trace, |trace| {
            let span =
                Span::from_times(trace, of.trace().map(|trace| trace.span), format!("{name} {kind}"), began, ended);
            of.describe(span).text("guildhall.result", result).failed(why.map(str::to_owned))
        });
    }
}

/// An operation was delayed.
pub(crate) struct OperationDelayed<'a> {
    pub(crate) of: OperationRef,
    pub(crate) reason: &'static str,
    pub(crate) message: &'a str,
    pub(crate) wait: Duration,
    pub(crate) parked: bool,
}

impl InternalEvent for OperationDelayed<'_> {
    fn emit(self) {
        let OperationRef { id, kind, guild, attempt, .. } = self.of;
        let (kind, trace_id, Self { reason, message: why, wait, parked, .. }) = (kind.name(), self.of.trace_id(), self);
        info!(operation_id = %id, kind, guild_id = guild, attempt, reason, why, ?wait, parked, trace_id, "operation delayed");
        counter!(DELAYED, "kind" => kind, "reason" => reason).increment(1);
    }
}

/// The gate has changed: delayed operations of a queue are due.
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

/// An operation failed, and will be retried.
pub(crate) struct OperationRetried<'a> {
    pub(crate) of: OperationRef,
    pub(crate) error: &'a Failure,
    pub(crate) wait: Duration,
}

impl InternalEvent for OperationRetried<'_> {
    fn emit(self) {
        let OperationRef { id, kind, guild, attempt, .. } = self.of;
        let (kind, reason, trace_id) = (kind.name(), self.error.class.name(), self.of.trace_id());
        info!(operation_id = %id, kind, guild_id = guild, attempt, reason, error = %self.error, wait = ?self.wait, trace_id,
            "operation failed; will retry");
        counter!(RETRIED, "kind" => kind, "reason" => reason).increment(1);
    }
}

/// An operation was sent, and its outcome is unknown.
pub(crate) struct OperationAmbiguous<'a> {
    pub(crate) of: OperationRef,
    pub(crate) message: &'a str,
    pub(crate) wait: Duration,
}

impl InternalEvent for OperationAmbiguous<'_> {
    fn emit(self) {
        let OperationRef { id, kind, guild, attempt, .. } = self.of;
        let (kind, trace_id) = (kind.name(), self.of.trace_id());
        warn!(operation_id = %id, kind, guild_id = guild, attempt, why = self.message, wait = ?self.wait, trace_id,
            "operation outcome unknown; checking Discord");
        counter!(AMBIGUOUS, "kind" => kind).increment(1);
    }
}

/// The number of active or waiting queues has changed.
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

/// The actor of a queue crashed.
pub(crate) struct GuildCrashed {
    pub(crate) queue: Queue,
    pub(crate) executing: Option<OperationId>,
    /// How long the queue pauses. `None` if it restarts at once.
    pub(crate) rests: Option<Duration>,
}

impl InternalEvent for GuildCrashed {
    fn emit(self) {
        let Self { queue, executing, rests } = self;
        match rests {
            None => {
                error!(?queue, ?executing, "guild crashed while it executed an operation; restarting it");
            }
            Some(rest) => {
                error!(?queue, ?executing, ?rest, "guild crashes repeatedly; pausing it");
            }
        }
        counter!(RESTARTS).increment(1);
    }
}

/// A call to the store failed and is retried.
pub(crate) struct StoreRetried<'a> {
    pub(crate) queue: Option<Queue>,
    pub(crate) what: &'static str,
    pub(crate) error: &'a dyn std::error::Error,
    /// Number of failures. Only the first is a warning, because every guild has the same problem.
    pub(crate) tried: u32,
    pub(crate) wait: Duration,
}

impl InternalEvent for StoreRetried<'_> {
    fn emit(self) {
        let Self { queue, what, error, tried, wait } = self;
        if tried == 1 {
            warn!(?queue, what, %error, tried, ?wait, "store call failed; will retry");
        } else {
            debug!(?queue, what, %error, tried, ?wait, "store call failed; will retry");
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
        warn!(queue = ?self.queue, "queue now belongs to another process; stopping it here");
        counter!(FENCED).increment(1);
    }
}
