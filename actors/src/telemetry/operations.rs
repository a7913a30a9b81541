//! Logs and metrics of operations.

use std::sync::LazyLock;
use std::time::Duration;

use guildhall_core::failure_streak::FailureSummary;
use guildhall_core::operation::{Failure, OperationId, OperationKind, OperationState, Queue};
use guildhall_core::time::{UnixMs, millis};
use guildhall_core::trace::{TraceContext, TraceId};
use tracing::field::{DisplayValue, display};
use tracing::{debug, error, info, warn};

use super::span::{self, Span};
use super::{FailureLog, counter, event, gauge, histogram, metrics, trace_id};

metrics! {
    Operations {
        /// Operations accepted.
        ENQUEUED = counter "guildhall_operations_enqueued_total" [kind];
        /// Operations that succeeded.
        COMPLETED = counter "guildhall_operations_completed_total" [kind];
        /// Operations that failed or need review.
        pub(super) FAILED = counter "guildhall_operations_failed_total" [kind, reason];
        /// Delays of operations.
        DELAYED = counter "guildhall_operations_delayed_total" [kind, reason];
        /// Delayed operations that became due early because the gate changed.
        RELEASED = counter "guildhall_operations_released_total";
        /// Retries of operations.
        RETRIED = counter "guildhall_operations_retried_total" [kind, reason];
        /// Operations sent with an unknown outcome.
        AMBIGUOUS = counter "guildhall_operations_ambiguous_total" [kind];
        /// Checks of unknown outcomes in Discord; `result` is `found`, `absent`, `unclear`, `failed` or `held`.
        CHECKED = counter "guildhall_operations_checked_total" [kind, result];
        /// Time from the acceptance of an operation to its final state.
        DURATION = histogram "guildhall_operation_duration_seconds" [kind] in Seconds;
        /// Active queues.
        ACTIVE = gauge "guildhall_guilds_active";
        /// Queues that wait for a free slot to become active.
        WAITING = gauge "guildhall_guilds_waiting";
        /// Restarts of queues after a crash.
        pub RESTARTS = counter "guildhall_guild_restarts_total";
        /// Retried calls to the store.
        STORE_RETRIES = counter "guildhall_operation_store_retries_total" [what];
        /// Queues lost to another process.
        FENCED = counter "guildhall_guilds_fenced_total";
    }
}

event! {
    /// An operation was accepted.
    pub struct OperationEnqueued {
        /// Id of the operation.
        id: OperationId,
        /// Kind of the operation.
        kind: OperationKind,
        /// Its guild.
        guild: Option<u64>,
        /// Trace context of the caller.
        trace: Option<TraceContext>,
    }
    let (kind, trace_id) = (kind.name(), trace_id(trace));
    debug!(operation_id = %id, kind, guild_id = guild, trace_id, "operation accepted");
    counter!(ENQUEUED, "kind" => kind).increment(1);
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

/// Writes a log line about an operation: a level, the operation, a message, and further fields.
macro_rules! log {
    ($level:ident, $of:ident, $message:literal $(, $($fields:tt)+)?) => {
        $level!(
            operation_id = %$of.id, kind = $of.kind.name(), guild_id = $of.guild, attempt = $of.attempt,
            $($($fields)+,)? trace_id = $of.trace_id(), $message
        )
    };
}

event! {
    /// An operation reached a final state.
    pub(crate) struct OperationEnded<'a> {
        of: OperationRef,
        state: OperationState,
        error: Option<&'a Failure>,
        accepted: UnixMs,
        now: UnixMs,
    }
    let (kind, result, after) = (of.kind.name(), state.name(), now.since(accepted));
    let duration_ms = millis(after);
    match error {
        None => {
            log!(debug, of, "operation succeeded", duration_ms, result);
            counter!(COMPLETED, "kind" => kind).increment(1);
        }
        Some(error) => {
            let reason = error.class.name();
            log!(warn, of, "operation failed", duration_ms, result, reason, %error);
            counter!(FAILED, "kind" => kind, "reason" => reason).increment(1);
        }
    }
    histogram!(DURATION, "kind" => kind).record(after.as_secs_f64());
    span::record(of.trace(), |trace| {
        let parent = of.parent.map(|trace| trace.span);
        let span = Span::from_times(trace, parent, format!("operation {kind}"), accepted, now);
        of.describe(span).text("guildhall.result", result).failed(error.map(ToString::to_string))
    });
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

event! {
    /// An attempt of an operation finished.
    pub(crate) struct OperationAttempted<'a> {
        of: OperationRef,
        purpose: AttemptPurpose,
        /// Trace context of the attempt.
        trace: Option<TraceContext>,
        started_at: UnixMs,
        ended_at: UnixMs,
        /// Result, out of a fixed set.
        result: &'static str,
        /// Description of the failure, if any.
        message: Option<&'a str>,
    }
    let (kind, duration_ms) = (of.kind.name(), millis(ended_at.since(started_at)));
    let name = match purpose {
        AttemptPurpose::Perform => "attempt",
        AttemptPurpose::Reconcile => "reconcile",
        AttemptPurpose::Verify => "verify",
    };
    log!(debug, of, "operation attempt finished: {name}", duration_ms, result, why = message);
    match purpose {
        AttemptPurpose::Perform => {}
        AttemptPurpose::Reconcile | AttemptPurpose::Verify => {
            counter!(CHECKED, "kind" => kind, "result" => result).increment(1);
        }
    }
    span::record(trace, |trace| {
        let parent = of.trace().map(|trace| trace.span);
        let span = Span::from_times(trace, parent, format!("{name} {kind}"), started_at, ended_at);
        of.describe(span).text("guildhall.result", result).failed(message.map(str::to_owned))
    });
}

event! {
    /// An operation was delayed.
    pub(crate) struct OperationDelayed<'a> {
        of: OperationRef,
        reason: &'static str,
        message: &'a str,
        wait: Duration,
        parked: bool,
    }
    log!(info, of, "operation delayed", reason, why = message, wait_ms = millis(wait), parked);
    counter!(DELAYED, "kind" => of.kind.name(), "reason" => reason).increment(1);
}

event! {
    /// The gate has changed: delayed operations of a queue are due.
    pub(crate) struct OperationsReleased { queue: Queue, count: usize }
    info!(queue = queue.number(), guild_id = queue.guild(), count, "delayed operations released");
    counter!(RELEASED).increment(count as u64);
}

event! {
    /// An operation failed, and will be retried.
    pub(crate) struct OperationRetried<'a> { of: OperationRef, error: &'a Failure, wait: Duration }
    let reason = error.class.name();
    log!(info, of, "operation failed; will retry", reason, %error, wait_ms = millis(wait));
    counter!(RETRIED, "kind" => of.kind.name(), "reason" => reason).increment(1);
}

event! {
    /// An operation was sent, and its outcome is unknown.
    pub(crate) struct OperationAmbiguous<'a> { of: OperationRef, message: &'a str, wait: Duration }
    log!(warn, of, "operation outcome unknown; checking Discord", why = message, wait_ms = millis(wait));
    counter!(AMBIGUOUS, "kind" => of.kind.name()).increment(1);
}

event! {
    /// The number of active or waiting queues has changed.
    pub(crate) struct GuildsCounted { active: usize, waiting: usize }
    gauge!(ACTIVE).set(active as f64);
    gauge!(WAITING).set(waiting as f64);
}

event! {
    /// The actor of a queue crashed.
    pub(crate) struct GuildCrashed {
        queue: Queue,
        executing: Option<OperationId>,
        /// How long the queue pauses. `None` if it restarts at once.
        rests: Option<Duration>,
    }
    let (queue, guild_id, operation_id) = (queue.number(), queue.guild(), executing.map(display));
    match rests.map(millis) {
        None => error!(queue, guild_id, operation_id, "guild crashed while it executed an operation; restarting it"),
        Some(pause_ms) => error!(queue, guild_id, operation_id, pause_ms, "guild crashes repeatedly; pausing it"),
    }
    counter!(RESTARTS).increment(1);
}

/// The failed calls of all queues: they have one store, and its own lines say when it works again.
static STORE_FAILURES: LazyLock<FailureLog> = LazyLock::new(|| FailureLog::new("store calls"));

event! {
    /// A call to the store failed and is retried.
    pub(crate) struct StoreRetried<'a> {
        queue: Option<Queue>,
        what: &'static str,
        error: &'a dyn std::error::Error,
        /// Number of failures of this call.
        tried: u32,
        wait: Duration,
    }
    let (queue, wait_ms) = (queue.map(Queue::number), millis(wait));
    match STORE_FAILURES.on_isolated_failure().as_ref().map(FailureSummary::repeated) {
        Some((failures, failing_for_s)) => {
            warn!(queue, what, %error, tried, wait_ms, failures, failing_for_s, "store call failed; will retry");
        }
        None => debug!(queue, what, %error, tried, wait_ms, "store call failed; will retry"),
    }
    counter!(STORE_RETRIES, "what" => what).increment(1);
}

event! {
    /// A queue belongs to another process.
    pub(crate) struct GuildFenced { queue: Queue }
    warn!(queue = queue.number(), guild_id = queue.guild(), "queue now belongs to another process; stopping it here");
    counter!(FENCED).increment(1);
}
