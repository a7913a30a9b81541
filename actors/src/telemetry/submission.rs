//! Logs and metrics of submitting and managing operations.

use guildhall_core::access::Danger;
use guildhall_core::operation::{OperationId, Queue};
use tracing::{debug, info};

use super::{counter, event, gauge, metrics};
use crate::ports::PauseTarget;

metrics! {
    Operations {
        /// Repeated idempotency keys, by where they were found: cache or store.
        KEY_HITS = counter "guildhall_idempotency_hits_total" [by];
        /// Idempotency keys used for the first time.
        KEY_MISSES = counter "guildhall_idempotency_misses_total";
        /// Operations cancelled.
        CANCELLED = counter "guildhall_operations_cancelled_total";
        /// Dead letters and operations in need of review that were redriven.
        REDRIVEN = counter "guildhall_dead_letters_redriven_total";
        /// Dead letters discarded.
        DISCARDED = counter "guildhall_dead_letters_discarded_total";
        /// Operations refused because they name a channel, webhook or guild of another caller, by where that was
        /// detected.
        FOREIGN_TARGETS = counter "guildhall_operations_elsewhere_total" [at];
        /// Operations refused because their key lacks the scope danger: at submission, redrive or retry, or at
        /// dispatch.
        DANGER_REFUSED = counter "guildhall_operations_danger_refused_total" [at];
        /// Operations refused because their interaction was not received or has expired, by where: submission or
        /// redrive.
        NOT_RECEIVED = counter "guildhall_operations_interaction_not_received_total" [at];
    }
    Api {
        /// Callers that wait for the final state of their operations.
        WAITERS = gauge "guildhall_api_waiters";
    }
}

event! {
    /// An idempotency key was repeated with the same payload.
    pub(crate) struct IdempotencyKeyHit { by: &'static str }
    counter!(KEY_HITS, "by" => by).increment(1);
}

event! {
    /// An idempotency key was used for the first time.
    pub(crate) struct IdempotencyKeyMiss;
    counter!(KEY_MISSES).increment(1);
}

event! {
    /// A caller named a channel, webhook or guild that it may not use.
    pub struct ForeignTargetRefused {
        /// Where it was detected: `submission`, `dispatch` or `egress`.
        at: &'static str,
    }
    info!(at, "operation refused: it names an object that its caller may not use");
    counter!(FOREIGN_TARGETS, "at" => at).increment(1);
}

event! {
    /// An operation needs the scope `danger`, and its key does not have it.
    pub struct DangerRefused<'a> {
        /// Where it was detected: `submission` or `dispatch`.
        at: &'static str,
        /// Effect of the operation.
        danger: &'a Danger,
    }
    // Not a warning: one submission can have many.
    debug!(at, effect = %danger, "operation refused: its key lacks the scope danger");
    counter!(DANGER_REFUSED, "at" => at).increment(1);
}

event! {
    /// Operations were refused because their interactions were not received or have expired.
    pub(crate) struct InteractionsNotReceived {
        /// `submission` or `redrive`.
        at: &'static str,
        count: usize,
    }
    info!(at, count, "operations refused: interaction not received or expired");
    counter!(NOT_RECEIVED, "at" => at).increment(count as u64);
}

event! {
    /// The number of waiting callers has changed.
    pub(crate) struct WaitersCounted { count: usize }
    gauge!(WAITERS).set(count as f64);
}

event! {
    /// An operation was cancelled by a caller.
    pub(crate) struct OperationCancelled { id: OperationId }
    info!(operation_id = %id, "operation cancelled");
    counter!(CANCELLED).increment(1);
}

event! {
    /// An operation was made due by a caller.
    pub(crate) struct OperationExpedited { id: OperationId }
    info!(operation_id = %id, "operation expedited by the API");
}

event! {
    /// Operations were paused or resumed by a caller.
    pub(crate) struct PauseChanged { target: PauseTarget, paused: bool }
    let guild_id = match target {
        PauseTarget::Queue(Queue::Guild(guild)) => Some(guild),
        PauseTarget::Queue(Queue::Keyed(_)) | PauseTarget::All => None,
    };
    let everything = target == PauseTarget::All;
    match paused {
        true => info!(guild_id, everything, "operations paused"),
        false => info!(guild_id, everything, "operations resumed"),
    }
}

event! {
    /// Dead letters were redriven.
    pub(crate) struct DeadLettersRedriven { count: u64 }
    info!(count, "operations redriven");
    counter!(REDRIVEN).increment(count);
}

event! {
    /// Dead letters were discarded.
    pub(crate) struct DeadLettersDiscarded { count: u64 }
    info!(count, "dead letters discarded");
    counter!(DISCARDED).increment(count);
}
