//! Events of submitting and managing operations.

use guildhall_core::access::Danger;
use guildhall_core::operation::{OperationId, Queue};
use metrics::{counter, gauge};
use tracing::{debug, info};

use super::{InternalEvent, Metric};
use crate::ports::PauseTarget;

/// Operations whose idempotency key was used before for the same, by who knew it: the cache or the store.
pub const KEY_HITS: &str = "guildhall_idempotency_hits_total";
/// Operations whose idempotency key was new.
pub const KEY_MISSES: &str = "guildhall_idempotency_misses_total";
/// Operations that a person took back.
pub const CANCELLED: &str = "guildhall_operations_cancelled_total";
/// Dead letters and operations in need of a person that were done again.
pub const REDRIVEN: &str = "guildhall_dead_letters_redriven_total";
/// Dead letters that were thrown away.
pub const DISCARDED: &str = "guildhall_dead_letters_discarded_total";
/// Callers that wait for the end of what they have submitted.
pub const WAITERS: &str = "guildhall_api_waiters";

/// Operations that named a channel, a webhook or a guild that their caller may not, by where it was found out.
pub const NAMED_ELSEWHERE: &str = "guildhall_operations_elsewhere_total";

/// Operations that were refused because their key lacks the scope `danger`, by where it was found out.
pub const DANGER_REFUSED: &str = "guildhall_operations_danger_refused_total";

/// Operations that were refused since they respond to interactions that this deployment has not received, by where.
pub const NOT_RECEIVED: &str = "guildhall_operations_interaction_not_received_total";

/// All of them.
pub(super) const METRICS: &[Metric] = &[
    Metric::counter(KEY_HITS, &["by"], "Idempotency keys used before, by who knew: cache or store."),
    Metric::counter(KEY_MISSES, &[], "Idempotency keys used for the first time."),
    Metric::counter(CANCELLED, &[], "Operations that a person took back."),
    Metric::counter(REDRIVEN, &[], "Dead letters and operations in need of a person that were done again."),
    Metric::counter(DISCARDED, &[], "Dead letters that were thrown away."),
    Metric::counter(
        NAMED_ELSEWHERE,
        &["at"],
        "Operations that named a channel, webhook or guild that is not their caller's, by where it was found out.",
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
    Metric::gauge(WAITERS, &[], "Callers that wait for the end of what they have submitted."),
];

/// A key was used before for the same.
pub(crate) struct IdempotencyKeyHit {
    pub(crate) by: &'static str,
}

impl InternalEvent for IdempotencyKeyHit {
    fn emit(self) {
        counter!(KEY_HITS, "by" => self.by).increment(1);
    }
}

/// A key was used for the first time.
pub(crate) struct IdempotencyKeyMiss;

impl InternalEvent for IdempotencyKeyMiss {
    fn emit(self) {
        counter!(KEY_MISSES).increment(1);
    }
}

/// Somebody named a channel, a webhook or a guild that is not theirs.
#[derive(Debug)]
pub struct ForeignTargetRefused {
    /// Where it was found out: `submission` or `dispatch`.
    pub at: &'static str,
}

impl InternalEvent for ForeignTargetRefused {
    fn emit(self) {
        info!(at = self.at, "an operation names something that is not its caller's, and is not done");
        counter!(NAMED_ELSEWHERE, "at" => self.at).increment(1);
    }
}

/// An operation needs the scope `danger`, and its key does not have it.
#[derive(Debug)]
pub struct DangerRefused<'a> {
    /// Where it was found out: `submission` or `dispatch`.
    pub at: &'static str,
    /// What the operation does.
    pub danger: &'a Danger,
}

impl InternalEvent for DangerRefused<'_> {
    fn emit(self) {
        // One submission can hold many.
        debug!(at = self.at, effect = %self.danger, "operation refused: its key lacks the scope danger");
        counter!(DANGER_REFUSED, "at" => self.at).increment(1);
    }
}

/// Operations were refused, since they respond to interactions that were not received or have expired.
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

/// So many callers wait for the end of what they have submitted.
pub(crate) struct WaitersCounted {
    pub(crate) count: usize,
}

impl InternalEvent for WaitersCounted {
    fn emit(self) {
        #[expect(clippy::cast_precision_loss, reason = "there are few")]
        gauge!(WAITERS).set(self.count as f64);
    }
}

/// A person took an operation back.
pub(crate) struct OperationCancelled {
    pub(crate) id: OperationId,
}

impl InternalEvent for OperationCancelled {
    fn emit(self) {
        info!(operation_id = %self.id, "operation cancelled");
        counter!(CANCELLED).increment(1);
    }
}

/// A person made an operation due.
pub(crate) struct OperationExpedited {
    pub(crate) id: OperationId,
}

impl InternalEvent for OperationExpedited {
    fn emit(self) {
        info!(operation_id = %self.id, "operation is due by a person's word");
    }
}

/// A person paused something, or let it go on.
pub(crate) struct PauseChanged {
    pub(crate) what: PauseTarget,
    pub(crate) paused: bool,
}

impl InternalEvent for PauseChanged {
    fn emit(self) {
        let guild_id = match self.what {
            PauseTarget::Queue(Queue::Guild(guild)) => Some(guild),
            PauseTarget::Queue(Queue::Keyed(_)) | PauseTarget::All => None,
        };
        let everything = self.what == PauseTarget::All;
        match self.paused {
            true => info!(guild_id, everything, "operations paused"),
            false => info!(guild_id, everything, "operations go on"),
        }
    }
}

/// Letters are done again.
pub(crate) struct DeadLettersRedriven {
    pub(crate) count: u64,
}

impl InternalEvent for DeadLettersRedriven {
    fn emit(self) {
        info!(count = self.count, "operations are done again");
        counter!(REDRIVEN).increment(self.count);
    }
}

/// Letters were thrown away.
pub(crate) struct DeadLettersDiscarded {
    pub(crate) count: u64,
}

impl InternalEvent for DeadLettersDiscarded {
    fn emit(self) {
        info!(count = self.count, "dead letters discarded");
        counter!(DISCARDED).increment(self.count);
    }
}
