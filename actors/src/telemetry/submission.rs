//! Logs and metrics of submitting and managing operations.

use guildhall_core::access::Danger;
use guildhall_core::operation::{OperationId, Queue};
use metrics::{counter, gauge};
use tracing::{debug, info};

use super::{InternalEvent, Metric};
use crate::ports::PauseTarget;

/// Operations with a repeated idempotency key and the same payload, by where the key was found: cache or store.
pub const KEY_HITS: &str = "guildhall_idempotency_hits_total";
/// Operations with a new idempotency key.
pub const KEY_MISSES: &str = "guildhall_idempotency_misses_total";
/// Operations cancelled.
pub const CANCELLED: &str = "guildhall_operations_cancelled_total";
/// Dead letters and operations in need of review that were redriven.
pub const REDRIVEN: &str = "guildhall_dead_letters_redriven_total";
/// Dead letters that were discarded.
pub const DISCARDED: &str = "guildhall_dead_letters_discarded_total";
/// Callers that wait for the final state of their operations.
pub const WAITERS: &str = "guildhall_api_waiters";

/// Operations refused because they name a channel, webhook or guild that their caller may not use, by where that was
/// detected.
pub const FOREIGN_TARGETS: &str = "guildhall_operations_elsewhere_total";

/// Operations refused because their key lacks the scope `danger`, by where that was detected.
pub const DANGER_REFUSED: &str = "guildhall_operations_danger_refused_total";

/// Operations refused because their interaction was not received by this deployment, by where.
pub const NOT_RECEIVED: &str = "guildhall_operations_interaction_not_received_total";

/// All metrics of this module.
pub(super) const METRICS: &[Metric] = &[
    Metric::counter(KEY_HITS, &["by"], "Repeated idempotency keys, by where they were found: cache or store."),
    Metric::counter(KEY_MISSES, &[], "Idempotency keys used for the first time."),
    Metric::counter(CANCELLED, &[], "Operations cancelled."),
    Metric::counter(REDRIVEN, &[], "Dead letters and operations in need of review that were redriven."),
    Metric::counter(DISCARDED, &[], "Dead letters discarded."),
    Metric::counter(
        FOREIGN_TARGETS,
        &["at"],
        "Operations refused because they name a channel, webhook or guild of another caller, by where that was \
         detected.",
    ),
    Metric::counter(
        DANGER_REFUSED,
        &["at"],
        "Operations refused because their key lacks the scope danger: at submission, redrive or retry, or at dispatch.",
    ),
    Metric::counter(
        NOT_RECEIVED,
        &["at"],
        "Operations refused because their interaction was not received or has expired, by where: submission or redrive.",
    ),
    Metric::gauge(WAITERS, &[], "Callers that wait for the final state of their operations."),
];

/// An idempotency key was repeated with the same payload.
pub(crate) struct IdempotencyKeyHit {
    pub(crate) by: &'static str,
}

impl InternalEvent for IdempotencyKeyHit {
    fn emit(self) {
        counter!(KEY_HITS, "by" => self.by).increment(1);
    }
}

/// An idempotency key was used for the first time.
pub(crate) struct IdempotencyKeyMiss;

impl InternalEvent for IdempotencyKeyMiss {
    fn emit(self) {
        counter!(KEY_MISSES).increment(1);
    }
}

/// A caller named a channel, webhook or guild that it may not use.
#[derive(Debug)]
pub struct ForeignTargetRefused {
    /// Where it was detected: `submission` or `dispatch`.
    pub at: &'static str,
}

impl InternalEvent for ForeignTargetRefused {
    fn emit(self) {
        info!(at = self.at, "operation refused: it names an object that its caller may not use");
        counter!(FOREIGN_TARGETS, "at" => self.at).increment(1);
    }
}

/// An operation needs the scope `danger`, and its key does not have it.
#[derive(Debug)]
pub struct DangerRefused<'a> {
    /// Where it was detected: `submission` or `dispatch`.
    pub at: &'static str,
    /// Effect of the operation.
    pub danger: &'a Danger,
}

impl InternalEvent for DangerRefused<'_> {
    fn emit(self) {
        // Not a warning: one submission can have many.
        debug!(at = self.at, effect = %self.danger, "operation refused: its key lacks the scope danger");
        counter!(DANGER_REFUSED, "at" => self.at).increment(1);
    }
}

/// Operations were refused because their interactions were not received or have expired.
pub(crate) struct InteractionsNotReceived {
    /// `submission` or `redrive`.
    pub(crate) at: &'static str,
    pub(crate) count: usize,
}

impl InternalEvent for InteractionsNotReceived {
    fn emit(self) {
        info!(at = self.at, count = self.count, "operations refused: interaction not received or expired");
        counter!(NOT_RECEIVED, "at" => self.at).increment(self.count as u64);
    }
}

/// The number of waiting callers has changed.
pub(crate) struct WaitersCounted {
    pub(crate) count: usize,
}

impl InternalEvent for WaitersCounted {
    fn emit(self) {
        #[expect(clippy::cast_precision_loss, reason = "the number is small")]
        gauge!(WAITERS).set(self.count as f64);
    }
}

/// An operation was cancelled by a caller.
pub(crate) struct OperationCancelled {
    pub(crate) id: OperationId,
}

impl InternalEvent for OperationCancelled {
    fn emit(self) {
        info!(operation_id = %self.id, "operation cancelled");
        counter!(CANCELLED).increment(1);
    }
}

/// An operation was made due by a caller.
pub(crate) struct OperationExpedited {
    pub(crate) id: OperationId,
}

impl InternalEvent for OperationExpedited {
    fn emit(self) {
        info!(operation_id = %self.id, "operation expedited by the API");
    }
}

/// Operations were paused or resumed by a caller.
pub(crate) struct PauseChanged {
    pub(crate) target: PauseTarget,
    pub(crate) paused: bool,
}

impl InternalEvent for PauseChanged {
    fn emit(self) {
        let guild_id = match self.target {
            PauseTarget::Queue(Queue::Guild(guild)) => Some(guild),
            PauseTarget::Queue(Queue::Keyed(_)) | PauseTarget::All => None,
        };
        let everything = self.target == PauseTarget::All;
        match self.paused {
            true => info!(guild_id, everything, "operations paused"),
            false => info!(guild_id, everything, "operations resumed"),
        }
    }
}

/// Dead letters were redriven.
pub(crate) struct DeadLettersRedriven {
    pub(crate) count: u64,
}

impl InternalEvent for DeadLettersRedriven {
    fn emit(self) {
        info!(count = self.count, "operations redriven");
        counter!(REDRIVEN).increment(self.count);
    }
}

/// Dead letters were discarded.
pub(crate) struct DeadLettersDiscarded {
    pub(crate) count: u64,
}

impl InternalEvent for DeadLettersDiscarded {
    fn emit(self) {
        info!(count = self.count, "dead letters discarded");
        counter!(DISCARDED).increment(self.count);
    }
}
